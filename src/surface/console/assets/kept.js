// What only the feed knows, as far back as it is kept: the forks of a session, and the revisions of a message.

import { get, stream } from './api.js';
import { failed } from './app.js';
import { ago, clock, count, dialog, fill, h, icon, loading, toast } from './dom.js';
import { drawEntry, textOf } from './message.js';

/** Positions are `cluster.group.index.ordinal`. */
function isAtOrAfter(position, other) {
    const numbers = (text) => text.split('.').slice(-2).map(Number);
    const [[a, b], [c, d]] = [numbers(position), numbers(other)];
    return a > c || (a === c && b >= d);
}

/** Messages whose revisions are remembered, revisions of each, and characters of one. */
const MESSAGES_MAX = 20;
const REVISIONS_MAX = 2000;
const CHARACTERS_MAX = 100000;

/**
 * Remembers a revision that the page saw.
 * @param {Map<string, Map<number, any>>} revisions @param {string} entryId @param {number} revision @param {any} data
 */
export function remember(revisions, entryId, revision, data) {
    if (!data.message) return;
    let known = revisions.get(entryId);
    if (!known) {
        if (revisions.size >= MESSAGES_MAX) revisions.delete(revisions.keys().next().value);
        revisions.set(entryId, (known = new Map()));
    }
    if (known.size < REVISIONS_MAX && JSON.stringify(data.message).length < CHARACTERS_MAX)
        known.set(revision, { message: data.message, timestamp: data.timestamp });
}

/** Reads the kept events up to now. */
async function readKept(filter, each) {
    const { newest } = await get('/v1/feed');
    if (!newest) return;
    await new Promise((finish) => {
        let quiet = 0;
        const end = () => {
            clearTimeout(quiet);
            reader.close();
            finish(undefined);
        };
        const wait = () => {
            clearTimeout(quiet);
            quiet = window.setTimeout(end, 1200);
        };
        const reader = stream(
            { ...filter, after: 'oldest' },
            {
                event: (event) => {
                    wait();
                    each(event);
                    if (isAtOrAfter(event.id, newest)) end();
                },
                lost: end,
            },
        );
        wait();
    });
}

/** The sessions that were forked from this one. @param {string} id */
export async function showForks(id) {
    const box = dialog('Forks of this session', loading('Reading the kept events…'));
    const found = [];
    try {
        await readKept({ type: 'created' }, ({ data }) => {
            if (data?.forked_from === id) found.push(data);
        });
        box.querySelector('.state')?.remove();
        box.append(
            found.length
                ? h(
                      'ul.links',
                      null,
                      found.map((fork) =>
                          h(
                              'li',
                              null,
                              h(
                                  'a',
                                  {
                                      href: `#/sessions/${encodeURIComponent(fork.session_id)}`,
                                      onclick: () => box.close(),
                                  },
                                  icon('fork'),
                                  fork.title || fork.session_id,
                              ),
                              ' ',
                              ago(fork.created_at),
                          ),
                      ),
                  )
                : h('p.muted', null, 'None among the events that this node keeps.'),
        );
    } catch (error) {
        fill(box, failed(error));
    }
}

/**
 * Every revision of a streamed message on a slider.
 * @param {string} id the session @param {any} entry @param {Map<number, any>|undefined} seen revisions that the page saw
 */
export async function showRevisions(id, entry, seen) {
    const known = new Map(seen ?? []);
    known.set(entry.revision, { message: entry.message, timestamp: entry.timestamp });
    const view = h('div.revision-view', null);
    const label = h('span', null);
    const slider = h('input', {
        type: 'range',
        min: 0,
        step: 1,
        'aria-label': 'Revision',
        oninput: () => draw(Number(slider.value)),
    });
    const box = dialog('Revisions', h('div.row', null, slider, label), view);
    box.classList.add('wide');
    let order = [];
    const draw = (at) => {
        const { message, timestamp } = known.get(order[at]);
        fill(label, `revision ${count(order[at])} · ${clock(timestamp)} · ${count(textOf(message).length)} characters`);
        fill(
            view,
            drawEntry(
                { ...entry, message, revision: order[at], timestamp },
                {
                    result: () => null,
                    hasCall: () => false,
                    branch: null,
                    streaming: false,
                    raw: false,
                    open: new Set(),
                    menu: () => {},
                },
            ),
        );
    };
    const settle = () => {
        order = [...known.keys()].sort((a, b) => a - b);
        slider.max = String(order.length - 1);
        slider.value = slider.max;
        draw(order.length - 1);
    };
    settle();
    try {
        await readKept({ session: id, type: 'message-added,message-updated' }, ({ data }) => {
            if (data?.entry_id === entry.id && data.message)
                known.set(data.revision ?? 0, { message: data.message, timestamp: data.timestamp });
        });
        settle();
    } catch (error) {
        toast(/** @type {any} */ (error).message, true);
    }
}
