#!/usr/bin/env bash
# curl as a subscriber: with Last-Event-ID it receives exactly the events that it missed between two connections.
set -euo pipefail
node="${NODE_URL:-http://127.0.0.1:49134}"
session="curl-events-$$"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

call() { curl -sfS -d "$2" "$node/v1/call/$1" >/dev/null; }
append() {
    call session::append "{\"session_id\":\"$session\",\"entry_id\":\"$1\",\"message\":{\"role\":\"user\",\"timestamp\":1,\"content\":[]}}"
}
# Follows the stream until it has seen $1 events, or 10 s have passed.
follow() {
    local count="$1"
    shift
    timeout 10 curl -sN "$@" "$node/v1/events?session=$session&type=message-added" >"$work/out" &
    local follower=$!
    for _ in $(seq 100); do
        [ "$(grep -c '^data: ' "$work/out" || true)" -ge "$count" ] && break
        sleep 0.1
    done
    kill "$follower" 2>/dev/null || true
    wait "$follower" 2>/dev/null || true
}
entries() { sed -n 's/^data: .*"entry_id":"\([^"]*\)".*/\1/p' "$work/out" | tr '\n' ' '; }

call session::ensure "{\"session_id\":\"$session\"}"
append a
append b
follow 2 -H "Last-Event-ID: oldest"
[ "$(entries)" = "a b " ] || { echo "FAILED: the first connection got: $(entries)" >&2; exit 1; }
last="$(sed -n 's/^id: //p' "$work/out" | tail -1)"
append c
append d
follow 2 -H "Last-Event-ID: $last"
[ "$(entries)" = "c d " ] || { echo "FAILED: after $last came: $(entries)" >&2; exit 1; }
refused="$(curl -s -H 'Last-Event-ID: nonsense' "$node/v1/events")"
case "$refused" in *'Last-Event-ID: `nonsense` is not a position'*) ;; *) echo "FAILED: $refused" >&2; exit 1 ;; esac
echo "curl got a b, then exactly c d after $last"
