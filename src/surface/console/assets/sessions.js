// The list of sessions: live, filtered, and as fast with 200,000 of them as with 200.

import { call, me, stream } from './api.js';
import { failed, go, setQuery } from './app.js';
import { ago, count, debounce, fill, h, icon, loading, money, short, state, stepKeys } from './dom.js';
import { createSession } from './actions.js';
import { excerpt, sumUsage } from './message.js';

const PAGE = 50;
/** How far a search for words in titles reads at a time. The server has no index of words. */
const SEARCH_PAGE = 500;
const SEARCH_PAGES = 10;
const STATUSES = ['idle', 'working', 'done', 'error'];
/** The entries that a summary reads, and the characters of each text that it gets. */
const SUMMARY_ENTRIES = 100;
const SUMMARY_CHARACTERS = 200;
/** How far outside of the screen rows are elements. */
const NEAR = '1500px 0px';
/** What the end of a session says, by its id and the time of its last change. */
const summaries = new Map();
const SUMMARIES_MAX = 2000;

/** @param {URLSearchParams} query @returns {import('./app.js').Page} */
export function sessionsPage(query) {
    const filter = read(query);
    /**
     * Every row that was read. A block of rows far from the screen is an empty space of the same height.
     * @type {Map<string, {meta: any, row: HTMLElement|null, block: HTMLElement}>}
     */
    const rows = new Map();
    /** The sessions of each block, in order. @type {Map<Element, string[]>} */
    const blocks = new Map();
    let cursor = undefined;
    let done = false;
    let turn = 0;
    let searched = 0;
    let busy = false;

    const list = h('div.session-list', null);
    const foot = h('div.foot', null);
    const figures = h('span.figures', { role: 'status' });
    const words = h('input', {
        type: 'search',
        placeholder: 'Title contains…',
        'aria-label': 'Title contains',
        '.value': filter.text,
        oninput: debounce(() => {
            filter.text = words.value;
            restart();
        }, 200),
    });
    const status = h(
        'div.segmented',
        { role: 'group', 'aria-label': 'Status' },
        ['', ...STATUSES].map((name) =>
            h(
                'button',
                {
                    type: 'button',
                    'aria-pressed': String(filter.status === name),
                    'data-status': name,
                    onclick: () => {
                        filter.status = name;
                        restart();
                    },
                },
                name || 'all',
            ),
        ),
    );
    const chips = h('div.chips', null);
    const add = h('input.metadata', {
        placeholder: 'metadata key=value',
        title: 'Metadata such as tenant=acme; Enter adds the filter',
        'aria-label': 'Filter by metadata, key=value',
        onkeydown: (event) => {
            if (event.key === 'Enter') {
                addMetadata(add.value);
                add.value = '';
            }
        },
    });
    const order = h(
        'select',
        {
            'aria-label': 'Order',
            onchange: () => {
                filter.order = order.value;
                restart();
            },
        },
        [
            ['updated_desc', 'Last changed'],
            ['created_desc', 'Newest'],
            ['created_asc', 'Oldest'],
        ].map(([value, label]) => h('option', { value, '.selected': filter.order === value }, label)),
    );

    const element = h(
        'div.page.sessions',
        null,
        h(
            'div.toolbar',
            null,
            h('h1', null, 'Sessions'),
            figures,
            h('div.spacer', null),
            h('label.search', null, icon('search'), words),
            status,
            add,
            order,
            me()?.may.write
                ? h(
                      'button.primary',
                      {
                          type: 'button',
                          onclick: () => createSession((id) => go(`/sessions/${encodeURIComponent(id)}`)),
                      },
                      icon('plus'),
                      'New',
                  )
                : null,
        ),
        chips,
        list,
        foot,
    );

    const root = document.getElementById('main');
    const watch = (work, rootMargin) =>
        new IntersectionObserver((entries) => entries.forEach((entry) => work(entry)), { root, rootMargin });
    const seen = watch((entry) => {
        if (!entry.isIntersecting) return;
        seen.unobserve(entry.target);
        summarise(/** @type {HTMLElement} */ (entry.target));
    }, '200px 0px');
    const near = watch((entry) => {
        const block = /** @type {HTMLElement} */ (entry.target);
        if (entry.isIntersecting) unfold(block);
        else if (!block.contains(document.activeElement)) foldUp(block);
    }, NEAR);
    const end = watch((entry) => {
        if (entry.isIntersecting) more();
    }, '600px 0px');

    function newBlock() {
        const block = h('div.block', { role: 'list', 'aria-label': 'Sessions' });
        blocks.set(block, []);
        list.append(block);
        near.observe(block);
        return block;
    }

    /** Replaces the rows of a block by space. */
    function foldUp(block) {
        if (!block.firstChild) return;
        block.style.height = `${block.offsetHeight}px`;
        for (const id of blocks.get(block) ?? []) {
            const known = rows.get(id);
            if (known?.row) seen.unobserve(known.row);
            if (known) known.row = null;
        }
        fill(block);
    }

    function unfold(block) {
        if (!block.style.height) return;
        block.style.height = '';
        for (const id of blocks.get(block) ?? []) {
            const known = rows.get(id);
            if (known) block.append((known.row = draw(known.meta)));
        }
    }

    function drawFilter() {
        for (const button of status.children)
            button.setAttribute('aria-pressed', String(button.getAttribute('data-status') === filter.status));
        fill(
            chips,
            ...Object.entries(filter.metadata).map(([key, value]) =>
                h(
                    'button.chip.active',
                    {
                        type: 'button',
                        title: 'Remove this filter',
                        onclick: () => {
                            delete filter.metadata[key];
                            restart();
                        },
                    },
                    chipText(key, value),
                    icon('close'),
                ),
            ),
        );
        const next = new URLSearchParams();
        if (filter.status) next.set('status', filter.status);
        if (filter.text) next.set('text', filter.text);
        if (filter.order !== 'updated_desc') next.set('order', filter.order);
        if (Object.keys(filter.metadata).length) next.set('metadata', JSON.stringify(filter.metadata));
        setQuery(next);
    }

    function addMetadata(line) {
        const [key, ...rest] = line.split('=');
        if (!key.trim() || !rest.length) return;
        let value = rest.join('=').trim();
        try {
            value = JSON.parse(value);
        } catch {
            /* a string */
        }
        filter.metadata[key.trim()] = value;
        restart();
    }

    function restart() {
        turn += 1;
        rows.clear();
        blocks.clear();
        near.disconnect();
        seen.disconnect();
        cursor = undefined;
        done = false;
        busy = false;
        searched = 0;
        drawFilter();
        fill(list, loading());
        fill(foot);
        more();
    }

    const matches = (meta) =>
        (!filter.status || meta.status === filter.status) &&
        (!filter.text || (meta.title || meta.session_id).toLowerCase().includes(filter.text.toLowerCase())) &&
        Object.entries(filter.metadata).every(
            ([key, value]) => JSON.stringify(meta.metadata?.[key]) === JSON.stringify(value),
        );

    async function more() {
        if (busy || done) return;
        busy = true;
        const mine = turn;
        end.disconnect();
        if (rows.size) fill(foot, loading());
        try {
            let found = 0;
            for (let pages = 0; !done && found < PAGE / 2 && pages < (filter.text ? SEARCH_PAGES : 1); pages += 1) {
                const page = await call('session::list', {
                    limit: filter.text ? SEARCH_PAGE : PAGE,
                    order: filter.order,
                    cursor,
                    ...(filter.status ? { status: filter.status } : {}),
                    ...(Object.keys(filter.metadata).length ? { metadata: filter.metadata } : {}),
                });
                if (mine !== turn) return;
                if (!rows.size) fill(list);
                cursor = page.next_cursor;
                done = !cursor;
                searched += page.sessions.length;
                const fresh = page.sessions.filter((meta) => matches(meta) && !rows.has(meta.session_id));
                if (fresh.length) {
                    const block = newBlock();
                    for (const meta of fresh) put(meta, block, false);
                }
                found += fresh.length;
            }
            drawFoot();
        } catch (error) {
            if (mine === turn) fill(rows.size ? foot : list, failed(error));
        } finally {
            if (mine === turn) busy = false;
        }
    }

    function drawFoot() {
        fill(figures, rows.size ? `${count(rows.size)}${done ? '' : '+'}` : '');
        if (!rows.size && done) {
            const filtered = filter.status || filter.text || Object.keys(filter.metadata).length;
            fill(
                list,
                filtered
                    ? state('Nothing matches', 'No session has all of this.')
                    : me()?.may.write
                      ? state(
                            'No sessions yet',
                            'Create one here, or fill this node with examples:',
                            h('code', null, 'session-manager demo'),
                        )
                      : state('No sessions', 'There is nothing that you may see, or nothing at all.'),
            );
        }
        if (done) fill(foot, rows.size > PAGE ? h('span.muted', null, 'That is all.') : null);
        else if (filter.text)
            fill(
                foot,
                h('span.muted', null, `Searched ${count(searched)} sessions.`),
                h('button', { type: 'button', onclick: more }, 'Search further'),
            );
        else {
            fill(foot, h('span.muted', null, ''));
            end.observe(foot);
        }
    }

    /** Puts a session into a block: at its beginning, or at its end. */
    function put(meta, block, isFirst) {
        const row = draw(meta);
        const ids = blocks.get(block) ?? [];
        if (isFirst) ids.unshift(meta.session_id);
        else ids.push(meta.session_id);
        rows.set(meta.session_id, { meta, row, block });
        block[isFirst ? 'prepend' : 'append'](row);
        return row;
    }

    /** Draws a session again where it is. */
    function renew(meta) {
        const known = rows.get(meta.session_id);
        if (!known) return null;
        known.meta = meta;
        if (!known.row) return null;
        const old = known.row;
        const row = (known.row = draw(meta));
        const hadFocus = old.contains(document.activeElement);
        old.replaceWith(row);
        if (hadFocus) row.querySelector('a.open')?.focus();
        return row;
    }

    function take(id) {
        const known = rows.get(id);
        if (!known) return false;
        known.row?.remove();
        const ids = blocks.get(known.block) ?? [];
        ids.splice(ids.indexOf(id), 1);
        return rows.delete(id);
    }

    function draw(meta) {
        const row = h(
            'div.session-row',
            { role: 'listitem', 'data-id': meta.session_id },
            h(
                'div.cell.title',
                null,
                h(
                    'a.open',
                    { href: `#/sessions/${encodeURIComponent(meta.session_id)}`, dir: 'auto' },
                    nameOf(meta),
                ),
                meta.forked_from
                    ? h(
                          'a.fork',
                          {
                              href: `#/sessions/${encodeURIComponent(meta.forked_from)}`,
                              'aria-label': `fork of ${meta.forked_from}`,
                              title: `forked from ${meta.forked_from}`,
                          },
                          icon('fork'),
                          h('span', null, `fork of ${meta.forked_from}`),
                      )
                    : null,
            ),
            h('div.cell.last', { dir: 'auto' }, h('span.skeleton', { 'aria-hidden': 'true' })),
            h(
                'div.cell.meta',
                null,
                metadataChips(
                    meta.metadata,
                    (key, value) => {
                        filter.metadata[key] = value;
                        restart();
                    },
                    3,
                ),
            ),
            h('div.cell.status', null, badge(meta)),
            h('div.cell.number.messages', null, count(meta.message_count), h('small', null, ' msg')),
            h('div.cell.number.tokens', null, ''),
            h('div.cell.number.cost', null, ''),
            h('div.cell.time.updated', null, ago(meta.updated_at, 'changed')),
            h('div.cell.time.created', null, 'created ', ago(meta.created_at, 'created')),
        );
        seen.observe(row);
        return row;
    }

    async function summarise(row) {
        const known = rows.get(row.dataset.id ?? '');
        if (!known || known.row !== row) return;
        const { meta } = known;
        const key = `${meta.session_id} ${meta.updated_at} ${meta.message_count}`;
        if (!summaries.has(key)) {
            if (summaries.size > SUMMARIES_MAX) summaries.delete(summaries.keys().next().value);
            summaries.set(
                key,
                inTurn(async () => {
                    const window = await call('session::path', {
                        session_id: meta.session_id,
                        limit: Math.min(SUMMARY_ENTRIES, meta.message_count + 8),
                        strings_max: SUMMARY_CHARACTERS,
                    });
                    const messages = window.entries.filter((entry) => entry.kind === 'message');
                    return {
                        last: excerpt(messages.at(-1)?.message),
                        role: messages.at(-1)?.message.role,
                        ...sumUsage(messages),
                        whole: window.length <= window.entries.length,
                    };
                }),
            );
        }
        try {
            const found = await summaries.get(key);
            const more = found.whole ? '' : '+';
            fill(
                row.querySelector('.last'),
                found.last
                    ? [h('span.who', null, `${ROLE[found.role] ?? ''} `), found.last]
                    : h('span.muted', null, 'empty'),
            );
            fill(
                row.querySelector('.tokens'),
                found.tokens ? [short(found.tokens), more, h('small', null, ' tok')] : '',
            );
            fill(row.querySelector('.cost'), found.cost ? money(found.cost) + more : '');
            if (!found.whole)
                row.querySelector('.tokens').setAttribute('title', `of the last ${SUMMARY_ENTRIES} entries`);
        } catch {
            summaries.delete(key);
            fill(row.querySelector('.last'), '');
        }
    }

    // Live: a change puts its session where it belongs.
    const refresh = new Map();
    function changed(id) {
        if (refresh.has(id)) return;
        refresh.set(
            id,
            setTimeout(async () => {
                refresh.delete(id);
                try {
                    const found = await call('session::get', { session_id: id });
                    if (!found || !matches(found.meta)) {
                        remove(id);
                        return;
                    }
                    if (!rows.size) {
                        fill(list);
                        put(found.meta, newBlock(), true);
                        drawFoot();
                        return;
                    }
                    const isNew = !rows.has(id);
                    const leads = filter.order === 'updated_desc' || (filter.order === 'created_desc' && isNew);
                    if (!leads && isNew) return;
                    // A row that the reader points at stays where it is.
                    const stays =
                        !leads || (!isNew && (list.contains(document.activeElement) || list.matches(':hover')));
                    const top = /** @type {HTMLElement} */ (list.firstElementChild);
                    if (stays || blocks.get(top)?.[0] === id) renew(found.meta)?.classList.add('fresh');
                    else {
                        take(id);
                        unfold(top);
                        put(found.meta, top, true).classList.add('fresh');
                    }
                    fill(figures, `${count(rows.size)}${done ? '' : '+'}`);
                } catch {
                    /* the next event tells */
                }
            }, 400),
        );
    }
    function remove(id) {
        if (take(id)) drawFoot();
    }
    const live = me()?.may.events
        ? stream(
              { type: 'created,message-added,status-changed,meta-updated,deleted' },
              {
                  event: ({ type, data }) => {
                      if (type === 'session::deleted') remove(data.session_id);
                      else if (data?.session_id && (!document.hidden || type === 'session::created'))
                          changed(data.session_id);
                      else if (type === 'compacted') restart();
                  },
                  lost: (error) => (error.status === 410 ? restart() : fill(figures, error.message)),
              },
          )
        : null;

    restart();
    const step = (by) => {
        const all = [...list.querySelectorAll('a.open')];
        const focused = document.activeElement?.closest('.session-row')?.querySelector('a.open');
        const at = focused ? all.indexOf(focused) : -1;
        const next = /** @type {HTMLElement|undefined} */ (all[Math.min(all.length - 1, Math.max(0, at + by))]);
        next?.focus({ preventScroll: true });
        next?.closest('.session-row')?.scrollIntoView({ block: 'nearest' });
    };
    return {
        element,
        keys: {
            ...stepKeys(step),
            '/': () => words.focus(),
            Escape: () => {
                filter.text = words.value = '';
                filter.status = '';
                filter.metadata = {};
                restart();
            },
            n: () => me()?.may.write && createSession((id) => go(`/sessions/${encodeURIComponent(id)}`)),
            1: () => {
                filter.status = '';
                restart();
            },
            2: () => {
                filter.status = 'idle';
                restart();
            },
            3: () => {
                filter.status = 'working';
                restart();
            },
            4: () => {
                filter.status = 'done';
                restart();
            },
            5: () => {
                filter.status = 'error';
                restart();
            },
        },
        help: [
            ['1 – 5', 'all, idle, working, done, error'],
            ['n', 'new session'],
        ],
        change: (next) => {
            const before = JSON.stringify(filter);
            Object.assign(filter, read(next));
            words.value = filter.text;
            if (JSON.stringify(filter) !== before) restart();
            return true;
        },
        close: () => {
            turn += 1;
            live?.close();
            for (const observer of [seen, near, end]) observer.disconnect();
            refresh.forEach(clearTimeout);
        },
    };
}

const ROLE = { user: 'User:', assistant: 'Assistant:', function_result: 'Result:', custom: 'Note:' };

function read(query) {
    let metadata = {};
    try {
        metadata = JSON.parse(query.get('metadata') ?? '{}');
    } catch {
        /* a broken link */
    }
    return {
        status: query.get('status') ?? '',
        text: query.get('text') ?? '',
        order: query.get('order') ?? 'updated_desc',
        metadata,
    };
}

/** A session without a title is known by its id. @param {any} meta @returns {Node|string} */
export const nameOf = (meta) => meta.title || h('span.untitled', { title: 'no title' }, meta.session_id);

const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value));

/** One field of the metadata. That of the session model says which agent a session belongs to, and where it began. */
function chipText(key, value) {
    if (key === 'profile' && value?.agent_id)
        return `agent: ${value.agent_id}, ${value.kind}${value.type === 'group' ? ', group' : ''}`;
    return `${key}: ${text(value)}`;
}

export function badge(meta) {
    return h(
        `span.badge.${meta.status}`,
        { title: meta.status_reason ?? meta.status },
        h('span.dot', { 'aria-hidden': 'true' }),
        meta.status,
    );
}

export function metadataChips(metadata, pick, most = 8) {
    const all = Object.entries(metadata ?? {});
    return all
        .slice(0, most)
        .map(([key, value]) => {
            const label = chipText(key, value);
            return h(
                'button.chip',
                {
                    type: 'button',
                    title: `${label.slice(0, 500)} – filter by this`,
                    onclick: (event) => {
                        event.preventDefault();
                        event.stopPropagation();
                        pick(key, value);
                    },
                },
                h('span', { dir: 'auto' }, label.slice(0, 80)),
            );
        })
        .concat(
            all.length > most
                ? [
                      h(
                          'span.chip.more',
                          {
                              title: all
                                  .slice(most)
                                  .map(([key, value]) => chipText(key, value).slice(0, 200))
                                  .join('\n'),
                          },
                          `+${all.length - most}`,
                      ),
                  ]
                : [],
        );
}

// Some summaries at a time: the list must not crowd out the calls of others.
let running = 0;
const waiting = [];
async function inTurn(work) {
    while (running >= 4) await new Promise((go) => waiting.push(go));
    running += 1;
    try {
        return await work();
    } finally {
        running -= 1;
        waiting.shift()?.();
    }
}
