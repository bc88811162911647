"""Many followers of one stream over three nodes: how long a delta takes from its driver to them.

A driver at one node emits RATE deltas a second, each in a batch of its own. FOLLOWERS front-ends follow the session, spread
over the nodes: first through the gateway, then through the gateway beside STUCK followers that never read, then through
server-sent events of the same stream. Each delta carries the time when it was emitted. Prints p50 and p99, the CPU of the
nodes and their memory. It fails if a follower misses an event, or if the stuck ones take too much memory. Needs
SESSION_MANAGER (the program); FOLLOWERS (1000), RATE (50), SECONDS (10) and STUCK (50) say how much. With BROWSERS (0),
so many headless Chromiums hold SOCKETS (50) of the gateway's followers each.
"""
import array, base64, json, multiprocessing, os, re, resource, select, shutil, socket, struct, subprocess, sys
import tempfile, threading, time

from browsers import Browsers

PROGRAM = os.environ["SESSION_MANAGER"]
FOLLOWERS = int(os.environ.get("FOLLOWERS", "1000"))
RATE = int(os.environ.get("RATE", "50"))
SECONDS = float(os.environ.get("SECONDS", "10"))
STUCK = int(os.environ.get("STUCK", "50"))
BROWSERS, SOCKETS = int(os.environ.get("BROWSERS", "0")), int(os.environ.get("SOCKETS", "50"))
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
SETTLE_MAX = 90
# Memory that a stuck follower may take: what it leaves unread, its socket and its tasks.
STUCK_KIB_MAX, SHARED_MIB_MAX = 1024, 64
DELTA = re.compile(rb'"text":"(\d{10,20}) ')
TICK_S, PAGE_KIB = 1 / os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE") // 1024


class Failed(Exception):
    pass


def text_frame(message):
    """A masked text frame."""
    data = json.dumps(message).encode()
    length = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0x80 | 126, len(data))
    mask = b"abcd"
    return b"\x81" + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


def read_frame(stream):
    """The next frame of the node as JSON. A node masks nothing."""
    while True:
        kind, length = stream.read(1)[0] & 15, stream.read(1)[0]
        if length == 126:
            length = struct.unpack("!H", stream.read(2))[0]
        elif length == 127:
            length = struct.unpack("!Q", stream.read(8))[0]
        data = stream.read(length)
        if kind == 1:
            return json.loads(data)
        if kind == 8:
            raise Failed(f"the node closed a connection: {data}")


class Client:
    """A connection to the gateway that waits for its answers."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, 30)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(f"GET /ws HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
                            f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n".encode())
        self.stream = self.socket.makefile("rb")
        while self.stream.readline() not in (b"\r\n", b""):
            pass
        self.wait_for("authenticated")

    def send(self, **message):
        self.socket.sendall(text_frame(message))

    def wait_for(self, kind):
        while True:
            frame = read_frame(self.stream)
            if frame["type"] == kind:
                return frame
            if frame["type"] == "error":
                raise Failed(f"{kind} was expected: {frame}")


def follow_gateway(address, session):
    client = Client(address)
    client.send(type="join_session", sessionId=session)
    client.wait_for("stream_snapshot")
    return client.socket


def follow_events(address, session):
    sock = socket.create_connection(address, 30)
    sock.sendall(f"GET /v1/events?session={session}&type=session::stream::event HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    if not sock.recv(4096).startswith(b"HTTP/1.1 200"):
        raise Failed("the node refused a subscriber")
    return sock


def crowd(follow, addresses, session, count, pipe):
    """A process of its own: reads all followers and returns how long each delta took."""
    sockets, tails, latencies = {}, {}, array.array("q")
    poll = select.epoll()
    for number in range(count):
        sock = follow(addresses[number % len(addresses)], session)
        sock.setblocking(False)
        sockets[sock.fileno()], tails[sock.fileno()] = sock, b""
        poll.register(sock.fileno(), select.EPOLLIN)
    pipe.send("ready")
    wanted, seen = None, 0
    began = None
    while wanted is None or seen < wanted:
        for fd, _ in poll.poll(0.2):
            try:
                data = sockets[fd].recv(1 << 16)
            except BlockingIOError:
                continue
            if not data:
                pipe.send((seen, latencies.tobytes()))
                return
            now, data, end = time.monotonic_ns(), tails[fd] + data, 0
            for found in DELTA.finditer(data):
                latencies.append(now - int(found.group(1)))
                seen, end = seen + 1, found.end()
            tails[fd] = data[max(end, len(data) - 40):]
        if wanted is None and pipe.poll():
            wanted, began = pipe.recv(), time.monotonic()
        if began and time.monotonic() - began > SETTLE_MAX:
            break
    pipe.send((seen, latencies.tobytes()))


# Each frame is parsed, as a front-end would. The page and the driver have the same clock.
PAGE = """<!doctype html><script type="module">
const { session, addresses, sockets } = await (await fetch('/terms')).json()
const tell = (path, body) => fetch(path, { method: 'POST', body: JSON.stringify(body) })
const latencies = []
let joined = 0, ended = 0
for (let number = 0; number < sockets; number++) {
  const socket = new WebSocket(`ws://${addresses[number % addresses.length]}/ws`)
  socket.onmessage = ({ data }) => {
    const now = performance.timeOrigin + performance.now(), frame = JSON.parse(data)
    if (frame.type === 'text_delta') latencies.push(now - Number(frame.text.split(' ')[1]) / 1e6)
    if (frame.type === 'authenticated') socket.send(JSON.stringify({ type: 'join_session', sessionId: session }))
    if (frame.type === 'stream_snapshot' && ++joined === sockets) tell('/ready', [])
    if (frame.type === 'turn_complete' && ++ended === sockets) tell('/report', latencies)
  }
}
</script>"""


class Crowd(Browsers):
    """Headless browsers that follow a session."""
    running = []

    def __init__(self, nodes, session, directory):
        self.ready, self.reports = 0, []
        terms = {"session": session, "sockets": SOCKETS, "addresses": ["%s:%d" % address for address in nodes.addresses]}
        super().__init__(CHROMIUM, PAGE, lambda path: terms if path == "/terms" else None, self.reported)
        Crowd.running.append(self)
        for number in range(BROWSERS):
            self.open("", f"{directory}/browser-{session}-{number}")

    def reported(self, path, body):
        if path == "/ready":
            self.ready += 1
        else:
            self.reports.append(body)

    def wait(self, what, is_there):
        begun = time.monotonic()
        while not is_there():
            if time.monotonic() - begun > SETTLE_MAX:
                raise Failed(f"the browsers did not {what}")
            time.sleep(0.05)

    @staticmethod
    def stop_all():
        while Crowd.running:
            Crowd.running.pop().stop()


class Nodes:
    def __init__(self, directory):
        self.known = {}
        self.process = subprocess.Popen([PROGRAM, "dev", "--json", "--nodes", "3", "--data-dir", directory],
                                        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        begun = time.monotonic()
        while len(self.known) < 3:
            if time.monotonic() - begun > SETTLE_MAX:
                raise Failed("the cluster does not start")
            time.sleep(0.05)
        urls = [self.known[name]["client"].rsplit("/", 1)[-1].split(":") for name in sorted(self.known)]
        self.addresses = [(host, int(port)) for host, port in urls]

    def read(self):
        for line in self.process.stdout:
            node = json.loads(line)
            self.known[node["node"]] = node

    def cpu_s(self):
        total = 0
        for node in self.known.values():
            fields = open(f"/proc/{node['pid']}/stat").read().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) * TICK_S
        return total

    def memory_mib(self):
        return [int(open(f"/proc/{node['pid']}/statm").read().split()[1]) * PAGE_KIB / 1024 for node in self.known.values()]


def run_turn(nodes, driver, asker, session):
    asker.send(type="run_turn", sessionId=session, text="go")
    command = driver.wait_for("driver_command")
    driver.send(type="command_result", command_id=command["command_id"], accepted=True)
    driver.wait_for("turn_claimed")
    return command["turn_id"]


def spread(latencies_ms):
    ordered = sorted(latencies_ms)
    at = lambda share: ordered[min(len(ordered) - 1, int(len(ordered) * share))]
    return f"p50 {at(0.5):.1f} ms, p99 {at(0.99):.1f} ms, max {at(1):.1f} ms"


def measure(name, follow, nodes, driver, asker, stuck=0, browsers_in=None):
    asker.send(type="create_session", agentType="crowd")
    session = asker.wait_for("session_created")["session"]["id"]
    turn_id = run_turn(nodes, driver, asker, session)
    stuck_ones = [follow(nodes.addresses[number % 3], session) for number in range(stuck)]
    ours, theirs = multiprocessing.Pipe()
    count = FOLLOWERS - (BROWSERS * SOCKETS if browsers_in else 0)
    reader = multiprocessing.Process(target=crowd, args=(follow, nodes.addresses, session, count, theirs), daemon=True)
    reader.start()
    ours.recv()
    browsers = Crowd(nodes, session, browsers_in) if browsers_in else None
    if browsers:
        browsers.wait("join", lambda: browsers.ready == BROWSERS)
    before, began, cpu = nodes.memory_mib(), time.monotonic(), nodes.cpu_s()
    deltas = int(RATE * SECONDS)
    for n in range(1, deltas + 1):
        pause = began + (n - 1) / RATE - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        event = {"type": "text_delta", "text": f"{time.monotonic_ns()} {time.time_ns()} "}
        driver.send(type="emit", turn_id=turn_id, n=n, events=[event])
        driver.wait_for("emitted")
    took, cpu, memory = time.monotonic() - began, nodes.cpu_s() - cpu, nodes.memory_mib()
    ours.send(deltas * count)
    seen, raw = ours.recv()
    latencies = array.array("q")
    latencies.frombytes(raw)
    for sock in stuck_ones:
        sock.close()
    reader.join()
    driver.send(type="emit", turn_id=turn_id, n=deltas + 1, events=[{"type": "turn_complete", "finalText": "done"}])
    driver.wait_for("emitted")
    if seen != deltas * count:
        raise Failed(f"{name}: {seen} of {deltas * count} deltas came")
    if browsers:
        browsers.wait("see the end", lambda: len(browsers.reports) == BROWSERS)
        browsers.stop()
        shown = [latency for report in browsers.reports for latency in report]
        if len(shown) != deltas * BROWSERS * SOCKETS:
            raise Failed(f"{name}: {len(shown)} of {deltas * BROWSERS * SOCKETS} deltas came to the browsers")
        print(f"{name}: in {BROWSERS} browsers with {SOCKETS} sockets each {len(shown)} delivered; {spread(shown)}", flush=True)
    seen = deltas * FOLLOWERS
    print(f"{name}: {deltas} deltas at {deltas / took:.1f}/s to {FOLLOWERS} followers, {seen} delivered; "
          f"{spread([latency / 1e6 for latency in latencies])}; CPU of the nodes {cpu / took:.2f} cores, "
          f"{cpu / seen * 1e6:.1f} µs per delivery; memory MiB {'/'.join(f'{mib:.0f}' for mib in memory)} "
          f"(before: {'/'.join(f'{mib:.0f}' for mib in before)})", flush=True)
    return max(after - first for after, first in zip(memory, before))


def main(nodes, directory):
    driver, asker = Client(nodes.addresses[0]), Client(nodes.addresses[1])
    driver.send(type="attach_driver", driver_id="crowd", agent_types=["crowd"])
    driver.wait_for("driver_attached")
    measure("gateway", follow_gateway, nodes, driver, asker)
    if BROWSERS and CHROMIUM:
        measure("gateway with browsers", follow_gateway, nodes, driver, asker, browsers_in=directory)
    elif BROWSERS:
        print("SKIPPED: chromium is not installed; no browser followed")
    grown = measure(f"gateway beside {STUCK} stuck followers", follow_gateway, nodes, driver, asker, STUCK)
    measure("server-sent events", follow_events, nodes, driver, asker)
    if grown > SHARED_MIB_MAX + STUCK * STUCK_KIB_MAX / 1024:
        raise Failed(f"{STUCK} stuck followers took {grown:.0f} MiB of a node")


resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
    nodes = Nodes(directory)
    code = 0
    try:
        main(nodes, directory)
    except Failed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        code = 1
    finally:
        Crowd.stop_all()
        nodes.process.terminate()
        nodes.process.wait()
sys.exit(code)
