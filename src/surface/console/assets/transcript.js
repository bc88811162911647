// A transcript of any length in a window. Only the entries near the reader are elements; the others are space.

import { h, perFrame } from './dom.js';

const CHUNK = 50;
/** Entries around the reader that are elements. */
const ABOVE = 20;
const BELOW = 30;
/** A new window is drawn when the reader comes this close to its edge. */
const EDGE = 400;
/** How high an entry is until it was seen, and how high all of them together may be: browsers limit it. */
const GUESS = 120;
const HEIGHT_MAX = 15000000;
/** Chunks that are kept in memory. */
const CHUNKS_MAX = 200;

export class Transcript {
    /**
     * @param {(first: number, limit: number) => Promise<any[]>} load
     * @param {(entry: any, index: number) => HTMLElement} draw
     */
    constructor(load, draw) {
        this.load = load;
        this.draw = draw;
        this.length = 0;
        /** @type {Map<number, any[]>} */
        this.chunks = new Map();
        this.loading = new Set();
        /** @type {Map<string, number>} */
        this.indexes = new Map();
        /** @type {Map<number, HTMLElement>} */
        this.elements = new Map();
        /** @type {Map<number, number>} */
        this.heights = new Map();
        this.first = 0;
        this.last = 0;
        this.sticks = true;
        /** Where the reader was at the last scroll. */
        this.top = 0;
        this.turn = 0;
        this.above = h('div.space', null);
        this.below = h('div.space', null);
        this.box = h('div.entries', { role: 'feed', 'aria-label': 'Transcript' });
        this.scroller = h(
            'div.transcript',
            { tabindex: 0, onscroll: perFrame(() => this.scrolled()) },
            this.above,
            this.box,
            this.below,
        );
        this.resized = new ResizeObserver(() => {
            this.measure();
            if (this.sticks) this.toEnd();
        });
        this.resized.observe(this.box);
        this.resized.observe(this.scroller);
    }

    /** Forgets everything and begins at the end of another path. @param {number} length @param {any[]} entries @param {number} first */
    reset(length, entries, first) {
        this.turn += 1;
        this.chunks.clear();
        this.loading.clear();
        this.indexes.clear();
        this.heights.clear();
        for (const element of this.elements.values()) element.remove();
        this.elements.clear();
        this.length = length;
        entries.forEach((entry, at) => this.put(first + at, entry));
        this.sticks = true;
        this.window(Math.max(0, length - 1), 0);
        this.toEnd();
    }

    /** @param {number} index @param {any} entry */
    put(index, entry) {
        const chunk = Math.floor(index / CHUNK);
        let held = this.chunks.get(chunk);
        if (!held) this.chunks.set(chunk, (held = []));
        held[index % CHUNK] = entry;
        this.indexes.set(entry.id, index);
    }

    /** @param {number} index */
    at(index) {
        return this.chunks.get(Math.floor(index / CHUNK))?.[index % CHUNK];
    }

    /** @param {string} id */
    indexOf(id) {
        return this.indexes.get(id);
    }

    /** One more entry at the end. */
    append(entry) {
        this.put(this.length, entry);
        this.length += 1;
        if (this.last >= this.length - 1 || this.sticks)
            this.window(this.sticks ? this.length - 1 : this.anchor().index, this.sticks ? 0 : this.anchor().offset);
        if (this.sticks) this.toEnd();
        else this.space();
    }

    /** Draws an entry again, if it is an element. @param {number} index */
    redraw(index) {
        const old = this.elements.get(index);
        const entry = this.at(index);
        if (!old || !entry) return;
        const hadFocus = old.contains(document.activeElement);
        const element = this.draw(entry, index);
        if (old.classList.contains('current')) element.classList.add('current');
        old.replaceWith(element);
        this.elements.set(index, element);
        if (hadFocus) element.focus({ preventScroll: true });
        if (this.sticks) this.toEnd();
    }

    redrawAll() {
        for (const index of this.elements.keys()) this.redraw(index);
    }

    /** The entry at the upper edge, and how far it is above it. */
    anchor() {
        const top = this.scroller.scrollTop;
        for (let index = this.first; index < this.last; index += 1) {
            const element = this.elements.get(index);
            if (element && element.offsetTop + element.offsetHeight > top)
                return { index, offset: element.offsetTop - top };
        }
        return { index: Math.max(0, this.last - 1), offset: 0 };
    }

    scrolled() {
        const { scrollTop, scrollHeight, clientHeight } = this.scroller;
        const isAtEnd = scrollHeight - scrollTop - clientHeight < 40 && this.last >= this.length;
        // Content that grew is no reason to let go of the end; only a reader who scrolls up is.
        if (isAtEnd || scrollTop < this.top - 2) this.sticks = isAtEnd;
        this.top = scrollTop;
        const begin = this.box.offsetTop;
        const end = begin + this.box.offsetHeight;
        const needsAbove = this.first > 0 && scrollTop < begin + EDGE;
        const needsBelow = this.last < this.length && scrollTop + clientHeight > end - EDGE;
        if (!needsAbove && !needsBelow) return;
        if (scrollTop + clientHeight < begin || scrollTop > end) {
            // The reader jumped: the place in the space says where.
            const index = Math.min(
                this.length - 1,
                Math.max(0, Math.floor((scrollTop / Math.max(1, scrollHeight)) * this.length)),
            );
            this.window(index, 0);
        } else {
            const { index, offset } = this.anchor();
            this.window(index, offset);
        }
    }

    /** Draws the entries around an index, which keeps its place on the screen. */
    window(index, offset) {
        const first = Math.max(0, index - ABOVE);
        const last = Math.min(this.length, index + BELOW);
        for (const [at, element] of this.elements) {
            if (at < first || at >= last) {
                element.remove();
                this.elements.delete(at);
            }
        }
        let before = this.box.firstElementChild;
        const missing = new Set();
        for (let at = first; at < last; at += 1) {
            const known = this.elements.get(at);
            const entry = this.at(at);
            if (!entry) missing.add(Math.floor(at / CHUNK));
            if (known) {
                before = known.nextElementSibling;
                continue;
            }
            const element = entry
                ? this.draw(entry, at)
                : h(
                      'article.entry.pending',
                      { 'aria-busy': 'true', 'aria-label': 'Loading' },
                      h('span.skeleton', null),
                  );
            this.elements.set(at, element);
            this.box.insertBefore(element, before);
        }
        this.first = first;
        this.last = last;
        this.space();
        const anchor = this.elements.get(index);
        if (anchor && !this.sticks) this.scroller.scrollTop = anchor.offsetTop - offset;
        for (const chunk of missing) this.fetch(chunk);
    }

    async fetch(chunk) {
        if (this.loading.has(chunk)) return;
        this.loading.add(chunk);
        const turn = this.turn;
        try {
            for (let first = chunk * CHUNK; first < Math.min(this.length, (chunk + 1) * CHUNK);) {
                if (this.at(first)) {
                    first += 1;
                    continue;
                }
                const entries = await this.load(first, (chunk + 1) * CHUNK - first);
                if (turn !== this.turn || !entries.length) return;
                // What arrived live meanwhile is newer.
                entries.forEach((entry, at) => {
                    if (!this.at(first + at)) this.put(first + at, entry);
                });
                first += entries.length;
            }
            const { index, offset } = this.anchor();
            // Entries beside the chunk may belong to a run of steps that goes on in it.
            const [from, to] = [chunk * CHUNK - ABOVE, (chunk + 1) * CHUNK + BELOW];
            for (let at = Math.max(this.first, from); at < Math.min(this.last, to); at += 1) this.redraw(at);
            this.space();
            const anchor = this.elements.get(index);
            if (anchor && !this.sticks) this.scroller.scrollTop = anchor.offsetTop - offset;
            this.forget(chunk);
        } catch {
            /* the page shows that it is offline; the next scroll asks again */
        } finally {
            if (turn === this.turn) this.loading.delete(chunk);
        }
    }

    /** Lets go of chunks that are far away. */
    forget(near) {
        if (this.chunks.size <= CHUNKS_MAX) return;
        const far = [...this.chunks.keys()].sort((a, b) => Math.abs(b - near) - Math.abs(a - near));
        for (const chunk of far.slice(0, this.chunks.size - CHUNKS_MAX)) {
            if (chunk === Math.floor((this.length - 1) / CHUNK)) continue;
            for (const entry of this.chunks.get(chunk) ?? []) if (entry) this.indexes.delete(entry.id);
            this.chunks.delete(chunk);
        }
    }

    measure() {
        for (const [index, element] of this.elements) this.heights.set(index, element.offsetHeight);
    }

    /** The space that stands for what is no element. */
    space() {
        this.measure();
        const guess = Math.min(GUESS, HEIGHT_MAX / Math.max(1, this.length));
        let above = this.first * guess;
        let below = (this.length - this.last) * guess;
        for (const [index, height] of this.heights) {
            if (index < this.first) above += height - guess;
            else if (index >= this.last && index < this.length) below += height - guess;
        }
        this.above.style.height = `${Math.min(HEIGHT_MAX, Math.max(0, above))}px`;
        this.below.style.height = `${Math.min(HEIGHT_MAX, Math.max(0, below))}px`;
    }

    toEnd() {
        this.scroller.scrollTop = this.scroller.scrollHeight;
    }

    /** Brings an entry to the middle of the screen. @param {number} index */
    show(index) {
        this.sticks = false;
        const element = this.elements.get(index);
        if (element && !element.classList.contains('pending')) {
            element.scrollIntoView({ block: 'nearest' });
            return;
        }
        this.window(index, this.scroller.clientHeight / 3);
    }

    close() {
        this.turn += 1;
        this.resized.disconnect();
    }
}
