// Runs examples/browser: its proxy always, its page in headless chromium where that is installed.
// Needs NODE_URL. Exits 0 when all checks hold.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const children = []
const profile = mkdtempSync(join(tmpdir(), 'browser-'))
const finish = (code, message) => {
  console.log(message)
  children.forEach((child) => child.kill('SIGKILL'))
  setTimeout(() => {
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 })
    process.exit(code)
  }, 300)
}
process.on('uncaughtException', (error) => finish(1, `FAILED: ${error.stack}`))

const env = { ...process.env, PORT: '0' }
const server = spawn('node', [process.argv[2]], { env, stdio: ['ignore', 'pipe', 'inherit'] })
children.push(server)
const site = await new Promise((resolve) =>
  createInterface({ input: server.stdout }).on('line', (line) => resolve(line.match(/http:[^ ]*\//)[0])))
const call = async (function_id, request) => {
  const response = await fetch(`${site}v1/call/${function_id}`, { method: 'POST', body: JSON.stringify(request) })
  assert.ok(response.ok, `${function_id}: ${response.status}`)
  return response.json()
}

// 1. The proxy serves the page, forwards calls and streams events, and other web sites are still refused.
assert.match(await (await fetch(site)).text(), /EventSource/)
assert.equal((await fetch(`${site}nothing`)).status, 404)
const { session_id } = await call('session::create', { title: 'proxy' })
const stream = (await fetch(`${site}v1/events?session=${session_id}`)).body.getReader()
await call('session::set-status', { session_id, status: 'working' })
let events = ''
while (!events.includes('session::status-changed')) events += new TextDecoder().decode((await stream.read()).value)
await stream.cancel()
const foreign = { method: 'POST', body: '{}', headers: { origin: 'http://evil.example' } }
assert.equal((await fetch(`${site}v1/call/session::list`, foreign)).status, 403)

// 2. The page in a browser. It writes the number of events that it showed into the session's description.
const is_installed = (name) => spawnSync('which', [name]).status === 0
const browser = ['chromium', 'chromium-browser', 'google-chrome'].find(is_installed)
if (!browser) {
  finish(0, 'SKIPPED: chromium is not installed; only the proxy of the browser example was tested')
} else {
  children.push(spawn(browser, [
    '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', `--user-data-dir=${profile}`, '--remote-debugging-port=0',
    `${site}?demo`,
  ], { stdio: 'ignore' }))
  const until = Date.now() + 40_000
  for (;;) {
    const { sessions } = await call('session::list', { metadata: { example: 'browser' } })
    if (sessions[0]?.description === '9 events shown') break
    assert.ok(Date.now() < until, `the page did not finish: ${JSON.stringify(sessions)}`)
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  finish(0, 'the page in the browser showed every event')
}
