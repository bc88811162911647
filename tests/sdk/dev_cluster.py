"""Three nodes on this machine, started by `session-manager dev`, which starts a killed node again."""
import json, os, subprocess, threading, time

PROGRAM = os.environ["SESSION_MANAGER"]


class DevCluster:
    def __init__(self, directory, settle_max):
        self.nodes = {}
        self.process = subprocess.Popen(
            [PROGRAM, "dev", "--json", "--nodes", "3", "--respawn", "--data-dir", directory],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.read, daemon=True).start()
        begun = time.monotonic()
        while len(self.nodes) < 3:
            if time.monotonic() - begun > settle_max:
                self.process.kill()
                raise SystemExit("FAILED: the cluster does not start")
            time.sleep(0.02)

    def read(self):
        """A node that was started again prints its line again."""
        for line in self.process.stdout:
            node = json.loads(line)
            self.nodes[node["node"]] = node

    def leader(self):
        for node in list(self.nodes.values()):
            told = subprocess.run([PROGRAM, "cluster", "--peer", node["peer"], "status", "--json"],
                                  capture_output=True, text=True)
            if told.returncode == 0 and json.loads(told.stdout).get("leader"):
                return json.loads(told.stdout)["leader"]
        return None
