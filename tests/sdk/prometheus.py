"""A real Prometheus scrapes three nodes under load and kills, and each alarm fires when its fault is made and is gone after.

Run by hand, as root on Linux: python3 tests/sdk/prometheus.py target/debug/session-manager /usr/bin/prometheus
It needs the Debian package `prometheus` (with promtool) and a C compiler. It takes about ten minutes, and never more than twenty.
Another number of seconds and the names of faults may follow, to make only these: ... /usr/bin/prometheus 30 slow_apply
The rules are those of deploy/monitoring with shorter times: every `for` is 5 s, and every range at most a minute.
"""

import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

BINARY, PROMETHEUS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SECONDS = int(sys.argv[3]) if len(sys.argv) > 3 else 600
# The faults to make; all of them if none is named.
CHOSEN = sys.argv[4:]
# Every wait of this test has a bound of its own. This is the bound of all of them together.
SECONDS_MAX = SECONDS + 600
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Enough for everything that the test writes besides the files that fill the disks on purpose.
DISK_MIB = 1536
# Syncs of a node are slow while its file exists.
SLOW_SYNCS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static int delayed(const char *name, int fd) {
    const char *file = getenv("SLOW_WHILE");
    if (file && access(file, F_OK) == 0) usleep(400000);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}
int fsync(int fd) { return delayed("fsync", fd); }
int fdatasync(int fd) { return delayed("fdatasync", fd); }
"""

if os.environ.get("IN_NAMESPACE") != "1":
    # The small disks are mounts of this test only.
    os.environ["IN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])

work = tempfile.mkdtemp(prefix="prometheus-")
processes = {}
tokens = {}
began = time.time()


def say(text):
    print(f"{time.time() - began:6.1f}  {text}", flush=True)


def run(*arguments):
    done = subprocess.run([BINARY, *arguments], cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)
    return done


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


clients = [free_port() for _ in range(3)]
peers = [free_port() for _ in range(3)]
scraper = free_port()


def start(node):
    arguments = [BINARY, "serve", "--config", "settings.yaml", "--name", f"n{node}", "--data-dir", f"disk-{node}/data"]
    arguments += ["--listen", f"127.0.0.1:{clients[node]}", "--peer-listen", f"127.0.0.1:{peers[node]}"]
    log = open(os.path.join(work, f"node-{node}.log"), "a")
    slow = {"LD_PRELOAD": os.path.join(work, "slow_syncs.so"), "SLOW_WHILE": os.path.join(work, f"slow-{node}")}
    processes[node] = subprocess.Popen(arguments, cwd=work, stderr=log, env={**os.environ, **slow})


def kill(node):
    processes[node].kill()
    processes[node].wait()


def post(node, function, body, token="app", timeout=10):
    connection = http.client.HTTPConnection("127.0.0.1", clients[node], timeout=timeout)
    try:
        headers = {"authorization": f"Bearer {tokens.get(token, token)}"}
        connection.request("POST", f"/v1/call/{function}", json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def metric(node, name):
    connection = http.client.HTTPConnection("127.0.0.1", clients[node], timeout=5)
    try:
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {tokens['monitor']}"})
        page = connection.getresponse().read().decode()
        rows = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.M)
        return sum(float(row) for row in rows)
    except OSError:
        return 0.0
    finally:
        connection.close()


def leader():
    until = time.time() + 60
    while time.time() < until:
        for node in range(3):
            if processes[node].poll() is None and metric(node, "session_manager_is_leader") == 1:
                return node
        time.sleep(0.2)
    logs = "\n".join(open(os.path.join(work, f"node-{node}.log")).read()[-1000:] for node in range(3))
    raise SystemExit(f"there is no leader:\n{logs}")


def text(bytes_count):
    return random.randbytes(bytes_count // 2).hex()


def message(bytes_count):
    return {"role": "user", "timestamp": 1, "content": [{"type": "text", "text": text(bytes_count)}]}


stop = threading.Event()
counts = {"ok": 0, "failed": 0}
sessions = []


def load(seed):
    chance = random.Random(seed)
    while not stop.is_set():
        node = chance.randrange(3)
        try:
            session = f"s{chance.randrange(40)}"
            status, _ = post(node, "session::ensure", {"session_id": session})
            if status == 200:
                status, _ = post(node, "session::append", {"session_id": session, "message": message(8 << 10)})
            counts["ok" if status == 200 else "failed"] += 1
        except (OSError, http.client.HTTPException):
            counts["failed"] += 1
        stop.wait(0.25)


def firing():
    connection = http.client.HTTPConnection("127.0.0.1", scraper, timeout=10)
    connection.request("GET", "/api/v1/query?" + urllib.parse.urlencode({"query": 'ALERTS{alertstate="firing"}'}))
    answer = json.loads(connection.getresponse().read())
    return {row["metric"]["alertname"] for row in answer["data"]["result"]}


seen, failed = set(), []


def wait_for(alarms, fires, seconds=150):
    """Waits until all alarms fire, or none of them does."""
    until = time.time() + seconds
    while time.time() < until:
        now = firing()
        seen.update(now)
        if all((alarm in now) == fires for alarm in alarms):
            say(f"{', '.join(alarms)}: {'fires' if fires else 'is gone'}")
            return
        time.sleep(1)
    failed.append((alarms, "did not fire" if fires else "stayed"))
    say(f"FAILED {alarms} {'did not fire' if fires else 'stayed'}; firing: {sorted(firing())}")


def fault(alarms, make, mend):
    make()
    wait_for(alarms, True)
    mend()
    wait_for(alarms, False)


def prepare():
    for node in range(3):
        disk = os.path.join(work, f"disk-{node}")
        os.mkdir(disk)
        subprocess.check_call(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", disk])
    compiler = ["cc", "-shared", "-fPIC", "-x", "c", "-o", os.path.join(work, "slow_syncs.so"), "-", "-ldl"]
    subprocess.run(compiler, input=SLOW_SYNCS.encode(), check=True)
    lines = []
    for role in ["app", "monitor"]:
        printed = run("token", "create", "--role", role)
        tokens[role] = re.search(r"smt_\S+", printed.stderr)[0]
        lines.append(printed.stdout)
    open(os.path.join(work, "tokens"), "w").write("".join(lines))
    open(os.path.join(work, "monitor-token"), "w").write(tokens["monitor"])
    run("certs", "init", "--cluster", "watched")
    run("certs", "node", "any", "127.0.0.1", "localhost", "--days", "1")
    settings = {
        "token_file": "tokens",
        "peer_ca": "certs/ca.pem",
        "peer_cert": "certs/node.pem",
        "peer_key": "certs/node.key",
        "discover": ",".join(f"127.0.0.1:{port}" for port in peers),
        "bootstrap_expect": 3,
        "max_connections": 60,
        "call_memory_bytes": 1 << 20,
        "call_timeout_ms": 1500,
    }
    json.dump(settings, open(os.path.join(work, "settings.yaml"), "w"))
    rules = open(os.path.join(ROOT, "deploy/monitoring/rules.yaml")).read()
    rules = re.sub(r"for: \S+", "for: 5s", rules)
    rules = rules.replace("[10m]", "[60s]").replace("[5m]", "[20s]").replace("[1h]", "[60s]")
    open(os.path.join(work, "rules.yaml"), "w").write(rules)
    targets = ", ".join(f"'127.0.0.1:{port}'" for port in clients)
    open(os.path.join(work, "prometheus.yml"), "w").write(
        "global: {scrape_interval: 2s, evaluation_interval: 2s}\nrule_files: [rules.yaml]\nscrape_configs:\n"
        "  - job_name: session-manager\n    authorization: {credentials_file: monitor-token}\n"
        f"    static_configs: [{{targets: [{targets}]}}]\n"
    )


def disk(node):
    space = os.statvfs(os.path.join(work, f"disk-{node}"))
    return space.f_bavail * space.f_frsize


def leave_free(node, bytes_count):
    """Fills the disk of a node until this much is left."""
    with open(os.path.join(work, f"disk-{node}", "ballast"), "ab") as ballast:
        while disk(node) > bytes_count:
            ballast.write(bytes(min(1 << 20, disk(node) - bytes_count)))
            ballast.flush()


def remove_ballast(node):
    os.remove(os.path.join(work, f"disk-{node}", "ballast"))


def each(seconds, work_once):
    ended = threading.Event()

    def repeat():
        while not ended.is_set():
            try:
                work_once()
            except (OSError, http.client.HTTPException):
                pass
            ended.wait(seconds)

    threading.Thread(target=repeat, daemon=True).start()
    return ended


FAULTS = {}


def makes(make):
    FAULTS[make.__name__] = make


@makes
def certificates():
    """Certificates that expire tomorrow, then new ones."""
    wait_for(["SessionManagerCertificateExpires"], True)
    run("certs", "node", "any", "127.0.0.1", "localhost", "--days", "365", "--force")
    wait_for(["SessionManagerCertificateExpires"], False)


@makes
def killed_node():
    victim = (leader() + 1) % 3
    fault(["SessionManagerNodeDown"], lambda: kill(victim), lambda: start(victim))


@makes
def stopped_nodes():
    """Two of three stand still."""
    still = [(leader() + 1) % 3, (leader() + 2) % 3]
    signals = lambda name: [os.kill(processes[node].pid, name) for node in still]
    running = ({0, 1, 2} - set(still)).pop()
    # Each of these calls fails after call_timeout_ms.
    failing = [each(0.1, lambda: post(running, "session::create", {})) for _ in range(6)]
    fault(
        ["SessionManagerNoLeader", "SessionManagerNodeWithoutLeader", "SessionManagerProposalsFail"],
        lambda: signals(signal.SIGSTOP),
        lambda: (signals(signal.SIGCONT), [one.set() for one in failing]),
    )


@makes
def killed_leaders():
    """One leader after the other is killed."""
    def kill_leaders():
        for _ in range(8):
            lost = leader()
            kill(lost)
            leader()
            start(lost)
            time.sleep(2)
    fault(["SessionManagerManyLeaderChanges"], kill_leaders, lambda: None)


@makes
def slow_apply():
    """The thread of a follower that applies entries gets one part in three thousand of a processor. All else on that node is quick."""
    node, leads = (leader() + 1) % 3, leader()
    tasks = f"/proc/{processes[node].pid}/task"
    [thread] = [int(task) for task in os.listdir(tasks) if open(f"{tasks}/{task}/comm").read().strip() == "apply"]
    everywhere = os.sched_getaffinity(thread)
    processor = min(everywhere)
    busy = []
    def starve():
        # It has a higher priority than others, so that it is not alone with the thread for long.
        loop = f"import os\nos.sched_setaffinity(0, {{{processor}}})\nos.nice(-5)\nwhile True: pass"
        busy.append(subprocess.Popen([sys.executable, "-c", loop]))
        os.sched_setaffinity(thread, {processor})
        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    def feed():
        busy.pop().kill() if busy else None
        os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(thread, everywhere)
    post(leads, "session::ensure", {"session_id": "s3"})
    body = {"session_id": "s3", "message": message(64)}
    appends = [each(0, lambda: post(leads, "session::append", body)) for _ in range(12)]
    try:
        fault(["SessionManagerApplyLag"], starve, lambda: (feed(), [one.set() for one in appends]))
    finally:
        if busy:
            busy.pop().kill()


@makes
def full_disk():
    node = (leader() + 1) % 3
    fault(["SessionManagerDiskFillsUp"], lambda: leave_free(node, 50 << 20), lambda: remove_ballast(node))
    fault(["SessionManagerDiskNearlyFull"], lambda: leave_free(node, 20 << 20), lambda: remove_ballast(node))


@makes
def snapshot_without_room():
    """A snapshot does not fit. Deletes on a disk that is nearly full ask for one."""
    node = (leader() + 1) % 3
    for number in range(60):
        post(node, "session::ensure", {"session_id": f"d{number}"})
        post(node, "session::append", {"session_id": f"d{number}", "message": message(400 << 10)})
    def no_room():
        leave_free(node, 18 << 20)
        time.sleep(5)
        for number in range(60):
            post(node, "session::delete", {"session_id": f"d{number}"})
    say(f"disk of node {node}: {disk(node) >> 20} MiB free")
    fault(["SessionManagerSnapshotsFail"], no_room, lambda: remove_ballast(node))


@makes
def idle_connections():
    """Connections that nobody uses."""
    node, idle = (leader() + 1) % 3, []
    def connect():
        for _ in range(56):
            try:
                idle.append(socket.create_connection(("127.0.0.1", clients[node]), timeout=5))
            except OSError:
                pass
    renew = each(5, lambda: (close_all(idle), connect()))
    wait_for(["SessionManagerConnectionsExhausted"], True)
    renew.set()
    close_all(idle)
    wait_for(["SessionManagerConnectionsExhausted"], False)


@makes
def stuck_subscriber():
    """A subscriber that does not read."""
    node, stuck = (leader() + 1) % 3, []
    def subscribe():
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", clients[node]))
        head = f"GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {tokens['app']}\r\n\r\n"
        reader.sendall(head.encode())
        stuck.append(reader)
    subscribe()
    more = each(0.1, lambda: post(node, "session::append", {"session_id": "s1", "message": message(200 << 10)}))
    wait_for(["SessionManagerSubscribersBehind"], True)
    more.set()
    close_all(stuck)
    wait_for(["SessionManagerSubscribersBehind"], False)


@makes
def wrong_token():
    """A token that nobody knows."""
    node = (leader() + 1) % 3
    wrong = each(0.1, lambda: post(node, "session::list", {}, token="wrong"))
    wait_for(["SessionManagerLoginsRefused"], True)
    wrong.set()
    wait_for(["SessionManagerLoginsRefused"], False)


@makes
def large_calls():
    """More large calls than there is memory for."""
    node = (leader() + 1) % 3
    body = {"session_id": "s2", "message": message(2 << 20)}
    large = [each(0, lambda: post(node, "session::append", body)) for _ in range(48)]
    wait_for(["SessionManagerCallsNotAdmitted"], True)
    for one in large:
        one.set()
    # What was admitted of it would fill the disks.
    post(node, "session::delete", {"session_id": "s2"})
    wait_for(["SessionManagerCallsNotAdmitted"], False)


@makes
def slow_disk():
    """A disk that takes long for every sync."""
    slow = os.path.join(work, f"slow-{(leader() + 1) % 3}")
    fault(["SessionManagerSlowDisk"], lambda: open(slow, "w").close(), lambda: os.remove(slow))


def faults():
    for name in CHOSEN or FAULTS:
        say(name)
        FAULTS[name]()


def close_all(sockets):
    while sockets:
        sockets.pop().close()


def too_long(*_):
    raise SystemExit(f"not done after {SECONDS_MAX} s")


unknown = [name for name in CHOSEN if name not in FAULTS]
if unknown:
    os.rmdir(work)
    sys.exit(f"no fault is called {', '.join(unknown)}; there are {', '.join(FAULTS)}")
signal.signal(signal.SIGALRM, too_long)
signal.alarm(SECONDS_MAX)
finished = False
try:
    prepare()
    for node in range(3):
        start(node)
    leader()
    promtool = os.path.join(os.path.dirname(PROMETHEUS), "promtool")
    connection = http.client.HTTPConnection("127.0.0.1", clients[0])
    connection.request("GET", "/metrics", headers={"authorization": f"Bearer {tokens['monitor']}"})
    page = connection.getresponse().read()
    for arguments, given in [(["check", "metrics"], page), (["check", "rules", "rules.yaml"], None), (["check", "config", "prometheus.yml"], None)]:
        done = subprocess.run([promtool, *arguments], cwd=work, input=given, capture_output=True)
        assert done.returncode == 0 and not done.stderr, (arguments, done.stdout, done.stderr)
        say(f"promtool {' '.join(arguments)}: accepted")
    arguments = [PROMETHEUS, "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{scraper}"]
    watching = subprocess.Popen([*arguments, "--storage.tsdb.path=tsdb"], cwd=work, stderr=open(os.path.join(work, "prometheus.log"), "w"))
    threads = [threading.Thread(target=load, args=(seed,), daemon=True) for seed in range(6)]
    [thread.start() for thread in threads]
    time.sleep(10)
    faults()
    while time.time() - began < SECONDS:
        lost = leader()
        kill(lost)
        time.sleep(10)
        start(lost)
        time.sleep(15)
    stop.set()
    time.sleep(20)
    query = urllib.parse.urlencode({"query": 'sum_over_time(up[1h])'})
    connection = http.client.HTTPConnection("127.0.0.1", scraper, timeout=10)
    connection.request("GET", "/api/v1/query?" + query)
    scrapes = {row["metric"]["instance"]: row["value"][1] for row in json.loads(connection.getresponse().read())["data"]["result"]}
    # Without the fault of the certificates, nobody renews them.
    stay = {"SessionManagerCertificateExpires"} if CHOSEN and "certificates" not in CHOSEN else set()
    if firing() - stay:
        failed.append((sorted(firing()), "fires at the end"))
    if len(scrapes) < 3 or not counts["ok"]:
        failed.append((sorted(scrapes), "nodes were scraped"))
    say(f"scrapes that succeeded: {scrapes}; load: {counts}; seen: {sorted(seen)}; at the end: {sorted(firing())}")
    say("all alarms fired and went" if not failed else f"FAILED: {failed}")
    finished = True
finally:
    signal.alarm(0)
    stop.set()
    for process in processes.values():
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
    if "watching" in globals():
        watching.kill()
        watching.wait()
    for node in range(3):
        subprocess.run(["umount", "-l", os.path.join(work, f"disk-{node}")], stderr=subprocess.DEVNULL)
    if finished and not failed:
        shutil.rmtree(work, ignore_errors=True)
    else:
        say(f"logs: {work}")
sys.exit(1 if failed else 0)
