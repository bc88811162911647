"""Checks of the Python SDK beyond the quickstart. Exits 0 when all of them hold."""
import os
from iii import register_worker

worker = register_worker(os.environ["III_URL"])


def call(function_id, payload):
    return worker.trigger({"function_id": function_id, "payload": payload})


def refused(function_id, payload):
    try:
        answer = call(function_id, payload)
    except Exception as error:  # the SDK's own error type, whose text is what users match on
        return str(error)
    raise AssertionError(f"{function_id} was not refused: {answer}")


def user(words):
    return {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": words}]}


# A payload of null leaves `data` out of the frame.
assert isinstance(call("session::list", None)["sessions"], list)
session_id = "../escape/chat 42:? 🦀 python"
call("session::ensure", {"session_id": session_id})
first = call("session::append", {"session_id": session_id, "entry_id": "é", "message": user("one")})
again = call("session::append", {"session_id": session_id, "entry_id": "é", "message": user("two")})
assert first == again, (first, again)
assert call("session::get", {"session_id": "nobody"}) is None
assert "session/not_found" in refused("session::messages", {"session_id": "nobody"})
assert "session/invalid_request" in refused("session::append", {"session_id": session_id})
assert "session/invalid_request" in refused("session::set-status", {"session_id": session_id, "status": "asleep"})
# Frames above 16 MiB travel in fragments; the message itself is too large to be stored.
assert "session/invalid_request" in refused("session::append", {"session_id": session_id, "message": user("x" * (20 << 20))})
call("session::append", {"session_id": session_id, "message": user("y" * (12 << 20))})
page = call("session::messages", {"session_id": session_id})["messages"]
assert [len(item["message"]["content"][0]["text"]) for item in page] == [3, 12 << 20], "the large message reads back"
# Calls between workers go through the same bus.
worker.register_function("python::double", lambda data: {"twice": data["n"] * 2})
other = register_worker(os.environ["III_URL"])
assert other.trigger({"function_id": "python::double", "payload": {"n": 21}})["twice"] == 42
listed = call("engine::functions::list", {})
assert "session::append" in str(listed) and "python::double" in str(listed)
other.shutdown()
worker.shutdown()
print("all checks hold")
