// One entry of a transcript as elements.

import { ago, counted, fill, h, icon, json, money, short } from './dom.js';
import { markdown, plain } from './markdown.js';

const NAMES = { user: 'User', assistant: 'Assistant', function_result: 'Result', custom: 'Note' };

/** The text blocks of a message. @param {any} message */
export function textOf(message) {
    return (message?.content ?? [])
        .filter((block) => block.type === 'text')
        .map((block) => block.text)
        .join('\n');
}

/** Some words for a list. @param {any} message */
export function excerpt(message) {
    if (!message) return '';
    if (message.error_message) return message.error_message.slice(0, 160);
    const text = textOf(message)
        .slice(0, 400)
        .replace(/[#*`>|_~-]+/g, ' ')
        .replace(/\s+/g, ' ')
        .trim();
    if (text) return text.slice(0, 160);
    const calls = (message.content ?? [])
        .filter((block) => block.type === 'function_call')
        .map((block) => block.function_id);
    return calls.length ? `calls ${calls.join(', ')}` : '';
}

/** @param {any[]} entries */
export function sumUsage(entries) {
    let tokens = 0;
    let cost = 0;
    for (const { message } of entries) {
        const usage = message?.usage;
        if (!usage) continue;
        tokens += (usage.input ?? 0) + (usage.output ?? 0);
        cost += usage.cost_usd ?? 0;
    }
    return { tokens, cost };
}

/**
 * @typedef {object} Shown what an entry needs to know of its neighbours
 * @property {(callId: string) => any} result the entry that answers a call, if it is loaded
 * @property {(callId: string) => boolean} hasCall whether the call of a result is shown in another entry
 * @property {{at: number, of: number, step: (by: number) => void}|null} branch
 * @property {boolean} streaming
 * @property {boolean} raw
 * @property {Set<string>} open the folded parts that the reader opened
 * @property {(entry: any, button: HTMLElement) => void} menu
 */

/** @param {any} entry @param {Shown} shown @returns {HTMLElement} */
export function drawEntry(entry, shown) {
    const message = entry.message;
    const role = message?.role ?? 'note';
    if (role === 'function_result' && !shown.raw && shown.hasCall(message.function_call_id)) {
        return h('article.entry.folded', { 'aria-hidden': 'true', 'data-entry': entry.id });
    }
    const box = h(`article.entry.${role}`, {
        tabindex: -1,
        'data-entry': entry.id,
        'aria-label': `${NAMES[role] ?? entry.custom_type}, ${new Date(entry.timestamp).toLocaleTimeString()}`,
    });
    const menu = h(
        'button.icon-button.menu',
        {
            type: 'button',
            'aria-label': 'Actions for this entry',
            'aria-haspopup': 'menu',
            onclick: () => shown.menu(entry, menu),
        },
        icon('dots'),
    );
    box.append(
        h(
            'header',
            null,
            h('span.role', null, NAMES[role] ?? entry.custom_type),
            entry.origin?.name ? h('span.sender', { dir: 'auto' }, entry.origin.name) : null,
            // A driver that does not say which model it runs is stored with this word.
            message?.model && message.model !== 'unknown' ? h('span.model', null, message.model) : null,
            entry.revision > 0
                ? h('span.revision', { title: `grown in ${counted(entry.revision, 'update')}` }, `r${entry.revision}`)
                : null,
            shown.streaming ? h('span.streaming', { role: 'status' }, 'streaming') : null,
            h('span.spacer', null),
            shown.branch ? branchControl(shown.branch) : null,
            message?.usage ? usage(message.usage) : null,
            h('span.when', null, ago(entry.timestamp)),
            menu,
        ),
    );
    if (shown.raw) {
        box.append(json(entry));
        return box;
    }
    if (!message) {
        box.append(h('div.custom-data', null, json(entry.data)));
        return box;
    }
    const content = message.content ?? [];
    for (const [at, block] of content.entries()) box.append(drawBlock(block, `${entry.id}/${at}`, shown));
    if (!content.length && !message.error_message) box.append(h('p.muted', null, shown.streaming ? '…' : 'empty'));
    if (message.error_message) {
        box.append(
            h(
                'div.failure',
                null,
                icon('warn'),
                h(
                    'div',
                    null,
                    h('strong', null, message.error_kind?.replace('_', ' ') ?? 'error'),
                    h('p', { dir: 'auto' }, message.error_message),
                ),
            ),
        );
    }
    for (const warning of message.warnings ?? []) box.append(h('p.warning', null, warning));
    return box;
}

function branchControl({ at, of, step }) {
    const button = (name, label, by) =>
        h(
            'button.icon-button',
            { type: 'button', 'aria-label': label, title: label, onclick: () => step(by) },
            icon(name),
        );
    return h(
        'span.branches',
        { role: 'group', 'aria-label': `Branch ${at + 1} of ${of}` },
        button('left', 'Previous branch ([)', -1),
        h('span', null, `${at + 1} / ${of}`),
        button('right', 'Next branch (])', 1),
    );
}

function usage(usage) {
    const tokens = (usage.input ?? 0) + (usage.output ?? 0);
    const words = Object.entries(usage)
        .map(([name, value]) => `${name} ${value}`)
        .join(', ');
    return h(
        'span.usage',
        { title: words },
        `${short(tokens)} tok`,
        usage.cost_usd ? ` · ${money(usage.cost_usd)}` : '',
    );
}

function fold(key, shown, props, ...summary) {
    const box = h(
        'details',
        {
            ...props,
            '.open': shown.open.has(key),
            ontoggle: () => {
                if (box.open) shown.open.add(key);
                else shown.open.delete(key);
            },
        },
        h('summary', null, summary),
    );
    return box;
}

function drawBlock(block, key, shown) {
    switch (block.type) {
        case 'text':
            return markdown(block.text);
        case 'thinking': {
            const box = fold(
                key,
                shown,
                { class: 'thinking' },
                icon('think'),
                'Thinking',
                h(
                    'span.muted',
                    null,
                    ` ${block.text.slice(0, 90).replace(/\s+/g, ' ')}${block.text.length > 90 ? '…' : ''}`,
                ),
            );
            box.append(plain(block.text));
            return box;
        }
        case 'image':
            return image(block);
        case 'function_call':
            return drawCall(block, key, shown);
        case 'function_result':
            return h(
                'div.result',
                null,
                (block.content ?? []).map((inner, at) => drawBlock(inner, `${key}/${at}`, shown)),
            );
        default:
            return json(block);
    }
}

const IMAGES = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;

function image(block) {
    // An SVG could be a page of its own when it is opened, so only pictures made of pixels are shown.
    if (!IMAGES.test(block.mime) || !/^[A-Za-z0-9+/=\s]*$/.test(block.data))
        return h('p.muted', null, `An image of type ${block.mime}, not shown.`);
    return h('img.picture', {
        src: `data:${block.mime};base64,${block.data}`,
        alt: 'image in the message',
        loading: 'lazy',
    });
}

function drawCall(block, key, shown) {
    const answer = shown.result(block.id);
    const failed = answer?.message?.is_error;
    const status = !answer ? 'waiting' : failed ? 'bad' : 'good';
    const words = { waiting: 'no result yet', bad: 'failed', good: 'answered' }[status];
    const short = JSON.stringify(block.arguments ?? null);
    const box = fold(
        key,
        shown,
        { class: `call ${status}` },
        icon('tool'),
        h('code.function', null, block.function_id),
        h('span.arguments', null, short.length > 100 ? `${short.slice(0, 100)}…` : short),
        h('span.outcome', null, h('span.dot', { 'aria-hidden': 'true' }), words),
    );
    const body = h('div.side-by-side', null);
    const draw = () => {
        if (!box.open || body.childElementCount) return;
        fill(
            body,
            h('section', null, h('h4', null, 'Arguments'), json(block.arguments ?? null)),
            h(
                'section',
                null,
                h('h4', null, failed ? 'Error' : 'Result'),
                answer ? resultBody(answer.message, key, shown) : h('p.muted', null, 'No result yet.'),
            ),
        );
    };
    box.addEventListener('toggle', draw);
    box.append(body);
    draw();
    return box;
}

function resultBody(message, key, shown) {
    return h(
        'div.result',
        null,
        (message.content ?? []).map((block, at) => {
            if (block.type !== 'text') return drawBlock(block, `${key}/r${at}`, shown);
            try {
                return json(JSON.parse(block.text));
            } catch {
                return h('pre.code', { tabindex: 0, dir: 'auto' }, block.text.slice(0, 100000));
            }
        }),
    );
}
