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

/** @type {'online'|'offline'|'moved'} */
let standing = 'online';
const watchers = new Set();

export const here = () => base;
export const me = () => account;
export const status = () => ({ standing, base, home: HERE, nodes });

/** @param {() => void} watcher */
export function onStatus(watcher) {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
}

function become(next) {
    if (standing === next) return;
    standing = next;
    for (const watcher of watchers) watcher();
}

/** @param {string} path @param {RequestInit} [init] */
async function request(path, init = {}) {
    for (let attempt = 0; ; attempt += 1) {
        try {
            const response = await fetch(base + path, { ...init, credentials: base === HERE ? 'same-origin' : 'omit' });
            become(base === HERE ? 'online' : 'moved');
            if (response.ok) return response;
            const error = await readError(response);
            // A node that is losing its leader answers 503 for a moment. Reads are asked again.
            if (response.status === 503 && attempt < 4 && init.method !== 'POST') {
                await pause(250 * (attempt + 1));
                continue;
            }
            throw error;
        } catch (error) {
            if (error instanceof ApiError || /** @type {any} */ (error)?.name === 'AbortError') throw error;
            if (!(await turnToAnother())) {
                become('offline');
                throw new ApiError(0, 'unreachable', 'No node answers. The page tries again when one does.');
            }
            if (attempt > 3) throw new ApiError(0, 'unreachable', String(error));
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

/** Finds a node that answers. A page with a login goes there as a whole, because the cookie belongs to one address. */
async function turnToAnother() {
    const others = [base, HERE, ...nodes.map((node) => webUrl(node.url))];
    for (const url of new Set(others)) {
        try {
            const probe = await fetch(`${url}/livez`, {
                cache: 'no-store',
                credentials: 'omit',
                signal: AbortSignal.timeout(1500),
            });
            if (!probe.ok) continue;
            if (url !== base && account?.login) {
                location.assign(`${url}/console${location.hash}`);
                await pause(5000);
            }
            base = url;
            become(base === HERE ? 'online' : 'moved');
            return true;
        } catch {
            /* the next one */
        }
    }
    return false;
}

/** @param {string} url */
export const webUrl = (url) => url.replace(/^ws/, 'http').replace(/\/$/, '');

/**
 * Calls a function.
 * @param {string} name @param {object} [body] @param {{signal?: AbortSignal}} [options] @returns {Promise<any>}
 */
export async function call(name, body = {}, { signal } = {}) {
    const isRead = /::(get|list|messages|get-message|path|tree|export)$/.test(name);
    for (let attempt = 0; ; attempt += 1) {
        try {
            const response = await request(`/v1/call/${name}`, {
                method: 'POST',
                body: JSON.stringify(body),
                headers: { 'content-type': 'application/json' },
                signal,
            });
            return await response.json();
        } catch (error) {
            const retry = isRead && error instanceof ApiError && error.status === 503 && attempt < 5;
            if (!retry) throw error;
            await pause(200 * (attempt + 1));
        }
    }
}

/** @param {string} path @returns {Promise<any>} */
export const get = async (path) => (await request(path)).json();

/** @param {string} path @param {object} body @returns {Promise<any>} */
export const post = async (path, body) =>
    (
        await request(path, {
            method: 'POST',
            body: JSON.stringify(body),
            headers: { 'content-type': 'application/json' },
        })
    ).json();

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
    try {
        nodes = (await get('/v1/nodes')).nodes;
    } catch {
        nodes = [];
    }
    return account;
}

export async function login(token) {
    account = await post('/v1/login', { token });
    return loadMe();
}

export const logout = () => post('/v1/logout', {});

/** Looks for other nodes from time to time, so that one is known when this one is lost. */
setInterval(async () => {
    if (document.hidden || !account) return;
    try {
        nodes = (await get('/v1/nodes')).nodes;
    } catch {
        /* shown as offline */
    }
}, 10000);

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
            try {
                const query = new URLSearchParams();
                for (const [name, value] of Object.entries({ ...filter, after: position }))
                    if (value) query.set(name, value);
                const response = await request(`/v1/events?${query}`, { signal: stop.signal });
                failures = 0;
                await readEvents(response, stop.signal, (event) => {
                    if (event.id) position = event.id;
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
            }
            if (!stop.signal.aborted) await pause(Math.min(3000, 150 * 2 ** failures));
        }
    };
    read();
    return { close: () => stop.abort(), position: () => position };
}

async function readEvents(response, signal, deliver) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    signal.addEventListener('abort', () => reader.cancel().catch(() => {}), { once: true });
    let text = '';
    let event = { id: '', type: '', data: '' };
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        text += value;
        let begin = 0;
        for (let end; (end = text.indexOf('\n', begin)) !== -1; begin = end + 1) {
            const line = text.slice(begin, end).replace(/\r$/, '');
            if (line === '') {
                if (event.type || event.id)
                    deliver({ id: event.id, type: event.type, data: event.data ? JSON.parse(event.data) : null });
                event = { id: '', type: '', data: '' };
            } else if (line.startsWith('id: ')) event.id = line.slice(4);
            else if (line.startsWith('event: ')) event.type = line.slice(7);
            else if (line.startsWith('data: ')) event.data += (event.data ? '\n' : '') + line.slice(6);
        }
        text = text.slice(begin);
    }
}

/** The same call for a shell. @param {string} name @param {object} body */
export function curl(name, body) {
    const text = JSON.stringify(body).replaceAll("'", "'\\''");
    const token = account?.login ? ` -H "authorization: Bearer $SESSION_MANAGER_TOKEN"` : '';
    return `curl -sS${token} -H 'content-type: application/json' \\\n  -d '${text}' \\\n  ${base}/v1/call/${name}`;
}
