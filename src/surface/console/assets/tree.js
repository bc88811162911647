// The shape of a session: which entry follows which.

export class Tree {
    constructor() {
        /** @type {Map<string, {id: string, parent: string, when: number, role?: string}>} */
        this.entries = new Map();
        /** @type {Map<string, string[]>} */
        this.children = new Map();
        this.complete = false;
        /** Of all branches together. */
        this.tokens = 0;
        this.cost = 0;
    }

    /** @param {{id: string, parent_id?: string|null, timestamp: number, role?: string, usage?: any}} entry */
    add(entry) {
        if (this.entries.has(entry.id)) return;
        this.tokens += (entry.usage?.input ?? 0) + (entry.usage?.output ?? 0);
        this.cost += entry.usage?.cost_usd ?? 0;
        const parent = entry.parent_id ?? '';
        this.entries.set(entry.id, { id: entry.id, parent, when: entry.timestamp, role: entry.role });
        const siblings = this.children.get(parent) ?? [];
        // Entries arrive almost in order, so the place is near the end.
        let at = siblings.length;
        while (at > 0 && this.isBefore(entry.id, siblings[at - 1])) at -= 1;
        siblings.splice(at, 0, entry.id);
        this.children.set(parent, siblings);
    }

    /** @param {string} a @param {string} b */
    isBefore(a, b) {
        const [left, right] = [this.entries.get(a)?.when ?? 0, this.entries.get(b)?.when ?? 0];
        return left < right || (left === right && a < b);
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
        for (let at = id; at && this.entries.has(at) && !seen.has(at); at = this.entries.get(at)?.parent) {
            seen.add(at);
            path.push(at);
        }
        return path.reverse();
    }

    /** The end of the branch through an entry: the preferred one if it passes here, or else the newest. */
    endBelow(id, preferred) {
        if (this.path(preferred).includes(id)) return preferred;
        let end = id;
        for (let below; (below = this.children.get(end));) end = below[below.length - 1];
        return end;
    }

    /** One line for each branch: how deep it parts from the one before, and how long it is. @param {number} most */
    outline(most) {
        const lines = [];
        /** Branches to visit, the next one last. @type {[string, number][]} */
        const waiting = (this.children.get('') ?? [])
            .map((root) => /** @type {[string, number]} */ ([root, 0]))
            .reverse();
        for (let next; (next = waiting.pop()) && lines.length < most;) {
            const [start, depth] = next;
            const later = [];
            let length = 1;
            let end = start;
            for (let below; (below = this.children.get(end)); length += 1) {
                for (const other of below.slice(1)) later.push(other);
                end = below[0];
            }
            const [first, last] = [this.entries.get(start), this.entries.get(end)];
            lines.push({ id: end, start, depth, length, when: last?.when ?? 0, role: first?.role });
            for (const other of later.reverse()) waiting.push([other, depth + 1]);
        }
        return lines;
    }
}
