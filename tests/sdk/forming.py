"""The pods of deploy/kubernetes as processes: network namespaces, a DNS server, and the arguments, settings and hooks
of the StatefulSet. The same command on every node makes one cluster, which grows, loses a disk and is upgraded in turn
under load. Needs root, `ip` and `dnsmasq`; prints SKIPPED without them.

The environment names the program: SESSION_MANAGER, and PYTHON for the SDK."""
import json, os, random, re, shutil, signal, ssl, subprocess, threading, urllib.request

from namespaces import ROOT, WAIT, Machine, clean_environment, cover, enter, eventually, make_network, print_logs, run

BASE = os.path.join(ROOT, "deploy", "kubernetes", "base")
SERVICE = "session-manager-peers.default.svc"


class Dns:
    """A headless Service: one name for all pods that are there, and one for each."""

    def __init__(self, work):
        self.file = os.path.join(work, "addresses")
        self.names = {}
        self.write()
        words = ["dnsmasq", "--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces", "--user=root",
                 "--listen-address=10.77.0.254", f"--addn-hosts={self.file}", "--local=/svc/", "--pid-file=",
                 "--local-ttl=0"]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def write(self):
        with open(self.file, "w") as file:
            for pod, address in self.names.items():
                file.write(f"{address} {SERVICE} {pod}.{SERVICE}\n")

    def set(self, pod, address):
        self.names[pod] = address
        self.write()
        self.process.send_signal(signal.SIGHUP)

    def forget(self, pod):
        self.names.pop(pod, None)
        self.write()
        self.process.send_signal(signal.SIGHUP)


def manifest(name):
    return open(os.path.join(BASE, name)).read()


def container_arguments():
    """The arguments of the container in the StatefulSet."""
    block = re.search(r"\n +args:\n((?: +- .*\n)+)", manifest("statefulset.yaml")).group(1)
    return [line.strip()[2:] for line in block.splitlines()]


def pre_stop():
    words = re.search(r"command: \[(/session-manager, cluster.*)\]", manifest("statefulset.yaml")).group(1)
    return [word.strip() for word in words.split(",")]


class Pod(Machine):
    def __init__(self, work, number, dns, secrets):
        super().__init__(work, number + 1, None)
        self.pod, self.dns = f"session-manager-{number}", dns
        # Whether the Service sends calls to it.
        self.serves = True
        shutil.copytree(secrets, os.path.join(self.dir, "etc"))
        settings = manifest("session-manager.yaml")
        assert "/data/" in settings and "/etc/session-manager/" in settings, "the settings name other directories"
        settings = settings.replace("/data/", f"{self.dir}/data/").replace("/etc/session-manager/", f"{self.dir}/etc/")
        with open(os.path.join(self.dir, "session-manager.yaml"), "w") as file:
            file.write(settings)
        self.move_to(f"10.77.0.{number + 1}")

    def environment(self):
        tls = os.path.join(self.dir, "etc", "tls")
        return {**clean_environment(), "POD_NAME": self.pod, "POD_NAMESPACE": "default",
                "SESSION_MANAGER_PEER": "127.0.0.1:49135", "SESSION_MANAGER_CA": f"{tls}/ca.crt",
                "SESSION_MANAGER_CERT": f"{tls}/tls.crt", "SESSION_MANAGER_KEY": f"{tls}/tls.key"}

    def start(self):
        settings = os.path.join(self.dir, "session-manager.yaml")
        arguments = [re.sub("^--config=.*", f"--config={settings}", word) for word in container_arguments()]
        log = open(os.path.join(self.dir, "log"), "a")
        self.process = subprocess.Popen(["ip", "netns", "exec", self.space, os.environ["SESSION_MANAGER"], *arguments],
                                        cwd=self.dir, stdout=log, stderr=log, env=self.environment())
        self.dns.set(self.pod, self.address)

    def operate(self, *words):
        words = ["ip", "netns", "exec", self.space, os.environ["SESSION_MANAGER"], *words]
        return run(words, env=self.environment(), capture_output=True, timeout=WAIT).stdout

    def status(self):
        return json.loads(self.operate("cluster", "status", "--json"))

    def roll(self):
        """What Kubernetes does with a pod whose image changes. The Service drops it when preStop begins."""
        self.serves = False
        self.operate(*pre_stop()[1:])
        self.stop()
        self.start()
        self.serves = True

    def lose_disk(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(os.path.join(self.dir, "data"))


class Load:
    """Clients that append through the pods that are ready, as through the Service. A call that fails is counted and
    repeated."""

    def __init__(self, pods, token, ca):
        self.pods, self.token = pods, token
        self.context = ssl.create_default_context(cafile=ca)
        self.context.check_hostname = False
        self.acknowledged, self.failures, self.lock = [], [], threading.Lock()
        self.running = True
        self.session = self.call(pods[0], "session::create", {"title": "load"})["session_id"]
        self.threads = [threading.Thread(target=self.run, args=(number,), daemon=True) for number in range(2)]
        for thread in self.threads:
            thread.start()

    def ask(self, pod, path, body=None, timeout=10):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"https://{pod.address}:49134{path}", data=data, headers=headers)
        with urllib.request.urlopen(request, timeout=timeout, context=self.context) as answer:
            return answer.read()

    def call(self, pod, function, body):
        return json.loads(self.ask(pod, f"/v1/call/{function}", body))

    def is_ready(self, pod):
        try:
            self.ask(pod, "/readyz", timeout=2)
            return True
        except OSError:
            return False

    def run(self, client):
        number = 0
        while self.running:
            entry = f"{client}-{number}"
            message = {"role": "user", "content": [{"type": "text", "text": entry}], "timestamp": 1}
            pod = random.choice([pod for pod in self.pods if pod.serves])
            if not self.is_ready(pod):
                continue
            try:
                body = {"session_id": self.session, "entry_id": entry, "message": message}
                self.call(pod, "session::append", body)
                with self.lock:
                    self.acknowledged.append(entry)
                number += 1
            except OSError as error:
                text = error.read().decode() if hasattr(error, "read") else str(error)
                with self.lock:
                    self.failures.append(f"{pod.pod}: {text}")

    def progress(self):
        """Waits until some more writes are acknowledged."""
        goal = len(self.acknowledged) + 20
        eventually("progress of the load", lambda: len(self.acknowledged) >= goal)

    def stop(self):
        self.running = False
        for thread in self.threads:
            thread.join(WAIT)

    def check(self, pod):
        found, cursor = set(), None
        while True:
            body = {"session_id": self.session, "limit": 500, **({"cursor": cursor} if cursor else {})}
            page = self.call(pod, "session::messages", body)
            found.update(row["entry_id"] for row in page["messages"])
            cursor = page.get("next_cursor")
            if not cursor:
                break
        missing = set(self.acknowledged) - found
        assert not missing, f"{len(missing)} acknowledged writes are missing"


def formed(pods, voters):
    """Waits until these pods are the members of one cluster. Returns its id."""
    def attempt():
        clusters = set()
        for pod in pods:
            status = pod.status()
            voting = [node for node in status["nodes"] if node["voter"]]
            if not status["healthy"] or len(status["nodes"]) != len(pods) or len(voting) != voters:
                return None
            clusters.add(status["cluster_id"])
        assert len(clusters) == 1, f"two clusters were founded: {clusters}"
        return clusters.pop()
    return eventually(f"a cluster of {len(pods)}", attempt)


def make_secrets(work):
    office, secrets = os.path.join(work, "office"), os.path.join(work, "secrets")
    program = os.environ["SESSION_MANAGER"]
    os.makedirs(office), os.makedirs(f"{secrets}/tls"), os.makedirs(f"{secrets}/tokens")
    run([program, "certs", "init", "--cluster", "production"], cwd=office, stdout=subprocess.DEVNULL)
    run([program, "certs", "node", "any", f"*.{SERVICE}", "localhost", "127.0.0.1"], cwd=office,
        stdout=subprocess.DEVNULL)
    for name, mounted in (("node.pem", "tls.crt"), ("node.key", "tls.key"), ("ca.pem", "ca.crt")):
        shutil.copy(os.path.join(office, "certs", name), os.path.join(secrets, "tls", mounted))
    made = run([program, "token", "create", "--name", "app", "--role", "app"], cwd=office, capture_output=True)
    with open(f"{secrets}/tokens/tokens", "w") as file:
        file.write(made.stdout)
    return secrets, re.search(r"smt_\S+", made.stderr).group()


def inside(work):
    make_network()
    cover("/etc/resolv.conf", "nameserver 10.77.0.254\n", work)
    secrets, token = make_secrets(work)
    dns = Dns(work)
    pods = [Pod(work, number, dns, secrets) for number in range(5)]
    load = None
    try:
        # The first three, in any order. One is late, and one is killed in the middle.
        first = pods[:3]
        random.shuffle(first)
        for pod in first[:2]:
            pod.start()
        first[0].process.kill()
        first[0].process.wait()
        first[2].start()
        first[0].start()
        cluster = formed(pods[:3], 3)
        print("three pods are one cluster")
        load = Load(pods[:3], token, os.path.join(secrets, "tls", "ca.crt"))
        load.progress()
        # A rolling update: no call fails.
        for pod in reversed(pods[:3]):
            pod.roll()
            eventually(f"{pod.pod} is ready", lambda: load.is_ready(pod))
            load.progress()
        assert not load.failures, f"calls failed during a rolling update: {load.failures[:3]}"
        print(f"a rolling update: {len(load.acknowledged)} calls, none failed")
        # Grow to five.
        for pod in pods[3:]:
            pod.start()
        assert formed(pods, 5) == cluster, "it is another cluster"
        load.pods = pods
        load.progress()
        print("five pods are the same cluster")
        # Shrink to three: removed, then stopped.
        load.pods = pods[:3]
        for pod in pods[3:]:
            members = pods[0].status()["nodes"]
            node = next(node["node"] for node in members if node["name"] == pod.pod)
            pods[0].operate("cluster", "remove", str(node))
            pod.stop()
            dns.forget(pod.pod)
        assert formed(pods[:3], 3) == cluster, "it is another cluster"
        load.progress()
        # A pod loses its volume and replaces itself.
        lost = pods[random.randrange(3)]
        load.pods = [pod for pod in pods[:3] if pod is not lost]
        lost.lose_disk()
        lost.start()
        assert formed(pods[:3], 3) == cluster, "it is another cluster"
        load.progress()
        print(f"{lost.pod} lost its volume and came back")
        # Grow again, with the old volumes of pods that were removed.
        for pod in pods[3:]:
            pod.start()
        assert formed(pods, 5) == cluster, "it is another cluster"
        load.stop()
        for pod in pods:
            load.check(pod)
        print(f"five pods again; {len(load.acknowledged)} acknowledged writes are on every pod, "
              f"{len(load.failures)} calls were repeated")
    except BaseException:
        print_logs(pods)
        raise
    finally:
        if load:
            load.running = False
        for pod in pods:
            pod.remove()
        dns.process.kill()


enter(__file__, inside, ("dnsmasq",))
