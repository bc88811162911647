// Checks of the Node SDK beyond the quickstart. Exits 0 when all of them hold.
import assert from 'node:assert/strict'
import { registerWorker } from 'iii-sdk'

const worker = registerWorker(process.env.III_URL)
const call = (function_id, payload) => worker.trigger({ function_id, payload })
const user = (words) => ({ role: 'user', timestamp: 1, content: [{ type: 'text', text: words }] })
const refused = async (function_id, payload, code) =>
  assert.rejects(call(function_id, payload), (error) => String(error.message ?? error).includes(code), `${function_id} ${code}`)

// A payload of undefined leaves `data` out of the frame.
assert.ok(Array.isArray((await call('session::list', undefined)).sessions))
const session_id = '../escape/chat 42:? 🦀 node'
await call('session::ensure', { session_id })
const first = await call('session::append', { session_id, entry_id: 'é', message: user('one') })
const again = await call('session::append', { session_id, entry_id: 'é', message: user('two') })
assert.deepEqual(first, again)
assert.equal(await call('session::get', { session_id: 'nobody' }), null)
await refused('session::messages', { session_id: 'nobody' }, 'session/not_found')
await refused('session::append', { session_id }, 'session/invalid_request')
await refused('session::set-status', { session_id, status: 'asleep' }, 'session/invalid_request')
// The message is too large to be stored. The connection stays open.
await refused('session::append', { session_id, message: user('x'.repeat(20 << 20)) }, 'session/invalid_request')
await call('session::append', { session_id, message: user('y'.repeat(12 << 20)) })
const { messages } = await call('session::messages', { session_id })
assert.deepEqual(messages.map(({ message }) => message.content[0].text.length), [3, 12 << 20])
// Calls between workers go through the same bus.
worker.registerFunction('node::double', async ({ n }) => ({ twice: n * 2 }))
await call('session::list', {})
const other = registerWorker(process.env.III_URL)
assert.equal((await other.trigger({ function_id: 'node::double', payload: { n: 21 } })).twice, 42)
const listed = JSON.stringify(await call('engine::functions::list', {}))
assert.ok(listed.includes('session::append') && listed.includes('node::double'))
await other.shutdown()
await worker.shutdown()
console.log('all checks hold')
process.exit(0)
