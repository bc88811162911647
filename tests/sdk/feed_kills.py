"""Three nodes, a subscriber of the Python SDK and a writer on each, and the leader killed with -9 repeatedly.

Every event of every acknowledged append must reach every subscriber, in order per session; what comes twice comes with
the position it had. Prints the counts. Needs SESSION_MANAGER (the program); KILLS says how often (default 10).
"""
import json, os, signal, sys, tempfile, threading, time, traceback, urllib.error, urllib.request
from collections import defaultdict
from dev_cluster import DevCluster
from iii import register_worker

KILLS = int(os.environ.get("KILLS", "10"))
SETTLE_MAX = 60


def fail(words):
    print(f"FAILED: {words}", file=sys.stderr)
    cluster.process.kill()
    os._exit(1)


class Cluster(DevCluster):
    def __init__(self, directory):
        super().__init__(directory, SETTLE_MAX)

    def wait(self, holds, what):
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > SETTLE_MAX:
                fail(f"never happened: {what}")
            time.sleep(0.02)


class Writer(threading.Thread):
    """Appends messages to its own session through one node, one after the other, and retries unanswered ones."""

    def __init__(self, cluster, node, stop):
        super().__init__(daemon=True)
        self.cluster, self.node, self.stop, self.acknowledged = cluster, node, stop, []
        self.session = f"writer-{node}"

    def call(self, function, body):
        address = self.cluster.nodes[self.node]["client"].replace("ws://", "http://")
        request = urllib.request.Request(f"{address}/v1/call/{function}", data=json.dumps(body).encode())
        while True:
            try:
                return json.load(urllib.request.urlopen(request, timeout=30))
            except (urllib.error.URLError, OSError, ValueError):
                time.sleep(0.05)  # the node is down, or the cluster has no leader

    def run(self):
        self.call("session::ensure", {"session_id": self.session})
        number = 0
        while not self.stop.is_set():
            number += 1
            entry_id = f"{self.session}-{number}"
            message = {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": entry_id}]}
            self.call("session::append", {"session_id": self.session, "entry_id": entry_id, "message": message})
            self.acknowledged.append(entry_id)


class Subscriber:
    """Receives every append through one node. With `after: oldest` each reconnect delivers the missed events."""

    def __init__(self, url):
        self.deliveries, self.positions, self.order, self.problems = 0, {}, defaultdict(list), []
        self.worker = register_worker(url)

        async def heard(event, metadata):
            place = metadata["session-manager"]
            self.take(event["session_id"], event["entry_id"], place["position"], place["seq"])

        function_id = f"feed-kills::{id(self)}"
        self.worker.register_function(function_id, heard)
        self.worker.register_trigger({
            "type": "session::message-added", "function_id": function_id, "config": {},
            "metadata": {"session-manager": {"after": "oldest"}},
        })

    def take(self, session, entry_id, position, seq):
        self.deliveries += 1
        known = self.positions.setdefault((session, entry_id), (position, seq))
        if known != (position, seq):
            self.problems.append(f"{entry_id} came at {known} and at {(position, seq)}")
        order = self.order[session]
        if not order or seq > order[-1]:
            if order and seq != order[-1] + 1:
                self.problems.append(f"{session}: {seq} came after {order[-1]}")
            order.append(seq)
        elif seq not in order[-5000:]:
            self.problems.append(f"{session}: {seq} came for the first time after {order[-1]}")


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
    cluster = Cluster(directory)
    try:
        subscribers = {node: Subscriber(told["client"]) for node, told in cluster.nodes.items()}
        stop = threading.Event()
        writers = [Writer(cluster, node, stop) for node in cluster.nodes]
        for writer in writers:
            writer.start()
        for kill in range(KILLS):
            done = sum(len(writer.acknowledged) for writer in writers)
            cluster.wait(lambda: sum(len(w.acknowledged) for w in writers) > done + 30, "the writers get on")
            leader = None
            while leader is None:
                leader = cluster.leader()
                try:
                    if leader is not None:
                        os.kill(cluster.nodes[leader]["pid"], signal.SIGKILL)
                except ProcessLookupError:
                    leader = None  # the node that was just killed; its followers have not noticed yet
            print(f"kill {kill + 1}: node {leader}", flush=True)
            time.sleep(3)
        stop.set()
        for writer in writers:
            writer.join(SETTLE_MAX)
        wanted = {(w.session, entry_id) for w in writers for entry_id in w.acknowledged}
        for node, subscriber in subscribers.items():
            cluster.wait(lambda: wanted <= subscriber.positions.keys(), f"node {node}'s subscriber hears everything")
        everywhere = defaultdict(set)
        for node, subscriber in subscribers.items():
            if subscriber.problems:
                fail(f"node {node}: {subscriber.problems[:5]}")
            for key, place in subscriber.positions.items():
                everywhere[key].add(place)
            unique = len(subscriber.positions)
            print(f"subscriber on node {node}: {unique} events, {subscriber.deliveries - unique} duplicates, "
                  f"all at the position they had")
        if any(len(places) != 1 for places in everywhere.values()):
            fail("one event has two positions")
        print(f"{KILLS} kills of the leader with -9, {len(wanted)} acknowledged appends, every one heard by every subscriber")
    except BaseException:
        traceback.print_exc()
        fail("see above")  # the SDK's threads would keep the process alive
    finally:
        cluster.process.terminate()
        cluster.process.wait()
os._exit(0)
