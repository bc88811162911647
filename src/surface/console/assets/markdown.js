// Markdown to elements. A small, safe part of CommonMark with tables. HTML in the text stays text.

import { add, h } from './dom.js';
import { highlight } from './highlight.js';

/** Longer texts are shown as they are: nobody reads them, and parsing would block the page. */
const LONGEST = 200000;

/** @param {string} text @returns {HTMLElement} */
export function markdown(text) {
    const box = h('div.markdown', { dir: 'auto' });
    if (text.length > LONGEST) {
        box.append(plain(text));
        return box;
    }
    blocks(text.split('\n'), box);
    return box;
}

/** Text as it is, the beginning of a very long one. @param {string} text */
export function plain(text) {
    const most = 50000;
    const box = h('div.plain', { dir: 'auto' }, text.slice(0, most));
    if (text.length > most) {
        const more = h(
            'button.quiet',
            {
                type: 'button',
                onclick: () => {
                    const next = Number(more.dataset.at);
                    more.before(add(h('span', null), [text.slice(next, next + most * 4)]));
                    more.dataset.at = String(next + most * 4);
                    if (next + most * 4 >= text.length) more.remove();
                },
                'data-at': most,
            },
            `Show more of ${(text.length / 1e6).toFixed(2)} million characters`,
        );
        box.append(more);
    }
    return box;
}

function blocks(lines, box) {
    for (let at = 0; at < lines.length;) {
        const line = lines[at];
        const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
        if (fence) {
            const end = lines.findIndex((other, i) => i > at && other.trim().startsWith(fence[1]));
            const stop = end === -1 ? lines.length : end;
            box.append(code(lines.slice(at + 1, stop).join('\n'), fence[2]));
            at = stop + 1;
            continue;
        }
        const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
        if (heading) {
            box.append(inline(h(`h${Math.min(6, heading[1].length + 2)}`, null), heading[2]));
            at += 1;
        } else if (/^\s*$/.test(line)) {
            at += 1;
        } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
            box.append(h('hr', null));
            at += 1;
        } else if (/^\s{0,3}>/.test(line)) {
            const [quoted, next] = run(lines, at, (other) => /^\s{0,3}>/.test(other));
            const quote = h('blockquote', null);
            blocks(
                quoted.map((other) => other.replace(/^\s{0,3}>\s?/, '')),
                quote,
            );
            box.append(quote);
            at = next;
        } else if (line.includes('|') && /^\s*\|?[\s:|-]+\|[\s:|-]*$/.test(lines[at + 1] ?? '')) {
            const [rows, next] = run(lines, at, (other) => other.includes('|'));
            box.append(table(rows));
            at = next;
        } else if (/^\s*([-*+]|\d{1,9}[.)])\s+/.test(line)) {
            const [items, next] = run(
                lines,
                at,
                (other) => /^\s*([-*+]|\d{1,9}[.)])\s+/.test(other) || /^\s{2,}\S/.test(other),
            );
            box.append(list(items));
            at = next;
        } else {
            const special = /^(\s{0,3}(#{1,6}\s|>|```|~~~)|\s*([-*+]|\d{1,9}[.)])\s+)/;
            const [words, next] = run(
                lines,
                at,
                (other, i) => i === at || (!/^\s*$/.test(other) && !special.test(other)),
            );
            box.append(inline(h('p', null), words.join('\n')));
            at = next;
        }
    }
}

function run(lines, from, belongs) {
    let to = from;
    while (to < lines.length && belongs(lines[to], to)) to += 1;
    return [lines.slice(from, to), Math.max(to, from + 1)];
}

function list(lines) {
    const first = /^(\s*)([-*+]|(\d+)[.)])\s+/.exec(lines[0]);
    const ordered = Boolean(first?.[3]);
    const start = first?.[3] ?? '1';
    const box = h(ordered ? 'ol' : 'ul', ordered && start !== '1' ? { start: Number(start) } : null);
    const indent = first?.[1].length ?? 0;
    for (let at = 0; at < lines.length;) {
        const item = /^(\s*)(?:[-*+]|\d+[.)])\s+(.*)$/.exec(lines[at]);
        const inner = [];
        let next = at + 1;
        while (next < lines.length) {
            const other = /^(\s*)([-*+]|\d+[.)])\s+/.exec(lines[next]);
            if (other && other[1].length <= indent + 1) break;
            inner.push(lines[next].slice(Math.min(indent + 2, lines[next].search(/\S|$/))));
            next += 1;
        }
        const element = inline(h('li', null), item ? item[2] : lines[at]);
        if (inner.length) blocks(inner, element);
        box.append(element);
        at = next;
    }
    return box;
}

function table(rows) {
    const cells = (/** @type {string} */ row) =>
        row
            .trim()
            .replace(/^\||\|$/g, '')
            .split(/(?<!\\)\|/)
            .map((cell) => cell.trim());
    const head = h(
        'tr',
        null,
        cells(rows[0]).map((cell) => inline(h('th', { scope: 'col' }), cell)),
    );
    const body = rows.slice(2).map((row) =>
        h(
            'tr',
            null,
            cells(row).map((cell) => inline(h('td', null), cell)),
        ),
    );
    return h('div.table-scroll', { tabindex: 0 }, h('table', null, h('thead', null, head), h('tbody', null, body)));
}

/** A block of code. @param {string} text @param {string} language */
export function code(text, language) {
    return h(
        'figure.code-block',
        null,
        language ? h('figcaption', null, language) : null,
        h('pre.code', { tabindex: 0 }, highlight(text, language)),
    );
}

/** Only these can be followed. Everything else, such as javascript:, is shown as text. */
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;

/** Adds text with emphasis, code and links to an element. */
function inline(box, text) {
    const token =
        /(`+)([\s\S]+?)\1|\*\*(?=\S)([\s\S]+?)\*\*|__(?=\S)([\s\S]+?)__|(?<![\w*])\*(?=\S)([^*\n]+?)\*(?!\w)|(?<!\w)_(?=\S)([^_\n]+?)_(?!\w)|~~(?=\S)([\s\S]+?)~~|!?\[([^\]\n]*)\]\(\s*([^\s)]+)[^)]*\)|(https?:\/\/[^\s<>"')\]]+)/g;
    let last = 0;
    for (const match of text.matchAll(token)) {
        if (match.index > last) add(box, [text.slice(last, match.index)]);
        last = match.index + match[0].length;
        const [whole, , codeText, strong, strong2, em, em2, gone, label, url, bare] = match;
        if (codeText !== undefined) box.append(h('code', null, codeText.trim()));
        else if (strong ?? strong2) box.append(inline(h('strong', null), strong ?? strong2));
        else if (em ?? em2) box.append(inline(h('em', null), em ?? em2));
        else if (gone) box.append(inline(h('del', null), gone));
        else if (url !== undefined && SAFE_LINK.test(url)) box.append(link(url, label || url));
        else if (bare) box.append(link(bare, bare));
        else add(box, [whole]);
    }
    add(box, [text.slice(last)]);
    return box;
}

function link(url, label) {
    return h('a', { href: url, target: '_blank', rel: 'noopener noreferrer nofollow', title: url }, label);
}
