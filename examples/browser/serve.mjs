// Serves index.html, and forwards /v1 to a node: node examples/browser/serve.mjs
//
// Why a proxy: a node answers calls without CORS headers, so a page from another port could not read the responses.
// Here the page and the API have the same origin. The browser's Origin header is forwarded, so the node still refuses
// other web sites.
import { createServer, request } from 'node:http'
import { readFile } from 'node:fs/promises'

const node = new URL(process.env.NODE_URL ?? 'http://127.0.0.1:49134')
const port = Number(process.env.PORT ?? 8080)
const page = new URL('index.html', import.meta.url)

const server = createServer(async (incoming, outgoing) => {
  if (!incoming.url.startsWith('/v1/')) {
    const found = incoming.method === 'GET' && new URL(incoming.url, node).pathname === '/'
    outgoing.writeHead(found ? 200 : 404, { 'content-type': 'text/html; charset=utf-8' })
    outgoing.end(found ? await readFile(page) : 'not found')
    return
  }
  const { method, url: path, headers } = incoming
  const options = { host: node.hostname, port: node.port, method, path, headers: { ...headers, host: node.host } }
  const forwarded = request(options, (response) => {
    outgoing.writeHead(response.statusCode, response.headers)
    response.pipe(outgoing)
  })
  forwarded.on('error', (error) => {
    if (!outgoing.headersSent) outgoing.writeHead(502, { 'content-type': 'application/json' })
    outgoing.end(JSON.stringify({ error: { code: 'proxy', message: `${node.origin}: ${error.message}` } }))
  })
  outgoing.on('close', () => forwarded.destroy()) // a closed page ends its event stream at the node
  incoming.pipe(forwarded)
})
server.listen(port, '127.0.0.1', () => {
  console.log(`open http://127.0.0.1:${server.address().port}/ (calls go to ${node.origin})`)
})
