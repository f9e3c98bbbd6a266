// The first page in a real browser, against a running server.
//
//   node e2e/first-page.mjs BASE_URL JOB        for example http://127.0.0.1:8080 orders
//
// Chromium is HANDOVER_TEST_CHROMIUM or /usr/bin/chromium. One line per check, then `N passed, N failed`; the exit code
// is 0 only when every check passed. The job must have at least one partition.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const [baseArgument, job] = process.argv.slice(2);
if (baseArgument === undefined || job === undefined) {
  console.error('usage: node e2e/first-page.mjs BASE_URL JOB');
  process.exit(2);
}
const base = new URL(baseArgument).origin;
const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const DEADLINE = 20_000;
const OFFSETS = ['earliest', 'last_stable', 'latest', 'position', 'checkpointed', 'group_committed'];

let passed = 0;
let failed = 0;

async function check(name, body) {
  try {
    const note = await body();
    passed += 1;
    console.log(`ok    ${name}${note ? ` (${note})` : ''}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL  ${name}: ${String(error?.message ?? error).split('\n').slice(0, 6).join(' | ')}`);
  }
}

function assert(condition, message) {
  if (!condition) throw new Error(message);
}

/** Look until there is nothing to complain about; the last complaint is the failure. */
async function eventually(look) {
  const end = performance.now() + DEADLINE;
  for (;;) {
    const { complaint, note } = await look();
    if (!complaint) return note;
    if (performance.now() > end) throw new Error(complaint);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function api(path) {
  const response = await fetch(`${base}/api/v1${path}`, { signal: AbortSignal.timeout(DEADLINE) });
  assert(response.ok, `GET ${path} answered ${response.status}`);
  return response.json();
}

const jobPath = `/ui/jobs/${encodeURIComponent(job)}`;
const offsetsPath = `/jobs/${encodeURIComponent(job)}/offsets`;
const row = `tbody[data-job=${JSON.stringify(job)}]`;

/** The cells of the offsets table as text, by topic and partition. */
const readTable = (page) =>
  page.evaluate(() =>
    [...document.querySelectorAll('table.parts tbody[data-partition]')].map((body) => ({
      key: `${body.dataset.topic}:${body.dataset.partition}`,
      ruler: body.querySelector('svg[role=img]')?.getAttribute('aria-label') ?? null,
      cells: Object.fromEntries([...body.querySelectorAll('[data-field]')].map((cell) => [cell.dataset.field, cell.textContent])),
    })),
  );

const shown = (value) => (value === null ? 'unknown' : String(value));

/**
 * Every number on the page that did not move between two answers of the API must be that number. The page may be one
 * poll behind, so this is looked at until it holds; values that move all the time are left out, and counted.
 */
async function compareTable(page) {
  const before = await api(offsetsPath);
  const table = await readTable(page);
  const after = await api(offsetsPath);
  if (table.length !== after.partitions.length) {
    return { complaint: `${table.length} rows for ${after.partitions.length} partitions` };
  }
  let compared = 0;
  let moving = 0;
  for (const partition of after.partitions) {
    const key = `${partition.topic}:${partition.partition}`;
    const old = before.partitions.find((one) => `${one.topic}:${one.partition}` === key);
    const found = table.find((one) => one.key === key);
    if (found === undefined) return { complaint: `no row for ${key}` };
    if (old === undefined) return { complaint: `${key} is new` };
    const pairs = OFFSETS.map((field) => [field, old[field], partition[field]]);
    for (const lag of ['position', 'checkpoint', 'group']) pairs.push([`lag.${lag}`, old.lag[lag], partition.lag[lag]]);
    for (const [field, first, second] of pairs) {
      if (first !== second) {
        moving += 1;
        continue;
      }
      compared += 1;
      if (found.cells[field] !== shown(second)) {
        return { complaint: `${key} ${field}: page says ${found.cells[field]}, API says ${shown(second)}` };
      }
    }
  }
  if (compared < after.partitions.length) return { complaint: `only ${compared} numbers stood still` };
  return { note: `${table.length} rows, ${compared} numbers equal, ${moving} moving` };
}

async function axe(page) {
  // addScriptTag would be refused by the page's own policy; evaluating is not.
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }),
  );
  const text = (list) =>
    list.map((v) => `${v.id} ${v.impact}: ${v.nodes.slice(0, 3).map((node) => node.target.join(' ')).join(', ')}`).join('; ');
  const grave = violations.filter((v) => v.impact === 'serious' || v.impact === 'critical');
  assert(grave.length === 0, text(grave));
  return violations.length === 0 ? 'no violation at all' : `minor: ${text(violations)}`;
}

async function opened(page, path) {
  const response = await page.goto(base + path, { timeout: DEADLINE });
  assert(response !== null && response.ok(), `${path} answered ${response?.status()}`);
  return response;
}

const tableIsThere = (page) => page.waitForSelector('table.parts tbody[data-partition]', { timeout: DEADLINE });

async function tabTo(page, selector) {
  for (let presses = 0; presses < 200; presses += 1) {
    await page.keyboard.press('Tab');
    if (await page.evaluate((wanted) => document.activeElement?.matches(wanted) ?? false, selector)) return presses + 1;
  }
  throw new Error(`Tab never reached ${selector}`);
}

const browser = await chromium.launch({
  executablePath: process.env.HANDOVER_TEST_CHROMIUM ?? '/usr/bin/chromium',
  // launch() gives each run a user data directory of its own.
  args: [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
  ],
});

try {
  // A zone and a locale that would show if a page used the browser's.
  const context = await browser.newContext({
    viewport: { width: 1280, height: 800 }, timezoneId: 'Asia/Kolkata', locale: 'de-DE', reducedMotion: 'reduce',
    serviceWorkers: 'block',
  });
  const page = await context.newPage();
  const complaints = [];
  const foreign = [];
  page.on('console', (message) => {
    if (message.type() === 'error') complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(error.message));
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== base) foreign.push(request.url());
  });

  await check('/ui/ is served with a content security policy', async () => {
    const response = await opened(page, '/ui/');
    const policy = response.headers()['content-security-policy'] ?? '';
    assert(policy.includes('default-src'), `the header is ${JSON.stringify(policy)}`);
  });

  await check('the job is listed with its state', () =>
    eventually(async () => {
      const before = await api(`/jobs/${encodeURIComponent(job)}`);
      const state = await page.locator(`${row} [data-field=state]`).textContent({ timeout: DEADLINE });
      const { state: now } = await api(`/jobs/${encodeURIComponent(job)}`);
      return state === before.state || state === now ? { note: state } : { complaint: `page says ${state}, API says ${now}` };
    }));

  for (const scheme of ['light', 'dark']) {
    await check(`axe finds nothing serious on the list, ${scheme}`, async () => {
      await page.emulateMedia({ colorScheme: scheme });
      return axe(page);
    });
  }

  await check('the job is reached by keyboard alone', async () => {
    const presses = await tabTo(page, `${row} a`);
    await page.keyboard.press('Enter');
    await page.waitForURL(base + jobPath, { timeout: DEADLINE });
    await tableIsThere(page);
    const heading = await page.evaluate(() => document.activeElement?.tagName);
    assert(heading === 'H1', `the focus is on ${heading}, not on the heading`);
    return `${presses} Tabs`;
  });

  await check('the offsets table has a row per partition with the numbers of the API', () => eventually(() => compareTable(page)));

  await check('each row has a ruler with a sentence', async () => {
    const table = await readTable(page);
    for (const { key, ruler } of table) {
      const [topic, partition] = [key.slice(0, key.lastIndexOf(':')), key.slice(key.lastIndexOf(':') + 1)];
      assert(ruler?.startsWith(`${topic} partition ${partition}: earliest `), `${key} says ${ruler}`);
    }
    return `${table.length} rulers`;
  });

  await check('the events are those of the API', () =>
    eventually(async () => {
      const page1 = await api(`/jobs/${encodeURIComponent(job)}/events?limit=20`);
      const rows = await page.locator('.events tbody tr').evaluateAll((all) =>
        all.map((one) => [Number(one.dataset.event), ...[...one.querySelectorAll('[data-field]')].map((cell) => cell.textContent)]),
      );
      const wanted = page1.items.map(({ id, kind, actor }) => [id, kind.replaceAll('-', ' '), actor]);
      if (wanted.length === 0) return { complaint: 'the job has none' };
      if (JSON.stringify(rows) !== JSON.stringify(wanted)) return { complaint: `page has ${JSON.stringify(rows)}, API ${JSON.stringify(wanted)}` };
      return { note: `${rows.length} events` };
    }));

  await check('each next step is proposed once', async () => {
    const lines = await page.locator('.next code').allTextContents();
    assert(new Set(lines).size === lines.length, `twice: ${lines.join(' | ')}`);
    return `${lines.length} lines`;
  });

  await check('the attempts are those of the API', () =>
    eventually(async () => {
      const before = await api(`/jobs/${encodeURIComponent(job)}/attempts`);
      const rows = await page.locator('.attempts:not(.events) tbody tr').evaluateAll((all) =>
        all.map((one) => [...one.querySelectorAll('[data-field]')].map((cell) => cell.textContent)),
      );
      const wanted = before.items.map(({ attempt, kind, outcome }) => [String(attempt), kind.replaceAll('-', ' '), (outcome ?? '').replaceAll('-', ' ')]);
      if (JSON.stringify(rows) !== JSON.stringify(wanted)) return { complaint: `page has ${JSON.stringify(rows)}, API ${JSON.stringify(wanted)}` };
      return { note: `${rows.length} attempts` };
    }));

  await check('summary and next steps are those of the API', () =>
    eventually(async () => {
      const before = await api(`/jobs/${encodeURIComponent(job)}`);
      const summary = await page.locator('.summary').textContent({ timeout: DEADLINE });
      const curls = await page.locator('.story .next code').allTextContents();
      const after = await api(`/jobs/${encodeURIComponent(job)}`);
      // A summary may count seconds; then it only has to be there.
      if (before.summary === after.summary && summary !== after.summary) return { complaint: `page says ${summary}` };
      const wanted = (after.next ?? []).map((step) => step.curl);
      if (JSON.stringify(wanted) !== JSON.stringify(curls)) return { complaint: `page has ${curls.length} commands, API ${wanted.length}` };
      return { note: `${curls.length} commands` };
    }));

  await check('parked partitions are those of the API', () =>
    eventually(async () => {
      const wanted = (await api(`/jobs/${encodeURIComponent(job)}`)).parked;
      const shown = await page.locator('[data-parked]').evaluateAll((items) =>
        items.map((item) => ({ at: item.dataset.parked, text: item.textContent })));
      if (wanted.length === 0) return { complaint: 'the job has none' };
      if (shown.length !== wanted.length) return { complaint: `page has ${shown.length}, API ${wanted.length}` };
      for (const [index, { topic, partition, offset, code, detail }] of wanted.entries()) {
        const { at, text } = shown[index];
        const says = at === `${topic}/${partition}` && [String(offset), code, detail].every((part) => text.includes(part));
        if (!says) return { complaint: `${at} says ${text}` };
      }
      return { note: `${shown.length} parked` };
    }));

  for (const scheme of ['light', 'dark']) {
    await check(`axe finds nothing serious on the job, ${scheme}`, async () => {
      await page.emulateMedia({ colorScheme: scheme });
      return axe(page);
    });
  }

  await check('light and dark really differ', async () => {
    const colours = [];
    for (const scheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme: scheme });
      colours.push(await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor));
    }
    assert(colours[0] !== colours[1], `both are ${colours[0]}`);
  });

  await check('a click anywhere on its row opens the job, and the way back works', async () => {
    await page.goBack({ timeout: DEADLINE });
    // By coordinates: what lies under the pointer is the link that covers the row, not the text.
    const box = await page.locator(`${row} .say`).boundingBox({ timeout: DEADLINE });
    assert(box !== null, 'the row is not visible');
    await page.mouse.click(box.x + box.width / 2, box.y + box.height / 2);
    await page.waitForURL(base + jobPath, { timeout: DEADLINE });
    await tableIsThere(page);
  });

  await check('the address of the job can be opened directly', async () => {
    await opened(page, jobPath);
    await tableIsThere(page);
  });

  await check('a phone needs no sideways scrolling', async () => {
    await page.setViewportSize({ width: 390, height: 844 });
    for (const path of ['/ui/', jobPath]) {
      await opened(page, path);
      await page.waitForSelector(path === '/ui/' ? row : 'table.parts tbody[data-partition]', { timeout: DEADLINE });
      const excess = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert(excess <= 0, `${path} is ${excess} px too wide`);
    }
    await page.setViewportSize({ width: 1280, height: 800 });
  });

  await check('no console error', async () => assert(complaints.length === 0, complaints.join('; ')));
  await check('no request to another origin', async () => assert(foreign.length === 0, foreign.join(', ')));

  await check('numbers that got old are said to be old, kept, and nothing moves', async () => {
    // A page of its own: here failed requests are on purpose.
    const cut = await context.newPage();
    await opened(cut, jobPath);
    await tableIsThere(cut);
    const place = () => cut.evaluate(() => document.querySelector('table.parts').getBoundingClientRect().left + document.querySelector('h1').getBoundingClientRect().top);
    const rows = (await readTable(cut)).length;
    const before = await place();
    await cut.route('**/api/**', (route) => route.abort());
    await cut.waitForSelector('.strip[data-fresh=stale]', { timeout: DEADLINE });
    assert((await cut.locator('.strip').textContent()).includes('old'), 'the strip does not say so');
    assert((await readTable(cut)).length === rows, 'rows were lost');
    assert((await place()) === before, 'the page moved');
    await axe(cut);
    await cut.unroute('**/api/**');
    await cut.waitForSelector('.strip[data-fresh=live]', { timeout: DEADLINE });
    await cut.close();
  });

  await check('a command can be copied where there is no clipboard', async () => {
    const bare = await context.newPage();
    await bare.addInitScript(() => Object.defineProperty(navigator, 'clipboard', { value: undefined }));
    await opened(bare, '/ui/');
    await bare.locator('.as-curl summary').first().click({ timeout: DEADLINE });
    await bare.locator('.as-curl .copy').first().click({ timeout: DEADLINE });
    await bare.waitForFunction(() => document.querySelector('.as-curl .copy')?.textContent === 'press Ctrl+C', null, { timeout: DEADLINE });
    const selected = await bare.evaluate(() => getSelection()?.toString());
    assert(selected === `curl -sS --fail-with-body ${base}/api/v1/jobs`, `selected is ${selected}`);
    await bare.close();
  });
} finally {
  await browser.close();
}

console.log(`${passed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
