#!/bin/sh
# A session of an agent with curl. A driver must run: AGENT_ID=main cargo run --example echo-driver
set -eu
agent="${NODE_URL:-http://127.0.0.1:49134}/api/agents/main"
ask() { curl -sSN --fail-with-body -H 'authorization: Bearer any' -H 'content-type: application/json' "$@" && echo; }

ask -d '{"sessionId": "cli:work", "source": {"kind": "cli", "interactive": true}}' "$agent/sessions"
ask -d '{"text": "one two three"}' "$agent/sessions/cli%3Awork/messages?stream=true"
ask "$agent/sessions/cli%3Awork/messages"
