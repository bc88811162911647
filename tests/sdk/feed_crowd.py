"""Compares 1,000 subscribers of server-sent events, 50 of them stuck, with 10: how long an event takes to the others.

It runs three times: each subscriber follows its own session (and the stuck ones follow a busy session and never read); all
subscribers follow one session; 1,000 subscribers are all stuck, each at another position of the feed. It prints p50 and
p99 from call to event, and the node's memory. It fails if an event is missing, if the 1,000 with their own sessions wait
more than twice as long as the 10, or if the stuck ones take too much memory. Needs SESSION_MANAGER (the program);
SUBSCRIBERS, STUCK and EVENTS make it smaller.
"""
import asyncio, json, os, resource, socket, subprocess, sys, tempfile, time

PROGRAM = os.environ["SESSION_MANAGER"]
SUBSCRIBERS = int(os.environ.get("SUBSCRIBERS", "1000"))
STUCK = int(os.environ.get("STUCK", "50"))
EVENTS = int(os.environ.get("EVENTS", "1000"))
RATE = 100
# An event of a session with many subscribers costs one write per subscriber.
RATE_OF_ONE = 5
# Memory that stuck subscribers may take: buffers, socket and tasks of each, and what all of them share.
STUCK_KIB_MAX, SHARED_MIB_MAX = 250, 64


async def call(port, function, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = json.dumps(body)
    writer.write(f"POST /v1/call/{function} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer


def message(words):
    return {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": words}]}


class Follower(asyncio.Protocol):
    """Follows a session and calls `heard` for each event. A stuck subscriber stops reading at once."""

    def __init__(self, query, heard=None):
        self.query, self.heard, self.begun = query, heard, asyncio.get_running_loop().create_future()
        self.tail = b""

    def connection_made(self, transport):
        self.transport = transport
        transport.write(f"GET /v1/events?{self.query} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())

    def data_received(self, data):
        if not self.begun.done():
            self.begun.set_result(data)
            if self.heard is None:
                self.transport.pause_reading()
                return
        data = self.tail + data
        self.tail = data[-6:]  # keeps the start of a separator that is split between two reads
        for _ in range(data.count(b"\ndata: ")):
            self.heard()

    def connection_lost(self, _):
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("the node refused a subscriber"))


async def follow(port, query, heard=None):
    loop, connection = asyncio.get_running_loop(), socket.socket()
    if heard is None:
        # A small buffer: otherwise the kernel buffers megabytes before the node notices the stuck reader.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    _, follower = await loop.create_connection(lambda: Follower(query, heard), sock=connection)
    told = await asyncio.wait_for(follower.begun, 30)
    assert b"text/event-stream" in told, told
    return follower


def resident_mib(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024


async def run(port, pid, subscribers, stuck, one_session):
    name = f"crowd-{subscribers}-{one_session}"
    sessions = [name] if one_session else [f"{name}-{n}" for n in range(subscribers - stuck)]
    busy = name if one_session else "busy"
    for session in set(sessions + [busy]):
        await call(port, "session::ensure", {"session_id": session})
    sent, times = {}, []
    followers = [await follow(port, f"session={busy}&type=message-added") for _ in range(stuck)]
    for n in range(subscribers - stuck):
        session = sessions[n % len(sessions)]
        heard = lambda session=session: times.append(time.perf_counter() - sent[session])
        followers.append(await follow(port, f"session={session}&type=message-added", heard))
    events, rate = (EVENTS // 10, RATE_OF_ONE) if one_session else (EVENTS, RATE)
    due = events * (subscribers - stuck if one_session else 1)
    begun, before = time.perf_counter(), resident_mib(pid)
    for n in range(events):
        await asyncio.sleep(max(0, begun + n / rate - time.perf_counter()))
        session = sessions[n % len(sessions)]
        sent[session] = time.perf_counter()
        await call(port, "session::append", {"session_id": session, "message": message("x" * 1024)})
        if stuck and not one_session and n % 5 == 0:
            await call(port, "session::append", {"session_id": busy, "message": message("y" * 65536)})
    for _ in range(1500):
        if len(times) >= due:
            break
        await asyncio.sleep(0.02)
    after = resident_mib(pid)
    for follower in followers:
        follower.transport.abort()
    assert len(times) == due, f"{len(times)} of {due} deliveries came"
    times.sort()
    p50, p99 = times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000
    where = "one session" if one_session else "sessions of their own"
    print(f"{subscribers} subscribers of {where}, {stuck} stuck: {events} events, {due} deliveries, each once, "
          f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, memory {before} -> {after} MiB", flush=True)
    return p50


async def all_stuck(port, pid):
    """Each starts at the oldest event and reads nothing, so that the node must hold data for each of them."""
    await asyncio.sleep(1)
    before = resident_mib(pid)
    followers = [await follow(port, "after=oldest") for _ in range(SUBSCRIBERS)]
    highest, quiet = resident_mib(pid), 0
    while quiet < 10:
        await asyncio.sleep(0.3)
        now = resident_mib(pid)
        quiet = 0 if now > highest else quiet + 1
        highest = max(highest, now)
    for follower in followers:
        follower.transport.abort()
    grown, most = highest - before, SHARED_MIB_MAX + SUBSCRIBERS * STUCK_KIB_MAX // 1024
    print(f"{SUBSCRIBERS} subscribers, all stuck in the kept feed: memory {before} -> {highest} MiB, "
          f"{grown * 1024 // SUBSCRIBERS} KiB for each", flush=True)
    if grown > most:
        sys.exit(f"FAILED: they may cost {most} MiB together, and cost {grown}")


async def main(port, pid):
    for one_session in (False, True):
        few = await run(port, pid, 10, 0, one_session)
        many = await run(port, pid, SUBSCRIBERS, STUCK, one_session)
        where = "of one session" if one_session else "of their own sessions"
        print(f"p50 with {SUBSCRIBERS} subscribers {where}, {STUCK} of them stuck, is {many / few:.2f} times that with 10",
              flush=True)
        # The limit is for a thousand subscribers; a short run on a busy machine is too noisy.
        if not one_session and SUBSCRIBERS >= 1000 and many > 2 * few:
            sys.exit("FAILED: the crowd waits more than twice as long")
    await all_stuck(port, pid)


# Every subscriber needs one connection here and one at the node.
descriptors = 2 * SUBSCRIBERS + 500
resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
                                            resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
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
