// The API reference: the OpenAPI document of this node, with a form to try every operation.

import { get, here, me, raw } from './api.js';
import { failed } from './app.js';
import { copy, debounce, fill, h, icon, json, loading } from './dom.js';

/** @param {URLSearchParams} _query @param {string} wanted @returns {import('./app.js').Page} */
export function referencePage(_query, wanted) {
    const list = h('nav.operations', { 'aria-label': 'Operations' }, loading());
    const detail = h('div.operation', null);
    const words = h('input', {
        type: 'search',
        placeholder: 'Find an operation',
        'aria-label': 'Find an operation',
        oninput: debounce(() => drawList(), 100),
    });
    let document_ = /** @type {any} */ (null);
    /** @type {{path: string, method: string, operation: any}[]} */
    let operations = [];
    let current = '';
    const element = h(
        'div.page.reference',
        null,
        h(
            'div.reference-body',
            null,
            h(
                'div.side',
                null,
                h('label.search', null, icon('search'), words),
                list,
                h(
                    'a.download',
                    { href: `${here()}/v1/openapi.json`, target: '_blank', rel: 'noopener' },
                    'openapi.json',
                ),
            ),
            detail,
        ),
    );

    async function load() {
        try {
            document_ = await get('/v1/openapi.json');
            operations = Object.entries(document_.paths).flatMap(([path, methods]) =>
                Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
            );
            drawList();
            show(operations.find((one) => one.operation.operationId === wanted) ?? operations[0]);
        } catch (error) {
            fill(list, failed(error));
        }
    }

    function drawList() {
        const found = operations.filter(({ path, operation }) =>
            `${path} ${operation.summary}`.toLowerCase().includes(words.value.toLowerCase()),
        );
        fill(
            list,
            document_.tags.map((tag) => {
                const own = found.filter(({ operation }) => operation.tags[0] === tag.name);
                return own.length
                    ? [
                          h('h2', { title: tag.description }, tag.name),
                          own.map((one) =>
                              h(
                                  'a',
                                  {
                                      href: `#/api/${one.operation.operationId}`,
                                      'aria-current': one.operation.operationId === current ? 'true' : null,
                                      onclick: (event) => {
                                          event.preventDefault();
                                          show(one);
                                      },
                                  },
                                  one.path.replace('/v1/call/', '').replace('session::', ''),
                              ),
                          ),
                      ]
                    : null;
            }),
        );
    }

    function show(one) {
        if (!one) return;
        const { path, method, operation } = one;
        current = operation.operationId;
        history.replaceState(null, '', `#/api/${current}`);
        drawList();
        const schema = operation.requestBody?.content?.['application/json']?.schema;
        const answer = operation.responses['200']?.content?.['application/json']?.schema;
        const first = JSON.stringify(example(schema), null, 2) ?? '';
        const body = schema
            ? h('textarea.code', {
                  rows: Math.max(4, Math.min(18, first.split('\n').length + 1)),
                  spellcheck: 'false',
                  'aria-label': 'Body',
                  '.value': first,
              })
            : null;
        const inputs = (operation.parameters ?? []).map((parameter) => [
            parameter.name,
            h('input', { placeholder: parameter.description, 'aria-label': parameter.name }),
        ]);
        const out = h('div.answer', { role: 'status' });
        const address = () => {
            const parts = new URLSearchParams(
                inputs.filter(([, input]) => input.value).map(([name, input]) => [name, input.value]),
            );
            return `${path}${parts.size ? `?${parts}` : ''}`;
        };
        const shell = () =>
            `curl -sS${me()?.login ? ' -H "authorization: Bearer $SESSION_MANAGER_TOKEN"' : ''}${method === 'post' ? ` -d '${(body?.value ?? '{}').replaceAll("'", "'\\''")}'` : ''} '${here()}${address()}'`;
        const run = async () => {
            fill(out, loading());
            try {
                if (path === '/v1/events') {
                    fill(out, h('p', null, 'This is a stream; see the page ', h('a', { href: '#/feed' }, 'Feed'), '.'));
                    return;
                }
                const { status, ms, text } = await raw(
                    method.toUpperCase(),
                    address(),
                    body ? body.value : method === 'post' ? '{}' : undefined,
                );
                let shown;
                try {
                    shown = json(JSON.parse(text));
                } catch {
                    shown = h('pre.code', null, text.slice(0, 50000));
                }
                fill(
                    out,
                    h(
                        'p',
                        null,
                        h(`span.badge.${status < 300 ? 'done' : 'error'}`, null, String(status)),
                        h('span.muted', null, ` ${ms.toFixed(1)} ms`),
                    ),
                    shown,
                );
            } catch (error) {
                fill(out, h('p.wrong', null, String(error)));
            }
        };
        fill(
            detail,
            h('header', null, h(`span.method.${method}`, null, method), h('h1', null, path)),
            h('p', null, operation.description ?? operation.summary),
            inputs.length
                ? h(
                      'section',
                      null,
                      h('h2', null, 'Parameters'),
                      inputs.map(([name, input]) => h('label.field', null, h('span', null, name), input)),
                  )
                : null,
            h(
                'section',
                null,
                h('h2', null, 'Try it'),
                body,
                h(
                    'div.row',
                    null,
                    h('button.primary', { type: 'button', onclick: run }, method === 'post' ? 'Send' : 'Get'),
                    h('button', { type: 'button', onclick: () => copy(shell(), 'Copied as curl') }, 'Copy as curl'),
                ),
                out,
            ),
            schema ? h('section', null, h('h2', null, 'Request'), shape(schema, 0)) : null,
            answer ? h('section', null, h('h2', null, 'Response'), shape(answer, 0)) : null,
        );
        detail.scrollTop = 0;
    }

    const resolve = (schema) =>
        schema?.$ref
            ? resolve(
                  schema.$ref
                      .slice(2)
                      .split('/')
                      .reduce((at, part) => at?.[part], document_),
              )
            : schema;

    /** A schema as nested lists. */
    function shape(given, depth) {
        const schema = resolve(given);
        if (schema === true || !schema) return h('span.type', null, 'anything');
        const choices = schema.oneOf ?? schema.anyOf;
        if (schema.allOf?.length === 1) return shape(schema.allOf[0], depth);
        if (choices && !schema.properties)
            return h(
                'div.choices',
                null,
                choices.map((choice) =>
                    resolve(choice)?.type === 'null'
                        ? h('span.type', null, 'or null')
                        : h('div', null, shape(choice, depth + 1)),
                ),
            );
        if (schema.properties && depth < 5) {
            const alone = oneOf(schema).join(', ');
            const list = h(
                'dl.shape',
                null,
                Object.entries(schema.properties).map(([name, inner]) => {
                    const known = resolve(inner);
                    return [
                        h(
                            'dt',
                            null,
                            h('code', null, name),
                            h('span.type', null, typeName(known)),
                            (schema.required ?? []).includes(name) ? h('span.required', null, 'required') : null,
                        ),
                        h(
                            'dd',
                            null,
                            inner.description ?? known?.description ?? '',
                            known?.properties || known?.items || known?.oneOf || known?.anyOf || known?.allOf
                                ? h(
                                      'details',
                                      null,
                                      h('summary', null, 'shape'),
                                      shape(known?.items ?? known, depth + 1),
                                  )
                                : null,
                        ),
                    ];
                }),
            );
            return alone ? h('div', null, h('p.muted', null, `Exactly one of ${alone}.`), list) : list;
        }
        return h('span.type', null, typeName(schema), schema.enum ? `: ${schema.enum.join(', ')}` : '');
    }

    /** The fields of which a request has exactly one. @returns {string[]} */
    const oneOf = (schema) =>
        schema.properties ? (schema.oneOf ?? []).flatMap((choice) => choice.required ?? []) : [];

    function typeName(schema) {
        if (schema === true || !schema) return 'anything';
        if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(' | ');
        if (schema.items) return `list of ${typeName(resolve(schema.items))}`;
        if (schema.oneOf || schema.anyOf || schema.allOf) return 'one of';
        return (
            [schema.type]
                .flat()
                .filter((type) => type !== 'null')
                .join(' or ') || 'anything'
        );
    }

    /** A body to begin with. */
    function example(given, depth = 0) {
        const schema = resolve(given);
        if (schema === true || !schema || depth > 4) return null;
        if (schema.const !== undefined) return schema.const;
        if (schema.enum) return schema.enum[0];
        if (schema.allOf) return example(schema.allOf[0], depth);
        const type = [schema.type].flat()[0];
        if (schema.properties) {
            const wanted = [...(schema.required ?? []), ...oneOf(schema).slice(0, 1)];
            return Object.fromEntries(
                Object.entries(schema.properties)
                    .filter(([name]) => wanted.includes(name))
                    .map(([name, inner]) => [name, name === 'timestamp' ? Date.now() : example(inner, depth + 1)]),
            );
        }
        if (schema.oneOf ?? schema.anyOf) return example((schema.oneOf ?? schema.anyOf)[0], depth);
        if (type === 'array') return schema.items ? [example(schema.items, depth + 1)] : [];
        return { string: '', integer: 0, number: 0, boolean: false, object: {}, null: null }[type] ?? null;
    }

    load();
    const step = (by) => {
        const shown = /** @type {HTMLElement[]} */ ([...list.querySelectorAll('a')]);
        const at = shown.findIndex((link) => link.getAttribute('aria-current'));
        shown[Math.max(0, Math.min(shown.length - 1, at + by))]?.click();
    };
    return {
        element,
        keys: { '/': () => words.focus(), j: () => step(1), k: () => step(-1) },
        help: [],
        change: () => true,
        close: () => {},
    };
}
