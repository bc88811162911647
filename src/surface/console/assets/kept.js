// What only the feed knows, as far back as it is kept: the forks of a session, and the revisions of a message.

import { call, get, stream } from './api.js';
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
        if (revisions.size >= MESSAGES_MAX) revisions.delete([...revisions.keys()][0]);
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
    const view = h('div.forks', null, loading('Reading the kept events…'));
    const box = dialog('Forks of this session', view);
    /** Forks by their id. */
    const found = new Map();
    let isClosed = false;
    box.addEventListener('close', () => (isClosed = true));
    const learn = (session) => {
        if (session?.forked_from === id) found.set(session.session_id, session);
    };
    const draw = (below) => fill(view, links(), below);
    const links = () =>
        found.size
            ? h(
                  'ul.links',
                  null,
                  [...found.values()].map((fork) =>
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
            : h('p.muted', null, 'None found so far.');
    /** Events are kept for a while only. The list of sessions knows all of them. */
    const searchAll = async () => {
        let read = 0;
        let cursor = undefined;
        do {
            draw(loading(`Read ${count(read)} sessions…`));
            const page = await call('session::list', { limit: 500, order: 'created_desc', cursor });
            page.sessions.forEach(learn);
            read += page.sessions.length;
            cursor = page.next_cursor;
        } while (cursor && !isClosed);
        draw(h('p.muted', null, `All ${count(read)} sessions were read.`));
    };
    const guarded = async (work) => {
        try {
            await work();
        } catch (error) {
            fill(view, failed(error));
        }
    };
    await guarded(async () => {
        await readKept({ type: 'created' }, ({ data }) => learn(data));
        draw([
            h('p.muted', null, 'These are in the events that are kept. Older forks are in the list of all sessions.'),
            h('button', { type: 'button', onclick: () => guarded(searchAll) }, 'Search all sessions'),
        ]);
    });
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
