// A session, its events and its messages, with the Node SDK: npm install iii-sdk@0.22.1
import { registerWorker } from 'iii-sdk'

// The Rust and Python SDKs read III_TOKEN by themselves.
const headers = process.env.III_TOKEN ? { Authorization: `Bearer ${process.env.III_TOKEN}` } : {}
const worker = registerWorker(process.env.III_URL ?? 'ws://127.0.0.1:49134', { headers })
const call = (function_id, payload) => worker.trigger({ function_id, payload })
const text = (words) => [{ type: 'text', text: words }]

// 1. Create a session and subscribe to its events.
const { session_id } = await call('session::create', { title: 'Quickstart' })
let received = 0
const all_received = new Promise((resolve) => {
  for (const kind of ['message-added', 'message-updated']) {
    const function_id = `quickstart::${session_id}::${kind}`
    worker.registerFunction(function_id, async (event, sidecar) => {
      console.log(kind, sidecar['session-manager'].seq, JSON.stringify(event.message))
      if (++received === 4) resolve()
    })
    worker.registerTrigger({ type: `session::${kind}`, function_id, config: { session_id } })
  }
})

// 2. Append a question and an empty answer. Update the answer as a model streams it.
const timestamp = Date.now()
await call('session::append', { session_id, message: { role: 'user', timestamp, content: text('What is a log?') } })
const { entry_id } = await call('session::append', {
  session_id,
  message: { role: 'assistant', timestamp, content: [], model: 'm', provider: 'p', stop_reason: 'end' },
})
for (const words of ['An ordered', 'An ordered list of facts.']) {
  await call('session::update-message', { session_id, entry_id, content: text(words) })
}

// 3. Print the events, then the stored messages.
await all_received
const { messages } = await call('session::messages', { session_id })
for (const { message } of messages) console.log(message.role, JSON.stringify(message.content))
await worker.shutdown()
process.exit(0)
