import { registerWorker } from 'iii-sdk'

const worker = registerWorker(process.env.III_URL ?? 'ws://127.0.0.1:49134')
const call = (function_id, payload) => worker.trigger({ function_id, payload })
const text = (words) => [{ type: 'text', text: words }]

// 1. A session, and a handler for each kind of event it is to be told of.
const { session_id } = await call('session::create', { title: 'Quickstart' })
let heard = 0
const all_heard = new Promise((resolve) => {
  for (const kind of ['message-added', 'message-updated']) {
    const function_id = `quickstart::${session_id}::${kind}`
    worker.registerFunction(function_id, async (event, sidecar) => {
      console.log(kind, sidecar['session-manager'].seq, JSON.stringify(event.message))
      if (++heard === 4) resolve()
    })
    worker.registerTrigger({ type: `session::${kind}`, function_id, config: { session_id } })
  }
})

// 2. A question, an empty answer, and the answer growing as a model would stream it.
const timestamp = Date.now()
await call('session::append', { session_id, message: { role: 'user', timestamp, content: text('What is a log?') } })
const { entry_id } = await call('session::append', {
  session_id,
  message: { role: 'assistant', timestamp, content: [], model: 'm', provider: 'p', stop_reason: 'end' },
})
for (const words of ['An ordered', 'An ordered list of facts.']) {
  await call('session::update-message', { session_id, entry_id, content: text(words) })
}

// 3. What was heard, and what is stored.
await all_heard
const { messages } = await call('session::messages', { session_id })
for (const { message } of messages) console.log(message.role, JSON.stringify(message.content))
await worker.shutdown()
process.exit(0)
