"""Three machines by the commands of architecture/operations.md: three network namespaces with an address each, mutual
TLS between the nodes, and the quickstarts through TLS with a token. Needs root; prints SKIPPED without it.

The environment names the programs: SESSION_MANAGER, and for the quickstarts QUICKSTART (Rust), PYTHON (with the SDK) and
NODE_QUICKSTART (beside its node_modules)."""
import json, os, re, shutil, signal, socket, subprocess, sys, tempfile, time

INSIDE = "MACHINES_INSIDE"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "architecture", "operations.md")
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
        except (OSError, subprocess.CalledProcessError) as error:
            last = error
        time.sleep(0.1)
    raise SystemExit(f"FAILED: {what} within {WAIT} s: {last} {getattr(last, 'stderr', '')}")


def commands(heading):
    """The commands of a section of the page, one string each."""
    text = open(PAGE).read()
    section = text.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    lines, plain, other = [], False, False
    for line in section.splitlines():
        if line.startswith("```"):
            plain, other = (line == "```" and not plain and not other), (line != "```" and not other)
        elif plain:
            lines.append(line)
    joined = "\n".join(lines).replace("\\\n", " ")
    return [re.sub(" +", " ", line).strip() for line in joined.splitlines() if line.strip()]


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


def inside(work):
    program = os.environ["SESSION_MANAGER"]
    bin_dir, office = os.path.join(work, "bin"), os.path.join(work, "office")
    os.mkdir(bin_dir), os.mkdir(office)
    os.symlink(program, os.path.join(bin_dir, "session-manager"))
    clean = clean_environment()
    env = {**clean, "PATH": bin_dir + ":" + os.environ["PATH"]}
    os.environ["PATH"] = env["PATH"]

    # A network in the kernel: a bridge, and this end of it. Names are in a file of our own.
    run(["ip", "link", "set", "lo", "up"])
    run(["ip", "link", "add", "network", "type", "bridge"])
    run(["ip", "link", "set", "network", "up"])
    run(["ip", "address", "add", "10.77.0.254/24", "dev", "network"])
    hosts = os.path.join(work, "hosts")
    shutil.copy("/etc/hosts", hosts)
    run(["mount", "--bind", hosts, "/etc/hosts"])

    # 1 and 2: certificates and a token.
    run(["sh", "-ec", "\n".join(commands("1. Certificates"))], cwd=office, env=env, stdout=subprocess.DEVNULL)
    made = run(["sh", "-ec", "\n".join(commands("2. Tokens"))], cwd=office, env=env, stderr=subprocess.PIPE)
    token = re.search(r"smt_\S+", made.stderr).group()
    certs = os.path.join(office, "certs")
    for name in ("ca.pem", "ops.pem", "ops.key"):
        shutil.copy(os.path.join(certs, name), office)
    with open(os.path.join(office, "token"), "w") as file:
        file.write(token + "\n")

    # 3: three machines.
    machines = [Machine(work, number, command) for number, command in enumerate(commands("3. Nodes"), 1)]
    try:
        for machine in machines:
            for name in ("ca.pem", f"node-{machine.number}.pem", f"node-{machine.number}.key"):
                shutil.copy(os.path.join(certs, name), machine.dir)
            shutil.copy(os.path.join(office, "tokens"), machine.dir)
            machine.move_to(f"10.77.0.{machine.number}")
            machine.start()
        use(work, office, env, clean, token, machines)
    except BaseException:
        for machine in machines:
            log = os.path.join(machine.dir, "log")
            if os.path.exists(log):
                print(f"-- log of node {machine.number}\n" + open(log).read()[-4000:])
        raise
    finally:
        for machine in machines:
            machine.remove()


def use(work, office, env, clean, token, machines):
    # 4: one cluster.
    exports = [line for line in commands("4. The cluster") if line.startswith("export")]

    def operate(*lines):
        return run(["sh", "-ec", "\n".join([*exports, *lines])], cwd=office, env=env, capture_output=True).stdout

    def healthy():
        status = json.loads(operate("session-manager cluster status --json"))
        return status["healthy"] and len(status["nodes"]) == 3

    # Each command may be repeated. On a busy machine a node may take too long to answer the leader.
    for command in commands("4. The cluster"):
        if not command.startswith("export"):
            print(eventually(command, lambda: operate(command)), end="")
    eventually("three healthy nodes", healthy)
    status = operate("session-manager cluster status")
    for wanted in ("clients connect to wss://10.77.0.2:49134", "node 3: the certificate for peers is valid until"):
        assert wanted in status, status
    stranger = subprocess.run(["session-manager", "cluster", "status", "--peer", "10.77.0.1:49135"], env=env, text=True,
                              capture_output=True)
    assert stranger.returncode == 2, "an operator without a certificate is let in: " + stranger.stdout

    # 5: clients.
    create, tail, listing = commands("5. Clients")
    tailing = subprocess.Popen(["sh", "-c", f"exec {tail}"], cwd=office, env=env, stdout=subprocess.PIPE, text=True)
    with_token = {**env, "III_TOKEN": token}

    def printed():
        run(["sh", "-ec", create], cwd=office, env=env, stdout=subprocess.DEVNULL)
        os.set_blocking(tailing.stdout.fileno(), False)
        return tailing.stdout.readline()

    assert "session::created" in eventually("tail prints an event", printed)
    tailing.send_signal(signal.SIGINT)
    tailing.wait(WAIT)
    listed = run(["sh", "-ec", listing], cwd=office, env=with_token, capture_output=True).stdout
    assert '"sessions":[{' in listed, listed
    refused = run(["sh", "-ec", listing], cwd=office, env={**env, "III_TOKEN": "wrong"}, capture_output=True).stdout
    assert "unauthenticated" in refused, refused

    # The quickstarts. Rust and Python have the token and the authority in their environment, and nothing else.
    ca = os.path.join(office, "ca.pem")
    secrets = {**clean, "III_TOKEN": token, "SSL_CERT_FILE": ca}
    programs = [
        ("Rust", "QUICKSTART", lambda path: [path], secrets),
        ("Python", "PYTHON", lambda path: [path, os.path.join(ROOT, "examples/python/quickstart.py")], secrets),
        ("Node", "NODE_QUICKSTART", lambda path: ["node", path],
         {**clean, "III_TOKEN": token, "NODE_EXTRA_CA_CERTS": ca}),
    ]
    for number, (language, variable, words, secrets) in enumerate(programs, 1):
        if not os.environ.get(variable):
            print(f"SKIPPED: the quickstart in {language}: {variable} is not set")
            continue
        words = words(os.environ[variable])
        url = {"III_URL": f"wss://10.77.0.{number}:49134"}
        out = run(words, env={**secrets, **url}, capture_output=True, timeout=WAIT).stdout
        for wanted in ("message-added", "message-updated", "An ordered list of facts."):
            assert wanted in out, f"{language} never printed {wanted}: {out}"
        print(f"the quickstart in {language} passed through TLS with a token")

    # A member gets another address: the operator says so once.
    third = machines[2]
    third.stop()
    third.move_to("10.77.0.33")
    third.start(third.command.replace("10.77.0.3:", "10.77.0.33:"))
    update = "session-manager cluster update-member 3 {} --peer 10.77.0.33:49135"
    eventually("a new address", lambda: operate(update.format("10.77.0.33:49135")))
    eventually("three healthy nodes after a new address", healthy)
    # A member with a name may change its address without a word: names are resolved at every connect.
    hosts = os.path.join(work, "hosts")

    def name(address):
        lines = [line for line in open(hosts) if "node-3.example" not in line]
        with open(hosts, "w") as file:
            file.writelines([*lines, f"{address} node-3.example\n"])

    name("10.77.0.33")
    eventually("a name", lambda: operate(update.format("node-3.example:49135")))
    third.stop()
    third.move_to("10.77.0.34")
    name("10.77.0.34")
    third.start(third.command.replace("10.77.0.3:", "10.77.0.34:"))
    eventually("three healthy nodes after a new address of a name", healthy)
    # A machine is lost.
    moved = eventually("node 1 leads", lambda: operate("session-manager cluster transfer-leader 1"))
    leader = int(re.search(r"node (\d) leads", moved).group(1))
    machines[leader - 1].process.kill()
    # A session that is sent twice does no harm.
    eventually("a write after the loss of a machine",
               lambda: run(["sh", "-ec", create.replace("10.77.0.1:", "10.77.0.2:")], cwd=office, env=env,
                           capture_output=True).stdout)
    print("three machines passed")


def main():
    if os.environ.get(INSIDE):
        return inside(os.environ[INSIDE])
    for tool in ("ip", "unshare", "mount", "curl"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed")
    probe = "ip link set lo up && ip link add network type bridge"
    if subprocess.run(["unshare", "--net", "--mount", "sh", "-c", probe], capture_output=True).returncode:
        skip("this machine or user does not allow network namespaces")
    if not os.environ.get("SESSION_MANAGER"):
        raise SystemExit("FAILED: SESSION_MANAGER must name the program")
    with tempfile.TemporaryDirectory() as work:
        inner = ["unshare", "--net", "--mount", sys.executable, os.path.abspath(__file__)]
        sys.exit(subprocess.run(inner, env={**os.environ, INSIDE: work}).returncode)


main()
