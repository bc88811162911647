// The shape of a session: which entry follows which.

export class Tree {
    constructor() {
        /** @type {Map<string, {id: string, parent: string, when: number, role?: string}>} */
        this.entries = new Map();
        /** @type {Map<string, string[]>} */
        this.children = new Map();
        this.complete = false;
    }

    /** @param {{id: string, parent_id?: string|null, timestamp: number, role?: string}} entry */
    add(entry) {
        if (this.entries.has(entry.id)) return;
        const parent = entry.parent_id ?? '';
        this.entries.set(entry.id, { id: entry.id, parent, when: entry.timestamp, role: entry.role });
        const siblings = this.children.get(parent) ?? [];
        siblings.push(entry.id);
        siblings.sort((a, b) => this.entries.get(a).when - this.entries.get(b).when || (a < b ? -1 : 1));
        this.children.set(parent, siblings);
    }

    /** An entry with those of the same parent. @param {string} id @returns {string[]} */
    siblings(id) {
        const entry = this.entries.get(id);
        return entry ? (this.children.get(entry.parent) ?? []) : [];
    }

    branchPoints() {
        return [...this.children.entries()].filter(([, below]) => below.length > 1).map(([id]) => id);
    }

    /** The ends of all branches. */
    leaves() {
        return [...this.entries.keys()].filter((id) => !this.children.has(id));
    }

    /** From the root to an entry. @param {string|undefined} id @returns {string[]} */
    path(id) {
        const path = [];
        const seen = new Set();
        for (let at = id; at && this.entries.has(at) && !seen.has(at); at = this.entries.get(at).parent) {
            seen.add(at);
            path.push(at);
        }
        return path.reverse();
    }

    /** The end of the branch through an entry: the preferred one if it passes here, or else the newest. */
    endBelow(id, preferred) {
        if (this.path(preferred).includes(id)) return preferred;
        let end = id;
        for (let below; (below = this.children.get(end));) end = below.at(-1);
        return end;
    }

    /** One line for each branch: how deep it parts from the one before, and how long it is. */
    outline() {
        const lines = [];
        const visit = (start, depth) => {
            let length = 0;
            let at = start;
            const later = [];
            for (;;) {
                length += 1;
                const below = this.children.get(at) ?? [];
                if (!below.length) break;
                for (const other of below.slice(1)) later.push(other);
                at = below[0];
            }
            const entry = this.entries.get(at);
            lines.push({ id: at, depth, length, when: entry.when, role: this.entries.get(start).role });
            for (const other of later) visit(other, depth + 1);
        };
        for (const root of this.children.get('') ?? []) visit(root, 0);
        return lines;
    }
}
