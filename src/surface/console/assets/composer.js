// The field below a transcript that appends a message.

import { call, curl } from './api.js';
import { copy, dialog, h, iconButton, json, toast } from './dom.js';

const HEIGHT_MAX = 200;

/**
 * @param {() => object} target the session, and the parent if it is not the active leaf
 * @param {() => void} done
 * @returns {HTMLFormElement}
 */
export function composer(target, done) {
    const grow = () => {
        input.style.height = 'auto';
        input.style.height = `${Math.min(HEIGHT_MAX, input.scrollHeight)}px`;
    };
    const input = h('textarea', {
        rows: 1,
        placeholder: 'Append a user message…',
        'aria-label': 'Append a user message',
        oninput: grow,
        onkeydown: (event) => {
            if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
        },
    });
    const body = () => ({
        ...target(),
        message: { role: 'user', timestamp: Date.now(), content: [{ type: 'text', text: input.value }] },
    });
    /** Kept until the append succeeded, so that another try, at any node, cannot append the message twice. */
    let entryId = '';
    let sent = '';
    const submit = async (event) => {
        event.preventDefault();
        if (!input.value.trim() || send.disabled) return;
        if (!entryId || sent !== input.value) entryId = `console-${randomId()}`;
        sent = input.value;
        send.disabled = true;
        try {
            await call('session::append', { ...body(), entry_id: entryId });
            entryId = '';
            input.value = '';
            grow();
            done();
        } catch (error) {
            toast(/** @type {any} */ (error).message, true);
        } finally {
            send.disabled = false;
        }
    };
    const showCall = () =>
        dialog(
            'session::append',
            json(body()),
            h(
                'footer',
                null,
                h(
                    'button',
                    { type: 'button', onclick: () => copy(curl('session::append', body()), 'Copied as curl') },
                    'Copy as curl',
                ),
            ),
        );
    const send = h('button.primary', { type: 'submit', title: 'Ctrl+Enter' }, 'Append');
    const form = h(
        'form.composer',
        { hidden: true, onsubmit: submit },
        input,
        iconButton('code', 'The exact call', showCall),
        send,
    );
    return form;
}

/** `crypto.randomUUID` exists only on pages with TLS or of localhost. */
function randomId() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}
