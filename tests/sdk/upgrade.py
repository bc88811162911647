"""A rolling upgrade under load, and back: three nodes of the program PREVIOUS are replaced one by one by SESSION_MANAGER,
by PREVIOUS again, and by SESSION_MANAGER again. No call may fail while a node is replaced in the order of
architecture/operations.md, and no acknowledged write may be missing. Then the cluster is finalized, and a node of
PREVIOUS is refused by name.

Prints SKIPPED if PREVIOUS is not set: the build before must be compiled for it."""
import json, os, random, socket, subprocess, tempfile, threading, time, urllib.error, urllib.request

from namespaces import WAIT, eventually


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Node:
    def __init__(self, work, number):
        self.number, self.dir = number, os.path.join(work, f"node-{number}")
        self.client, self.peer = free_port(), free_port()
        self.process, self.serves = None, True
        os.mkdir(self.dir)

    def start(self, program, join=False):
        words = [program, "serve", "--listen", f"127.0.0.1:{self.client}", "--peer-listen", f"127.0.0.1:{self.peer}",
                 "--node-id", str(self.number), "--data-dir", os.path.join(self.dir, "data")]
        log = open(os.path.join(self.dir, "log"), "a")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("III_")}
        self.process = subprocess.Popen([*words, *(["--join"] if join else [])], stderr=log, stdout=log, env=environment)
        eventually(f"node {self.number} listens", lambda: socket.create_connection(("127.0.0.1", self.client), 1))

    def call(self, function, body):
        request = urllib.request.Request(f"http://127.0.0.1:{self.client}/v1/call/{function}",
                                         data=json.dumps(body).encode(), headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def is_ready(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.client}/readyz", timeout=2) as answer:
            return answer.status == 200

    def log(self):
        return open(os.path.join(self.dir, "log")).read()


def cluster(program, node, *words):
    made = subprocess.run([program, "cluster", *words, "--peer", f"127.0.0.1:{node.peer}"], check=True, text=True,
                          capture_output=True, timeout=WAIT)
    return made.stdout


class Load:
    def __init__(self, nodes):
        self.nodes, self.acknowledged, self.failures = nodes, [], []
        self.lock, self.running = threading.Lock(), True
        self.session = nodes[0].call("session::create", {"title": "upgrade"})["session_id"]
        self.threads = [threading.Thread(target=self.run, args=(client,), daemon=True) for client in range(4)]
        for thread in self.threads:
            thread.start()

    def run(self, client):
        number = 0
        while self.running:
            entry = f"{client}-{number}"
            message = {"role": "user", "content": [{"type": "text", "text": entry}], "timestamp": 1}
            node = random.choice([node for node in self.nodes if node.serves])
            try:
                node.call("session::append", {"session_id": self.session, "entry_id": entry, "message": message})
            except OSError as error:
                text = error.read().decode() if isinstance(error, urllib.error.HTTPError) else str(error)
                with self.lock:
                    self.failures.append(f"node {node.number}: {text}")
                continue
            with self.lock:
                self.acknowledged.append(entry)
            number += 1

    def progress(self):
        goal = len(self.acknowledged) + 100
        eventually("progress", lambda: len(self.acknowledged) >= goal)

    def missing(self, node):
        found, cursor = set(), None
        while True:
            body = {"session_id": self.session, "limit": 500, **({"cursor": cursor} if cursor else {})}
            page = node.call("session::messages", body)
            found.update(row["entry_id"] for row in page["messages"])
            cursor = page.get("next_cursor")
            if not cursor:
                return set(self.acknowledged) - found


def replace(nodes, node, program, operator):
    """Clients are sent elsewhere, leadership moves, the process is replaced."""
    node.serves = False
    other = next(other for other in nodes if other is not node)
    leader = json.loads(cluster(operator, other, "status", "--json"))["leader"]
    if leader == node.number:
        cluster(operator, other, "transfer-leader", str(other.number))
    time.sleep(0.5)  # Calls that were sent to it finish.
    node.process.terminate()
    node.process.wait(WAIT)
    node.start(program)
    eventually(f"node {node.number} is ready", node.is_ready)
    node.serves = True


def main():
    previous, now = os.environ.get("PREVIOUS"), os.environ["SESSION_MANAGER"]
    if not previous:
        print("SKIPPED: PREVIOUS does not name the program of the build before")
        return
    with tempfile.TemporaryDirectory() as work:
        nodes = [Node(work, number) for number in (1, 2, 3)]
        try:
            nodes[0].start(previous)
            for node in nodes[1:]:
                node.start(previous, join=True)
                eventually("a member", lambda: cluster(previous, nodes[0], "add", str(node.number),
                                                       f"127.0.0.1:{node.peer}"))
                eventually("a voter", lambda: cluster(previous, nodes[0], "promote", str(node.number)))
            load = Load(nodes)
            load.progress()
            for name, program in (("up", now), ("back", previous), ("up again", now)):
                for node in nodes:
                    replace(nodes, node, program, now)
                    load.progress()
                print(f"{name}: {len(load.acknowledged)} appends acknowledged, {len(load.failures)} failed")
            load.running = False
            for thread in load.threads:
                thread.join(WAIT)
            for node in nodes:
                assert not load.missing(node), f"node {node.number} lacks {len(load.missing(node))} writes"
            assert not load.failures, load.failures[:3]
            print(cluster(now, nodes[0], "finalize"), end="")
            # A node of the build before cannot come back, and says why.
            nodes[2].process.terminate()
            nodes[2].process.wait(WAIT)
            stray = Node(work, 4)
            stray.start(previous, join=True)
            refused = subprocess.run([now, "cluster", "add", "4", f"127.0.0.1:{stray.peer}", "--peer",
                                      f"127.0.0.1:{nodes[0].peer}"], text=True, capture_output=True)
            assert refused.returncode != 0 and "level" in refused.stderr, refused.stderr
            print("refused: " + refused.stderr.strip())
            nodes.append(stray)
        finally:
            for node in nodes:
                if node.process and node.process.poll() is None:
                    node.process.kill()
                    node.process.wait()


main()
