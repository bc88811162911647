"""The smallest whole driver: it repeats what it is told, word by word. pip install iii-sdk==0.25.0

A driver binds session::turn::requested, claims the turn, emits batches of events and ends the turn.
`python echo_driver.py --ask "some words"` asks for a turn itself, prints the answer and ends.
With AGENT_ID=main it serves the sessions of that agent, as CLIs and chats open them at /api/agents/main.
"""
import os, sys, threading, time
from iii import register_worker

worker = register_worker(os.environ.get("III_URL", "ws://127.0.0.1:49134"))
driver_id = f"echo-py-{os.getpid()}"
agent_type, agent_id = os.environ.get("AGENT_TYPE", "echo-py"), os.environ.get("AGENT_ID")
serves = {"agent_ids": [agent_id]} if agent_id else {"agent_types": [agent_type]}
stopped = set()


def call(function_id, **payload):
    return worker.trigger({"function_id": function_id, "payload": payload})


def emit(turn_id, n, *events):
    call("session::turn::emit", turn_id=turn_id, driver_id=driver_id, n=n, events=list(events))


def run(turn):
    turn_id = turn["turn_id"]
    if not call("session::turn::claim", turn_id=turn_id, driver_id=driver_id)["claimed"]:
        return  # another driver was faster
    n, said = 1, ""
    for word in turn["text"].split(" "):
        if turn_id in stopped:
            return
        word = word if not said else " " + word
        said += word
        emit(turn_id, n, {"type": "text_delta", "text": word})
        n += 1
        time.sleep(0.05)  # a batch is one entry of the log: collect deltas for 50 ms
    emit(turn_id, n, {"type": "turn_complete", "finalText": said})


async def on_turn(turn):
    threading.Thread(target=run, args=(turn,), daemon=True).start()


async def on_command(command):
    if command["driver_id"] != driver_id:
        return
    if command["command"] == "stop":
        stopped.add(command["turn_id"])
    threading.Thread(
        target=lambda: call("session::turn::ack", command_id=command["command_id"], driver_id=driver_id), daemon=True
    ).start()


for kind, handler in (("requested", on_turn), ("command", on_command)):
    worker.register_function(f"{driver_id}::{kind}", handler)
    worker.register_trigger({
        "type": f"session::turn::{kind}", "function_id": f"{driver_id}::{kind}",
        "config": {**serves, "driver_id": driver_id},
    })
of_mine = {"agent_id": agent_id} if agent_id else {"agent_type": agent_type}
for waiting in call("session::turn::pending", **of_mine)["turns"]:
    threading.Thread(target=run, args=(waiting,), daemon=True).start()
print(f"{driver_id} serves turns of {of_mine}", flush=True)

if "--ask" not in sys.argv:
    threading.Event().wait()
words = sys.argv[sys.argv.index("--ask") + 1]
session_id = call("session::create", title="Echo")["session_id"]
call("session::turn::ask", session_id=session_id, text=words, **of_mine)
state = None
while state not in ("ready", "error"):
    found = call("session::turn::state", session_id=session_id)
    state = found["state"]
    print(found["head_seq"], "so far:", found.get("current_turn", {}).get("text_so_far"))
    time.sleep(0.1)
for item in call("session::messages", session_id=session_id)["messages"]:
    print(item["message"]["role"], item["message"]["content"])
for event in call("session::turn::events", session_id=session_id)["events"]:
    print(event["seq"], event["type"])
worker.shutdown()
