// Builds the page out of elements. Text becomes text nodes, never markup, so what a caller stored stays inert.

/** @typedef {Node|string|number|null|undefined|false|Array<any>} Child */

const SVG = 'http://www.w3.org/2000/svg';

/**
 * An element: `h('button.quiet', { onclick }, 'Save')`.
 * @param {string} spec tag, then classes after dots
 * @param {Record<string, any>|null} [props] listeners (`onclick`), properties (`.value`) or attributes
 * @param {...Child} children
 * @returns {any}
 */
export function h(spec, props, ...children) {
    const [tag, ...classes] = spec.split('.');
    const element = document.createElement(tag || 'div');
    if (classes.length) element.className = classes.join(' ');
    apply(element, props);
    return add(element, children);
}

/** The same for SVG. @param {string} tag @param {Record<string, any>|null} props @param {...Child} children @returns {any} */
export function s(tag, props, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(props ?? {})) element.setAttribute(name, String(value));
    return add(element, children);
}

function apply(element, props) {
    for (const [name, value] of Object.entries(props ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
        else if (name.startsWith('.')) element[name.slice(1)] = value;
        else element.setAttribute(name, value === true ? '' : String(value));
    }
}

/** Adds children at the end of an element; text becomes text. @param {Element} element @param {Child[]} children */
export function add(element, children) {
    for (const child of children.flat(Infinity)) {
        if (child === null || child === undefined || child === false) continue;
        if (child instanceof Node) element.append(child);
        else element.append(...inOrder(String(child)));
    }
    return element;
}

const OVERRIDES = { '\u202d': 'LRO', '\u202e': 'RLO' };

/**
 * Text with the two marks that turn the order of all letters shown instead of obeyed: they let `gpj.exe` look like
 * `exe.jpg`. Languages that are written from right to left do not need them.
 * @param {string} text @returns {(string|Node)[]}
 */
function inOrder(text) {
    if (!/[\u202d\u202e]/.test(text)) return [text];
    return text.split(/([\u202d\u202e])/).map((part) => {
        if (!(part in OVERRIDES)) return part;
        return h('span.override', { title: 'a mark that turns the order of letters, not obeyed' }, OVERRIDES[part]);
    });
}

/** Replaces everything in an element. @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
    element.replaceChildren();
    add(element, children);
}

const ICONS = {
    chat: 'M4 5h16v11H9l-5 4z',
    feed: 'M4 12h4l3-7 4 14 3-7h2',
    cluster: 'M12 4v5M12 9l-6 6M12 9l6 6M10 4h4M4 17h4M16 17h4',
    code: 'M9 7l-5 5 5 5M15 7l5 5-5 5',
    search: 'M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM16 16l5 5',
    branch: 'M7 4v10a4 4 0 0 0 4 4h3M7 8h8',
    fork: 'M7 4v6a4 4 0 0 0 4 4h2a4 4 0 0 0 4-4V4M12 14v6',
    dots: 'M6 12h.01M12 12h.01M18 12h.01',
    copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
    left: 'M14 6l-6 6 6 6',
    right: 'M10 6l6 6-6 6',
    down: 'M6 10l6 6 6-6',
    close: 'M6 6l12 12M18 6L6 18',
    plus: 'M12 5v14M5 12h14',
    tool: 'M14 7a4 4 0 0 0-5 5l-5 5 3 3 5-5a4 4 0 0 0 5-5l-2 2-3-3z',
    think: 'M9 18h6M10 21h4M12 3a6 6 0 0 1 4 10c-1 1-1 2-1 3H9c0-1 0-2-1-3a6 6 0 0 1 4-10z',
    sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M4 12H2M22 12h-2M5 5l1.5 1.5M17.5 17.5L19 19M5 19l1.5-1.5M17.5 6.5L19 5',
    clock: 'M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4l3 2',
    trash: 'M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13',
    out: 'M10 5H5v14h5M14 8l4 4-4 4M18 12H9',
    columns: 'M4 5h7v14H4zM13 5h7v14h-7z',
    warn: 'M12 4l9 16H3zM12 10v4M12 17h.01',
};

/** @param {keyof typeof ICONS} name @returns {SVGElement} */
export function icon(name) {
    return s('svg', { viewBox: '0 0 24 24', class: 'icon', 'aria-hidden': 'true' }, s('path', { d: ICONS[name] }));
}

/** A button with an icon and a name for screen readers. @returns {HTMLButtonElement} */
export function iconButton(name, label, onclick, props = {}) {
    return h(
        'button.icon-button',
        { type: 'button', 'aria-label': label, title: label, onclick, ...props },
        icon(name),
    );
}

const clockFormat = new Intl.DateTimeFormat(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    hourCycle: 'h23',
});
const dateFormat = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'short' });
const countFormat = new Intl.NumberFormat(undefined);
const shortFormat = new Intl.NumberFormat(undefined, { notation: 'compact', maximumFractionDigits: 1 });

const moneyFormat = new Intl.NumberFormat(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** `1 message`, `2 messages`. @param {number} n @param {string} one @param {string} [many] */
export const counted = (n, one, many = `${one}s`) => `${countFormat.format(n)} ${n === 1 ? one : many}`;
export const clock = (/** @type {number} */ ms) => clockFormat.format(ms);
export const date = (/** @type {number} */ ms) => dateFormat.format(ms);
export const count = (/** @type {number} */ n) => countFormat.format(n);
export const short = (/** @type {number} */ n) => (n < 10000 ? countFormat.format(n) : shortFormat.format(n));

/** `3 min ago`. The element keeps the exact time as its title. @param {number} ms @param {string} [what] @returns {HTMLElement} */
export function ago(ms, what = '') {
    const title = `${what} ${date(ms)}`.trim();
    return h('time', { datetime: new Date(ms).toISOString(), title, 'data-ms': ms }, agoText(ms));
}

function agoText(ms) {
    const seconds = Math.max(0, (Date.now() - ms) / 1000);
    if (seconds < 5) return 'now';
    if (seconds < 60) return `${Math.floor(seconds)} s ago`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
    if (seconds < 86400 * 30) return `${Math.floor(seconds / 86400)} d ago`;
    return new Date(ms).toLocaleDateString();
}

setInterval(() => {
    for (const element of document.querySelectorAll('time[data-ms]')) {
        element.textContent = agoText(Number(element.getAttribute('data-ms')));
    }
}, 15000);

/** @param {number} bytes */
export function bytes(bytes) {
    const units = ['B', 'KB', 'MB', 'GB', 'TB'];
    let unit = 0;
    while (bytes >= 1024 && unit < units.length - 1) {
        bytes /= 1024;
        unit += 1;
    }
    return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/** @param {number} usd */
export const money = (usd) => (usd >= 1 ? `$${moneyFormat.format(usd)}` : usd > 0 ? `$${usd.toFixed(4)}` : '$0');

/** A line at the lower edge, read out by screen readers. @param {string} text @param {boolean} [isError] */
export function toast(text, isError) {
    const box = document.getElementById('toasts');
    if (!box) return;
    const line = h(isError ? 'div.toast.bad' : 'div.toast', { role: isError ? 'alert' : 'status' }, text);
    box.append(line);
    setTimeout(() => line.remove(), isError ? 8000 : 2500);
}

/** @param {string} text @param {string} [what] */
export async function copy(text, what = 'Copied') {
    try {
        await navigator.clipboard.writeText(text);
        toast(what);
    } catch {
        // Without permission, or on a page without TLS: select the text instead.
        showText('Copy this', text);
    }
}

/** A dialog that closes with Escape and returns the focus. @returns {HTMLDialogElement} */
export function dialog(title, ...children) {
    const before = /** @type {HTMLElement|null} */ (document.activeElement);
    const box = h(
        'dialog',
        {
            'aria-label': title,
            onclose: () => {
                box.remove();
                before?.focus?.();
            },
        },
        h(
            'header',
            null,
            h('h2', null, title),
            iconButton('close', 'Close', () => box.close()),
        ),
        ...children,
    );
    document.body.append(box);
    box.showModal();
    return box;
}

export function showText(title, text) {
    const area = h('textarea.code', { readonly: true, rows: 16, 'aria-label': title, '.value': text });
    const box = dialog(
        title,
        area,
        h('footer', null, h('button', { type: 'button', onclick: () => box.close() }, 'Close')),
    );
    area.select();
}

/** Raw JSON with colours. @param {any} value @returns {HTMLElement} */
export function json(value) {
    const text = JSON.stringify(value, null, 2) ?? 'undefined';
    const pre = h('pre.code.json', { tabindex: 0 });
    if (text.length > 200000) {
        pre.textContent = `${text.slice(0, 200000)}\n… ${count(text.length - 200000)} more characters`;
        return pre;
    }
    const token = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
    let last = 0;
    for (const match of text.matchAll(token)) {
        if (match.index > last) pre.append(text.slice(last, match.index));
        const kind = match[1] ? (match[2] ? 'key' : 'string') : match[3] ? 'word' : 'number';
        pre.append(h(`span.t-${kind}`, null, match[1] ?? match[0]), match[2] ?? '');
        last = match.index + match[0].length;
    }
    pre.append(text.slice(last));
    return pre;
}

/** The element that says that something is loading. */
export const loading = (text = 'Loading…') =>
    h('div.state', { role: 'status' }, h('span.spinner', { 'aria-hidden': 'true' }), text);

/** What to show when there is nothing, or something went wrong. */
export function state(title, text, ...actions) {
    return h(
        'div.state',
        { role: 'status' },
        h('strong', null, title),
        h('p', null, text),
        actions.length ? h('div.row', null, actions) : null,
    );
}

export function debounce(work, ms) {
    let timer = 0;
    return (...args) => {
        clearTimeout(timer);
        timer = window.setTimeout(() => work(...args), ms);
    };
}

/** The keys that move along a list. @param {(by: number) => void} step */
export function stepKeys(step) {
    return { j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1) };
}

/** Runs work at most once per frame. */
export function perFrame(work) {
    let asked = false;
    return () => {
        if (asked) return;
        asked = true;
        requestAnimationFrame(() => {
            asked = false;
            work();
        });
    };
}
