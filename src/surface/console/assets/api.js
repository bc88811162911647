// The public doors of a node: calls over HTTP, events as server-sent events. If the node is lost, the others take over.

/** @typedef {{node: number, url: string, leader: boolean}} NodeUrl */
/** @typedef {{name: string, role: string, scope: object|null, login: boolean, may: Record<string, boolean>}} Me */

export class ApiError extends Error {
    /** @param {number} status @param {string} code @param {string} message */
    constructor(status, code, message) {
        super(message);
        this.status = status;
        this.code = code;
    }
}

const HERE = new URL('..', import.meta.url).href.replace(/\/$/, '');

/** Where requests go. Another node's URL after this page's own node was lost. */
let base = HERE;
/** @type {NodeUrl[]} */
let nodes = [];
/** @type {Me|null} */
let account = null;

/** `behind`: the node answers, but what it knows may be out of date. @typedef {'online'|'moved'|'behind'|'offline'} Standing */
/** @type {Standing} */
let standing = 'online';
/** Why the node is behind. */
let reason = '';
const watchers = new Set();
/** Nodes joined after this page was loaded. Its policy does not let it talk to them until it is loaded again. */
let isOutdated = false;
document.addEventListener('securitypolicyviolation', (event) => {
    if (event.effectiveDirective === 'connect-src') isOutdated = true;
});
/** Nodes that the page tried to reach once, to find out whether it may. */
const tried = new Set();

/** How long an answer may take, a probe of a node, and how long a stream may be silent. Nodes send something every 15 s. */
const ANSWER_MS = 30000;
const PROBE_MS = 1500;
const SILENCE_MS = 40000;
const LOOK_EVERY_MS = 5000;
/** A page that nobody looks at gives its stream back: browsers open six connections to a node and no more. */
const HIDDEN_MS = 20000;

export const here = () => base;
export const me = () => account;
export const status = () => ({ standing, reason, base, home: HERE, nodes, isOutdated });

/** @param {() => void} watcher */
export function onStatus(watcher) {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
}

/** @param {Standing} next @param {string} [why] */
function become(next, why = '') {
    if (standing === next && reason === why) return;
    standing = next;
    reason = why;
    for (const watcher of watchers) watcher();
}

/** A node answered. Only a look at it ends that it is behind. */
function answered() {
    if (standing !== 'behind') become(base === HERE ? 'online' : 'moved');
}

/**
 * One request. If the node is lost, it is sent again to another one, unless it might happen twice then.
 * @param {string} path @param {RequestInit} [init] @param {{repeats?: boolean, waits?: number}} [options]
 */
async function request(path, init = {}, { repeats = true, waits = ANSWER_MS } = {}) {
    for (let attempt = 0; ; attempt += 1) {
        const late = new AbortController();
        const timer = setTimeout(() => late.abort(), waits);
        const signal = init.signal ? AbortSignal.any([init.signal, late.signal]) : late.signal;
        try {
            const credentials = base === HERE ? 'same-origin' : 'omit';
            const response = await fetch(base + path, { ...init, signal, credentials });
            clearTimeout(timer);
            answered();
            if (response.ok) return response;
            const error = await readError(response);
            // A node that is losing its leader answers 503 for a moment.
            if (response.status === 503 && repeats && attempt < 5) {
                await pause(250 * (attempt + 1));
                continue;
            }
            throw error;
        } catch (error) {
            clearTimeout(timer);
            if (error instanceof ApiError || init.signal?.aborted) throw error;
            const found = await turnToAnother();
            if (!repeats)
                throw new ApiError(
                    0,
                    'unknown_outcome',
                    'The node was lost before it answered. It may have happened: look before you try again.',
                );
            if (!found || attempt > 5) {
                become('offline');
                throw new ApiError(0, 'unreachable', 'No node answers. The page tries again when one does.');
            }
        }
    }
}

async function readError(response) {
    const text = await response.text();
    try {
        const { error } = JSON.parse(text);
        return new ApiError(response.status, error.code, error.message);
    } catch {
        return new ApiError(response.status, `http_${response.status}`, text.slice(0, 300) || response.statusText);
    }
}

const pause = (/** @type {number} */ ms) => new Promise((done) => setTimeout(done, ms));

/** Asks a node whether it can serve. @param {string} url @returns {Promise<{alive: boolean, ready: boolean, why: string}>} */
async function probe(url) {
    try {
        const response = await fetch(`${url}/readyz`, {
            cache: 'no-store',
            credentials: 'omit',
            signal: AbortSignal.timeout(PROBE_MS),
        });
        return { alive: true, ready: response.ok, why: response.ok ? '' : (await response.text()).trim() };
    } catch {
        return { alive: false, ready: false, why: '' };
    }
}

/** Finds a node that answers. A page with a login goes there as a whole, because the cookie belongs to one address. */
async function turnToAnother() {
    const urls = [...new Set([base, HERE, ...nodes.map((node) => webUrl(node.url))])];
    const found = await Promise.all(urls.map(probe));
    const at = [found.findIndex((one) => one.ready), found.findIndex((one) => one.alive)].find((index) => index >= 0);
    if (at === undefined) return false;
    if (urls[at] !== base && account?.login) {
        location.assign(`${urls[at]}/console${location.hash}`);
        await pause(5000);
    }
    base = urls[at];
    become(base === HERE ? 'online' : 'moved');
    return true;
}

/** Looks at the node and its neighbours from time to time, so that another one is known when this one is lost. */
async function look() {
    if (document.hidden || !account) return;
    if (base !== HERE && !account.login && (await probe(HERE)).ready) base = HERE;
    const { alive, ready, why } = await probe(base);
    if (!alive) {
        if (!(await turnToAnother())) become('offline');
        return;
    }
    if (ready) become(base === HERE ? 'online' : 'moved');
    else become('behind', why);
    await meetNodes();
}

/** Learns where the other nodes are. */
async function meetNodes() {
    try {
        nodes = (await get('/v1/nodes')).nodes;
    } catch {
        return;
    }
    for (const url of nodes.map((node) => webUrl(node.url))) {
        if (tried.has(url)) continue;
        tried.add(url);
        void probe(url);
    }
}
setTimeout(look, 1500);
setInterval(look, LOOK_EVERY_MS);
document.addEventListener('visibilitychange', () => void look());

/** @param {string} url */
export const webUrl = (url) => url.replace(/^ws/, 'http').replace(/\/$/, '');

/** Calls that can be sent twice: they read, or change nothing the second time. */
const REPEATABLE =
    /::(get|list|messages|get-message|path|tree|export|ensure|set-meta|set-status|set-active-leaf|config-status)$/;

/**
 * Calls a function.
 * @param {string} name @param {any} [body] @param {{signal?: AbortSignal}} [options] @returns {Promise<any>}
 */
export async function call(name, body = {}, { signal } = {}) {
    const repeats = REPEATABLE.test(name) || (name === 'session::append' && Boolean(body.entry_id));
    const init = {
        method: 'POST',
        body: JSON.stringify(body),
        headers: { 'content-type': 'application/json' },
        signal,
    };
    return (await request(`/v1/call/${name}`, init, { repeats })).json();
}

/** @param {string} path @returns {Promise<any>} */
export const get = async (path) => (await request(path)).json();

/** @param {string} path @param {object} body @returns {Promise<any>} */
export const post = async (path, body) => {
    const init = { method: 'POST', body: JSON.stringify(body), headers: { 'content-type': 'application/json' } };
    return (await request(path, init, { repeats: false })).json();
};

/** A request of the reference page: its status, time and body, whatever they are. */
export async function raw(method, path, body) {
    const begun = performance.now();
    const init = {
        method,
        credentials: base === HERE ? 'same-origin' : 'omit',
        ...(body === undefined ? {} : { body, headers: { 'content-type': 'application/json' } }),
    };
    const response = await fetch(base + path, /** @type {RequestInit} */ (init));
    const text = await response.text();
    return { status: response.status, ms: performance.now() - begun, text };
}

/** Who is at this page. Fails with status 401 if a token is needed. */
export async function loadMe() {
    account = await get('/v1/me');
    void meetNodes();
    return account;
}

export async function login(token) {
    account = await post('/v1/login', { token });
    return loadMe();
}

export const logout = () => post('/v1/logout', {});

/**
 * @typedef {object} FeedEvent
 * @property {string} id the position
 * @property {string} type `session::message-added`, …, or `lagged`, `skipped`, `compacted`
 * @property {any} data
 */

/**
 * Reads events until it is closed. After a lost connection it goes on behind the last event, at any node.
 * @param {Record<string, string|undefined>} filter `session`, `type`, `roles`, `metadata`, `after`
 * @param {{event: (event: FeedEvent) => void, open?: (position: string) => void, lost?: (error: ApiError) => void}} to
 */
export function stream(filter, to) {
    let position = filter.after;
    const stop = new AbortController();
    const read = async () => {
        for (let failures = 0; !stop.signal.aborted;) {
            await isSeen(stop.signal);
            if (stop.signal.aborted) return;
            const connection = new AbortController();
            const end = () => connection.abort();
            stop.signal.addEventListener('abort', end, { once: true });
            const forget = whenHidden(end);
            try {
                const query = new URLSearchParams();
                for (const [name, value] of Object.entries({ ...filter, after: position }))
                    if (value) query.set(name, value);
                const response = await request(`/v1/events?${query}`, { signal: connection.signal });
                failures = 0;
                await readEvents(response, end, (event) => {
                    if (stop.signal.aborted) return;
                    if (event.id) position = event.id;
                    if (event.type === 'lagged')
                        become('behind', 'events arrive faster than this page reads them; it catches up');
                    if (event.type) to.event(event);
                    else to.open?.(event.id);
                });
            } catch (error) {
                if (stop.signal.aborted) return;
                if (error instanceof ApiError && [400, 401, 403, 410].includes(error.status)) {
                    to.lost?.(error);
                    return;
                }
                failures += 1;
            } finally {
                forget();
                stop.signal.removeEventListener('abort', end);
            }
            if (!stop.signal.aborted) await pause(Math.min(3000, 150 * 2 ** failures));
        }
    };
    read();
    return { close: () => stop.abort(), position: () => position };
}

/** Waits until somebody looks at the page. @param {AbortSignal} signal */
async function isSeen(signal) {
    while (document.hidden && !signal.aborted)
        await new Promise((done) => {
            document.addEventListener('visibilitychange', done, { once: true });
            signal.addEventListener('abort', done, { once: true });
        });
}

/** Does something when nobody has looked at the page for a while. @param {() => void} work */
function whenHidden(work) {
    let timer = 0;
    const changed = () => {
        clearTimeout(timer);
        if (document.hidden) timer = window.setTimeout(work, HIDDEN_MS);
    };
    document.addEventListener('visibilitychange', changed);
    changed();
    return () => {
        clearTimeout(timer);
        document.removeEventListener('visibilitychange', changed);
    };
}

/** @param {Response} response @param {() => void} end closes the connection @param {(event: FeedEvent) => void} deliver */
async function readEvents(response, end, deliver) {
    const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
    if (!reader) return;
    let silence = window.setTimeout(end, SILENCE_MS);
    /** The parts of a line that has not ended yet. @type {string[]} */
    let begun = [];
    let event = { id: '', type: '', data: '' };
    const take = (/** @type {string} */ line) => {
        if (line === '') {
            if (event.type || event.id)
                deliver({ id: event.id, type: event.type, data: event.data ? JSON.parse(event.data) : null });
            event = { id: '', type: '', data: '' };
        } else if (line.startsWith('id: ')) event.id = line.slice(4);
        else if (line.startsWith('event: ')) event.type = line.slice(7);
        else if (line.startsWith('data: ')) event.data += (event.data ? '\n' : '') + line.slice(6);
    };
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            clearTimeout(silence);
            silence = window.setTimeout(end, SILENCE_MS);
            const lines = value.split('\n');
            for (const part of lines.slice(0, -1)) {
                begun.push(part);
                take(begun.join('').replace(/\r$/, ''));
                begun = [];
            }
            begun.push(lines[lines.length - 1]);
        }
    } finally {
        clearTimeout(silence);
        end();
    }
}

/** The same request for a shell. @param {string} path @param {object} body */
export function shellPost(path, body) {
    const text = JSON.stringify(body).replaceAll("'", "'\\''");
    const token = account?.login ? ` -H "authorization: Bearer $SESSION_MANAGER_TOKEN"` : '';
    return `curl -sS${token} -H 'content-type: application/json' \\\n  -d '${text}' \\\n  ${base}${path}`;
}

/** The same call for a shell. @param {string} name @param {object} body */
export const curl = (name, body) => shellPost(`/v1/call/${name}`, body);
