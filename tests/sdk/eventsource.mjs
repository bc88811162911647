// EventSource in a real browser: the node is killed and restarted, and the browser receives every missed event once.
// Needs SESSION_MANAGER (the program) and chromium; without chromium it prints SKIPPED and exits 0.
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const browser = ["chromium", "chromium-browser", "google-chrome"].find(
  (name) => spawnSync("which", [name]).status === 0,
);
if (!browser) {
  console.log("SKIPPED: chromium is not installed; EventSource was not tested");
  process.exit(0);
}
const directory = mkdtempSync(join(tmpdir(), "eventsource-"));
const children = [];
const finish = (code, words) => {
  console.log(words);
  children.forEach((child) => child.kill("SIGKILL"));
  setTimeout(() => {
    try {
      rmSync(directory, { recursive: true, force: true, maxRetries: 5 });
    } catch {}
    process.exit(code);
  }, 300);
};
setTimeout(() => finish(1, `FAILED: not done after 60 s; received ${JSON.stringify(heard)}`), 60_000);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

let port = 0;
async function startNode() {
  const portFile = join(directory, "port");
  rmSync(portFile, { force: true });
  const node = spawn(process.env.SESSION_MANAGER, [
    "--listen", `127.0.0.1:${port}`, "--data-dir", join(directory, "data"), "--port-file", portFile,
  ], { stdio: "ignore" });
  children.push(node);
  for (;;) {
    try {
      port = Number(readFileSync(portFile, "utf8"));
      if (port) return node;
    } catch {}
    await pause(50);
  }
}
async function append(entry) {
  const body = { session_id: "s", entry_id: entry, message: { role: "user", timestamp: 1, content: [] } };
  const answer = await fetch(`http://127.0.0.1:${port}/v1/call/session::append`, {
    method: "POST", body: JSON.stringify(body),
  });
  if (!answer.ok) finish(1, `FAILED: append ${entry}: ${await answer.text()}`);
}

// The page subscribes and reports every event to this script.
const heard = [];
const page = () => `<!doctype html><script>
  const source = new EventSource("http://127.0.0.1:${port}/v1/events?session=s&type=message-added");
  source.addEventListener("session::message-added", (event) => {
    fetch("/heard", { method: "POST", body: JSON.stringify([JSON.parse(event.data).entry_id, event.lastEventId]) });
  });
  source.onopen = () => fetch("/open", { method: "POST" });
</script>`;
let opened = 0;
const site = createServer((request, response) => {
  let body = "";
  request.on("data", (piece) => (body += piece));
  request.on("end", () => {
    if (request.url === "/heard") heard.push(JSON.parse(body));
    if (request.url === "/open") opened += 1;
    response.setHeader("content-type", "text/html");
    response.end(request.url === "/" ? page() : "");
  });
});
const until = async (what, holds) => {
  for (let n = 0; n < 400; n += 1) {
    if (holds()) return;
    await pause(50);
  }
  finish(1, `FAILED: never happened: ${what}; received ${JSON.stringify(heard)}`);
  await new Promise(() => {});
};

let node = await startNode();
await fetch(`http://127.0.0.1:${port}/v1/call/session::ensure`, { method: "POST", body: '{"session_id":"s"}' });
await new Promise((done) => site.listen(0, "127.0.0.1", done));
children.push(spawn(browser, [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", `--user-data-dir=${join(directory, "profile")}`,
  "--remote-debugging-port=0", `http://127.0.0.1:${site.address().port}/`,
], { stdio: "ignore" }));
await until("the browser connects", () => opened === 1);
await append("a");
await append("b");
await until("the browser receives a and b", () => heard.length === 2);

node.kill("SIGKILL");
await new Promise((done) => node.once("exit", done));
node = await startNode();
await append("c");
await append("d");
await until("the browser reconnects", () => opened >= 2);
await append("e");
await until("the browser receives the rest", () => heard.length >= 5);
await pause(500);
const entries = heard.map(([entry]) => entry).join(" ");
if (entries !== "a b c d e" || new Set(heard.map(([, id]) => id)).size !== 5) {
  finish(1, `FAILED: the browser received ${JSON.stringify(heard)}`);
} else {
  finish(0, `EventSource received ${entries}, each once, with the node killed between b and c`);
}
