// The pages in a real Chromium: text of other people never runs in them, nothing is loaded from elsewhere, and they
// keep working when storage is full.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { table as admin_table } from "../../static/js/words/admin.js";
import { table as bench_table } from "../../static/js/words/bench.js";
import { table as status_table } from "../../static/js/words/status.js";
import { toldIn } from "../../static/js/words/settings.js";
import { Hub } from "./support/hub.mjs";
import { launch, openTab } from "./support/tab.mjs";

let browser;
before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

// Opens a page on which a call of xss() is recorded, and every address that the page requests.
async function openPage(context, url) {
  context.setDefaultTimeout(0);      // only the time limit of the test ends a wait: a machine may be busy
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  page.on("dialog", (dialog) => { page.errors.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
  await page.addInitScript(() => { globalThis.xss = () => { globalThis.hit = true; }; });
  await page.goto(url);
  return page;
}
const wasHit = (page) => page.evaluate(() => globalThis.hit === true);

const payloads = [
  "<img src=x onerror=xss()>", "<script>xss()</script>", "<svg onload=xss()>", "<svg><script>xss()</script></svg>",
  "<iframe srcdoc='<script>parent.xss()</script>'></iframe>", "<details open ontoggle=xss()>x</details>",
  "<input autofocus onfocus=xss()>", "<video><source onerror=xss()></video>", "<body onload=xss()>",
  "<style>@import '//evil.example/x.css'</style>", "<a href=javascript:xss()>raw</a>", "[a](javascript:xss())",
  "[b](JaVaScRiPt:xss())", "[c](java\tscript:xss())", "[d](data:text/html,<script>xss()</script>)",
  "[e](vbscript:xss())", "[f](&#106;avascript:xss())", "![i](x\"onerror=\"xss())",
  "![j](https://evil.example/pixel.png)", "<a href=\"https://evil.example\" onclick=xss()>k</a>",
  "`<img src=x onerror=xss()>`", "```\n<img src=x onerror=xss()>\n```", "```html\"onmouseover=xss()\nx\n```",
  "<math><mtext><table><mglyph><style><img src=x onerror=xss()>",
  "<form action=javascript:xss()><button>x</button></form>", "<base href=https://evil.example/>",
  "<link rel=stylesheet href=https://evil.example/x.css>",
  "<meta http-equiv=refresh content='0;url=https://evil.example'>", "<object data=javascript:xss()></object>",
  "| a |\n|---|\n| <img src=x onerror=xss()> |", "<template><script>xss()</script></template>",
  "<noscript><p title=\"</noscript><img src=x onerror=xss()>\">", "<a id=body name=body>clobber</a>",
];

test("markup in a model's answer stays inert", async () => {
  const hub = await Hub.start(["--backend", "local"]);
  const context = await browser.newContext();
  try {
    const foreign = [];
    context.on("request", (request) => {
      const url = request.url();
      if (!/^(data|blob):/.test(url) && new URL(url).origin !== hub.url) foreign.push(url);
    });
    const page = await openPage(context, `${hub.url}/`);
    // The demo model writes no HTML, so the test supplies the answers, in pieces like a hub's stream.
    let answer = "";
    await page.route("**/v1/chat/completions", (route) => {
      const events = [...answer].map((content) => ({ choices: [{ index: 0, delta: { content } }] }));
      events.push({ choices: [{ index: 0, delta: {}, finish_reason: "stop" }] });
      const data = [...events.map((event) => JSON.stringify(event)), "[DONE]"];
      route.fulfill({ contentType: "text/event-stream", body: data.map((one) => `data: ${one}\n\n`).join("") });
    });
    for (const payload of payloads) {
      answer = `before\n\n${payload}\n\nafter`;
      await page.locator("#prompt").fill(payload);           // the page shows the question as well
      await page.locator("#prompt").press("Enter");
      await page.locator(".message.assistant").last().locator(".facts").waitFor();
      const seen = await page.evaluate(() => {
        const all = (selector) => [...document.querySelectorAll(selector)];
        const attributes = all(".message *").flatMap((node) => [...node.attributes].map((one) => one.name));
        const unwanted = "script, img, svg, iframe, style, object, embed, link, meta, base, form, input, video, math";
        return {
          handlers: attributes.filter((name) => /^on/i.test(name)),
          tags: all(`.message :is(${unwanted})`).map((node) => node.tagName),
          links: all(".message a[href]").map((node) => node.protocol),
        };
      });
      assert.deepEqual(seen.handlers, [], payload);
      assert.deepEqual(seen.tags, [], payload);
      for (const protocol of seen.links) assert.match(protocol, /^(https?|mailto):$/, payload);
    }
    assert.equal(await wasHit(page), false);
    assert.deepEqual(page.errors, []);
    await page.reload();                                     // the page then shows the stored answers
    await page.locator(".message.assistant").last().waitFor();
    assert.equal(await wasHit(page), false);
    assert.deepEqual(foreign, []);
  } finally {
    await context.close();
    await hub.remove();
  }
});

test("markup in a contributor's name stays inert, and no page asks another host for anything", async () => {
  const hub = await Hub.start();
  const context = await browser.newContext();
  try {
    const asked = new Set();
    const onEach = (request) => { if (!/^(data|blob):/.test(request.url())) asked.add(new URL(request.url()).host); };
    context.on("request", onEach);
    const lender = await openPage(context, hub.join);
    await lender.locator("#more > summary").click();
    await lender.locator("#nickname").fill("<img src=x onerror=xss()>");
    await lender.locator("#nickname").dispatchEvent("change");
    await lender.getByRole("button", { name: "Start", exact: true }).click();
    const status = await openPage(context, `${hub.url}/status.html`);
    // A worker has a row from its connection on, and a name in the row from its HELLO on.
    await status.locator("#workers td").filter({ hasText: /^<img src=x/ }).first().waitFor();
    assert.equal(await status.locator("#workers img").count(), 0);
    const chat = await openPage(context, `${hub.url}/`);
    await chat.locator("#prompt").fill("Hello");
    await chat.locator("#prompt").press("Enter");
    await chat.locator(".message.assistant .body p").first().waitFor();
    // The click has no effect if the answer has already ended.
    await chat.evaluate(() => document.getElementById("stop").click());
    await chat.locator(".message.assistant .facts").waitFor();
    for (const page of [lender, status, chat]) {
      assert.equal(await wasHit(page), false);
      assert.deepEqual(page.errors, []);
    }
    assert.deepEqual([...asked], [new URL(hub.url).host]);
  } finally {
    await context.close();
    await hub.remove();
  }
});

test("a tab with full storage still chats", async () => {
  const hub = await Hub.start(["--backend", "local"]);
  const context = await browser.newContext();
  try {
    const page = await openPage(context, `${hub.url}/`);
    await page.evaluate(() => {
      for (let size = 1 << 22, i = 0; size > 0; i += 1) {
        try { sessionStorage.setItem(`filler-${i}`, "x".repeat(size)); } catch { size >>= 1; }
      }
    });
    for (const question of ["One.", "Two."]) {
      await page.locator("#prompt").fill(question);
      await page.locator("#prompt").press("Enter");
      await page.locator("#send").waitFor();
      await page.locator(".message.assistant").last().locator(".facts").waitFor();
    }
    assert.equal(await page.locator(".message.assistant .facts").count(), 2);
    await page.locator("#open-settings").click();
    await page.locator("#system").fill("Be brief.");
    assert.deepEqual(page.errors, []);
  } finally {
    await context.close();
    await hub.remove();
  }
});

// Returns the lines of a page that are sentences of the language `other` but not of `own`.
function foreignWords(words, own, other) {
  const sentences = Object.keys(other).filter((key) => typeof other[key] === "string" && other[key] !== own[key]);
  const heard = words.split("\n").map((line) => line.trim());
  return sentences.map((key) => other[key]).filter((sentence) => heard.includes(sentence));
}
// Checks a page in both languages: no text of the other language is left.
async function hearBoth(page, table, shown) {
  await page.locator(shown).waitFor();
  for (const [name, other] of [["de", "en"], ["en", "de"], ["de", "en"]]) {
    await page.locator("#language").selectOption(name);
    assert.equal(await page.evaluate(() => document.documentElement.lang), name);
    const words = await page.locator("main").innerText();
    assert.deepEqual(foreignWords(words, table[name], table[other]), [], name);
  }
  await page.reload();
  await page.locator(shown).waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.lang), "de", "the choice is kept");
}

test("the dashboard uses the user's language and switches at once", async () => {
  const hub = await Hub.start(["--backend", "local"]);
  const context = await browser.newContext({ locale: "de-AT" });
  try {
    const page = await openPage(context, `${hub.url}/status.html`);
    await page.locator("#heat-words", { hasText: "Der Hub berechnet alle Experten selbst." }).waitFor();
    await hearBoth(page, status_table, "#dashboard");
    await page.locator("#foot", { hasText: "läuft seit" }).waitFor();
    assert.deepEqual(page.errors, []);
  } finally {
    await context.close();
    await hub.remove();
  }
});

test("the bench page uses the user's language, and offers a phone a small model", async () => {
  const hub = await Hub.start(["--backend", "local"]);
  const context = await browser.newContext({ locale: "de-AT", userAgent: "Mozilla/5.0 (Linux; Android 16) Mobile" });
  await context.addInitScript(() => {
    Object.defineProperty(Navigator.prototype, "userAgentData", { value: { mobile: true } });
  });
  try {
    const page = await openPage(context, `${hub.url}/bench.html`);
    await hearBoth(page, bench_table, "#model");
    assert.match(await page.locator("#model option:checked").textContent(), /^SmolLM 135M/);
    assert.deepEqual(page.errors, []);
  } finally {
    await context.close();
    await hub.remove();
  }
});

// Every setting of this hub has a German description, and there are no descriptions of other settings.
async function hearSettings(page) {
  assert.ok(await page.locator("#settings tr").count() < 20, "at first only changed settings");
  await page.locator("#only-given").uncheck();
  const rows = async (name) => {
    await page.locator("#language").selectOption(name);
    return page.locator("#settings tr").evaluateAll((found) => found.map((row) => (
      [row.cells[0].textContent, row.cells[3].textContent])));
  };
  const english = await rows("en"), german = await rows("de");
  assert.ok(english.length > 50);
  assert.deepEqual(german.map(([name]) => name).sort(), toldIn("de").sort());
  const same = german.filter(([, help], i) => help === english[i][1]).map(([name]) => name);
  assert.deepEqual(same, []);
}

test("the admin page uses the user's language and switches at once", async () => {
  const hub = await Hub.start(["--backend", "local"]);
  const context = await browser.newContext({ locale: "de-AT" });
  try {
    const [, link] = /^ {2}admin {2}(\S+)/m.exec(hub.child.printed);
    const page = await openPage(context, link);
    await page.locator("#local-words", { hasText: "Ohne Schlüssel" }).waitFor();
    await hearBoth(page, admin_table, "#rooms");
    await hearSettings(page);
    await page.getByRole("button", { name: "Neuen Link machen" }).click();
    await page.locator("#ask-head", { hasText: "Einen neuen Link machen?" }).waitFor();
    await page.locator("#ask-no", { hasText: "Abbrechen" }).click();
    assert.deepEqual(page.errors, []);
  } finally {
    await context.close();
    await hub.remove();
  }
});

test("the dashboard says why it shows nothing", async () => {
  const hub = await Hub.start(["--backend", "local", "--require-key"]);
  const context = await browser.newContext();
  try {
    const page = await openPage(context, `${hub.url}/status.html`);
    const say = (text) => page.locator("#notice", { hasText: text }).waitFor();
    const offer = async (key) => {
      await page.locator("#key").fill(key);
      await page.getByRole("button", { name: "Show status" }).click();
    };
    await offer("moex-api-wrong");
    await say("not valid for this hub");
    await offer(new URL(hub.join).hash.slice("#token=".length));       // refused: a join token is not an API key
    await say("does not open this");
    assert.equal(await page.locator("#key-form").isVisible(), true);
    await page.route("**/api/status", (route) => route.fulfill({
      status: 503, contentType: "application/json", body: '{"error": {"message": "Loading model"}}',
    }));
    await say("Loading model");
    assert.deepEqual(page.errors, []);
  } finally {
    await context.close();
    await hub.remove();
  }
});
