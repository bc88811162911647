// A small plot of some lines over time.

import { clock, h, s } from './dom.js';

const WIDTH = 320;
const HEIGHT = 84;

/** @param {string} title @param {number[]} times @param {{name: string, values: (number|null)[]}[]} lines @param {string} [unit] @param {string} [now] */
export function plot(title, times, lines, unit = '', now) {
    const all = lines.flatMap((line) => line.values).filter((value) => value !== null);
    const top = nice(Math.max(...all, 0));
    const end = times[times.length - 1];
    const begin = Math.min(times[0], end - 60000);
    const x = (time) => ((time - begin) / Math.max(1, end - begin)) * WIDTH;
    const y = (value) => HEIGHT - 4 - (value / top) * (HEIGHT - 14);
    const path = (values) => {
        let text = '';
        let pen = false;
        values.forEach((value, at) => {
            if (value !== null) text += `${pen ? 'L' : 'M'}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
            pen = value !== null;
        });
        return text;
    };
    /** A value without neighbours is a dot. */
    const dots = (values) =>
        values
            .map((value, at) => {
                const alone = value !== null && (values[at - 1] ?? null) === null && (values[at + 1] ?? null) === null;
                return alone ? `M${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}h0` : '';
            })
            .join('');
    const latest = lines
        .map(
            (line) =>
                `${lines.length > 1 ? `${line.name} ` : ''}${format(line.values.findLast((value) => value !== null))}`,
        )
        .join(' · ');
    const words = `${title}: ${now ?? latest} ${now ? '' : unit}, at most ${format(Math.max(...all, 0))} ${unit}`;
    return h(
        'figure.plot',
        null,
        h('figcaption', null, h('span', null, title), h('strong', null, now ?? values(lines, unit))),
        s(
            'svg',
            { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': words, preserveAspectRatio: 'none' },
            s('line', { class: 'grid', x1: 0, x2: WIDTH, y1: y(top), y2: y(top) }),
            s('line', { class: 'grid', x1: 0, x2: WIDTH, y1: y(0), y2: y(0) }),
            lines.map((line, at) =>
                [path, dots].map((draw) =>
                    s('path', {
                        class: `line line-${at} ${draw === dots ? 'dots' : ''}`,
                        d: draw(line.values) || 'M0 0',
                        'vector-effect': 'non-scaling-stroke',
                    }),
                ),
            ),
        ),
        h(
            'div.axis',
            { 'aria-hidden': 'true' },
            h('span', null, clock(begin)),
            h('span', null, `0 to ${format(top)}${unit ? ` ${unit}` : ''}`),
            h('span', null, clock(end)),
        ),
    );
}

/** The last value of each line, in its colour. */
function values(lines, unit) {
    const last = (line) => format(line.values.findLast((value) => value !== null));
    if (lines.length === 1) return `${last(lines[0])}${unit ? ` ${unit}` : ''}`;
    const named = lines.map((line, at) => [at ? ' · ' : '', h(`span.key-${at}`, null, `${line.name} ${last(line)}`)]);
    return [named, unit ? ` ${unit}` : ''];
}

function nice(value) {
    if (value <= 0) return 1;
    const step = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((factor) => factor * step).find((top) => top >= value) ?? value;
}

function format(value) {
    if (value === null || value === undefined) return '–';
    if (value >= 100) return Math.round(value).toLocaleString();
    return String(Number(value.toPrecision(2)));
}
