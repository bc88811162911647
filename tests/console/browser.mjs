// Drives the console in headless Chromium over real nodes. Started by tests/console/run.
//
// SESSIONS and ENTRIES set the size of the long list and of the long transcript (400 and 3,000 by default; the figures of
// architecture/console.md come from 200,000 and 100,000). ONLY=words runs the tests whose name contains them.
// CONSOLE_ASSETS=src/surface/console/assets serves the files of the page from there, to try changes without a build.

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { assistant, call, demo, startCluster, startNode, streamWords, until, user } from './nodes.mjs';

const require = createRequire(`${process.env.PACKAGES ?? process.cwd()}/`);
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

const SESSIONS = Number(process.env.SESSIONS ?? 400);
const ENTRIES = Number(process.env.ENTRIES ?? 3000);
const work = mkdtempSync(join(tmpdir(), 'console-'));
const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox', '--enable-precise-memory-info', '--js-flags=--expose-gc'],
});

const DESKTOP = { width: 1360, height: 850 };
const PHONE = { width: 390, height: 844 };

/** A page of its own. Errors of its scripts and of the Content-Security-Policy fail the test. */
async function open(url, { viewport = DESKTOP, colorScheme = 'light', ...more } = {}) {
    const context = await browser.newContext({ viewport, colorScheme, locale: 'en-GB', ...more });
    const page = await context.newPage();
    page.setDefaultTimeout(30000);
    page.broken = [];
    if (process.env.VERBOSE) page.on('console', (message) => console.log(`[page] ${message.text()}`));
    page.on('pageerror', (error) => page.broken.push(String(error)));
    page.on('console', (message) => {
        const words = message.text();
        // A page that was loaded before its node knew the others tries them, to find out that it has to be loaded again.
        if (/violates the document's Content Security Policy|connect-src 'self'/.test(words)) return;
        if (/Content Security Policy|TrustedHTML|Uncaught/i.test(words)) page.broken.push(words);
    });
    page.on('dialog', (dialog) => {
        page.broken.push(`a dialog: ${dialog.message()}`);
        dialog.dismiss();
    });
    if (process.env.CONSOLE_ASSETS) {
        await page.route(/\/console\/[\w-]+\.(js|css|svg)$/, async (route) => {
            const response = await route.fetch();
            const name = new URL(route.request().url()).pathname.split('/').pop();
            const headers = { ...response.headers() };
            for (const gone of ['content-encoding', 'content-length', 'etag']) delete headers[gone];
            const body = readFileSync(join(process.env.CONSOLE_ASSETS, name));
            headers['content-type'] ??= 'text/javascript';
            const type = name.endsWith('.js')
                ? 'text/javascript'
                : name.endsWith('.css')
                  ? 'text/css'
                  : 'image/svg+xml';
            await route.fulfill({ status: 200, headers: { ...headers, 'content-type': type }, body });
        });
    }
    await page.goto(url);
    page.done = async () => {
        const broken = page.broken;
        await context.close();
        assert.deepEqual(broken, []);
    };
    return page;
}

const figures = [];
let failures = 0;
async function test(name, body) {
    if (process.env.ONLY && !name.includes(process.env.ONLY)) return;
    const begun = Date.now();
    try {
        await body();
        console.log(`ok    ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
    } catch (error) {
        failures += 1;
        console.log(`FAILED ${name}\n${error.stack}`);
    }
}

const text = (page, selector) => page.locator(selector).allInnerTexts();
const see = (page, selector, words) => page.locator(selector, { hasText: words }).first().waitFor();
const press = async (page, ...keys) => {
    for (const key of keys) await page.keyboard.press(key);
};

/** How long frames take while something happens, and the memory after it. */
async function measure(page, what, happen) {
    await page.evaluate(() => {
        const frames = (window.frames_ = []);
        let last = performance.now();
        const tick = (now) => {
            frames.push(now - last);
            last = now;
            if (window.frames_ === frames) requestAnimationFrame(tick);
        };
        requestAnimationFrame(tick);
    });
    await happen();
    const { frames, heap, nodes } = await page.evaluate(() => {
        const frames = window.frames_.slice(1).sort((a, b) => a - b);
        window.frames_ = null;
        globalThis.gc?.();
        return { frames, heap: performance.memory.usedJSHeapSize, nodes: document.querySelectorAll('*').length };
    });
    const at = (share) => frames[Math.min(frames.length - 1, Math.floor(frames.length * share))] ?? 0;
    figures.push(
        `${what}: ${frames.length} frames, p50 ${at(0.5).toFixed(0)} ms, p95 ${at(0.95).toFixed(0)} ms, ` +
            `longest ${at(1).toFixed(0)} ms; heap ${(heap / 1048576).toFixed(1)} MB, ${nodes} elements`,
    );
    return { nodes };
}

/** Rules of WCAG 2 A and AA. */
async function assertAccessible(page, where) {
    await page.evaluate(axe);
    const found = await page.evaluate(() =>
        globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] }),
    );
    const words = found.violations.map(
        ({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary ?? ''}`)}`,
    );
    assert.deepEqual(words, [], where);
}

async function assertNoSidewaysScroll(page, where) {
    const wide = await page.evaluate(() => {
        const limit = document.documentElement.clientWidth;
        return document.documentElement.scrollWidth > limit || document.getElementById('main').scrollWidth > limit;
    });
    assert.equal(wide, false, `${where} scrolls sideways`);
}

/** Whatever a reader must be able to reach is within the screen. */
async function assertInside(page, where) {
    const outside = await page.evaluate(() =>
        [...document.querySelectorAll('main button, main input, main textarea, main h1')]
            .filter((one) => one.checkVisibility() && !one.closest('.facts, .segmented, .table-scroll'))
            .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
            .map((one) => one.outerHTML.slice(0, 120)),
    );
    assert.deepEqual(outside, [], where);
}

const node = await startNode(join(work, 'one'));
const { url } = node;
demo(url);

await test('the list shows what sessions are about, and filters are in the address', async () => {
    const page = await open(`${url}/`);
    assert.match(page.url(), /\/console$/);
    await see(page, '.session-row', 'Checkout total is off by a cent');
    const row = page.locator('.session-row', { has: page.locator('a.open', { hasText: /^Checkout total is off/ }) });
    // A row that is far below the screen is summed when the reader comes near it.
    await row.scrollIntoViewIfNeeded();
    await until('the summary', async () => /tok/.test(await row.innerText()));
    const words = await row.innerText();
    for (const wanted of [
        /Assistant: Done\./,
        /15\s*msg/,
        /14\.2k\s*tok/i,
        /\$0\.0535/,
        /done/,
        /created/,
        /agent: coder/,
    ])
        assert.match(words, wanted);
    await page.locator('.segmented button', { hasText: 'error' }).click();
    await until('one row', async () => (await page.locator('.session-row').count()) === 1);
    assert.match(page.url(), /status=error/);
    await page.getByRole('button', { name: 'all', exact: true }).click();
    await page.getByRole('button', { name: 'tenant: globex' }).first().click();
    await until('metadata', async () => /metadata=/.test(page.url()));
    await see(page, '.chip.active', 'tenant: globex');
    await page.getByLabel('Title contains').fill('LATENCY');
    await see(page, '.state, .session-row', /Nothing matches|latency/i);
    await page.goto(`${url}/console#/sessions?text=lisbon&status=done`);
    await page.reload();
    await until('the deep link', async () => (await page.locator('.session-row').count()) === 1);
    await see(page, '.session-row', 'Lisbon');
    assert.equal(await page.getByLabel('Title contains').inputValue(), 'lisbon');
    // Live: a session that appears and changes.
    await page.goto(`${url}/console#/sessions`);
    await see(page, '.session-row', 'Lisbon');
    const { session_id } = await call(url, 'session::create', { title: 'Just now' });
    await see(page, '.session-row', 'Just now');
    await call(url, 'session::set-status', { session_id, status: 'error', reason: 'out of tea' });
    await see(page, '.session-row .badge.error', 'error');
    await call(url, 'session::delete', { session_id });
    await until('the row goes', async () => !(await text(page, '.session-row')).join().includes('Just now'));
    await page.done();
});

await test('the first render is fast', async () => {
    const times = [];
    for (let round = 0; round < 5; round += 1) {
        // A context of its own has an empty cache.
        const page = await open('about:blank');
        await page.goto(`${url}/console`);
        await page.locator('.session-row').first().waitFor();
        times.push(
            await page.evaluate(() => {
                const paint = performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0;
                const files = performance.getEntriesByType('resource').filter((one) => one.name.includes('/console/'));
                const answer = performance.getEntriesByType('resource').find((one) => /session::list/.test(one.name));
                return {
                    paint,
                    list: answer?.responseEnd ?? 0,
                    bytes: files.reduce((sum, one) => sum + one.transferSize, 0),
                };
            }),
        );
        await page.done();
    }
    const median = (name) =>
        times
            .map((one) => one[name])
            .sort((a, b) => a - b)[2]
            .toFixed(0);
    figures.push(
        `first render with an empty cache: first paint ${median('paint')} ms, sessions there ${median('list')} ms, ` +
            `${(times[0].bytes / 1024).toFixed(0)} KB of files`,
    );
});

await test('everything works with the keyboard only', async () => {
    const page = await open(`${url}/console`);
    await see(page, '.session-row', 'Lisbon');
    const focused = () => page.evaluate(() => document.activeElement?.closest('.session-row')?.getAttribute('data-id'));
    await press(page, 'j');
    const first = await focused();
    await press(page, 'j', 'j', 'k');
    const second = await focused();
    assert.ok(first && second && first !== second);
    await press(page, '/');
    await page.keyboard.type('checkout total is');
    await until('the search', async () => (await page.locator('.session-row').count()) === 1);
    await press(page, 'Escape', 'j', 'Enter');
    await see(page, 'h1', 'Checkout total is off by a cent');
    await see(page, '.entry', 'tests pass');
    // Walk, unfold, switch the branch, compare, list the branches, raw JSON.
    await press(page, 'k', 'k');
    const current = () => page.locator('.entry.current').getAttribute('data-entry');
    const before = await current();
    await press(page, 'k');
    assert.notEqual(await current(), before);
    await until('the tree', async () => (await page.locator('.branch-row').count()) === 2);
    await see(page, '.branch-row .words', 'Wait. Would it be safer');
    await press(page, ']');
    await see(page, '.notice', 'not the active branch');
    assert.match(page.url(), /leaf=/);
    await press(page, 'c');
    await see(page, 'dialog', 'The first');
    await until('both branches', async () => (await page.locator('.compare-columns section').count()) === 2);
    await press(page, 'Escape');
    await until('no dialog', async () => (await page.locator('dialog').count()) === 0);
    await press(page, 'Escape');
    await until('the active branch', async () => !/leaf=/.test(page.url()));
    await press(page, 'r');
    await see(page, '.entry pre.json', 'revision');
    await press(page, 'r', '?');
    await see(page, 'dialog', 'next branch');
    await press(page, 'Escape');
    for (const [key, words] of [
        ['f', 'Feed'],
        ['c', 'Cluster'],
        ['s', 'Sessions'],
    ]) {
        await press(page, 'g', key);
        await see(page, '.page h1', words);
    }
    // Nothing traps the focus, and everything that has it shows it.
    for (let step = 0; step < 12; step += 1) {
        await press(page, 'Tab');
        const visible = await page.evaluate(() => {
            const element = document.activeElement;
            if (!element || element === document.body) return true;
            const own = [getComputedStyle(element), getComputedStyle(element, '::after')];
            return own.some((style) => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0);
        });
        assert.ok(visible, `the focus is invisible after ${step + 1} tabs`);
    }
    await page.done();
});

await test('a transcript has tools, branches, forks both ways, revisions and links to entries', async () => {
    const page = await open(`${url}/console#/sessions/demo-checkout-total`);
    await see(page, '.entry', 'tests pass');
    await page.getByRole('feed').waitFor();
    const tool = page.locator('details.call', { hasText: 'shell::run' }).last();
    await tool.locator('summary').click();
    await see(page, '.side-by-side', 'Arguments');
    assert.equal(await tool.locator('.side-by-side section').count(), 2);
    await press(page, 'Home');
    const thinking = page.locator('details.thinking').first();
    await thinking.waitFor();
    assert.equal(await thinking.evaluate((element) => element.open), false);
    await see(page, 'pre.code .t-word', 'def');
    // A branch, by the buttons of the entry.
    await page.getByRole('button', { name: 'Next branch (])' }).first().click();
    await see(page, '.notice', 'not the active branch');
    await page.goBack();
    await until('the branch before', async () => await page.locator('.notice').isHidden());
    // To a fork, and back to its source.
    await page.getByRole('button', { name: 'forks of this' }).click();
    await page.locator('dialog a', { hasText: 'what about refunds' }).click();
    await see(page, 'h1', 'what about refunds');
    await page.locator('.facts a', { hasText: 'forked from' }).click();
    await see(page, 'h1', 'off by a cent');
    // Revisions of a streamed message.
    const { session_id } = await call(url, 'session::create', { title: 'Streams' });
    const { entry_id } = await call(url, 'session::append', { session_id, message: assistant('') });
    await streamWords(url, session_id, entry_id, 'one two three four'.split(' '));
    await page.goto(`${url}/console#/sessions/${session_id}?entry=${entry_id}`);
    await see(page, '.entry.current', 'one two three four');
    await press(page, 'v');
    await until(
        'five revisions',
        async () => (await page.getByRole('slider', { name: 'Revision' }).getAttribute('max')) === '4',
    );
    await page.getByRole('slider', { name: 'Revision' }).fill('2');
    await see(page, '.revision-view', 'one two');
    assert.equal((await text(page, '.revision-view .markdown')).join(), 'one two');
    await press(page, 'Escape');
    // A run of steps is one line until it is opened.
    const run = (await call(url, 'session::create', { title: 'Steps' })).session_id;
    await call(url, 'session::append', { session_id: run, message: user('go') });
    for (let step = 0; step < 6; step += 1) {
        const block = { type: 'function_call', id: `c${step}`, function_id: 'repo::read', arguments: { step } };
        await call(url, 'session::append', {
            session_id: run,
            message: { ...assistant(''), content: [block], stop_reason: 'function_call' },
        });
        const content = [{ type: 'text', text: `{"step": ${step}}` }];
        const message = {
            role: 'function_result',
            timestamp: 1,
            content,
            function_call_id: `c${step}`,
            function_id: 'repo::read',
            is_error: false,
        };
        await call(url, 'session::append', { session_id: run, message });
    }
    await call(url, 'session::append', { session_id: run, message: assistant('All read.') });
    await page.goto(`${url}/console#/sessions/${run}`);
    await see(page, '.run-open', '6 steps');
    await see(page, '.run-open', 'repo::read × 6');
    assert.equal(await page.locator('details.call').count(), 0);
    await page.locator('.run-open').click();
    await until('six calls', async () => (await page.locator('details.call').count()) === 6);
    await page.done();
});

await test('a reply is seen word by word', async () => {
    const { session_id } = await call(url, 'session::create', { title: 'A slow reply' });
    await call(url, 'session::append', { session_id, message: user('Count to thirty.') });
    const { entry_id } = await call(url, 'session::append', { session_id, message: assistant('') });
    const page = await open(`${url}/console#/sessions/${session_id}`);
    await see(page, '.entry', 'Count to thirty.');
    await page.evaluate((id) => {
        const seen = (window.seen_ = []);
        const look = () => {
            const now = document.querySelector(`[data-entry="${id}"] .markdown`)?.textContent ?? '';
            if (seen.at(-1) !== now) seen.push(now);
        };
        new MutationObserver(look).observe(document.body, { subtree: true, childList: true, characterData: true });
    }, entry_id);
    const words = Array.from({ length: 30 }, (_, at) => String(at + 1));
    const whole = await streamWords(url, session_id, entry_id, words, (at) =>
        until(`word ${at + 1} on the page`, () =>
            page.evaluate((n) => window.seen_.at(-1)?.split(' ').length >= n, at + 1),
        ),
    );
    const seen = await page.evaluate(() => window.seen_.filter(Boolean));
    assert.equal(seen.at(-1), whole);
    assert.ok(seen.length >= 29, `only ${seen.length} states of 30`);
    for (const state of seen) assert.ok(whole.startsWith(state), state);
    await see(page, '.streaming', 'streaming');
    await page.done();
});

await test('a turn is seen with what it waits for, and a person approves it', async () => {
    const place = { agent_id: 'main', session_id: 'telegram:ops' };
    await call(url, 'session::open', { ...place, source: { kind: 'channel', platform: 'telegram', interactive: true } });
    const sender = { channel: 'telegram', channelUserId: '7', displayName: 'Anna' };
    const { turn_id } = await call(url, 'session::post', { ...place, message: { text: 'Restart it.', sender } });
    const emit = (n, ...events) => call(url, 'session::turn::emit', { turn_id, driver_id: 'test', n, events });
    const page = await open(`${url}/console#/sessions`);
    const row = page.locator('.session-row', { hasText: 'main/telegram:ops' });
    await row.getByRole('button', { name: 'agent: main, channel' }).waitFor();
    await row.locator('a.open').click();
    await see(page, '.turn', 'Turn waits for a driver');
    await see(page, '.entry.user .sender', 'Anna');
    await call(url, 'session::turn::claim', { turn_id, driver_id: 'test' });
    const about = { toolCallId: 'c', toolName: 'service.restart' };
    await emit(
        1,
        { type: 'text_delta', text: 'I ask first.' },
        { type: 'tool_call', ...about, args: {} },
        { type: 'permission_requested', requestId: 'p', ...about, description: 'Restart now?' },
    );
    await see(page, '.turn', 'Turn waits for a person');
    await see(page, '.turn', 'driver test');
    await see(page, '.turn .request', 'Restart now?');
    await assertAccessible(page, 'a turn that waits');
    await page.getByRole('button', { name: 'Approve' }).click();
    await see(page, 'dialog .preview', 'session::turn::send-command');
    await page.locator('dialog').getByRole('button', { name: 'Approve' }).click();
    await see(page, '.turn', 'Turn is running');
    await emit(2, { type: 'text_delta', text: 'Done.' }, { type: 'turn_complete', finalText: 'Done.' });
    await see(page, '.entry .markdown', 'Done.');
    await until('no turn', async () => await page.locator('.turn').isHidden());
    await page.done();
});

await test('a person can create, write, rename, set a status, fork and delete, and sees the exact call', async () => {
    const page = await open(`${url}/console`);
    await page.getByRole('button', { name: 'New' }).click();
    await page.getByLabel('Title', { exact: true }).fill('Written by hand');
    await see(page, 'dialog .preview', 'session::create');
    await see(page, 'dialog .preview pre', 'Written by hand');
    await page.getByLabel('Metadata (a JSON object, optional)').fill('{broken');
    await page.getByRole('button', { name: 'Create' }).click();
    await see(page, 'dialog .wrong', 'metadata is not JSON');
    await page.getByLabel('Metadata (a JSON object, optional)').fill('{"by": "hand"}');
    await page.getByRole('button', { name: 'Create' }).click();
    await see(page, 'h1', 'Written by hand');
    await page.getByLabel('Append a user message').fill('Hello **you**');
    await press(page, 'Control+Enter');
    await see(page, '.entry.user strong', 'you');
    const act = async (name) => {
        await page.getByRole('button', { name: 'Actions for this session' }).click();
        await page.getByRole('menuitem', { name }).click();
    };
    await act('Rename');
    await page.getByLabel('Title', { exact: true }).fill('Renamed');
    await page.getByRole('button', { name: 'Save' }).click();
    await see(page, 'h1', 'Renamed');
    await act('Set status');
    await page.locator('dialog select').selectOption('error');
    await page.getByLabel('Reason (kept with the status error)').fill('no reason');
    await page.getByRole('button', { name: 'Set', exact: true }).click();
    await see(page, '.session-head .wrong', 'no reason');
    await act('Fork at the end');
    await page.getByRole('button', { name: 'Fork', exact: true }).click();
    await see(page, 'h1', 'Renamed (fork)');
    await act('Delete');
    await page.getByLabel('Type the title').fill('Renamed');
    await page.getByRole('button', { name: 'Delete', exact: true }).click();
    await see(page, 'dialog .wrong', 'the title does not match');
    await page.getByLabel('Type the title').fill('Renamed (fork)');
    await page.getByRole('button', { name: 'Delete', exact: true }).click();
    await see(page, '.session-row', 'Renamed');
    await page.done();
});

await test('the feed is live, filtered, and goes back in time', async () => {
    const page = await open(`${url}/console#/feed`);
    await see(page, '.state', 'Waiting for events');
    await until(
        'its own stream among the subscribers',
        async () => (await page.locator('.subscribers tbody tr').count()) > 0,
    );
    const { session_id } = await call(url, 'session::create', { title: 'For the feed' });
    await see(page, '.event', 'For the feed');
    await page.getByRole('button', { name: 'status-changed' }).click();
    await until('the filter', async () => /type=status-changed/.test(page.url()));
    await until('a new stream', async () => (await page.locator('.event').count()) === 0);
    await call(url, 'session::append', { session_id, message: user('not shown') });
    await call(url, 'session::set-status', { session_id, status: 'working' });
    await see(page, '.event', 'idle → working');
    assert.equal(await page.locator('.event').count(), 1);
    await page.locator('.event summary').first().click();
    await see(page, '.event pre', session_id);
    await page.goto(`${url}/console#/feed?after=oldest`);
    await page.reload();
    await see(page, '.event', 'Checkout total is off by a cent');
    const scrub = page.getByLabel('Position in the feed');
    await until('the scrubber', async () => Number(await scrub.getAttribute('max')) > 10);
    const [low, high] = [Number(await scrub.getAttribute('min')), Number(await scrub.getAttribute('max'))];
    await scrub.evaluate(
        (input, at) => {
            input.value = String(at);
            input.dispatchEvent(new Event('input'));
            input.dispatchEvent(new Event('change'));
        },
        Math.floor((low + high) / 2),
    );
    await until('the address', async () => /after=\d|after=[\w-]+\.\d/.test(page.url()));
    await until('events from there', async () => (await page.locator('.event').count()) > 0);
    await page.getByRole('button', { name: 'Live', exact: true }).click();
    await until('live', async () => !/after=/.test(page.url()));
    await page.done();
});

await test('the cluster page and the reference show this node', async () => {
    const page = await open(`${url}/console#/cluster`);
    await see(page, '.node', 'Node 1');
    for (const fact of ['term', 'applied', 'memory', 'disk free', 'version', 'state']) await see(page, '.node', fact);
    await until('plots', async () => (await page.locator('.plot').count()) === 10);
    await page.goto(`${url}/console#/api/session_list`);
    await see(page, '.operation h1', 'session::list');
    await page.getByRole('button', { name: 'Send' }).click();
    await see(page, '.answer .badge', '200');
    await see(page, '.answer pre', 'demo-checkout-total');
    await page.getByLabel('Find an operation').fill('nodes');
    await page.locator('.operations a', { hasText: '/v1/nodes' }).click();
    await page.getByRole('button', { name: 'Get', exact: true }).click();
    await see(page, '.answer pre', 'ws://');
    await page.done();
});

const HOSTILE = [
    '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">',
    '[click](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>) <javascript:alert(1)>',
    '‮evil‬ ⁦text⁩ ‏ right to left',
    '![x](https://example.invalid/pixel.png) <svg onload=alert(1)> <iframe src=//example.invalid></iframe>',
    '```html\n<script>window.hacked = 5</script>\n```',
].join('\n\n');

await test('hostile content is inert', async () => {
    const title = '<img src=x onerror=window.hacked=6>‮gpj.exe';
    const { session_id } = await call(url, 'session::create', {
        title,
        metadata: { '<b>key</b>': '"><script>window.hacked=7</script>' },
    });
    const append = (message) => call(url, 'session::append', { session_id, message });
    await append(user(HOSTILE));
    await append(assistant(HOSTILE, { error_message: '<script>window.hacked=8</script>', stop_reason: 'error' }));
    const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" onload="window.hacked=9"/>').toString('base64');
    await append({
        ...assistant(''),
        content: [
            { type: 'image', mime: 'image/svg+xml', data: svg },
            { type: 'image', mime: 'text/html', data: svg },
            { type: 'thinking', text: HOSTILE },
            { type: 'function_call', id: 'h', function_id: '<u>f</u>', arguments: { x: HOSTILE } },
        ],
        stop_reason: 'function_call',
    });
    const asked = [];
    const page = await open(`${url}/console#/sessions/${session_id}`);
    page.on('request', (request) => asked.push(request.url()));
    await see(page, '.entry', 'window.hacked = 1');
    await press(page, 'x');
    await page.waitForTimeout(300);
    const found = await page.evaluate(() => ({
        hacked: window.hacked,
        active: document.querySelectorAll('main script, main iframe, main svg[onload], main [onerror]').length,
        links: [...document.querySelectorAll('main a')].map((link) => link.getAttribute('href')),
        images: [...document.querySelectorAll('main img')].map((image) => image.src),
    }));
    assert.deepEqual([found.hacked, found.active, found.images], [undefined, 0, []]);
    for (const link of found.links) assert.match(link, /^(#|https?:)/);
    assert.deepEqual(
        asked.filter((one) => !one.startsWith(url)),
        [],
    );
    // Marks that turn the order of letters are shown, not obeyed; other text that turns it stays in its element.
    await see(page, 'h1 .override', 'RLO');
    await see(page, '.entry .markdown .override', 'RLO');
    const isolated = await page.locator('h1').evaluate((element) => getComputedStyle(element).unicodeBidi);
    assert.match(isolated, /isolate|plaintext/);
    await page.goto(`${url}/console#/sessions`);
    await see(page, '.session-row', '<img src=x');
    await page.goto(`${url}/console#/feed?after=oldest&session=${session_id}`);
    await see(page, '.event', 'window.hacked');
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    // Ten megabytes in one message, without a space.
    const big = (await call(url, 'session::create', { title: 'Ten megabytes' })).session_id;
    await call(url, 'session::append', { session_id: big, message: user('before') });
    await call(url, 'session::append', { session_id: big, message: user('x'.repeat(10_000_000)) });
    const begun = Date.now();
    await page.goto(`${url}/console#/sessions/${big}`);
    await see(page, '.entry button', 'Show more of 10.00 million characters');
    figures.push(`a message of 10 MB opens in ${Date.now() - begun} ms`);
    await measure(page, 'scrolling beside a message of 10 MB', async () => {
        for (let step = 0; step < 10; step += 1) await page.mouse.wheel(0, -400);
        await page.waitForTimeout(300);
    });
    // The list reads only its beginning.
    await page.goto(`${url}/console#/sessions`);
    const row = page.locator('.session-row', { hasText: 'Ten megabytes' });
    const answer = page.waitForResponse((response) => response.request().postData()?.includes(big) ?? false);
    await row.waitFor();
    assert.ok((await (await answer).body()).length < 20_000);
    await call(url, 'session::delete', { session_id: big });
    await page.done();
});

const LONG = 'an-id-that-goes-on-'.repeat(8);

await test('the pages are accessible and fit, light and dark, wide and narrow', async () => {
    await call(url, 'session::ensure', {
        session_id: LONG,
        title: `${'A title that goes on '.repeat(9)}${'W'.repeat(90)}`,
        description: 'D'.repeat(400),
        metadata: Object.fromEntries(Array.from('abcdefghij', (key) => [key.repeat(30), 'value '.repeat(20)])),
    });
    await call(url, 'session::append', { session_id: LONG, message: user(`${'x'.repeat(4000)}\n\n|a|b|\n|-|-|\n|c|d|`) });
    for (const [colorScheme, viewport] of [
        ['light', DESKTOP],
        ['dark', DESKTOP],
        ['light', PHONE],
        ['dark', PHONE],
    ]) {
        const page = await open(`${url}/console`, { colorScheme, viewport, reducedMotion: 'reduce' });
        for (const [path, ready] of [
            [`/sessions/${LONG}`, '.entry .markdown'],
            [`/sessions/${encodeURIComponent('demo-ops/telegram:billing')}`, '.entry .markdown'],
            ['/sessions', '.session-row .tokens small, .session-row .messages'],
            ['/sessions?text=nothing-like-this', '.state'],
            ['/sessions/demo-checkout-total', '.entry .markdown'],
            ['/sessions/demo-checkout-total?leaf=demo-checkout-total-u3b', '.entry, .state'],
            ['/sessions/nobody', '.state'],
            ['/feed?after=oldest', '.event'],
            ['/cluster', '.plot'],
            ['/api/session_append', '.shape'],
        ]) {
            await page.goto(`${url}/console#${path}`);
            await page.locator(ready).first().waitFor();
            await page.waitForTimeout(200);
            const where = `${path} ${colorScheme} ${viewport.width}`;
            await assertInside(page, where);
            await assertAccessible(page, where);
            await assertNoSidewaysScroll(page, where);
        }
        await press(page, '?');
        await page.locator('dialog').waitFor();
        await assertAccessible(page, `keys ${colorScheme} ${viewport.width}`);
        const moving = await page.evaluate(() => document.getAnimations().length);
        assert.equal(moving, 0, 'something moves although the reader asked for no motion');
        await page.done();
    }
});

await test(`${SESSIONS} sessions are as fast as 200`, async () => {
    let next = 0;
    const create = async () => {
        for (let at = next++; at < SESSIONS; at = next++)
            await call(url, 'session::create', {
                title: `Session number ${at}`,
                metadata: { shard: String(at % 10) },
            });
    };
    await Promise.all(Array.from({ length: 48 }, create));
    const page = await open(`${url}/console#/cluster`);
    await page.locator('.node').first().waitFor();
    const begun = Date.now();
    await press(page, 'g', 's');
    await page.locator('.session-row').nth(40).waitFor();
    figures.push(`the list of ${SESSIONS} sessions: first 50 rows after ${Date.now() - begun} ms`);
    const rows = () => page.evaluate(() => document.querySelector('.figures')?.textContent ?? '');
    const reach = Math.min(SESSIONS, 3000);
    const { nodes } = await measure(page, `scrolling through ${reach} of ${SESSIONS} sessions`, () =>
        until(
            'the rows',
            async () => {
                await page.mouse.move(600, 500);
                await page.mouse.wheel(0, 6000);
                return parseInt((await rows()).replaceAll(/\D/g, ''), 10) >= reach;
            },
            180000,
        ),
    );
    assert.ok(nodes < 12000, `${nodes} elements`);
    const drawn = await page.locator('.session-row').count();
    assert.ok(drawn <= 400, `${drawn} rows are elements`);
    // Back at the top everything is there.
    await page.evaluate(() => document.getElementById('main').scrollTo(0, 0));
    await see(page, '.session-row', `Session number`);
    // Filters at this size.
    const filtered = Date.now();
    await page.goto(`${url}/console#/sessions?metadata=${encodeURIComponent('{"shard":"7"}')}&order=created_asc`);
    await see(page, '.session-row a.open', 'Session number 7');
    figures.push(`a filter by metadata over ${SESSIONS} sessions: ${Date.now() - filtered} ms`);
    await page.done();
});

await test(`a transcript of ${ENTRIES} entries opens at its end and scrolls both ways`, async () => {
    const { session_id } = await call(url, 'session::create', { title: 'Long' });
    for (let first = 0; first < ENTRIES; first += 500) {
        const messages = Array.from({ length: Math.min(500, ENTRIES - first) }, (_, at) => {
            const number = first + at;
            const words = `Entry **${number}**\n\n- with a list\n- and \`code\`\n\n${'some words '.repeat(number % 17)}`;
            return number % 2 ? assistant(words) : user(words);
        });
        await call(url, 'session::append-many', { session_id, messages });
    }
    const page = await open(`${url}/console`);
    await page.locator('.session-row').first().waitFor();
    const begun = Date.now();
    await page.goto(`${url}/console#/sessions/${session_id}`);
    await see(page, '.entry', `Entry ${ENTRIES - 1}`);
    figures.push(`a transcript of ${ENTRIES} entries: its end after ${Date.now() - begun} ms`);
    const shown = () =>
        page.evaluate(() => {
            const box = document.querySelector('.transcript').getBoundingClientRect();
            return [...document.querySelectorAll('.entry')]
                .filter(
                    (one) =>
                        one.getBoundingClientRect().bottom > box.top + 4 &&
                        one.getBoundingClientRect().top < box.bottom,
                )
                .map((one) => Number(/Entry (\d+)/.exec(one.textContent)?.[1] ?? -1));
        });
    assert.ok((await shown()).includes(ENTRIES - 1));
    await page.mouse.move(500, 400);
    /** While the reader scrolls, numbers follow each other without a hole. */
    const assertGapless = async () => {
        const numbers = await until('no entry is loading', async () => {
            const now = await shown();
            return now.length > 0 && !now.includes(-1) && now;
        });
        numbers.forEach((number, at) => assert.equal(number, numbers[0] + at, `${numbers}`));
        return numbers[0];
    };
    await measure(page, `scrolling up in ${ENTRIES} entries`, async () => {
        for (let step = 0; step < 60; step += 1) await page.mouse.wheel(0, -700);
        await page.waitForTimeout(300);
    });
    const above = await assertGapless();
    assert.ok(above < ENTRIES - 60, `only back to ${above}`);
    await measure(page, `scrolling down in ${ENTRIES} entries`, async () => {
        for (let step = 0; step < 20; step += 1) await page.mouse.wheel(0, 700);
        await page.waitForTimeout(300);
    });
    assert.ok((await assertGapless()) > above);
    await press(page, 'Home');
    await see(page, '.entry', 'Entry 0');
    assert.equal(await assertGapless(), 0);
    await press(page, 'j', 'j', 'j');
    // A jump into the middle.
    await page.evaluate(() => {
        const box = document.querySelector('.transcript');
        box.scrollTop = box.scrollHeight / 2;
    });
    const middle = await until('the middle', async () => {
        const first = await assertGapless();
        return first > ENTRIES / 4 && first < (ENTRIES * 3) / 4 ? first : null;
    });
    assert.ok(middle);
    await press(page, 'End');
    await see(page, '.entry', `Entry ${ENTRIES - 1}`);
    const elements = await page.locator('.entry').count();
    assert.ok(elements <= 60, `${elements} entries are elements`);
    await page.done();
});

await test('a login with a token is a cookie that scripts cannot read, and a role sees what it may', async () => {
    const program = process.env.SESSION_MANAGER ?? 'target/debug/session-manager';
    const file = join(work, 'tokens');
    const make = (name, ...more) => {
        const made = spawnSync(program, ['token', 'create', '--name', name, ...more], { encoding: 'utf8' });
        assert.equal(made.status, 0, made.stderr);
        appendFileSync(file, made.stdout);
        return /smt_\S+|\S{24,}/.exec(made.stderr)[0];
    };
    const ops = make('ops', '--role', 'admin');
    const web = make('web', '--role', 'app', '--scope', 'owner=anna');
    const watcher = make('watcher', '--role', 'reader');
    const guarded = await startNode(join(work, 'guarded'), '--token-file', file);
    const as = { authorization: `Bearer ${ops}` };
    for (const owner of ['anna', 'ben'])
        await call(guarded.url, 'session::create', { title: `Of ${owner}`, metadata: { owner } }, as);
    const page = await open(`${guarded.url}/console#/sessions`);
    const login = async (token) => {
        await page.getByLabel('Token').fill(token);
        await page.getByRole('button', { name: 'Log in' }).click();
    };
    await page.getByLabel('Token').waitFor();
    await assertAccessible(page, 'login');
    await login('wrong');
    await page.locator('.login .wrong:not(:empty)').waitFor();
    await login(web);
    await see(page, '.session-row', 'Of anna');
    assert.equal(await page.locator('.session-row').count(), 1, 'the scope hides the sessions of others');
    assert.equal(await page.evaluate(() => document.cookie), '');
    const [cookie] = await page.context().cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, 'Strict', '/']);
    assert.deepEqual(await text(page, 'nav[aria-label=Pages] a'), ['Sessions', 'Feed', 'API']);
    await page.reload();
    await see(page, '.session-row', 'Of anna');
    await page.goto(`${guarded.url}/console#/cluster`);
    await see(page, '.state', 'Not allowed');
    const logout = () => page.getByRole('button', { name: 'Log out' }).click();
    await logout();
    await page.getByLabel('Token').waitFor();
    await page.goto(`${guarded.url}/console#/sessions`);
    await login(watcher);
    await see(page, '.session-row', 'Of ben');
    assert.equal(await page.getByRole('button', { name: 'New' }).count(), 0);
    await page.locator('a.open', { hasText: 'Of ben' }).click();
    await see(page, '.facts', 'read only');
    assert.equal(await page.getByLabel('Append a user message').isVisible(), false);
    await logout();
    await login(ops);
    await page.goto(`${guarded.url}/console#/cluster`);
    await page.getByRole('button', { name: 'Snapshot here' }).click();
    await see(page, 'dialog', 'writes a snapshot of its whole state');
    await page.getByRole('button', { name: 'Build' }).click();
    await see(page, '.toast', 'done');
    await page.done();
    guarded.kill();
});

await test('the node is killed while a reply streams, and the page goes on at another one', async () => {
    const nodes = await startCluster(join(work, 'three'));
    const urls = nodes.map((one) => one.url);
    const [home, ...others] = nodes;
    const { session_id } = await call(urls, 'session::create', { title: 'Survives' });
    await call(urls, 'session::append', { session_id, message: user('Tell me everything.') });
    const { entry_id } = await call(urls, 'session::append', { session_id, message: assistant('') });
    const page = await open(`${home.url}/console#/cluster`);
    await until('three nodes', async () => (await page.locator('.node').count()) === 3);
    await see(page, '.health, .badge', 'healthy');
    // An operator hands over the leadership, with a confirmation.
    await page.getByRole('button', { name: 'Hand over leadership' }).click();
    await see(page, 'dialog', 'is elected');
    const before = await page.locator('.node.leads strong').innerText();
    await page.getByRole('button', { name: 'Hand over', exact: true }).click();
    await until('another leader', async () => {
        const now = await text(page, '.node.leads strong');
        return now.length === 1 && now[0] !== before;
    });
    await page.goto(`${home.url}/console#/sessions/${session_id}`);
    await see(page, '.entry', 'Tell me everything.');
    // The scripts of pages that nobody opened arrive soon after the first page. A loss before that leads elsewhere: the
    // page then goes to the console of another node as a whole.
    await until('the other pages are loaded ahead', () =>
        page.evaluate(() => {
            const loaded = performance.getEntriesByType('resource').map((one) => one.name.split('/').pop());
            return ['feed.js', 'reference.js'].every((name) => loaded.includes(name));
        }),
    );
    const seen = () => page.locator(`[data-entry="${entry_id}"] .markdown`).allInnerTexts();
    const words = Array.from({ length: 60 }, (_, at) => `word${at}`);
    const rest = others.map((one) => one.url);
    const whole = await streamWords(rest, session_id, entry_id, words, async (at) => {
        if (at === 25) {
            await until('half of it', async () => (await seen()).join('').includes('word20'));
            home.kill();
        }
    });
    await until('the whole reply', async () => (await seen()).join('') === whole);
    await see(page, '.banner.moved', 'does not answer. This page goes on at');
    // Pages that were never opened are there as well, although the node that served their files is gone.
    for (const [key, heading] of [
        ['f', 'Feed'],
        ['c', 'Cluster'],
        ['s', 'Sessions'],
    ]) {
        await press(page, 'g', key);
        await see(page, '.page h1', heading);
    }
    await press(page, 'g', 'a');
    await see(page, '.operations', 'append');
    await page.goto(`${home.url}/console#/sessions/${session_id}`);
    await until('the whole reply again', async () => (await seen()).join('') === whole);
    // More entries, each once, in order; and a message written here arrives once.
    for (let at = 0; at < 10; at += 1)
        await call(rest, 'session::append', { session_id, message: user(`after ${at}`), entry_id: `after-${at}` });
    await see(page, '.entry', 'after 9');
    await page.getByLabel('Append a user message').fill('written after the loss');
    await page.getByRole('button', { name: 'Append' }).click();
    await see(page, '.entry', 'written after the loss');
    const shown = await page.locator('.entry').evaluateAll((all) => all.map((one) => one.getAttribute('data-entry')));
    const stored = await call(rest, 'session::path', { session_id, limit: 50 });
    assert.deepEqual(
        shown,
        stored.entries.map((entry) => entry.id),
    );
    // Without a majority the page says that it is behind; without any node, that it is offline.
    others[0].kill();
    await page.locator('.banner.behind, .banner.offline').waitFor();
    others[1].kill();
    await see(page, '.banner.offline', 'No node answers');
    await assertAccessible(page, 'offline');
    page.broken.length = 0;
    await page.done();
});

await browser.close();
rmSync(work, { recursive: true, force: true, maxRetries: 5 });
console.log(figures.map((line) => `      ${line}`).join('\n'));
if (failures) {
    console.log(`${failures} tests failed`);
    process.exit(1);
}
process.exit(0);
