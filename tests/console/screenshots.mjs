// Makes the pictures of architecture/screenshots, and with STATES=dir those of empty, loading, error and offline pages.
// PACKAGES=<dir with playwright-core> SESSION_MANAGER=<program> node tests/console/screenshots.mjs

import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { assistant, call, demo, startCluster, startNode, streamWords, until, user } from './nodes.mjs';

const { chromium } = createRequire(`${process.env.PACKAGES ?? process.cwd()}/`)('playwright-core');
const work = mkdtempSync(join(tmpdir(), 'pictures-'));
const out = process.env.OUT ?? 'architecture/screenshots';
const states = process.env.STATES;
if (states) mkdirSync(states, { recursive: true });
mkdirSync(out, { recursive: true });
const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: ['--no-sandbox'],
});
const DESKTOP = { width: 1360, height: 850 };
const PHONE = { width: 390, height: 844 };

async function open(url, viewport, colorScheme) {
    const context = await browser.newContext({ viewport, colorScheme, locale: 'en-GB', reducedMotion: 'reduce' });
    const page = await context.newPage();
    if (process.env.CONSOLE_ASSETS)
        await page.route(/\/console\/[\w-]+\.(js|css|svg)$/, (route) => {
            const name = new URL(route.request().url()).pathname.split('/').pop();
            const type = { js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' }[name.split('.').pop()];
            return route.fulfill({ contentType: type, body: readFileSync(join(process.env.CONSOLE_ASSETS, name)) });
        });
    await page.goto(url);
    return page;
}

async function picture(page, path, ready, file, prepare = async () => {}) {
    await page.goto(`${new URL(page.url()).origin}/console#${path}`);
    await page.locator(ready).first().waitFor();
    await prepare(page);
    await page.waitForTimeout(700);
    await page.screenshot({ path: file });
}

const nodes = await startCluster(join(work, 'three'));
const urls = nodes.map((node) => node.url);
demo(urls[0], '--sessions', '14');
for (let round = 0; round < 4; round += 1) {
    for (let at = 0; at < 40; at += 1) await call(urls[at % 3], 'session::list', { limit: 20 });
    const { session_id } = await call(urls, 'session::create', {
        title: 'Plan the offsite',
        metadata: { tenant: 'acme' },
    });
    await call(urls, 'session::append', { session_id, message: user('Where do we meet in May?') });
    const { entry_id } = await call(urls, 'session::append', { session_id, message: assistant('') });
    await streamWords(urls, session_id, entry_id, 'Somewhere with trains, daylight and a big table.'.split(' '));
    if (round < 3) await call(urls, 'session::delete', { session_id });
    await new Promise((done) => setTimeout(done, 4000));
}

for (const [scheme, viewport, size] of [
    ['light', DESKTOP, ''],
    ['dark', DESKTOP, '-dark'],
    ['light', PHONE, '-phone'],
    ['dark', PHONE, '-dark-phone'],
]) {
    const page = await open(`${urls[0]}/console`, viewport, scheme);
    const file = (name) => join(out, `${name}${size}.png`);
    await picture(page, '/sessions', '.session-row .last .who', file('sessions'));
    await picture(page, '/sessions/demo-checkout-total', '.entry .markdown', file('session'), async () => {
        if (viewport === DESKTOP) await page.locator('.branch-row').nth(1).waitFor();
        await page.waitForTimeout(1000);
        const tool = page.locator('details.call summary').last();
        await tool.scrollIntoViewIfNeeded();
        await tool.click();
    });
    await picture(page, '/feed?after=oldest', '.event', file('feed'));
    await picture(page, '/cluster', '.plot', file('cluster'));
    await picture(page, '/api/session_append', '.shape', file('api'));
    if (states) {
        const named = (name) => join(states, `${name}${size}.png`);
        await picture(page, '/sessions?text=nothing', '.state', named('nothing'));
        await picture(page, '/sessions/nobody', '.state', named('unknown'));
        await picture(page, '/sessions/demo-checkout-total', '.branch-row, .entry', named('compare'), async () => {
            await page.waitForTimeout(500);
            await page.keyboard.press('c');
        });
        await page.keyboard.press('Escape');
        await picture(page, '/sessions/demo-checkout-total', '.entry', named('menu'), () =>
            page.getByRole('button', { name: 'Actions for this session' }).click(),
        );
        await page.keyboard.press('Escape');
        await picture(page, '/sessions/demo-checkout-total', '.entry', named('keys'), () => page.keyboard.press('?'));
        await page.keyboard.press('Escape');
        await picture(page, '/cluster', '.node', named('confirm'), () =>
            page.getByRole('button', { name: 'Hand over leadership' }).click(),
        );
        await page.keyboard.press('Escape');
        await page.route('**/v1/call/**', () => {});
        await page.goto(`${urls[0]}/console#/feed`);
        await page.goto(`${urls[0]}/console#/sessions`);
        await page.waitForTimeout(500);
        await page.screenshot({ path: named('loading') });
    }
    await page.context().close();
}
if (states) {
    const empty = await startNode(join(work, 'empty'));
    const page = await open(`${empty.url}/console`, DESKTOP, 'light');
    await page.locator('.state').waitFor();
    await page.screenshot({ path: join(states, 'empty.png') });
    empty.kill();
    await page.locator('.banner.offline').waitFor();
    await page.screenshot({ path: join(states, 'offline.png') });
    const lost = await open(`${urls[0]}/console#/sessions/demo-checkout-total`, PHONE, 'dark');
    await lost.locator('.entry').first().waitFor();
    await until('the page knows the others', async () => lost.waitForTimeout(3000).then(() => true));
    nodes[0].kill();
    await lost.locator('.banner.moved').waitFor();
    await lost.screenshot({ path: join(states, 'moved-phone.png') });
}
await browser.close();
rmSync(work, { recursive: true, force: true, maxRetries: 5 });
process.exit(0);
