// The cluster: its nodes, the figures of the last hour, and what an operator can do.

import { get, here, me, post, shellPost, webUrl } from './api.js';
import { failed } from './app.js';
import { callDialog } from './actions.js';
import { bytes, count, date, fill, h, icon, iconButton, loading } from './dom.js';
import { popup } from './popup.js';
import { plot } from './plot.js';

/** @returns {import('./app.js').Page} */
export function clusterPage() {
    let cluster = /** @type {any} */ (null);
    let closed = false;
    const nodes = h('div.nodes', null, loading());
    const plots = h('div.plots', null, loading());
    const health = h('span', { role: 'status' });
    /** The node that the figures are of; another one after this one was lost. */
    const host = h('code', null, new URL(here()).host);
    const may = me()?.may.administer;
    const actions = h('div.row', null);
    const element = h(
        'div.page.cluster',
        null,
        h('div.toolbar', null, h('h1', null, 'Cluster'), health, h('span.spacer', null), actions),
        nodes,
        h('h2', null, 'The last hour of ', host),
        plots,
    );

    function draw() {
        const { healthy, leader, cluster_id: name } = cluster;
        fill(
            health,
            h(
                `span.badge.${healthy ? 'done' : 'error'}`,
                null,
                h('span.dot', { 'aria-hidden': 'true' }),
                healthy ? 'healthy' : 'needs attention',
            ),
            h('span.muted.id', null, name ? ` ${name}` : ' no cluster: a node of its own'),
        );
        const hashes = new Map();
        for (const node of cluster.nodes)
            if (node.state_hash)
                hashes.set(`${node.applied}`, (hashes.get(`${node.applied}`) ?? new Set()).add(node.state_hash));
        if (!cluster.nodes.length)
            fill(nodes, h('p.muted', null, 'This node is not the member of a cluster. Its own figures are below.'));
        else
            fill(
                nodes,
                cluster.nodes.map((node) => {
                    const differs = (hashes.get(`${node.applied}`)?.size ?? 0) > 1;
                    const menu =
                        may && name
                            ? iconButton(
                                  'dots',
                                  `Actions for node ${node.node}`,
                                  (event) => nodeMenu(node, event.currentTarget),
                                  { 'aria-haspopup': 'menu' },
                              )
                            : null;
                    const fact = (label, value, title) =>
                        value === null || value === undefined || value === ''
                            ? null
                            : h('div', { title: title ?? '' }, h('dt', null, label), h('dd', null, value));
                    return h(
                        'article.node',
                        {
                            class: `node ${node.healthy ? '' : 'bad'} ${node.node === leader ? 'leads' : ''}`,
                            'aria-label': `node ${node.node}`,
                        },
                        h(
                            'header',
                            null,
                            h('span.dot', {
                                class: `dot ${node.healthy ? 'online' : 'offline'}`,
                                'aria-hidden': 'true',
                            }),
                            h('strong', null, `Node ${node.node}`),
                            // A node that does not answer has no role that anybody knows.
                            node.role === '-'
                                ? null
                                : h(`span.badge.${node.role === 'leader' ? 'working' : 'idle'}`, null, node.role),
                            node.voter ? null : h('span.chip', null, 'no vote'),
                            h('span.spacer', null),
                            menu,
                        ),
                        node.health === 'ok' ? null : h('p.health', null, node.health),
                        h(
                            'dl',
                            null,
                            fact('term', node.term === null ? null : count(node.term)),
                            fact('applied', node.applied === null ? null : count(node.applied)),
                            fact(
                                'lag',
                                node.lag === null ? null : count(node.lag),
                                'entries that the leader still has to send',
                            ),
                            fact('snapshot', node.snapshot === null ? null : count(node.snapshot)),
                            fact(
                                'sync',
                                node.sync_ms === null || node.sync_ms === undefined
                                    ? null
                                    : `${node.sync_ms.toFixed(1)} ms`,
                                'how long the disk takes',
                            ),
                            fact('memory', node.memory_bytes ? bytes(node.memory_bytes) : null),
                            fact(
                                'disk free',
                                node.disk_free_bytes ? bytes(node.disk_free_bytes) : null,
                                `of ${bytes(node.disk_size_bytes ?? 0)}`,
                            ),
                            fact('version', node.version),
                        ),
                        node.state_hash
                            ? h(
                                  'p.hash',
                                  { title: 'equal on all nodes with the same applied index' },
                                  h('span.muted', null, 'state '),
                                  h('code', null, node.state_hash),
                                  differs ? h('strong.wrong', null, ' differs') : null,
                              )
                            : null,
                        node.client_url
                            ? h(
                                  'p.hash',
                                  null,
                                  h('span.muted', null, 'clients '),
                                  h('a', { href: `${webUrl(node.client_url)}/console#/cluster` }, node.client_url),
                              )
                            : null,
                        h('p.hash', null, h('span.muted', null, 'peers '), h('code', null, node.address || '–')),
                        (node.certificates ?? []).map((one) =>
                            h(
                                'p.hash',
                                null,
                                h('span.muted', null, `certificate for ${one.port} until `),
                                date(Date.parse(one.not_after)),
                            ),
                        ),
                        (node.warnings ?? []).map((warning) => h('p.warning', null, warning)),
                    );
                }),
            );
        fill(
            actions,
            may && name
                ? [
                      h('button', { type: 'button', onclick: transfer }, 'Hand over leadership'),
                      h('button', { type: 'button', onclick: snapshot }, 'Snapshot here'),
                      h('button', { type: 'button', onclick: add }, icon('plus'), 'Add node'),
                  ]
                : null,
        );
    }

    const shell = (name) => (body) => shellPost(`/v1/cluster/${name}`, body);
    const operate = (title, name, body, fields, options) =>
        callDialog(title, `POST /v1/cluster/${name}`, body, fields, {
            ...options,
            shell: shell(name),
            run: (request) => post(`/v1/cluster/${name}`, request),
            done: (answer) => {
                cluster = answer;
                draw();
            },
        });
    const select = (label, options) => {
        const input = h(
            'select',
            null,
            options.map(([value, text]) => h('option', { value }, text)),
        );
        return [h('label.field', null, h('span', null, label), input), input];
    };

    function transfer(_event, to) {
        const voters = cluster.nodes.filter((node) => node.voter && node.node !== cluster.leader);
        const [box, input] = select('To', [
            ['', 'the most up-to-date voter'],
            ...voters.map((node) => [node.node, `node ${node.node}`]),
        ]);
        if (to) input.value = String(to);
        operate(
            'Hand over leadership',
            'transfer-leader',
            () => (input.value ? { to: Number(input.value) } : {}),
            [box],
            {
                confirm: 'Hand over',
                explain:
                    'The leader stops taking writes for a moment, and the other node is elected. Calls in progress are retried by the nodes; nothing is lost.',
            },
        );
    }
    function snapshot() {
        operate('Snapshot', 'snapshot', () => ({}), [], {
            confirm: 'Build',
            explain: `${new URL(here()).host} writes a snapshot of its whole state to its disk. It goes on serving meanwhile.`,
        });
    }
    function add() {
        const number = h('input', {
            type: 'number',
            min: 1,
            required: true,
            '.value': String(Math.max(0, ...cluster.nodes.map((node) => node.node)) + 1),
        });
        const address = h('input', { required: true, placeholder: 'host:port of its peer port' });
        operate(
            'Add a node',
            'add',
            () => ({ node: Number(number.value), address: address.value.trim() }),
            [
                h('label.field', null, h('span', null, 'Node id'), number),
                h('label.field', null, h('span', null, 'Peer address'), address),
            ],
            {
                confirm: 'Add',
                explain:
                    'The node must be running with --join. It becomes a learner: it receives everything and has no vote until it is promoted.',
            },
        );
    }
    function nodeMenu(node, button) {
        popup(button, [
            node.voter && node.node !== cluster.leader && ['Make it the leader', () => transfer(null, node.node)],
            !node.voter && [
                'Promote to voter',
                () =>
                    operate(`Promote node ${node.node}`, 'promote', () => ({ node: node.node }), [], {
                        confirm: 'Promote',
                        explain: 'It votes from now on. The cluster needs a majority of all voters for every write.',
                    }),
            ],
            [
                'Remove from the cluster',
                () => {
                    const force = h('input', { type: 'checkbox' });
                    const voters = cluster.nodes.filter((one) => one.voter).length;
                    const left = voters - (node.voter ? 1 : 0);
                    operate(
                        `Remove node ${node.node}`,
                        'remove',
                        () => ({ node: node.node, ...(force.checked ? { force: true } : {}) }),
                        [h('label.check', null, force, 'Even if too few of the others answer')],
                        {
                            danger: true,
                            confirm: 'Remove',
                            explain: `${left} ${left === 1 ? 'voter remains' : 'voters remain'}; the cluster then survives the loss of ${Math.max(0, Math.ceil(left / 2) - 1) || 'none'}. Node ${node.node} stops serving and cannot come back under this id.`,
                        },
                    );
                },
                'danger',
            ],
        ]);
    }

    async function look() {
        try {
            cluster = await get('/v1/cluster');
            if (!closed) draw();
        } catch (error) {
            if (!cluster) fill(nodes, failed(error));
        }
    }
    async function lookBack() {
        try {
            const { samples, every_ms: every } = await get('/v1/history');
            if (closed) return;
            fill(host, new URL(here()).host);
            const per = 1000 / every;
            const line = (name, pick, scale = 1) => ({
                name,
                values: samples.map((sample) => {
                    const value = pick(sample);
                    return value === null || value === undefined ? null : value * scale;
                }),
            });
            const times = samples.map((sample) => sample.at_ms);
            const last = samples.at(-1);
            fill(
                plots,
                !samples.length
                    ? h('p.muted', null, 'The first sample is taken five seconds after the node started.')
                    : [
                          plot('Writes per second', times, [line('writes', (one) => one.writes, per)]),
                          plot('Reads per second', times, [line('reads', (one) => one.reads, per)]),
                          plot('Events per second', times, [line('events', (one) => one.events, per)]),
                          plot(
                              'Latency of writes',
                              times,
                              [line('p50', (one) => one.write_p50_ms), line('p99', (one) => one.write_p99_ms)],
                              'ms',
                          ),
                          plot(
                              'Latency of reads',
                              times,
                              [line('p50', (one) => one.read_p50_ms), line('p99', (one) => one.read_p99_ms)],
                              'ms',
                          ),
                          plot('Elections', times, [line('leader changes', (one) => one.leader_changes)]),
                          plot('Refused or failed calls', times, [line('errors', (one) => one.errors)]),
                          plot('Subscribers', times, [
                              line('subscribers', (one) => one.subscribers),
                              line('lag', (one) => one.subscriber_lag),
                          ]),
                          plot(
                              'Memory',
                              times,
                              [line('resident', (one) => one.memory_bytes, 1 / 1048576)],
                              'MB',
                              last ? bytes(last.memory_bytes) : '',
                          ),
                          plot(
                              'Disk',
                              times,
                              [line('data', (one) => one.disk_bytes, 1 / 1048576)],
                              'MB',
                              last ? `${bytes(last.disk_bytes)}, ${bytes(last.disk_free_bytes)} free` : '',
                          ),
                      ],
            );
        } catch {
            // The nodes above say why; once is enough.
            if (!plots.querySelector('svg')) fill(plots, h('p.muted', null, 'No figures: the node does not answer.'));
        }
    }
    look();
    lookBack();
    const timers = [
        setInterval(() => {
            if (!document.hidden && !document.querySelector('.popup')) look();
        }, 2000),
        setInterval(() => {
            if (!document.hidden) lookBack();
        }, 5000),
    ];
    return {
        element,
        keys: {},
        help: [],
        close: () => {
            closed = true;
            timers.forEach(clearInterval);
        },
    };
}
