// Colours for code: comments, strings, numbers and the words of the common languages. Good enough to read by.

import { h } from './dom.js';

const WORDS = new Set(
    (
        'abstract and as async await begin break case catch class const continue def default defer del do elif else end enum ' +
        'except export extends false final finally fn for from func function go if impl import in interface is lambda let loop match mod module mut ' +
        'new nil none not null of or package pass pub public private protected raise return self static struct super switch then this throw trait true ' +
        'try type typeof undefined union unless until use using var void where while with yield None True False ' +
        'SELECT FROM WHERE INSERT UPDATE DELETE INTO VALUES JOIN LEFT RIGHT INNER OUTER ON GROUP BY ORDER HAVING LIMIT AND OR NOT NULL AS CREATE TABLE ' +
        'INDEX ALTER DROP SET DISTINCT UNION CASE WHEN THEN ELSE END EXISTS BETWEEN LIKE IN IS ASC DESC echo export fi esac done'
    ).split(' '),
);

const HASH = new Set([
    'py',
    'python',
    'sh',
    'bash',
    'shell',
    'zsh',
    'yaml',
    'yml',
    'toml',
    'rb',
    'ruby',
    'ini',
    'make',
    'dockerfile',
    'r',
    'perl',
]);
const DASH = new Set(['sql', 'lua', 'haskell', 'hs']);
const LONGEST = 100000;

/** @param {string} text @param {string} language @returns {(Node|string)[]} */
export function highlight(text, language) {
    const name = language.toLowerCase();
    if (name === 'text' || name === 'txt' || text.length > LONGEST) return [text];
    if (name === 'diff' || name === 'patch') return diff(text);
    const comment = HASH.has(name)
        ? '#[^\\n]*'
        : DASH.has(name)
          ? '--[^\\n]*'
          : '\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?\\*\\/|(?<=^|\\n)\\s*#[^\\n]*';
    const token = new RegExp(
        `(${comment})|("(?:[^"\\\\\\n]|\\\\.)*"|'(?:[^'\\\\\\n]|\\\\.)*'|\`(?:[^\`\\\\]|\\\\.)*\`)|\\b(\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?|0x[\\da-f]+)\\b|\\b([A-Za-z_][A-Za-z_0-9]*)\\b(\\s*\\()?`,
        'gi',
    );
    const out = [];
    let last = 0;
    for (const match of text.matchAll(token)) {
        const [whole, isComment, string, number, word, called] = match;
        const kind = isComment
            ? 'comment'
            : string
              ? 'string'
              : number
                ? 'number'
                : WORDS.has(word)
                  ? 'word'
                  : called
                    ? 'call'
                    : '';
        if (!kind) continue;
        if (match.index > last) out.push(text.slice(last, match.index));
        const shown = kind === 'call' || kind === 'word' ? word : whole;
        out.push(h(`span.t-${kind}`, null, shown));
        last = match.index + shown.length;
    }
    out.push(text.slice(last));
    return out;
}

function diff(text) {
    return text.split('\n').flatMap((line) => {
        const kind = line.startsWith('+')
            ? 'added'
            : line.startsWith('-')
              ? 'removed'
              : line.startsWith('@@')
                ? 'word'
                : '';
        return [kind ? h(`span.t-${kind}`, null, line) : line, '\n'];
    });
}
