// What a person can do to a session. Every dialog shows the exact call before it is made.

import { ApiError, call, curl } from './api.js';
import { copy, dialog, fill, h, json, toast } from './dom.js';

/**
 * A dialog around one call.
 * @param {string} title @param {string} name @param {() => object} body @param {any[]} fields
 * @param {{confirm?: string, danger?: boolean, explain?: string, done?: (answer: any) => void, run?: (body: object) => Promise<any>, shell?: (body: object) => string}} options
 */
export function callDialog(title, name, body, fields, options = {}) {
    const preview = h('div.preview', null);
    const wrong = h('p.wrong', { role: 'alert' });
    const draw = () => {
        let text;
        try {
            text = json(body());
        } catch (error) {
            text = h('p.wrong', null, /** @type {any} */ (error).message);
        }
        fill(preview, h('code.function', null, name), text);
    };
    const shell = options.shell ?? ((request) => curl(name, request));
    const form = h('form', {
        oninput: draw,
        onchange: draw,
        onsubmit: async (event) => {
            event.preventDefault();
            fill(wrong);
            go.disabled = true;
            try {
                const answer = await (options.run ?? ((request) => call(name, request)))(body());
                box.close();
                toast(`${title}: done`);
                options.done?.(answer);
            } catch (error) {
                const { code, message } =
                    error instanceof ApiError
                        ? error
                        : { code: 'error', message: String(/** @type {any} */ (error).message ?? error) };
                fill(wrong, h('strong', null, code), ` ${message}`);
            } finally {
                go.disabled = false;
            }
        },
    });
    const go = h(options.danger ? 'button.danger' : 'button.primary', { type: 'submit' }, options.confirm ?? title);
    form.append(
        ...[
            options.explain ? h('p', null, options.explain) : '',
            ...fields,
            h('details.exact', { open: true }, h('summary', null, 'The exact call'), preview),
            wrong,
            h(
                'footer',
                null,
                h('button', { type: 'button', onclick: () => copy(shell(body()), 'Copied as curl') }, 'Copy as curl'),
                h('span.spacer', null),
                h('button', { type: 'button', onclick: () => box.close() }, 'Cancel'),
                go,
            ),
        ].filter(Boolean),
    );
    const box = dialog(title, form);
    draw();
    return box;
}

/** @returns {[HTMLElement, any]} a labelled field and its input */
function field(label, input) {
    return [h('label.field', null, h('span', null, label), input), input];
}

const object = (text, name) => {
    if (!text.trim()) return undefined;
    let value;
    try {
        value = JSON.parse(text);
    } catch {
        throw new Error(`${name} is not JSON`);
    }
    if (typeof value !== 'object' || value === null || Array.isArray(value))
        throw new Error(`${name} must be a JSON object`);
    return value;
};

export function createSession(done) {
    const [titleBox, title] = field('Title', h('input', { name: 'title', autofocus: true }));
    const [metaBox, metadata] = field(
        'Metadata (a JSON object, optional)',
        h('input', { name: 'metadata', placeholder: '{"tenant": "acme"}', spellcheck: 'false' }),
    );
    callDialog(
        'New session',
        'session::create',
        () => ({ title: title.value, metadata: object(metadata.value, 'metadata') }),
        [titleBox, metaBox],
        { confirm: 'Create', done: (answer) => done(answer.session_id) },
    );
}

export function renameSession(meta, done) {
    const [titleBox, title] = field('Title', h('input', { '.value': meta.title, autofocus: true }));
    const [textBox, description] = field('Description', h('textarea', { rows: 2, '.value': meta.description }));
    const [metaBox, metadata] = field(
        'Metadata',
        h('textarea.code', { rows: 4, '.value': JSON.stringify(meta.metadata ?? {}, null, 1), spellcheck: 'false' }),
    );
    callDialog(
        'Rename',
        'session::set-meta',
        () => ({
            session_id: meta.session_id,
            title: title.value,
            description: description.value,
            metadata: object(metadata.value, 'metadata') ?? {},
        }),
        [titleBox, textBox, metaBox],
        { confirm: 'Save', done },
    );
}

export function setStatus(meta, done) {
    const [box, status] = field(
        'Status',
        h(
            'select',
            { autofocus: true },
            ['idle', 'working', 'done', 'error'].map((name) =>
                h('option', { value: name, '.selected': meta.status === name }, name),
            ),
        ),
    );
    const [whyBox, reason] = field('Reason (kept with the status error)', h('input', null));
    callDialog(
        'Set status',
        'session::set-status',
        () => ({
            session_id: meta.session_id,
            status: status.value,
            ...(reason.value ? { reason: reason.value } : {}),
        }),
        [box, whyBox],
        { confirm: 'Set', done },
    );
}

export function forkSession(meta, entryId, done) {
    const [box, title] = field(
        'Title of the new session',
        h('input', { '.value': `${meta.title} (fork)`, autofocus: true }),
    );
    callDialog(
        'Fork',
        'session::fork',
        () => ({ session_id: meta.session_id, entry_id: entryId, title: title.value }),
        [box],
        {
            explain: 'Copies everything from the beginning up to this entry into a new, independent session.',
            done: (answer) => done(answer.session_id),
        },
    );
}

export function makeActive(meta, entryId, done) {
    callDialog(
        'Make this branch active',
        'session::set-active-leaf',
        () => ({ session_id: meta.session_id, entry_id: entryId }),
        [],
        {
            explain:
                'Readers without a choice of their own see this branch from now on, and new messages are appended to it.',
            confirm: 'Make active',
            done,
        },
    );
}

const TYPED_MAX = 60;
const messages = (n) => (n === 1 ? 'Its message is' : `All ${n} messages are`);

export function deleteSession(meta, done) {
    // A title that nobody wants to type is no good question.
    const word = meta.title && meta.title.length <= TYPED_MAX ? meta.title.trim() : meta.session_id;
    const what = word === meta.session_id ? 'id' : 'title';
    const [box, again] = field(
        `Type the ${what} to confirm: ${word}`,
        h('input', { autofocus: true, required: true }),
    );
    callDialog('Delete session', 'session::delete', () => ({ session_id: meta.session_id }), [box], {
        danger: true,
        confirm: 'Delete',
        explain: `${messages(meta.message_count)} removed on every node. This cannot be undone. Forks stay.`,
        done,
        run: (body) => {
            if (again.value.trim() !== word) throw new Error(`the ${what} does not match`);
            return call('session::delete', body);
        },
    });
}
