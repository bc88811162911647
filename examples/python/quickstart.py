"""A session, its events and its messages, with the Python SDK: pip install iii-sdk==0.25.0"""
import os, queue, time
from iii import register_worker

worker = register_worker(os.environ.get("III_URL", "ws://127.0.0.1:49134"))
events = queue.Queue()


def call(function_id, **payload):
    return worker.trigger({"function_id": function_id, "payload": payload})


def text(words):
    return [{"type": "text", "text": words}]


def listen(session_id, kind):
    async def handler(event, metadata):
        events.put((kind, metadata["session-manager"]["seq"], event["message"]))

    function_id = f"quickstart::{session_id}::{kind}"
    worker.register_function(function_id, handler)
    worker.register_trigger({
        "type": f"session::{kind}", "function_id": function_id, "config": {"session_id": session_id},
    })


# 1. Create a session and subscribe to its events.
session_id = call("session::create", title="Quickstart")["session_id"]
for kind in ("message-added", "message-updated"):
    listen(session_id, kind)

# 2. Append a question and an empty answer. Update the answer as a model streams it.
now = int(time.time() * 1000)
call("session::append", session_id=session_id,
     message={"role": "user", "timestamp": now, "content": text("What is a log?")})
entry_id = call("session::append", session_id=session_id,
                message={"role": "assistant", "timestamp": now, "content": [],
                         "model": "m", "provider": "p", "stop_reason": "end"})["entry_id"]
for words in ("An ordered", "An ordered list of facts."):
    call("session::update-message", session_id=session_id, entry_id=entry_id, content=text(words))

# 3. Print the events, then the stored messages.
for _ in range(4):
    print(*events.get(timeout=10))
for item in call("session::messages", session_id=session_id)["messages"]:
    print(item["message"]["role"], item["message"]["content"])
worker.shutdown()
