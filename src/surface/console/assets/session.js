// One session: its transcript while it streams, its branches, forks and revisions.

import { call, curl, me, stream } from './api.js';
import { failed, go, setQuery } from './app.js';
import { deleteSession, forkSession, makeActive, renameSession, setStatus } from './actions.js';
import {
    ago,
    clock,
    copy,
    count,
    counted,
    date,
    dialog,
    fill,
    h,
    icon,
    iconButton,
    json,
    loading,
    money,
    perFrame,
    short,
    state,
    stepKeys,
    toast,
} from './dom.js';
import { drawEntry, excerpt, sumUsage, textOf } from './message.js';
import { badge, metadataChips, nameOf } from './sessions.js';
import { Transcript } from './transcript.js';
import { Tree } from './tree.js';
import { compareBranches } from './compare.js';
import { composer } from './composer.js';
import { remember, showForks, showRevisions } from './kept.js';
import { popup } from './popup.js';
import { drawRun, runAt } from './runs.js';
import { turnStrip } from './turn.js';

const WINDOW = 50;
/** A session with more messages loads its tree only when the reader asks for it. */
const TREE_MAX = 5000;
/** Branches in the list. */
const BRANCHES_MAX = 500;
/** Branches in the list of which the first words are read. */
const BEGINNINGS_MAX = 60;
/** A message counts as streaming for this long after its last update. */
const STREAMS_MS = 4000;

/** @param {URLSearchParams} query @param {string} id @returns {import('./app.js').Page} */
export function sessionPage(query, id) {
    let meta = /** @type {any} */ (null);
    let leaf = /** @type {string|undefined} */ (query.get('leaf') ?? undefined);
    let activeLeaf = /** @type {string|undefined} */ (undefined);
    let isReady = false;
    let raw = false;
    let current = -1;
    let closed = false;
    const tree = new Tree();
    const open = new Set();
    /** The entries of runs that the reader opened. @type {Set<string>} */
    const openedRuns = new Set();
    /** Calls and results by the id of the call. @type {Map<string, {call?: string, result?: any}>} */
    const calls = new Map();
    /** When messages were last updated. @type {Map<string, number>} */
    const updated = new Map();
    /** Revisions that were seen while the page is open. @type {Map<string, Map<number, any>>} */
    const revisions = new Map();
    /** The first words of branches, by the entry with which a branch begins. @type {Map<string, string|undefined>} */
    const beginnings = new Map();
    /** Events that arrived before the transcript. @type {any[]} */
    const early = [];

    const head = h('div.session-head', null);
    const turns = turnStrip(id);
    const notice = h('div.notice', { role: 'status', hidden: true });
    const stage = h('div.stage', null, loading());
    const panel = h('aside.branch-panel', { 'aria-label': 'Branches', hidden: true });
    const jump = h(
        'button.jump',
        {
            type: 'button',
            hidden: true,
            onclick: () => {
                transcript.sticks = true;
                transcript.window(transcript.length - 1, 0);
                transcript.toEnd();
            },
        },
        'To the end',
        icon('down'),
    );
    const writer = composer(
        () => ({ session_id: id, ...(leaf ? { parent_id: leaf } : {}) }),
        () => {
            transcript.sticks = true;
            if (leaf) setLeaf(undefined);
        },
    );
    const element = h(
        'div.page.session',
        null,
        head,
        turns.element,
        notice,
        h('div.session-body', null, h('div.stage-box', null, stage, jump, writer), panel),
    );

    const transcript = new Transcript(async (first, limit) => {
        const window = await call('session::path', { session_id: id, from_entry_id: leaf ?? activeLeaf, first, limit });
        window.entries.forEach(learn);
        return window.entries;
    }, draw);
    transcript.scroller.addEventListener(
        'scroll',
        perFrame(() => {
            jump.hidden = transcript.sticks || transcript.length === 0;
        }),
    );

    function draw(entry, index) {
        const run = raw ? null : runAt((place) => transcript.at(place), index, transcript.length, openedRuns);
        const element =
            run && run.first === index
                ? drawRun(run.entries, () => openRun(run.entries))
                : run
                  ? h('article.entry.folded', { 'aria-hidden': 'true', 'data-entry': entry.id })
                  : drawOne(entry);
        element.setAttribute('aria-posinset', String(index + 1));
        element.setAttribute('aria-setsize', String(transcript.length));
        element.addEventListener('focusin', () => select(index, false));
        if (index === current) element.classList.add('current');
        return element;
    }

    function openRun(entries) {
        for (const entry of entries) openedRuns.add(entry.id);
        transcript.sticks = false;
        transcript.redrawAll();
    }

    function drawOne(entry) {
        const siblings = tree.siblings(entry.id);
        return drawEntry(entry, {
            result: (callId) => calls.get(callId)?.result,
            hasCall: (callId) => transcript.indexOf(calls.get(callId)?.call ?? '') !== undefined,
            branch:
                siblings.length > 1
                    ? { at: siblings.indexOf(entry.id), of: siblings.length, step: (by) => stepBranch(entry.id, by) }
                    : null,
            streaming: Date.now() - (updated.get(entry.id) ?? 0) < STREAMS_MS,
            raw,
            open,
            menu,
        });
    }

    /** Remembers which entry asks and which answers. */
    function learn(entry) {
        const message = entry.message;
        if (message?.role === 'function_result')
            calls.set(message.function_call_id, { ...calls.get(message.function_call_id), result: entry });
        for (const block of message?.content ?? []) {
            if (block.type === 'function_call') calls.set(block.id, { ...calls.get(block.id), call: entry.id });
        }
    }

    async function load() {
        try {
            const [found, window] = await Promise.all([
                call('session::get', { session_id: id }),
                call('session::path', { session_id: id, from_entry_id: leaf, limit: WINDOW }),
            ]);
            if (closed) return;
            if (!found)
                throw Object.assign(new Error(`There is no session ${id}, or you may not see it.`), {
                    code: 'session/not_found',
                });
            meta = found.meta;
            document.title = `${meta.title || id} – session-manager`;
            if (!leaf) activeLeaf = window.leaf;
            window.entries.forEach(learn);
            drawHead();
            fill(stage, window.length ? transcript.scroller : state('No messages yet', 'This session is empty.'));
            transcript.reset(window.length, window.entries, window.first);
            drawHead();
            isReady = true;
            early.splice(0).forEach(happened);
            writer.hidden = !me()?.may.write;
            drawNotice();
            if (meta.message_count <= TREE_MAX) await loadTree();
            const wanted = query.get('entry');
            if (wanted) await showEntry(wanted);
            const other = query.get('compare');
            if (other) compare(other);
        } catch (error) {
            if (!closed) fill(stage, failed(error));
        }
    }

    async function loadTree() {
        let cursor = undefined;
        do {
            const page = await call('session::tree', { session_id: id, cursor, limit: 500 });
            if (closed) return;
            page.entries.forEach((entry) => tree.add(entry));
            activeLeaf = page.active_leaf ?? activeLeaf;
            cursor = page.next_cursor;
        } while (cursor);
        tree.complete = true;
        if (tree.branchPoints().length) {
            transcript.redrawAll();
            drawHead();
            if (innerWidth > 1100) showPanel(true);
        }
        drawPanel();
    }

    async function showEntry(entryId) {
        let index = transcript.indexOf(entryId);
        if (index === undefined && tree.complete) index = tree.path(leaf ?? activeLeaf).indexOf(entryId);
        if (index !== undefined && index >= 0) {
            select(index, true);
        }
    }

    // The head.
    function drawHead() {
        if (!meta) return;
        const loaded = [...transcript.chunks.values()].flat().filter(Boolean);
        // The tree knows all branches; without it, only what was read is summed.
        const { tokens, cost } = tree.complete ? tree : sumUsage(loaded);
        const partly = tree.complete || loaded.length >= transcript.length ? '' : '+';
        const may = me()?.may.write;
        const branches = tree.leaves().length;
        fill(
            head,
            h(
                'div.line',
                null,
                iconButton('left', 'To all sessions (Esc)', () => go('/sessions')),
                h('h1', { dir: 'auto' }, nameOf(meta)),
                badge(meta),
                h('span.spacer', null),
                h(
                    'button.to-branches',
                    {
                        type: 'button',
                        'aria-pressed': String(!panel.hidden),
                        'aria-label': branches > 1 ? `${count(branches)} branches` : 'Branches',
                        onclick: () => showPanel(panel.hidden),
                        title: 'Branches (t)',
                    },
                    icon('branch'),
                    branches > 1 ? [h('span.number', null, count(branches)), ' ', h('span', null, 'branches')] : null,
                    branches > 1 ? null : h('span', null, 'Branches'),
                ),
                iconButton(
                    'dots',
                    'Actions for this session',
                    (event) => sessionMenu(/** @type {HTMLElement} */ (event.currentTarget)),
                    { 'aria-haspopup': 'menu' },
                ),
            ),
            h(
                'div.line.facts',
                null,
                h('span', null, counted(meta.message_count, 'message')),
                tokens
                    ? h(
                          'span',
                          { title: partly ? 'of the entries that were read' : 'summed from the usage of all branches' },
                          `${short(tokens)}${partly} tokens${cost ? ` · ${money(cost)}${partly}` : ''}`,
                      )
                    : null,
                h('span', null, 'changed ', ago(meta.updated_at)),
                h('span', { title: date(meta.created_at) }, 'created ', ago(meta.created_at)),
                meta.forked_from
                    ? h(
                          'a',
                          {
                              href: `#/sessions/${encodeURIComponent(meta.forked_from)}`,
                              title: 'The session this one was forked from',
                          },
                          icon('fork'),
                          h('span.short', null, `forked from ${meta.forked_from}`),
                      )
                    : null,
                h('button.link', { type: 'button', onclick: () => showForks(id) }, 'forks of this'),
                h(
                    'button.link.id',
                    { type: 'button', title: `Copy the id ${id}`, onclick: () => copy(id) },
                    h('span.short', null, id),
                ),
                metadataChips(meta.metadata, (key, value) =>
                    go(`/sessions?metadata=${encodeURIComponent(JSON.stringify({ [key]: value }))}`),
                ),
                may ? null : h('span.chip', null, 'read only'),
            ),
            meta.description ? h('p.description', { dir: 'auto', title: meta.description }, meta.description) : null,
            meta.status_reason ? h('p.wrong', { dir: 'auto' }, meta.status_reason) : null,
        );
        turns.look(meta);
    }

    function sessionMenu(button) {
        const may = me()?.may.write;
        popup(button, [
            may && ['Rename, describe, metadata', () => renameSession(meta, refresh)],
            may && ['Set status', () => setStatus(meta, refresh)],
            may && transcript.length > 0 && ['Fork at the end', () => forkSession(meta, leaf ?? activeLeaf, toSession)],
            ['Raw JSON of the session', () => dialog('session::get', json({ meta }))],
            ['Copy as curl', () => copy(curl('session::messages', { session_id: id }), 'Copied as curl')],
            [raw ? 'Show messages' : 'Show raw JSON of all entries', toggleRaw],
            may && ['Delete', () => deleteSession(meta, () => go('/sessions')), 'danger'],
        ]);
    }

    function menu(entry, button) {
        const may = me()?.may.write;
        const body = { session_id: id, entry_id: entry.id };
        popup(button, [
            ['Copy text', () => copy(textOf(entry.message))],
            [
                'Copy link',
                () =>
                    copy(
                        `${location.href.split('?')[0]}?entry=${encodeURIComponent(entry.id)}${leaf ? `&leaf=${encodeURIComponent(leaf)}` : ''}`,
                    ),
            ],
            ['Copy as curl', () => copy(curl('session::get-message', body), 'Copied as curl')],
            ['Raw JSON', () => dialog('session::get-message', json(entry))],
            entry.message && ['Revisions', () => showRevisions(id, entry, revisions.get(entry.id))],
            may && ['Fork here', () => forkSession(meta, entry.id, toSession)],
            may && [
                'Make this the end',
                () =>
                    makeActive(meta, entry.id, () => {
                        leaf = undefined;
                        reload();
                    }),
            ],
        ]);
    }

    const toSession = (other) => go(`/sessions/${encodeURIComponent(other)}`);
    const toggleRaw = () => {
        raw = !raw;
        transcript.redrawAll();
    };

    async function refresh() {
        try {
            const found = await call('session::get', { session_id: id });
            if (!found) {
                fill(
                    stage,
                    state(
                        'Deleted',
                        'This session does not exist any more.',
                        h('a', { href: '#/sessions' }, 'To all sessions'),
                    ),
                );
                return;
            }
            meta = found.meta;
            drawHead();
        } catch {
            /* the next event asks again */
        }
    }

    // Branches.
    function setLeaf(next, isStep = true) {
        leaf = next && next !== activeLeaf ? next : undefined;
        const address = new URLSearchParams();
        if (leaf) address.set('leaf', leaf);
        setQuery(address, isStep);
        return reload();
    }

    /** @param {string} [keep] */
    async function reload(keep) {
        try {
            const window = await call('session::path', { session_id: id, from_entry_id: leaf, limit: WINDOW });
            if (closed) return;
            if (!leaf) activeLeaf = window.leaf;
            window.entries.forEach(learn);
            if (!transcript.scroller.isConnected) fill(stage, transcript.scroller);
            transcript.reset(window.length, window.entries, window.first);
            current = -1;
            drawNotice();
            drawPanel();
            if (keep) await showEntry(keep);
        } catch (error) {
            toast(/** @type {any} */ (error).message, true);
        }
    }

    function stepBranch(entryId, by) {
        const siblings = tree.siblings(entryId);
        if (siblings.length < 2) return;
        const next = siblings[(siblings.indexOf(entryId) + by + siblings.length) % siblings.length];
        const end = tree.endBelow(next, activeLeaf);
        setLeaf(end).then(() => showEntry(next));
    }

    /** The branch point nearest to the entry in focus, or the last one on the path. */
    function nearestBranch() {
        const path = tree.path(leaf ?? activeLeaf);
        for (let at = current >= 0 ? current : path.length - 1; at >= 0; at -= 1)
            if (tree.siblings(path[at]).length > 1) return path[at];
        return path.find((entryId) => tree.siblings(entryId).length > 1);
    }

    function drawNotice() {
        notice.hidden = !leaf;
        if (!leaf) return;
        fill(
            notice,
            'This is not the active branch.',
            me()?.may.write
                ? h(
                      'button',
                      {
                          type: 'button',
                          onclick: () =>
                              makeActive(meta, leaf, () => {
                                  activeLeaf = leaf;
                                  setLeaf(undefined, false);
                              }),
                      },
                      'Make active',
                  )
                : null,
            h(
                'button',
                { type: 'button', onclick: () => compare(leaf), title: 'Compare (c)' },
                icon('columns'),
                'Compare',
            ),
            h('button', { type: 'button', onclick: () => setLeaf(undefined) }, 'Back to the active one'),
        );
    }

    function showPanel(isOpen) {
        panel.hidden = !isOpen;
        if (isOpen && !tree.complete) loadTree();
        drawPanel();
        drawHead();
    }

    /** Reads the first words of each branch, some at a time. @param {string[]} starts */
    async function readBeginnings(starts) {
        const missing = starts.filter((start) => !beginnings.has(start));
        if (!missing.length) return;
        for (const start of missing) beginnings.set(start, undefined);
        for (let at = 0; at < missing.length && !closed; at += 4)
            await Promise.all(
                missing.slice(at, at + 4).map(async (start) => {
                    try {
                        const body = { session_id: id, from_entry_id: start, limit: 1, strings_max: 200 };
                        const entry = (await call('session::path', body)).entries.at(-1);
                        beginnings.set(start, excerpt(entry?.message) || entry?.custom_type);
                    } catch {
                        beginnings.delete(start);
                    }
                }),
            );
        if (!closed) drawPanel();
    }

    function drawPanel() {
        if (panel.hidden) return;
        const leaves = tree.leaves();
        const shownLeaf = leaf ?? activeLeaf;
        const outline = tree.outline(BRANCHES_MAX);
        if (tree.complete) void readBeginnings(outline.slice(0, BEGINNINGS_MAX).map(({ start }) => start));
        fill(
            panel,
            h(
                'header',
                null,
                h('h2', null, 'Branches'),
                iconButton('close', 'Close', () => showPanel(false)),
            ),
            !tree.complete ? loading() : null,
            h(
                'div.branch-tree',
                { role: 'list' },
                outline.map(({ id: end, start, depth, length, when, role }) =>
                    h(
                        'div.branch-row',
                        { role: 'listitem', 'data-depth': Math.min(depth, 3) },
                        h(
                            'button.branch',
                            {
                                type: 'button',
                                'aria-current': end === shownLeaf ? 'true' : null,
                                onclick: () => setLeaf(end),
                            },
                            h('span.words', { dir: 'auto' }, beginnings.get(start) ?? role ?? 'a custom entry'),
                            h('span.muted', null, counted(length, 'entry', 'entries')),
                            h('span.muted', { title: date(when) }, clock(when)),
                            end === activeLeaf ? h('span.badge.done', null, 'active') : null,
                        ),
                        end !== shownLeaf && shownLeaf
                            ? iconButton('columns', 'Compare with the one shown', () => compare(end))
                            : null,
                    ),
                ),
            ),
            leaves.length > BRANCHES_MAX
                ? h('p.muted', null, `The first ${count(BRANCHES_MAX)} of ${count(leaves.length)} branches.`)
                : null,
            leaves.length < 2 && tree.complete
                ? h('p.muted', null, 'One branch only. Append with another parent to make a second one.')
                : null,
        );
    }

    async function compare(otherLeaf) {
        const left = (leaf && otherLeaf === leaf ? activeLeaf : (leaf ?? activeLeaf)) ?? otherLeaf;
        if (!tree.complete) await loadTree();
        const shown = (has) => ({
            result: (callId) => calls.get(callId)?.result,
            hasCall: (callId) => has(calls.get(callId)?.call ?? ''),
            branch: null,
            streaming: false,
            raw,
            open,
            menu,
        });
        compareBranches(id, tree, [left, otherLeaf], activeLeaf, { learn, shown });
    }

    // Live.
    function happened({ type, data, id: position }) {
        if (type === 'compacted' || type === 'lagged') {
            if (type === 'compacted') reload();
            return;
        }
        if (!isReady) {
            early.push({ type, data, id: position });
            return;
        }
        switch (type) {
            case 'session::message-added':
                return added(data);
            case 'session::message-updated':
                return grew(data);
            case 'session::deleted':
                fill(
                    stage,
                    state('Deleted', 'This session was deleted.', h('a', { href: '#/sessions' }, 'To all sessions')),
                );
                return undefined;
            case 'skipped':
                return undefined;
            default:
                return void refresh();
        }
    }

    function added(data) {
        const entry = {
            kind: data.message ? 'message' : 'custom',
            id: data.entry_id,
            parent_id: data.parent_id,
            timestamp: data.timestamp,
            revision: 0,
            origin: data.origin,
            message: data.message,
            ...(data.custom ?? {}),
        };
        if (transcript.indexOf(entry.id) !== undefined) return;
        const isEnd = (entry.parent_id ?? undefined) === (transcript.length ? (leaf ?? activeLeaf) : undefined);
        if (isEnd && leaf) {
            // The branch that is shown goes on, so it is the active one now.
            leaf = undefined;
            setQuery(new URLSearchParams());
        }
        const hadBranches = tree.siblings(entry.parent_id ?? '').length;
        const { role, usage } = data.message ?? {};
        tree.add({ id: entry.id, parent_id: entry.parent_id, timestamp: entry.timestamp, role, usage });
        learn(entry);
        remember(revisions, entry.id, 0, data);
        activeLeaf = entry.id;
        if (meta && data.message) {
            meta.message_count += 1;
            meta.updated_at = Math.max(meta.updated_at, data.timestamp);
        }
        if (isEnd) {
            if (!transcript.scroller.isConnected) fill(stage, transcript.scroller);
            transcript.append(entry);
            if (entry.message?.role === 'function_result') redrawCall(entry.message.function_call_id);
            redrawRun();
        } else if (!leaf) reload();
        drawHead();
        if (!isEnd || hadBranches > 1) drawPanel();
        drawNotice();
    }

    /** A new step may fold the steps before it. */
    function redrawRun() {
        const { length } = transcript;
        const run = runAt((place) => transcript.at(place), length - 3, length, openedRuns);
        if (run) for (let index = run.first; index < length; index += 1) transcript.redraw(index);
    }

    function redrawCall(callId) {
        const index = transcript.indexOf(calls.get(callId)?.call ?? '');
        if (index !== undefined) transcript.redraw(index);
    }

    const dirty = new Set();
    const redrawDirty = perFrame(() => {
        for (const index of dirty) transcript.redraw(index);
        dirty.clear();
    });

    function grew(data) {
        remember(revisions, data.entry_id, data.revision, data);
        const index = transcript.indexOf(data.entry_id);
        if (index === undefined) return;
        const entry = transcript.at(index);
        if (!entry || data.revision <= entry.revision) return;
        const next = { ...entry, message: data.message, revision: data.revision };
        transcript.put(index, next);
        learn(next);
        updated.set(next.id, Date.now());
        setTimeout(() => {
            dirty.add(index);
            redrawDirty();
        }, STREAMS_MS + 100);
        dirty.add(index);
        redrawDirty();
        if (next.message.role === 'function_result') redrawCall(next.message.function_call_id);
    }

    const live = me()?.may.events
        ? stream(
              { session: id },
              {
                  event: happened,
                  open: () => begin(),
                  lost: (error) => (error.status === 410 ? reload() : toast(error.message, true)),
              },
          )
        : null;
    let begun = false;
    // The stream is open before the transcript is read, so that nothing between the two is missed.
    function begin() {
        if (!begun) {
            begun = true;
            load();
        }
    }
    const giveUp = setTimeout(begin, live ? 1500 : 0);

    function select(index, moves) {
        transcript.elements.get(current)?.classList.remove('current');
        current = index;
        if (moves) transcript.show(index);
        const element = transcript.elements.get(index);
        element?.classList.add('current');
        if (moves) element?.focus({ preventScroll: true });
    }

    function step(by) {
        let next = current < 0 ? transcript.anchor().index : current + by;
        while (transcript.elements.get(next)?.classList.contains('folded')) next += by;
        if (next < 0 || next >= transcript.length) return;
        select(next, true);
    }

    function toggleFolds() {
        const element = transcript.elements.get(current);
        const run = /** @type {HTMLElement|null|undefined} */ (element?.querySelector('.run-open'));
        if (run) {
            run.click();
            return;
        }
        const folds = /** @type {HTMLDetailsElement[]} */ ([...(element ?? stage).querySelectorAll('details')]);
        const isOpen = folds.some((fold) => !fold.open);
        for (const fold of folds) fold.open = isOpen;
    }

    return {
        element,
        keys: {
            ...stepKeys(step),
            Enter: toggleFolds,
            x: toggleFolds,
            r: toggleRaw,
            t: () => showPanel(panel.hidden),
            ']': () => {
                const at = nearestBranch();
                if (at) stepBranch(at, 1);
            },
            '[': () => {
                const at = nearestBranch();
                if (at) stepBranch(at, -1);
            },
            b: () => {
                const at = nearestBranch();
                if (at) stepBranch(at, 1);
            },
            c: () => {
                const at = nearestBranch();
                if (leaf) compare(leaf);
                else if (at) {
                    const siblings = tree.siblings(at);
                    compare(tree.endBelow(siblings[(siblings.indexOf(at) + 1) % siblings.length], activeLeaf));
                }
            },
            f: () => {
                if (me()?.may.write && transcript.length)
                    forkSession(meta, transcript.at(current)?.id ?? leaf ?? activeLeaf, toSession);
            },
            v: () => {
                const entry = transcript.at(current >= 0 ? current : transcript.length - 1);
                if (entry?.message) showRevisions(id, entry, revisions.get(entry.id));
            },
            '/': () => writer.querySelector('textarea')?.focus(),
            G: () => jump.click(),
            Home: () => {
                transcript.sticks = false;
                transcript.window(0, 0);
                transcript.scroller.scrollTop = 0;
            },
            End: () => jump.click(),
            Escape: () => (leaf ? setLeaf(undefined) : go('/sessions')),
        },
        help: [
            ['b', 'next branch'],
            ['[ / ]', 'branch before, after'],
            ['c', 'compare branches'],
            ['t', 'list of branches'],
            ['x', 'open and close tools, thinking'],
            ['v', 'revisions'],
            ['r', 'raw JSON'],
            ['f', 'fork here'],
            ['Home / End', 'beginning, end'],
            ['/', 'write'],
        ],
        change: (next) => {
            const wanted = next.get('leaf') ?? undefined;
            if (wanted !== leaf) {
                leaf = wanted;
                reload(next.get('entry') ?? undefined);
            }
            return true;
        },
        close: () => {
            closed = true;
            clearTimeout(giveUp);
            live?.close();
            turns.close();
            transcript.close();
        },
    };
}
