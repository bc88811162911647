"""1,000 subscribers of server-sent events, 50 of them stuck, against 10: how long an event takes to the others.

Each subscriber follows a session of its own, and one busy session is followed by the stuck ones, which never read. Prints
p50 and p99 from call to event, and the node's memory. Needs SESSION_MANAGER (the program).
"""
import asyncio, json, os, subprocess, tempfile, time

PROGRAM = os.environ["SESSION_MANAGER"]
EVENTS = int(os.environ.get("EVENTS", "1000"))
RATE = 100


async def call(port, function, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body)
    writer.write(f"POST /v1/call/{function} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer


def message(words):
    return {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": words}]}


async def follow(port, session):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/events?session={session}&type=message-added HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    await reader.readuntil(b"id: ")
    return reader, writer


def resident_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024


async def run(port, pid, subscribers, stuck):
    sessions = [f"crowd-{subscribers}-{n}" for n in range(subscribers - stuck)]
    for session in sessions + ["busy"]:
        await call(port, "session::ensure", {"session_id": session})
    readers = {session: await follow(port, session) for session in sessions}
    blocked = [await follow(port, "busy") for _ in range(stuck)]
    sent, times = {}, []

    async def listen(session, reader):
        while True:
            line = await reader.readline()
            if line.startswith(b"data: "):
                times.append(time.perf_counter() - sent[session])

    listening = [asyncio.create_task(listen(session, pair[0])) for session, pair in readers.items()]
    begun, before = time.perf_counter(), resident_mib(pid)
    for n in range(EVENTS):
        await asyncio.sleep(max(0, begun + n / RATE - time.perf_counter()))
        session = sessions[n % len(sessions)]
        sent[session] = time.perf_counter()
        await call(port, "session::append", {"session_id": session, "message": message("x" * 1024)})
        if stuck and n % 5 == 0:
            await call(port, "session::append", {"session_id": "busy", "message": message("y" * 65536)})
    for _ in range(500):
        if len(times) == EVENTS:
            break
        await asyncio.sleep(0.02)
    for task in listening:
        task.cancel()
    for _, writer in list(readers.values()) + blocked:
        writer.close()
    assert len(times) == EVENTS, f"{len(times)} of {EVENTS} events came"
    times.sort()
    p50, p99 = times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000
    print(f"{subscribers} subscribers, {stuck} stuck: {EVENTS} events, p50 {p50:.2f} ms, p99 {p99:.2f} ms, "
          f"memory {before} -> {resident_mib(pid)} MiB", flush=True)
    return p50


async def main(port, pid):
    few = await run(port, pid, 10, 0)
    many = await run(port, pid, 1000, 50)
    print(f"p50 with 1,000 subscribers, 50 of them stuck, is {many / few:.2f} times that with 10")


with tempfile.TemporaryDirectory() as directory:
    port_file = os.path.join(directory, "port")
    node = subprocess.Popen([PROGRAM, "--listen", "127.0.0.1:0", "--data-dir", os.path.join(directory, "data"),
                             "--port-file", port_file], stderr=subprocess.DEVNULL)
    try:
        while not os.path.exists(port_file) or not open(port_file).read():
            time.sleep(0.05)
        asyncio.run(main(int(open(port_file).read()), node.pid))
    finally:
        node.kill()
        node.wait()
