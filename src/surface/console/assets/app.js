// The frame of the console: pages by the part of the URL after #, the header, keys, and the login.

import { ApiError, loadMe, login, logout, me, onStatus, status, webUrl } from './api.js';
import { dialog, fill, h, icon, iconButton, loading, state } from './dom.js';

/** @typedef {{element: HTMLElement, keys?: Record<string, (event: KeyboardEvent) => void>, help?: [string, string][], close?: () => void, change?: (query: URLSearchParams) => boolean}} Page */

const ROUTES = [
    { path: /^\/sessions$/, name: 'sessions', load: async () => (await import('./sessions.js')).sessionsPage },
    { path: /^\/sessions\/(.+)$/, name: 'sessions', load: async () => (await import('./session.js')).sessionPage },
    { path: /^\/feed$/, name: 'feed', load: async () => (await import('./feed.js')).feedPage },
    { path: /^\/cluster$/, name: 'cluster', load: async () => (await import('./cluster.js')).clusterPage },
    { path: /^\/api(?:\/(.*))?$/, name: 'api', load: async () => (await import('./reference.js')).referencePage },
];

const TABS = [
    { name: 'sessions', label: 'Sessions', icon: 'chat', key: 's', may: 'read' },
    { name: 'feed', label: 'Feed', icon: 'feed', key: 'f', may: 'events' },
    { name: 'cluster', label: 'Cluster', icon: 'cluster', key: 'c', may: 'metrics' },
    { name: 'api', label: 'API', icon: 'code', key: 'a', may: 'read' },
];

/** After the first page is drawn, and long before a reader needs the others. */
const LOAD_AHEAD_MS = 800;

const main = h('main', { id: 'main', tabindex: -1 });
const nav = h('nav', { 'aria-label': 'Pages' });
const standing = h('div.standing', { role: 'status', 'aria-live': 'polite' });
const banner = h('div.banner', { role: 'alert', hidden: true });
const who = h('div.who', null);

/** @type {Page|null} */
let page = null;
let shown = '';
let turn = 0;

document.body.append(
    h(
        'a.skip',
        {
            href: '#main',
            onclick: (event) => {
                event.preventDefault();
                main.focus();
            },
        },
        'Skip to the content',
    ),
    h(
        'header.top',
        null,
        h(
            'a.brand',
            { href: '#/sessions', 'aria-label': 'session-manager, to the sessions' },
            h('img', { src: new URL('icon.svg', import.meta.url).href, alt: '', width: 22, height: 22 }),
            h('span', null, 'session-manager'),
        ),
        nav,
        h('div.spacer', null),
        standing,
        who,
        iconButton('sun', 'Light or dark', theme),
        h('button.icon-button.help', { type: 'button', 'aria-label': 'Keys', title: 'Keys (?)', onclick: help }, '?'),
    ),
    banner,
    main,
    h('div', { id: 'toasts' }),
);

/** Follows the system until it is chosen here. */
function theme() {
    const now =
        document.documentElement.dataset.theme ||
        (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light');
    const next = now === 'dark' ? 'light' : 'dark';
    document.documentElement.dataset.theme = next;
    try {
        localStorage.setItem('theme', next);
    } catch {
        /* private window */
    }
}
try {
    const chosen = localStorage.getItem('theme');
    if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
    /* private window */
}

/** The path and the query after #. */
export function place() {
    const [path, query] = location.hash.replace(/^#/, '').split('?');
    return { path: path || '/sessions', query: new URLSearchParams(query ?? '') };
}

/** Changes the query of this page without a new page. @param {URLSearchParams} query @param {boolean} [isStep] */
export function setQuery(query, isStep) {
    const text = query.toString();
    const url = `#${place().path}${text ? `?${text}` : ''}`;
    if (isStep) history.pushState(null, '', url);
    else history.replaceState(null, '', url);
    shown = location.hash;
}

export const go = (/** @type {string} */ path) => {
    location.hash = path;
};

async function show() {
    const { path, query } = place();
    if (
        page &&
        location.hash !== shown &&
        shown.split('?')[0] === location.hash.split('?')[0] &&
        page.change?.(query)
    ) {
        shown = location.hash;
        return;
    }
    if (turn > 0 && status().isOutdated && status().standing === 'online') {
        // A good moment to load the page again, so that it may talk to the nodes that joined.
        location.reload();
        return;
    }
    const route = ROUTES.find((one) => one.path.test(path)) ?? ROUTES[0];
    const mine = ++turn;
    for (const box of document.querySelectorAll('dialog')) box.close();
    document.querySelector('.popup')?.remove();
    page?.close?.();
    page = null;
    shown = location.hash;
    for (const tab of nav.children) {
        if (tab.getAttribute('data-name') === route.name) tab.setAttribute('aria-current', 'page');
        else tab.removeAttribute('aria-current');
    }
    fill(main, loading());
    try {
        const make = await route.load().catch(moveOn);
        const params = (route.path.exec(path) ?? [])
            .slice(1)
            .map((part) => (part === undefined ? '' : decodeURIComponent(part)));
        if (mine !== turn) return;
        const made = /** @type {Page} */ (/** @type {any} */ (make)(query, ...params));
        page = made;
        fill(main, made.element);
        main.scrollTop = 0;
        document.title = `${TABS.find((tab) => tab.name === route.name)?.label ?? ''} – session-manager`;
        // After a step to another page the keyboard goes on in its content.
        if (mine > 1) main.focus({ preventScroll: true });
    } catch (error) {
        if (mine === turn) fill(main, failed(error));
    }
}

/** The file of a page cannot be had any more, because its node is gone: the console of another node has it. */
async function moveOn(error) {
    const { base, home } = status();
    if (base === home) throw error;
    location.assign(`${base}/console${location.hash}`);
    return new Promise(() => {});
}

/** Loads the files of all pages while nothing else is to do, so that they are there when the node is not. */
function loadAhead() {
    for (const route of ROUTES) route.load().catch(() => {});
}

/** What to show instead of a page that could not be loaded. @param {any} error */
export function failed(error) {
    if (error instanceof ApiError && error.status === 401) {
        askToken();
        return h('div', null);
    }
    const { status: code, code: name } = error instanceof ApiError ? error : { status: -1, code: error.code };
    const title =
        name === 'unreachable'
            ? 'Offline'
            : code === 403
              ? 'Not allowed'
              : code === 404 || name === 'session/not_found'
                ? 'Not found'
                : 'This did not work';
    const box = state(
        title,
        `${error.message ?? error}`,
        h('button', { type: 'button', onclick: show }, 'Try again'),
        place().path === '/sessions' ? null : h('a', { href: '#/sessions' }, 'To all sessions'),
    );
    box.setAttribute('data-failed', '');
    return box;
}

function drawFrame() {
    const account = me();
    const tabs = TABS.filter((tab) => account?.may[tab.may]);
    fill(
        nav,
        ...tabs.map((tab) =>
            h(
                'a',
                { href: `#/${tab.name}`, 'data-name': tab.name, title: `${tab.label} (g ${tab.key})` },
                icon(/** @type {any} */ (tab.icon)),
                h('span', null, tab.label),
            ),
        ),
    );
    fill(
        who,
        account?.login
            ? [
                  h(
                      'span.name',
                      { title: account.scope ? `sees only ${JSON.stringify(account.scope)}` : account.role },
                      `${account.name} · ${account.role}`,
                  ),
                  iconButton('out', 'Log out', async () => {
                      await logout();
                      location.reload();
                  }),
              ]
            : null,
    );
}

let wasOffline = false;
function drawStanding() {
    const { standing: now, reason, base, home, nodes, isOutdated } = status();
    const host = new URL(base).host;
    const words = { online: host, moved: host, behind: 'behind', offline: 'offline' }[now];
    fill(
        standing,
        h(`span.dot.${now}`, { 'aria-hidden': 'true' }),
        h('span.host', null, words),
        h('span.sr', null, { online: 'connected', moved: 'connected', behind: host, offline: 'no node answers' }[now]),
    );
    // What could not be loaded without a node is loaded again.
    if (wasOffline && now !== 'offline' && main.querySelector('[data-failed]')) void show();
    wasOffline = now === 'offline';
    banner.hidden = now === 'online';
    banner.className = `banner ${now}`;
    if (now === 'moved')
        fill(
            banner,
            `${new URL(home).host} does not answer. This page goes on at ${host}, one of ${nodes.length} nodes.`,
        );
    if (now === 'behind')
        fill(banner, `${host} is behind, so what you see may be out of date: ${reason.replaceAll(/\s*\n\s*/g, '; ')}`);
    if (now === 'offline')
        fill(
            banner,
            'No node answers. What you see is not up to date; the page goes on when a node is back.',
            isOutdated
                ? nodes.map(({ url }) => [' ', h('a', { href: `${webUrl(url)}/console${location.hash}` }, webUrl(url))])
                : null,
        );
}
onStatus(drawStanding);

const GENERAL = [
    ['g s', 'sessions'],
    ['g f', 'feed'],
    ['g c', 'cluster'],
    ['g a', 'API'],
    ['j / k', 'next, previous'],
    ['Enter', 'open'],
    ['/', 'search'],
    ['Esc', 'back'],
    ['?', 'keys'],
];

function help() {
    if (document.querySelector('dialog[open]')) return;
    const own = page?.help ?? [];
    const general = GENERAL.filter(([keys]) => !own.some(([other]) => other === keys));
    const rows = [...general, ...own].map(([keys, what]) =>
        h(
            'div.key-row',
            null,
            h(
                'span',
                null,
                keys.split(' ').map((key) => (key === '/' && keys !== '/' ? ' / ' : h('kbd', null, key))),
            ),
            h('span', null, what),
        ),
    );
    dialog('Keys', h('div.keys', null, rows));
}

let prefix = 0;
addEventListener('keydown', (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    if (target.closest('input, textarea, select, [contenteditable]')) {
        if (event.key === 'Escape') target.blur();
        return;
    }
    if (Date.now() - prefix < 1500) {
        prefix = 0;
        const tab = TABS.find((one) => one.key === event.key && me()?.may[one.may]);
        if (tab) {
            event.preventDefault();
            go(`/${tab.name}`);
            return;
        }
    }
    if (event.key === 'g') {
        prefix = Date.now();
        return;
    }
    if (event.key === '?') {
        event.preventDefault();
        help();
        return;
    }
    const work = page?.keys?.[event.key];
    if (work && !(event.key === 'Enter' && target.closest('button, a, summary'))) {
        event.preventDefault();
        work(event);
    }
});

function askToken() {
    const input = h('input', {
        type: 'password',
        name: 'token',
        autocomplete: 'current-password',
        required: true,
        id: 'token',
        spellcheck: 'false',
    });
    const wrong = h('p.wrong', { role: 'alert' });
    const form = h(
        'form.login',
        {
            onsubmit: async (event) => {
                event.preventDefault();
                fill(wrong);
                try {
                    await login(input.value.trim());
                    input.value = '';
                    begin();
                } catch (error) {
                    fill(wrong, /** @type {any} */ (error).message);
                    input.select();
                }
            },
        },
        h('img', { src: new URL('icon.svg', import.meta.url).href, alt: '', width: 40, height: 40 }),
        h('h1', null, 'Log in'),
        h(
            'p',
            null,
            'This node lets in callers with a token. Paste one that ',
            h('code', null, 'session-manager token create'),
            ' printed, or a JWT.',
        ),
        h('label', { for: 'token' }, 'Token'),
        input,
        wrong,
        h('button.primary', { type: 'submit' }, 'Log in'),
        h('p.hint', null, 'It is kept in a cookie that scripts cannot read.'),
    );
    // After the caller has put its own words somewhere.
    queueMicrotask(() => {
        fill(main, form);
        input.focus();
    });
}

async function begin() {
    drawStanding();
    try {
        await loadMe();
        drawFrame();
        await show();
        setTimeout(loadAhead, LOAD_AHEAD_MS);
    } catch (error) {
        fill(main, failed(error));
    }
}

addEventListener('hashchange', show);
addEventListener('popstate', () => {
    if (location.hash !== shown) show();
});
begin();
