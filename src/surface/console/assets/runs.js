// Runs of steps: an agent that calls functions again and again without a word to the reader. A long run is one line.

import { count, h, icon } from './dom.js';

/** A run of so many steps is folded. */
const FOLDED = 3;
/** How far a run is followed. */
const LONGEST = 400;

/** Whether an entry only calls functions, or answers a call. */
function isStep(entry) {
    const message = entry?.message;
    if (!message || message.error_message) return false;
    if (message.role === 'function_result') return !message.is_error;
    const content = message.content ?? [];
    return (
        message.role === 'assistant' &&
        content.some((block) => block.type === 'function_call') &&
        content.every((block) => block.type === 'function_call' || block.type === 'thinking')
    );
}

const asks = (entry) => entry.message.role === 'assistant';

/**
 * The folded run that an entry belongs to.
 * @param {(index: number) => any} at the entry at an index, if it is loaded
 * @param {number} index @param {number} length @param {Set<string>} opened the entries of runs that the reader opened
 * @returns {{first: number, entries: any[]}|null}
 */
export function runAt(at, index, length, opened) {
    const belongs = (place) => isStep(at(place)) && !opened.has(at(place).id);
    if (!belongs(index)) return null;
    let first = index;
    while (first > 0 && index - first < LONGEST && belongs(first - 1)) first -= 1;
    let last = index;
    while (last + 1 < length && last - first < LONGEST && belongs(last + 1)) last += 1;
    // The step at the end of the transcript is in progress, so it stays visible with its answers.
    if (last === length - 1) {
        while (last > first && !asks(at(last))) last -= 1;
        last -= 1;
    }
    // A run begins with a call.
    while (first <= last && !asks(at(first))) first += 1;
    if (index < first || index > last) return null;
    const entries = [];
    for (let place = first; place <= last; place += 1) entries.push(at(place));
    return entries.filter(asks).length >= FOLDED ? { first, entries } : null;
}

/** A folded run as one line. @param {any[]} entries @param {() => void} open @returns {HTMLElement} */
export function drawRun(entries, open) {
    const names = new Map();
    for (const entry of entries)
        for (const block of entry.message.content ?? [])
            if (block.type === 'function_call') names.set(block.function_id, (names.get(block.function_id) ?? 0) + 1);
    const steps = entries.filter(asks).length;
    const words = [...names].map(([name, times]) => (times > 1 ? `${name} × ${times}` : name)).join(', ');
    return h(
        'article.entry.run',
        { tabindex: -1, 'data-entry': entries[0].id, 'aria-label': `${steps} steps` },
        h(
            'button.run-open',
            { type: 'button', 'aria-expanded': 'false', title: 'Show every step', onclick: open },
            icon('tool'),
            h('strong', null, `${count(steps)} steps`),
            h('span.names', null, words),
            icon('down'),
        ),
    );
}
