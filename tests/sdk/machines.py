"""Three machines by the commands of architecture/operations.md: three network namespaces with an address each, mutual
TLS between the nodes, and the quickstarts through TLS with a token. Needs root; prints SKIPPED without it.

The environment names the programs: SESSION_MANAGER, and for the quickstarts QUICKSTART (Rust), PYTHON (with the SDK) and
NODE_QUICKSTART (beside its node_modules)."""
import json, os, re, shutil, signal, subprocess

from namespaces import (ROOT, WAIT, Machine, clean_environment, cover, enter, eventually, make_network,
                        print_logs, run)

PAGE = os.path.join(ROOT, "architecture", "operations.md")


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


def inside(work):
    program = os.environ["SESSION_MANAGER"]
    bin_dir, office = os.path.join(work, "bin"), os.path.join(work, "office")
    os.mkdir(bin_dir), os.mkdir(office)
    os.symlink(program, os.path.join(bin_dir, "session-manager"))
    clean = clean_environment()
    env = {**clean, "PATH": bin_dir + ":" + os.environ["PATH"]}
    os.environ["PATH"] = env["PATH"]

    # Names are in a file of our own.
    make_network()
    cover("/etc/hosts", open("/etc/hosts").read(), work)

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
        print_logs(machines)
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


enter(__file__, inside, ("curl",))
