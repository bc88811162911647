"""Three nodes, a driver, three front-ends and two browsers, one turn of many deltas, and the leader killed with -9.

A client that loses its node goes on at the next one with its last number. Every front-end must end with the same text,
see every kept event once, never two events with one number, and know every other number as a gap. Prints the counts.
Needs SESSION_MANAGER (the program); KILLS (default 2), DELTAS (default 2000) and BROWSERS (default 2) say how much.
Without chromium there are no browsers, and it says so.
"""
import asyncio, json, os, shutil, signal, sys, tempfile, time, traceback
from browsers import Browsers
from dev_cluster import DevCluster
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

KILLS = int(os.environ.get("KILLS", "2"))
DELTAS = int(os.environ.get("DELTAS", "2000"))
BROWSERS = int(os.environ.get("BROWSERS", "2"))
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
BATCH = 5
SETTLE_MAX = 90
LOST = (OSError, WebSocketException, asyncio.TimeoutError)


class Failed(Exception):
    pass


class Cluster(DevCluster):
    def __init__(self, directory):
        super().__init__(directory, SETTLE_MAX)

    def url(self, turn):
        names = sorted(self.nodes)
        return self.nodes[names[turn % len(names)]]["client"] + "/ws"


class Client:
    """A connection that goes to the next node when its node is lost."""

    def __init__(self, cluster, start):
        self.cluster, self.turn, self.socket, self.moves, self.lost = cluster, start, None, -1, []

    async def open(self):
        while True:
            try:
                self.socket = await connect(self.cluster.url(self.turn), max_size=None, open_timeout=5)
                self.moves += 1
                await self.wait_for("authenticated")
                return
            except LOST:
                self.turn += 1
                await asyncio.sleep(0.1)

    async def next(self):
        return json.loads(await asyncio.wait_for(self.socket.recv(), 40))

    async def wait_for(self, kind):
        while True:
            frame = await self.next()
            if frame["type"] == kind:
                return frame

    async def send(self, **message):
        await self.socket.send(json.dumps(message))

    async def lose(self, error):
        self.turn += 1
        self.lost.append(repr(error)[:200])
        try:
            await asyncio.wait_for(self.socket.close(), 1)
        except Exception:
            pass


class Driver(Client):
    """Runs one turn: many deltas, a tool call in the middle, and the end. A batch is sent until it is acknowledged."""

    def __init__(self, cluster):
        super().__init__(cluster, 0)
        self.words = [f"word{number} " for number in range(DELTAS)]
        self.turn_id, self.n, self.emitted, self.attached = None, 1, 0, asyncio.Event()

    def batches(self):
        for at in range(0, DELTAS, BATCH):
            yield [{"type": "text_delta", "text": word} for word in self.words[at:at + BATCH]]
            if at == DELTAS // 2 // BATCH * BATCH:
                yield [{"type": "tool_call", "toolCallId": "c1", "toolName": "ls", "args": {"path": "."}}]
                yield [{"type": "tool_result", "toolCallId": "c1", "status": "success", "output": "a b"}]
        yield [{"type": "turn_complete", "finalText": "".join(self.words)}]

    async def run(self):
        batches = list(self.batches())
        while self.n <= len(batches):
            try:
                await self.open()
                await self.send(type="attach_driver", driver_id="script", agent_types=["script"], families=["files"])
                await self.wait_for("driver_attached")
                self.attached.set()
                while self.turn_id is None:
                    command = await self.wait_for("driver_command")
                    if command["command"] == "list_files":
                        await self.send(type="command_result", command_id=command["command_id"],
                                        result={"files": [{"path": command["path"] + "/a"}]})
                    if command["command"] == "run_turn":
                        self.turn_id = command["turn_id"]
                        await self.send(type="command_result", command_id=command["command_id"], accepted=True)
                while self.n <= len(batches):
                    events = batches[self.n - 1]
                    await self.send(type="emit", turn_id=self.turn_id, n=self.n, events=events)
                    while True:
                        frame = await self.next()
                        if frame["type"] == "emitted" and frame["turn_id"] == self.turn_id:
                            break
                        if frame["type"] == "error":
                            if frame["code"] in ("StorageUnavailable", "InternalError"):
                                raise OSError(frame["message"])
                            raise Failed(f"the driver was refused: {frame}")
                    self.n, self.emitted = self.n + 1, self.emitted + len(events)
                    await asyncio.sleep(0.01)
            except LOST as error:
                await self.lose(error)


class Follower(Client):
    """A front-end: joins with its last number, and remembers what each number was."""

    def __init__(self, cluster, start, session):
        super().__init__(cluster, start)
        self.session, self.at, self.seen, self.gaps, self.problems, self.final = session, 0, {}, [], [], None

    def take(self, frame):
        if frame["type"] == "gap":
            if frame["fromSeq"] != self.at:
                self.problems.append(f"the gap {frame} came at {self.at}")
            self.gaps.append((frame["fromSeq"], frame["toSeq"]))
            self.at = frame["toSeq"]
        elif frame.get("sessionId") == self.session and "seq" in frame:
            if frame["seq"] != self.at + 1:
                self.problems.append(f"{frame['seq']} came after {self.at}")
            self.seen[frame["seq"]] = frame
            self.at = frame["seq"]
            if frame["type"] == "turn_complete":
                self.final = frame["finalText"]

    async def run(self):
        while self.final is None:
            try:
                await self.open()
                await self.send(type="join_session", sessionId=self.session, afterSeq=self.at)
                while self.final is None:
                    frame = await self.next()
                    if frame["type"] == "error":
                        raise OSError(frame["message"])
                    self.take(frame)
            except LOST as error:
                await self.lose(error)


PAGE = """<!doctype html><script>
const [, name, start, session] = location.hash.split("/").map(decodeURIComponent);
const state = { at: 0, seen: {}, gaps: [], problems: [], moves: -1, final: null };
let turn = Number(start);
async function open() {
  const urls = await (await fetch("/urls")).json();
  const socket = new WebSocket(urls[turn % urls.length]);
  let isOpen = true;
  socket.onclose = socket.onerror = () => {
    if (isOpen && state.final === null) { isOpen = false; turn += 1; setTimeout(open, 100); }
  };
  socket.onmessage = (event) => {
    const frame = JSON.parse(event.data);
    if (frame.type === "authenticated") {
      state.moves += 1;
      socket.send(JSON.stringify({ type: "join_session", sessionId: session, afterSeq: state.at }));
    } else if (frame.type === "error") {
      socket.close();
    } else if (frame.type === "gap") {
      if (frame.fromSeq !== state.at) state.problems.push(`the gap ${event.data} came at ${state.at}`);
      state.gaps.push([frame.fromSeq, frame.toSeq]);
      state.at = frame.toSeq;
    } else if (frame.sessionId === session && frame.seq) {
      if (frame.seq !== state.at + 1) state.problems.push(`${frame.seq} came after ${state.at}`);
      state.seen[frame.seq] = frame;
      state.at = frame.seq;
      if (frame.type === "turn_complete") {
        state.final = frame.finalText;
        fetch("/done/" + name, { method: "POST", body: JSON.stringify(state) });
      }
    }
  };
}
open();
</script>"""


class Followers(Browsers):
    """Headless browsers that follow the session as the Python followers do, and report what they saw."""

    def __init__(self, cluster, session, directory):
        self.reports = {}
        urls = lambda path: [cluster.url(turn) for turn in range(3)] if path == "/urls" else None
        super().__init__(CHROMIUM, PAGE, urls, self.reported)
        for number in range(BROWSERS if CHROMIUM else 0):
            self.open(f"#/{number}/{number}/{session}", f"{directory}/browser-{number}")

    def reported(self, path, body):
        self.reports[path.rsplit("/", 1)[1]] = body

    async def finished(self):
        """The browsers as followers."""
        begun = time.monotonic()
        while len(self.reports) < len(self.processes):
            if time.monotonic() - begun > SETTLE_MAX:
                raise Failed(f"only {sorted(self.reports)} of {len(self.processes)} browsers saw the end")
            await asyncio.sleep(0.1)
        found = []
        for name, report in sorted(self.reports.items()):
            follower = Follower(None, 0, None)
            follower.seen = {int(seq): frame for seq, frame in report["seen"].items()}
            follower.gaps, follower.problems = report["gaps"], report["problems"]
            follower.moves, follower.final = report["moves"], report["final"]
            found.append(follower)
        return found


async def main(cluster, directory):
    asker = Client(cluster, 1)
    await asker.open()
    await asker.send(type="create_session", agentType="script", name="kills")
    session = (await asker.wait_for("session_created"))["session"]["id"]
    driver = Driver(cluster)
    followers = [Follower(cluster, start, session) for start in range(3)]
    browsers = Followers(cluster, session, directory)
    tasks = [asyncio.create_task(client.run()) for client in [driver, *followers]]
    try:
        await follow(cluster, asker, session, driver, followers, tasks, browsers)
    finally:
        browsers.stop()


async def follow(cluster, asker, session, driver, followers, tasks, browsers):
    await asyncio.wait_for(driver.attached.wait(), SETTLE_MAX)
    # The driver is connected to another node.
    await asker.send(type="list_files", sessionId=session, path="src")
    files = (await asyncio.wait_for(asker.wait_for("file_list"), 30))["files"]
    if files != [{"path": "src/a"}]:
        raise Failed(f"another node's driver has the files {files}")
    await asker.send(type="run_turn", sessionId=session, text="go", clientTurnId="t1")
    for kill in range(KILLS):
        wanted = DELTAS * (kill + 1) // (KILLS + 1)
        begun = time.monotonic()
        while driver.emitted < wanted:
            for task in tasks:
                if task.done() and task.exception():
                    raise task.exception()
            if time.monotonic() - begun > SETTLE_MAX:
                raise Failed(f"the driver does not get on: {driver.emitted} events, {driver.lost}")
            await asyncio.sleep(0.02)
        leader = None
        while leader is None:
            leader = await asyncio.to_thread(cluster.leader)
            try:
                if leader is not None:
                    os.kill(cluster.nodes[leader]["pid"], signal.SIGKILL)
            except ProcessLookupError:
                leader = None
        print(f"kill {kill + 1}: node {leader}, after {driver.emitted} events", flush=True)
        await asyncio.sleep(3)
    await asyncio.wait_for(asyncio.gather(*tasks), SETTLE_MAX)
    if not browsers.processes and BROWSERS:
        print("SKIPPED: chromium is not installed; no browser followed")
    names = ["Python"] * len(followers) + ["browser"] * len(browsers.processes)
    followers = followers + await browsers.finished()
    text = "".join(driver.words)
    bodies, kept = {}, None
    for number, follower in enumerate(followers):
        if follower.problems:
            raise Failed(f"follower {number}: {follower.problems[:5]}")
        if follower.final != text:
            raise Failed(f"follower {number} has another text")
        for seq, frame in follower.seen.items():
            if bodies.setdefault(seq, frame) != frame:
                raise Failed(f"{seq} has two bodies: {bodies[seq]} and {frame}")
    ephemeral = {seq for seq, frame in bodies.items() if frame["type"] == "text_delta"}
    kept = set(bodies) - ephemeral
    for number, follower in enumerate(followers):
        missing = kept - set(follower.seen)
        if missing:
            raise Failed(f"follower {number} never saw {sorted(missing)[:5]}")
        inside = {seq for first, last in follower.gaps for seq in range(first + 1, last + 1)}
        if inside & kept:
            raise Failed(f"follower {number} was told a gap over kept events {sorted(inside & kept)[:5]}")
        print(f"follower {number} ({names[number]}): {len(follower.seen)} events, {len(follower.gaps)} gaps over {len(inside)} deltas, "
              f"{follower.moves} moves to another node")
    joined = "".join(frame["text"] for seq, frame in sorted(bodies.items()) if frame["type"] == "text_delta")
    print(f"{KILLS} kills, {DELTAS} deltas, {len(kept)} kept events seen by all, deltas known in all: {joined == text}")


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
    cluster = Cluster(directory)
    code = 0
    try:
        asyncio.run(main(cluster, directory))
    except Failed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        cluster.process.terminate()
        cluster.process.wait()
sys.exit(code)
