// Two branches of a session side by side, from where they part.

import { call } from './api.js';
import { failed, place, setQuery } from './app.js';
import { count, dialog, fill, h, loading } from './dom.js';
import { drawEntry } from './message.js';

/** Entries of each branch that are shown. */
const WINDOW = 50;

/**
 * @param {string} id the session
 * @param {import('./tree.js').Tree} tree
 * @param {string[]} ends the last entries of the two branches
 * @param {string|undefined} activeLeaf
 * @param {{learn: (entry: any) => void, shown: (hasCall: (entryId: string) => boolean) => any}} neighbours
 */
export async function compareBranches(id, tree, ends, activeLeaf, { learn, shown }) {
    const [left, right] = ends.map((end) => tree.path(end));
    let shared = 0;
    while (shared < Math.min(left.length, right.length) && left[shared] === right[shared]) shared += 1;

    const column = async (end, path) => {
        const window = await call('session::path', {
            session_id: id,
            from_entry_id: end,
            first: shared,
            limit: WINDOW,
        });
        window.entries.forEach(learn);
        const ids = new Set(window.entries.map((entry) => entry.id));
        const isActive = end === activeLeaf;
        const rest = path.length - shared - window.entries.length;
        return h(
            'section',
            { 'aria-label': isActive ? 'The active branch' : 'The other branch' },
            h(
                'header',
                null,
                h('strong', null, isActive ? 'Active branch' : 'Branch'),
                h('span.muted', null, ` ${count(path.length - shared)} entries after the fork`),
            ),
            window.entries.map((entry) =>
                drawEntry(
                    entry,
                    shown((entryId) => ids.has(entryId)),
                ),
            ),
            rest > 0 ? h('p.muted', null, `and ${count(rest)} more`) : null,
        );
    };

    const columns = h('div.compare-columns', null, loading());
    const box = dialog(
        'Compare branches',
        h('p.muted', null, `The first ${count(shared)} entries are the same.`),
        columns,
    );
    box.classList.add('wide');
    const { query } = place();
    query.set('compare', ends[1]);
    setQuery(query);
    box.addEventListener('close', () => {
        query.delete('compare');
        setQuery(query);
    });
    try {
        fill(columns, ...(await Promise.all([column(ends[0], left), column(ends[1], right)])));
    } catch (error) {
        fill(columns, failed(error));
    }
}
