// The turn of a session: who runs it, what waits behind it, and what it waits for.

import { ApiError, call, me } from './api.js';
import { callDialog } from './actions.js';
import { clock, count, debounce, fill, h, icon } from './dom.js';

/** How often an open turn is looked at besides the events of its session. */
const LOOK_EVERY_MS = 3000;

const WORDS = {
    queued: 'Turn waits for a driver',
    claimed: 'Turn begins',
    running: 'Turn is running',
    waiting: 'Turn waits for a person',
};

/** @param {string} id the session */
export function turnStrip(id) {
    const element = h('div.turn', { role: 'status', hidden: true });
    let timer = 0;
    let shown = '';
    let isClosed = false;

    const ask = debounce(async () => {
        clearTimeout(timer);
        if (isClosed) return;
        try {
            draw(await call('session::turn::state', { session_id: id }));
        } catch {
            // Stores that keep no turns refuse it; there is nothing to show then.
            element.hidden = true;
        }
    }, 150);

    function draw(state) {
        if (isClosed) return;
        const turn = state.current_turn;
        element.hidden = !turn;
        if (!turn) return;
        if (!document.hidden) timer = window.setTimeout(ask, LOOK_EVERY_MS);
        // Drawn only if it changed, or a reader on a button would lose it.
        const now = JSON.stringify([turn.turn_id, turn.state, state.driver_id, state.queued, state.pending_requests]);
        if (now === shown) return;
        shown = now;
        fill(
            element,
            h(
                'div.line',
                null,
                h(`span.dot.${turn.state === 'waiting' ? 'moved' : 'online'}`, { 'aria-hidden': 'true' }),
                h('strong', null, WORDS[turn.state] ?? `Turn is ${turn.state}`),
                turn.started_at ? h('span', null, `since ${clock(turn.started_at)}`) : null,
                state.driver_id ? h('span.short', null, `driver ${state.driver_id}`) : null,
                state.queued ? h('span', null, `${count(state.queued)} more behind it`) : null,
                h('span.spacer', null),
                me()?.may.write ? h('button', { type: 'button', onclick: stop }, 'Stop') : null,
            ),
            (state.pending_requests ?? []).map(drawRequest),
        );
    }

    /** The answer may say that there was nothing to do. @param {object} body */
    const order = async (body) => {
        const answer = await call('session::turn::send-command', body);
        if (answer.refused) throw new ApiError(409, answer.refused, answer.message ?? '');
        return answer;
    };

    function drawRequest(request) {
        const isPermission = request.type === 'permission_requested';
        const decide = (approved) => () =>
            callDialog(
                approved ? 'Approve' : 'Reject',
                'session::turn::send-command',
                () => ({ session_id: id, command: 'approve', request_id: request.requestId, approved }),
                [],
                {
                    run: order,
                    danger: !approved,
                    explain: approved
                        ? `The driver goes on with ${request.toolName ?? 'it'}. The first answer counts.`
                        : `The driver is told that ${request.toolName ?? 'it'} must not happen. The first answer counts.`,
                    done: ask,
                },
            );
        return h(
            'div.line.request',
            null,
            icon('warn'),
            h('code.function', null, request.toolName ?? request.type),
            h('span.short', { dir: 'auto' }, request.description ?? request.question ?? request.message ?? ''),
            h('span.spacer', null),
            isPermission && me()?.may.write
                ? [
                      h('button.primary', { type: 'button', onclick: decide(true) }, 'Approve'),
                      h('button', { type: 'button', onclick: decide(false) }, 'Reject'),
                  ]
                : null,
        );
    }

    function stop() {
        callDialog(
            'Stop the turn',
            'session::turn::send-command',
            () => ({ session_id: id, command: 'stop' }),
            [],
            {
                run: order,
                danger: true,
                confirm: 'Stop',
                explain: 'The driver is told to stop. If it does not answer within five seconds, the turn ends without it.',
                done: ask,
            },
        );
    }

    return {
        element,
        /** Looks again if the session may have a turn. @param {any} meta */
        look: (meta) => {
            if (meta.status === 'working' || !element.hidden) ask();
        },
        close: () => {
            isClosed = true;
            clearTimeout(timer);
        },
    };
}
