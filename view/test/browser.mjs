// Looks at the page of `r1 view` in Chromium: a run is made with the embedded model, continued with
// a changed script, and every page is opened in both widths and colour schemes.
//
//   node browser.mjs BINARY OUT [RUNS_DIR]
//
// Screenshots are written to OUT. With RUNS_DIR the pages of these runs are only photographed.
import { execFileSync, spawn } from "node:child_process";
import assert from "node:assert/strict";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [binary, out, given] = process.argv.slice(2).map((path) => resolve(path));
const here = dirname(fileURLToPath(import.meta.url));
mkdirSync(out, { recursive: true });
const place = mkdtempSync(join(tmpdir(), "r1-view-"));
const runs = given ?? join(place, "runs");
const environment = { ...process.env, OMP_NUM_THREADS: "1" };
const r1 = (...args) => execFileSync(binary, args, { cwd: place, env: environment, stdio: ["ignore", "ignore", "inherit"] });

if (!given) {
  cpSync(join(here, "hostile.lua"), join(place, "demo.lua"));
  r1("run", "demo.lua", "trainer.steps=2", "--quiet");
  const script = join(place, "demo.lua");
  writeFileSync(script, readFileSync(script, "utf8").replace("% 3 - 1", "% 5 - 2"));
  r1("run", "demo.lua", "--resume", "--yes", "trainer.steps=4", "--quiet");
}

const server = spawn(binary, ["view", "--runs-dir", runs, "--port", "0", "--json"], { cwd: place, env: environment });
const [line] = await new Promise((done) => createInterface(server.stdout).once("line", (text) => done([text])));
const { url } = JSON.parse(line);
const executablePath = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((path) => path && existsSync(path));
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const faults = [];

async function open(width, height, colorScheme, address = url) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  const page = await context.newPage();
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(String(error)));
  page.on("request", (request) => request.url().startsWith(new URL(address).origin) || request.url().startsWith("file:") || faults.push(`requests ${request.url()}`));
  const go = async (hash, wait) => {
    await page.goto(`${address}#/${hash}`);
    await page.waitForSelector(wait);
    await page.waitForTimeout(300);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(wide <= 0, `${hash} is ${wide} pixels wider than ${width}`);
    const header = await page.evaluate(() => document.querySelector(".top").clientHeight);
    assert.ok(header < 45, `the header of ${hash} has two lines at ${width} pixels`);
  };
  return { page, go };
}

try {
  const first = given ? process.env.RUN : "demo";
  const list = await (await fetch(`${url}api/trajectories?run=${first}&sort=-tokens&limit=1`)).json();
  const row = list.rows[0];
  const pages = [
    ["runs", "runs", ".chart canvas"],
    ["trajectories", `trajectories/${first}`, "td a"],
    ["groups", `trajectories/${first}?by=group`, "td a"],
    ["group", `group/${first}/train/${row.step}/${row.group}`, ".columns article"],
    ["conversation", `t/${first}/${row.id}`, ".conversation article"],
    ["tokens", `t/${first}/${row.id}?view=tokens`, ".tok"],
    ["state", `t/${first}/${row.id}?view=state`, ".state article"],
    ["script", `script/${first}`, "section h2"],
    ["evals", "evals", "h1"],
  ];
  for (const [width, height] of [[1280, 800], [390, 800]]) {
    for (const scheme of ["light", "dark"]) {
      const { page, go } = await open(width, height, scheme);
      for (const [name, hash, wait] of pages) {
        await go(hash, wait);
        await page.screenshot({ path: join(out, `${name}-${width}-${scheme}.png`) });
      }
      await page.context().close();
    }
  }
  if (!given) await check(row);
  assert.deepEqual(faults, []);
  console.log(`pages are as expected; screenshots are in ${out}`);
} finally {
  await browser.close();
  server.kill("SIGINT");
}

async function check(row) {
  const { page, go } = await open(1280, 800, "light");
  const text = (selector) => page.locator(selector).first().innerText();
  // Curves, with a mark at the second version of the script.
  await go("runs", ".chart canvas");
  assert.match(await page.locator(".chart [role=img]").first().getAttribute("aria-label"), /reward\/mean by step\. demo: last /);
  await page.fill("#filter", "entropy");
  await page.waitForFunction(() => [...document.querySelectorAll(".chart b")].every((title) => title.textContent.includes("entropy")));
  // A table: sorted, filtered, with keys.
  await go("trajectories/demo", "td a");
  assert.match(await text(".page > .hint"), /^32 trajectories/);
  const cut = await page.evaluate(() => [...document.querySelectorAll("td:not(:last-child)")].filter((cell) => cell.scrollWidth > cell.clientWidth).map((cell) => cell.innerText));
  assert.deepEqual(cut, []);
  await page.getByRole("button", { name: /^reward/ }).first().click();
  await page.waitForSelector("th[aria-sort=descending]");
  await page.keyboard.press("/");
  await page.keyboard.type("reward > 0 and steps == 2");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector(".page > .hint")?.textContent.includes("match"));
  await page.locator("#filter").fill("rewardz > 0");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[role=alert]");
  assert.match(await text("[role=alert]"), /there is no column `rewardz`.*`reward`/);
  // The browser reports the refusal as an error.
  assert.match(faults.pop(), /400/);
  await go("trajectories/demo", "td a");
  await page.locator(".table").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".conversation article");
  await page.keyboard.press("t");
  await page.waitForSelector(".tok");
  // Hostile text is text.
  await go(`t/demo/${row.id}`, ".conversation article");
  assert.ok((await text(".conversation")).includes("<script>document.title='owned'</script>⟨U+001B⟩[2J"));
  assert.equal(await page.locator("#app img, #app script").count(), 0);
  assert.notEqual(await page.title(), "owned");
  // The second prompt is without the system message.
  await go(`t/demo/${row.id}?view=tokens`, ".tok");
  assert.match(await text(".changes >> nth=1"), /tokens left out by the context policy/);
  await page.selectOption("#color", "advantage");
  await page.locator(".reply").first().focus();
  await page.keyboard.press("ArrowRight");
  assert.match(await text(".readout"), /id \d+, log-probability -/);
  // The state that each step left, and the parts of the time.
  await go(`t/demo/${row.id}?view=state`, ".state article");
  assert.equal(await page.locator(".state article").count(), 2);
  assert.match(await text(".legend"), /sampling/);
  // Notes survive a reload of the page.
  await page.getByRole("radio", { name: "4" }).click();
  await page.locator(".notes textarea").fill("odd <b>");
  await page.locator(".notes textarea").blur();
  await page.waitForFunction(() => document.querySelector(".notes [role=status]").textContent === "Saved");
  const stored = readFileSync(join(runs, "demo", "curation.jsonl"), "utf8").trim().split("\n");
  assert.deepEqual(JSON.parse(stored.at(-1)), { id: row.id, tags: [], note: "odd <b>", quality: 4, exclude: false });
  await page.reload();
  await page.waitForSelector(".notes textarea");
  assert.equal(await page.locator(".notes textarea").inputValue(), "odd <b>");
  // Versions of the script.
  await go("script/demo", ".diff");
  assert.match(await text(".diff"), /- .*% 3 - 1[\s\S]*\+ .*% 5 - 2/);
  // A run that goes on: its curves and its table grow without a reload.
  await go("runs", ".chart canvas");
  const label = () => page.locator(".chart [role=img]").first().getAttribute("aria-label");
  const before = await label();
  r1("run", "demo.lua", "--resume", "trainer.steps=5", "--quiet");
  await page.waitForFunction((old) => document.querySelector(".chart [role=img]").getAttribute("aria-label") !== old, before);
  await go("trajectories/demo", "td a");
  await page.waitForFunction(() => document.querySelector(".page > .hint").textContent.startsWith("40 "));
  // Nothing without the token.
  for (const path of ["", "app.js", "api/runs"]) assert.equal((await fetch(new URL(`/${path}`, url))).status, 403);
  assert.deepEqual(faults, []);
  // A static copy.
  r1("view", "--runs-dir", runs, "--export", "copy", "--quiet");
  const copy = await open(1280, 800, "light", pathToFileURL(join(place, "copy/index.html")).href);
  await copy.go("runs", ".chart canvas");
  await copy.go("trajectories/demo?where=reward%20%3E%200&sort=-reward", "td a");
  assert.match(await copy.page.locator(".page > .hint").innerText(), /of 40 trajectories match/);
  await copy.go(`t/demo/${row.id}?view=tokens`, ".tok");
  assert.equal(await copy.page.locator(".notes textarea").inputValue(), "odd <b>");
  assert.notEqual(await copy.page.title(), "owned");
}
