// Real nodes for the browser tests: one node, or a cluster of three, on free ports, killed at the end.

import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';

const PROGRAM = process.env.SESSION_MANAGER ?? 'target/debug/session-manager';
const children = [];

process.on('exit', () => children.forEach((child) => child.kill('SIGKILL')));

/** Waits until something holds, and says what did not. */
export async function until(what, check, ms = 60000) {
    const end = Date.now() + ms;
    for (;;) {
        const found = await check();
        if (found) return found;
        if (Date.now() > end) throw new Error(`not within ${ms / 1000} s: ${what}`);
        await new Promise((done) => setTimeout(done, 30));
    }
}

/** One node. @returns {Promise<{url: string, kill: () => void}>} */
export async function startNode(dir, ...options) {
    mkdirSync(dir, { recursive: true });
    const port = join(dir, 'port');
    const log = openSync(join(dir, 'log'), 'a');
    const child = spawn(
        PROGRAM,
        ['--listen', '127.0.0.1:0', '--data-dir', join(dir, 'data'), '--port-file', port, ...options],
        { stdio: ['ignore', 'ignore', log] },
    );
    children.push(child);
    await until('the node listens', () => {
        if (child.exitCode !== null) throw new Error(readFileSync(join(dir, 'log'), 'utf8'));
        return existsSync(port) && readFileSync(port, 'utf8').trim();
    });
    return { url: `http://127.0.0.1:${readFileSync(port, 'utf8').trim()}`, kill: () => child.kill('SIGKILL') };
}

/** A cluster of three processes. @returns {Promise<{url: string, pid: number, kill: () => void}[]>} */
export async function startCluster(dir) {
    mkdirSync(dir, { recursive: true });
    const log = openSync(join(dir, 'log'), 'a');
    const child = spawn(PROGRAM, ['dev', '--nodes', '3', '--json', '--data-dir', dir], {
        stdio: ['ignore', 'pipe', log],
    });
    children.push({ kill: () => child.kill('SIGTERM') });
    const nodes = [];
    // The pipe stays open: the command goes on telling what happens to its nodes.
    createInterface({ input: child.stdout }).on('line', (line) => {
        const { client, pid } = JSON.parse(line);
        const kill = () => {
            try {
                process.kill(pid, 'SIGKILL');
            } catch {
                /* gone already */
            }
        };
        nodes.push({ url: client.replace(/^ws/, 'http'), pid, kill });
        children.push({ kill });
    });
    await until('three nodes', () => nodes.length === 3);
    // A node tells a page about the others once it knows where clients reach them.
    for (const { url } of nodes)
        await until('every node knows the others', async () => {
            const known = await (await fetch(`${url}/v1/nodes`)).json();
            return known.nodes.length === 3;
        });
    return nodes;
}

/** Fills a node with conversations. */
export function demo(url, ...options) {
    const done = spawnSync(PROGRAM, ['demo', '--url', url.replace('http', 'ws'), ...options], { encoding: 'utf8' });
    if (done.status !== 0) throw new Error(`demo: ${done.stdout}${done.stderr}`);
}

/** Calls a function. A node that is losing its leader, or is gone, is asked again, or another one. */
export async function call(urls, name, body = {}, headers = {}) {
    let last;
    for (let attempt = 0; attempt < 60; attempt += 1) {
        const url = [urls].flat()[attempt % [urls].flat().length];
        try {
            const response = await fetch(`${url}/v1/call/${name}`, {
                method: 'POST',
                body: JSON.stringify(body),
                headers,
            });
            const text = await response.text();
            if (response.ok) return JSON.parse(text);
            last = new Error(`${name}: ${response.status} ${text}`);
            if (response.status !== 503) throw Object.assign(last, { final: true });
        } catch (error) {
            if (error.final) throw error;
            last = error;
        }
        await new Promise((done) => setTimeout(done, 200));
    }
    throw last;
}

export const user = (text) => ({ role: 'user', timestamp: Date.now(), content: [{ type: 'text', text }] });

export const assistant = (text, more = {}) => ({
    role: 'assistant',
    timestamp: Date.now(),
    content: text === '' ? [] : [{ type: 'text', text }],
    stop_reason: 'end',
    model: 'test',
    provider: 'test',
    ...more,
});

/** Lets a reply grow word by word. */
export async function streamWords(urls, session_id, entry_id, words, each = async () => {}) {
    let text = '';
    for (const [at, word] of words.entries()) {
        text += (at ? ' ' : '') + word;
        await call(urls, 'session::update-message', { session_id, entry_id, content: [{ type: 'text', text }] });
        await each(at);
    }
    return text;
}
