// Runs axe-core on every page, light and dark; it must find nothing serious. The rules are those of
// W3C's WCAG 2.2 (A and AA) and axe-core's best practices. Minor and moderate findings are printed and fail nothing.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { after, before, test } from "node:test";

import { Hub } from "./support/hub.mjs";
import { ScriptedHub, json } from "./support/scripted_hub.mjs";
import { launch, unlessBroken } from "./support/tab.mjs";

const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

let browser;
let hub;
before(async () => {
  browser = await launch();
  hub = await Hub.start(["--backend", "local", "--threads", "1"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// Runs axe-core on a state of a page in both colour schemes; `place(page)` brings a new page to that state.
async function judge(t, name, place) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: "reduce" });
  context.setDefaultTimeout(0);
  const page = await context.newPage();
  await unlessBroken(page, () => place(page));
  await page.evaluate(axe);   // a script element would break the page's policy
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const violations = await page.evaluate(async () => {
      const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
      const found = await window.axe.run(document, { runOnly: tags, resultTypes: ["violations"] });
      return found.violations.map(({ id, impact, help, nodes }) =>
        ({ impact, words: `${id}: ${help}: ${nodes.map((node) => node.target.join(" ")).join(", ")}` }));
    });
    const told = (which) => violations.filter(({ impact }) => which.includes(impact)).map(({ words }) => words);
    for (const words of told(["minor", "moderate"])) t.diagnostic(`${name}, ${colorScheme}: ${words}`);
    assert.deepEqual(told(["serious", "critical", null]), [], `${name}, ${colorScheme}`);
  }
  await context.close();
}

test("axe finds nothing serious on the chat page: empty, with an answer, with its panels", async (t) => {
  await judge(t, "chat", async (page) => {
    await page.goto(`${hub.url}/`);
    await page.locator("#prompt").waitFor();
  });
  const words = "# A story\n\n1. One\n2. Two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nlet ships = 3;\n```\n";
  const answer = (stream) => { stream.say(words); stream.end("length"); };
  const scripted = await ScriptedHub.start(hub, { answer });
  t.after(() => scripted.stop());
  await judge(t, "chat with an answer", async (page) => {
    await page.goto(`${scripted.url}/`);
    await page.locator("#prompt").fill("A story about `code` and **ships**, please.");
    await page.locator("#prompt").press("Enter");
    await page.locator(".ended").waitFor();
    await page.locator("#open-settings").click();
    await page.locator("#settings").waitFor();
  });
});

test("axe finds nothing serious on the join page", (t) => judge(t, "join", async (page) => {
  await page.goto(hub.join);
  await page.getByRole("button", { name: "Start", exact: true }).waitFor();
  await page.locator("#more > summary").click();
}));

test("axe finds nothing serious on the status page, with contributors and without", async (t) => {
  await judge(t, "status", async (page) => {
    await page.goto(`${hub.url}/status.html`);
    await page.locator("#figures .card").first().waitFor();
  });
  const real = await hub.status();
  const workers = ["active", "loading", "unhealthy"].map((state, id) => ({
    id, state, nickname: "Ada", vendor: "nvidia", description: "a GPU", software: false, units_ready: 4,
    units_assigned: 9, pairs_answered: 1e6, p50_ms: 4.2, p99_ms: 18, timeouts: 3, bytes_received: 4e9,
    bytes_sent: 7e9, connected_s: 5400, trust: "proven", ready_in: { store: 1, memory: 1, slot: 2 },
  }));
  const scripted = await ScriptedHub.start(hub, { routes: { "/api/status": json({ ...real, workers }) } });
  t.after(() => scripted.stop());
  await judge(t, "status with contributors", async (page) => {
    await page.goto(`${scripted.url}/status.html`);
    await page.locator("#workers tr").nth(2).waitFor();
  });
});

test("axe finds nothing serious on the operator's page", (t) => judge(t, "admin", async (page) => {
  const [, link] = /^ {2}admin {2}(\S+)/m.exec(hub.child.printed);
  await page.goto(link);
  await page.locator("#setting-heads th").first().waitFor();
  await page.locator("#key-name").fill("Ada");
  await page.getByRole("button", { name: "Make a key" }).click();
  await page.locator("#fresh-key").waitFor();
}));

test("axe finds nothing serious on the bench page", (t) => judge(t, "bench", async (page) => {
  await page.goto(`${hub.url}/bench.html`);
  await page.getByRole("button", { name: "Measure", exact: true }).waitFor();
}));
