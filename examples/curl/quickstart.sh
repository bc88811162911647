#!/bin/sh
# A session with curl. Its events come from `session-manager tail`.
set -eu
node="${NODE_URL:-http://127.0.0.1:49134}"
program="${SESSION_MANAGER:-target/release/session-manager}"
now="$(date +%s)000"

call() { curl -sS --fail-with-body -H 'content-type: application/json' -d "$2" "$node/v1/call/$1" && echo; }
field() { sed 's/.*"'"$1"'":"\([^"]*\)".*/\1/'; }

# 1. Create a session and print its events in the background.
session="$(call session::create '{"title": "Quickstart"}' | field session_id)"
"$program" tail --session "$session" --url "ws://${node#http://}" & tail=$!
sleep 1

# 2. Append a question and an empty answer. Update the answer as a model streams it.
call session::append '{"session_id": "'"$session"'", "message":
  {"role": "user", "timestamp": '"$now"', "content": [{"type": "text", "text": "What is a log?"}]}}'
entry="$(call session::append '{"session_id": "'"$session"'", "message":
  {"role": "assistant", "timestamp": '"$now"', "content": [], "model": "m", "provider": "p", "stop_reason": "end"}}' |
  field entry_id)"
for text in 'An ordered' 'An ordered list of facts.'; do
  call session::update-message '{"session_id": "'"$session"'", "entry_id": "'"$entry"'",
    "content": [{"type": "text", "text": "'"$text"'"}]}'
done

# 3. Read the stored messages.
call session::messages '{"session_id": "'"$session"'"}'
sleep 1
kill -INT "$tail" && wait "$tail"
