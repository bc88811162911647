"""Machines on one computer: network namespaces with an address each, on a bridge. For tests of what crosses a network.
Needs root; a test that cannot have them prints SKIPPED."""
import os, re, shutil, socket, subprocess, sys, tempfile, time

INSIDE = "MACHINES_INSIDE"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLIENT, PEER = 49134, 49135
WAIT = 60


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(0)


def run(words, **more):
    return subprocess.run(words, check=True, text=True, **more)


def eventually(what, attempt):
    """Repeats an attempt until it returns something."""
    begun, last = time.monotonic(), None
    while time.monotonic() - begun < WAIT:
        try:
            done = attempt()
            if done:
                return done
        except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
            last = error
        time.sleep(0.1)
    raise SystemExit(f"FAILED: {what} within {WAIT} s: {last} {getattr(last, 'stderr', '')}")


def clean_environment():
    """The environment without settings of SDKs and of this program."""
    set_for_us = "III_|SSL_|NODE_|SESSION_MANAGER"
    return {name: value for name, value in os.environ.items() if not re.match(set_for_us, name)}


class Machine:
    def __init__(self, work, number, command):
        self.number, self.command = number, command
        self.space = f"machines-{os.getpid()}-{number}"
        self.dir = os.path.join(work, f"machine-{number}")
        self.address, self.process = None, None
        os.mkdir(self.dir)
        run(["ip", "netns", "add", self.space])
        near, far = f"near{number}", f"far{number}"
        run(["ip", "link", "add", near, "type", "veth", "peer", "name", far])
        run(["ip", "link", "set", near, "master", "network", "up"])
        run(["ip", "link", "set", far, "netns", self.space])
        self.inside("ip", "link", "set", "lo", "up")
        self.inside("ip", "link", "set", far, "up")

    def inside(self, *words):
        run(["ip", "netns", "exec", self.space, *words])

    def move_to(self, address):
        if self.address:
            self.inside("ip", "address", "del", f"{self.address}/24", "dev", f"far{self.number}")
        self.inside("ip", "address", "add", f"{address}/24", "dev", f"far{self.number}")
        self.address = address

    def start(self, command=None):
        log = open(os.path.join(self.dir, "log"), "a")
        words = ["ip", "netns", "exec", self.space, "sh", "-c", f"exec {command or self.command}"]
        # A node must not take III_URL of another test for its engine.
        self.process = subprocess.Popen(words, cwd=self.dir, stdout=log, stderr=log, env=clean_environment())
        eventually(f"node {self.number} listens", self.listens)

    def listens(self):
        if self.process.poll() is not None:
            raise SystemExit(f"FAILED: node {self.number} ended:\n" + open(os.path.join(self.dir, "log")).read())
        for port in (CLIENT, PEER):
            socket.create_connection((self.address, port), 1).close()
        return True

    def stop(self):
        self.process.terminate()
        self.process.wait(WAIT)

    def remove(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        subprocess.run(["ip", "netns", "del", self.space])


def make_network():
    """A bridge, and this end of it."""
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "network", "type", "bridge"])
    run(["ip", "link", "set", "network", "up"])
    run(["ip", "address", "add", "10.77.0.254/24", "dev", "network"])


def cover(path, text, work):
    """Puts a file of our own over one of the system, in this test only. Returns where it is."""
    own = os.path.join(work, os.path.basename(path))
    with open(own, "w") as file:
        file.write(text)
    run(["mount", "--bind", own, path])
    return own


def print_logs(machines):
    for machine in machines:
        log = os.path.join(machine.dir, "log")
        if os.path.exists(log):
            print(f"-- log of node {machine.number}\n" + open(log).read()[-4000:])


def enter(script, inside, tools):
    """Runs `inside` in a network and a file system of its own."""
    if os.environ.get(INSIDE):
        return inside(os.environ[INSIDE])
    for tool in ("ip", "unshare", "mount", *tools):
        if not shutil.which(tool):
            skip(f"{tool} is not installed")
    probe = "ip link set lo up && ip link add network type bridge"
    if subprocess.run(["unshare", "--net", "--mount", "sh", "-c", probe], capture_output=True).returncode:
        skip("this machine or user does not allow network namespaces")
    if not os.environ.get("SESSION_MANAGER"):
        raise SystemExit("FAILED: SESSION_MANAGER must name the program")
    with tempfile.TemporaryDirectory() as work:
        inner = ["unshare", "--net", "--mount", sys.executable, os.path.abspath(script)]
        sys.exit(subprocess.run(inner, env={**os.environ, INSIDE: work}).returncode)
