"""Headless browsers for the tests of the gateway: a server of their page, and the processes."""
import http.server, json, subprocess, threading


class Browsers:
    """`get` says what a path has: the answer as JSON, or None for the page. `post` takes what a page reports."""

    def __init__(self, program, page, get, post):
        class Pages(http.server.BaseHTTPRequestHandler):
            def answer(self, body, kind):
                self.send_response(200)
                self.send_header("content-type", kind)
                self.end_headers()
                self.wfile.write(body.encode())

            def do_GET(self):
                found = get(self.path)
                self.answer(*(page, "text/html") if found is None else (json.dumps(found), "application/json"))

            def do_POST(self):
                post(self.path, json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.answer("", "text/plain")

            def log_message(self, *words):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.program, self.port, self.processes = program, server.server_port, []

    def open(self, place, profile):
        """Opens the page in a browser with a directory of its own."""
        self.processes.append(subprocess.Popen(
            [self.program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
             f"--user-data-dir={profile}", f"http://127.0.0.1:{self.port}/{place}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()
