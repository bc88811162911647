// The change feed: a live tail with filters, time travel to the oldest kept event, and the subscribers.

import { ApiError, get, stream } from './api.js';
import { setQuery } from './app.js';
import { clock, count, debounce, fill, h, icon, json, loading, perFrame, state, toast } from './dom.js';
import { excerpt } from './message.js';

/** Without a choice the first six are shown; those of turns only if they are asked for. */
const TYPES = [
    'created',
    'message-added',
    'message-updated',
    'status-changed',
    'meta-updated',
    'deleted',
    'turn::requested',
    'stream::event',
];
const ROWS_MAX = 500;
/** How many events from a place in the past are read before the reader asks for more. */
const PAGE = 200;

/** @param {URLSearchParams} query @returns {import('./app.js').Page} */
export function feedPage(query) {
    const filter = {
        type: query.get('type') ?? '',
        session: query.get('session') ?? '',
        roles: query.get('roles') ?? '',
        metadata: query.get('metadata') ?? '',
    };
    let after = query.get('after') ?? undefined;
    let reader = /** @type {ReturnType<typeof stream>|null} */ (null);
    let paused = false;
    /** Events that are not drawn yet. @type {any[]} */
    let held = [];
    let total = 0;
    /** Whether a page of the past is shown, and the stream waits. */
    let isPage = false;
    let edges = { oldest: '', newest: '' };

    const rows = h('div.event-list', { role: 'log', 'aria-label': 'Events', 'aria-live': 'off' });
    const figures = h('span.figures', { role: 'status' });
    const pause = h(
        'button',
        { type: 'button', 'aria-pressed': 'false', title: 'Pause (Space)', onclick: () => toggle() },
        'Pause',
    );
    const types = h(
        'div.segmented.wrap',
        { role: 'group', 'aria-label': 'Types of events' },
        TYPES.map((type) =>
            h(
                'button',
                {
                    type: 'button',
                    'data-type': type,
                    'aria-pressed': 'false',
                    onclick: () => {
                        const now = new Set(filter.type.split(',').filter(Boolean));
                        if (now.has(type)) now.delete(type);
                        else now.add(type);
                        filter.type = [...now].join(',');
                        restart();
                    },
                },
                type,
            ),
        ),
    );
    const text = (name, label, hint) => {
        const input = h('input', {
            placeholder: hint,
            'aria-label': label,
            '.value': filter[name],
            spellcheck: 'false',
            oninput: debounce(() => {
                filter[name] = input.value.trim();
                restart();
            }, 350),
        });
        return input;
    };
    const session = text('session', 'Session id', 'session id');
    const scrub = h('input', {
        type: 'range',
        min: 0,
        max: 0,
        step: 1,
        'aria-label': 'Position in the feed',
        oninput: () => drawPlace(Number(scrub.value)),
        onchange: () => {
            travel(Number(scrub.value));
        },
    });
    const older = h('button', { type: 'button', onclick: () => travel(Number(scrub.value) - PAGE) }, 'Older');
    const newer = h(
        'button',
        {
            type: 'button',
            onclick: () => {
                after = reader?.position() ?? after;
                scrub.value = String(indexOf(after));
                restart();
            },
        },
        'Newer',
    );
    const where = h('span.position', { role: 'status' }, 'live');
    const subscribers = h('section.subscribers', { 'aria-label': 'Subscribers' });
    const element = h(
        'div.page.feed',
        null,
        h('div.toolbar', null, h('h1', null, 'Feed'), figures, h('span.spacer', null), types),
        h(
            'div.toolbar',
            null,
            h('label.search', null, icon('search'), session),
            text('roles', 'Roles, such as user,assistant', 'roles'),
            text('metadata', 'Metadata, a JSON object', 'metadata {"k":"v"}'),
            h('span.spacer', null),
            pause,
            h(
                'button',
                {
                    type: 'button',
                    onclick: () => {
                        after = undefined;
                        restart();
                    },
                },
                'Live',
            ),
        ),
        h(
            'div.scrubber',
            null,
            h('span.muted', null, 'oldest'),
            scrub,
            h('span.muted', null, 'now'),
            where,
            older,
            newer,
        ),
        rows,
        subscribers,
    );

    /** Goes to a place by its index in the log. @param {number} at */
    function travel(at) {
        if (at >= Number(scrub.max)) after = undefined;
        else if (at <= Number(scrub.min)) after = 'oldest';
        else after = `${(edges.oldest ?? '').split('.').slice(0, 2).join('.')}.${at}.0`;
        scrub.value = String(at);
        restart();
    }

    function restart() {
        reader?.close();
        total = 0;
        held = [];
        isPage = false;
        newer.hidden = true;
        fill(rows, after ? loading() : state('Waiting for events', 'What happens appears here.'));
        for (const button of types.children)
            button.setAttribute(
                'aria-pressed',
                String(filter.type.split(',').includes(button.getAttribute('data-type') ?? '')),
            );
        const address = new URLSearchParams();
        for (const [name, value] of Object.entries({ ...filter, after: after ?? '' }))
            if (value) address.set(name, value);
        setQuery(address);
        fill(where, after === 'oldest' ? 'oldest' : after ? `after ${count(indexOf(after))}` : 'live');
        reader = stream(
            { ...filter, after },
            {
                event: (event) => {
                    if (isPage) return;
                    total += 1;
                    held.push(event);
                    if (held.length > ROWS_MAX) held.shift();
                    // The past is read page by page, or its beginning would run through the list before anybody saw it.
                    if (after && total >= PAGE) {
                        isPage = true;
                        newer.hidden = false;
                        reader?.close();
                    }
                    drawSoon();
                },
                lost: (error) =>
                    fill(
                        rows,
                        state(
                            error.code,
                            error.message,
                            error.status === 410
                                ? h(
                                      'button',
                                      {
                                          type: 'button',
                                          onclick: () => {
                                              after = 'oldest';
                                              restart();
                                          },
                                      },
                                      'From the oldest kept event',
                                  )
                                : null,
                        ),
                    ),
            },
        );
        drawFigures();
    }

    function drawFigures() {
        fill(
            figures,
            isPage ? `${count(total)} events from there` : `${count(total)} events`,
            paused && held.length ? `, ${count(held.length)} waiting` : '',
        );
    }

    /** Draws what arrived, once per frame: there may be thousands in a second. */
    const drawSoon = perFrame(() => {
        drawFigures();
        if (paused || !held.length) return;
        rows.querySelector('.state')?.remove();
        const isAtTop = rows.scrollTop < 40;
        const before = rows.scrollHeight;
        rows.prepend(...held.splice(0).map(draw).reverse());
        while (rows.childElementCount > ROWS_MAX) rows.lastElementChild.remove();
        if (!isAtTop) rows.scrollTop += rows.scrollHeight - before;
        drawFigures();
    });

    function toggle() {
        paused = !paused;
        pause.setAttribute('aria-pressed', String(paused));
        pause.textContent = paused ? 'Go on' : 'Pause';
        drawSoon();
    }

    function draw({ type, data, id }) {
        const name = type.replace('session::', '');
        const known = data?.timestamp ?? data?.created_at ?? data?.event?.ts;
        const time = known ?? (type.startsWith('session::') ? 0 : Date.now());
        const row = h(
            'details.event',
            {
                'data-type': name,
                ontoggle: () => {
                    if (row.open && !row.querySelector('pre'))
                        row.append(
                            h(
                                'div.raw',
                                null,
                                data?.session_id
                                    ? h(
                                          'a',
                                          { href: `#/sessions/${encodeURIComponent(data.session_id)}` },
                                          'Open the session',
                                      )
                                    : null,
                                json(data),
                            ),
                        );
                },
            },
            h(
                'summary',
                null,
                h('span.when', null, time ? clock(time) : ''),
                h('span.kind', { class: `kind ${name.replace('::', '-')}` }, name),
                h('span.session-id', null, data?.session_id ?? ''),
                h('span.what', { dir: 'auto' }, describe(type, data)),
                h('span.position', { title: id }, id.split('.').slice(-2).join('.')),
            ),
        );
        return row;
    }

    function drawPlace(at) {
        fill(where, at >= Number(scrub.max) ? 'live' : `after ${count(at)}`);
    }

    let isFirst = true;
    async function look() {
        try {
            const feed = await get('/v1/feed');
            edges = feed;
            scrub.min = String(indexOf(feed.oldest));
            scrub.max = String(indexOf(feed.newest));
            if (!after) scrub.value = scrub.max;
            else if (isFirst) scrub.value = String(indexOf(after));
            isFirst = false;
            older.disabled = Number(scrub.value) <= Number(scrub.min);
            drawSubscribers(feed.subscribers);
        } catch (error) {
            if (error instanceof ApiError && error.status === 403) {
                clearInterval(timer);
                toast(error.message, true);
            }
        }
    }

    function drawSubscribers(all) {
        if (!all) {
            subscribers.hidden = true;
            return;
        }
        const heading = h('h2', null, 'Subscribers of this node ', h('span.figures', null, count(all.length)));
        if (!all.length) {
            fill(subscribers, heading, h('p.muted', null, 'Nobody listens at this node.'));
            return;
        }
        fill(
            subscribers,
            heading,
            h(
                'div.table-scroll',
                { tabindex: 0 },
                h(
                    'table',
                    null,
                    h(
                        'thead',
                        null,
                        h(
                            'tr',
                            null,
                            ['standing', 'kind', 'wants', 'bindings', 'lag', 'position'].map((name) =>
                                h(/bindings|lag/.test(name) ? 'th.number' : 'th', { scope: 'col' }, name),
                            ),
                        ),
                    ),
                    h(
                        'tbody',
                        null,
                        all.map((one) =>
                            h(
                                'tr',
                                null,
                                h(
                                    'td',
                                    null,
                                    h(`span.dot.${one.behind ? 'moved' : 'online'}`, { 'aria-hidden': 'true' }),
                                    one.behind ? ' behind' : ' up to date',
                                ),
                                h('td', null, one.kind, one.function_id ? h('code', null, ` ${one.function_id}`) : ''),
                                h('td', null, one.filter.replaceAll('session::', '')),
                                h('td.number', null, count(one.bindings)),
                                h('td.number', null, count(one.lag)),
                                h('td', { title: one.position ?? '' }, shortPosition(one.position)),
                            ),
                        ),
                    ),
                ),
            ),
        );
    }

    restart();
    look();
    const timer = setInterval(() => {
        if (!document.hidden) look();
    }, 2000);
    const step = (by) => {
        const all = /** @type {HTMLElement[]} */ ([...rows.querySelectorAll('summary')]);
        const at = all.indexOf(/** @type {any} */ (document.activeElement));
        all[Math.max(0, Math.min(all.length - 1, at + by))]?.focus();
    };
    return {
        element,
        keys: {
            j: () => step(1),
            k: () => step(-1),
            ' ': toggle,
            '/': () => session.focus(),
            l: () => {
                after = undefined;
                restart();
            },
        },
        help: [
            ['Space', 'pause'],
            ['l', 'live'],
        ],
        close: () => {
            reader?.close();
            clearInterval(timer);
        },
    };
}

/** The index in the log of a position `cluster.group.index.ordinal`. @param {string|null|undefined} position */
const indexOf = (position) => Number((position ?? '').split('.').at(-2) ?? 0) || 0;

/** Before the first entry of the log there is a position that is not worth a number. */
function shortPosition(position) {
    const [index, ordinal] = (position ?? '').split('.').slice(-2);
    return !position ? '–' : index === '0' ? 'the beginning' : `${index}.${ordinal}`;
}

function describe(type, data) {
    switch (type) {
        case 'session::created':
            return data.title || 'untitled';
        case 'session::message-added':
            return data.message ? `${data.message.role}: ${excerpt(data.message)}` : (data.custom?.custom_type ?? '');
        case 'session::message-updated':
            return `r${data.revision} ${excerpt(data.message)}`;
        case 'session::status-changed':
            return `${data.previous_status} → ${data.status}`;
        case 'session::meta-updated':
            return data.title ?? '';
        case 'session::turn::requested':
            return `${data.agent_id ?? data.agent_type ?? 'any agent'}: ${data.text ?? ''}`.slice(0, 160);
        case 'session::stream::event':
            return `${data.event?.type} ${data.event?.text ?? data.event?.state ?? data.event?.toolName ?? ''}`.slice(0, 160);
        case 'lagged':
            return 'this page was too slow and catches up';
        case 'skipped':
            return `updates ${data.first} to ${data.last} of ${data.session_id} were replaced by later ones`;
        case 'compacted':
            return 'events were removed before this page read them';
        default:
            return '';
    }
}
