// The chat page in a real Chromium: conversations that are kept, shared and deleted; settings, keys, layout. Answers
// have their own file (chat_answers.test.mjs).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { answers, ask, brief, reload, settled, setUp, story, titles } from "./support/chat_page.mjs";
import { json } from "./support/scripted_hub.mjs";

setUp();

// ---- conversations

test("New chat loses nothing, and a reload finds the same conversation", async () => {
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "The first question");
    await settled(page);
    await page.locator("#new-chat").click();
    await page.locator("#welcome").waitFor();
    await ask(page, "The second question");
    await settled(page);
    assert.deepEqual(await titles(page), ["The second question", "The first question"]);

    await reload(page);
    await page.locator(".message.assistant").waitFor();
    assert.deepEqual(await answers(page), ["Answer to The second question"]);
    await page.getByText("The first question").first().click();
    await page.locator(".message.user .body", { hasText: "The first question" }).waitFor();
    await ask(page, "And then?");
    await settled(page);
    assert.deepEqual(scripted.requests.at(-1).messages.map(({ content }) => content),
      ["The first question", "Answer to The first question", "And then?"]);
    assert.deepEqual(await titles(page), ["The first question", "The second question"], "newest first");
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

// Presses Tab until the focused element has the given name; a whole round through the page without a match is an error.
async function tabTo(page, name) {
  const calledSo = () => page.evaluate((wanted) => {
    const { activeElement: node } = document;
    const label = node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent;
    return label.trim().startsWith(wanted);
  }, name);
  for (let steps = 0; steps < 120; steps += 1) {
    if (await calledSo()) return;
    await page.keyboard.press("Tab");
  }
  assert.fail(`no Tab leads to "${name}"`);
}

test("everything works by keyboard: ask, edit, choose, answer again, settings, rename, delete", async () => {
  await story(async ({ open, scripted }) => {
    const page = await open();
    const { keyboard } = page;
    const press = async (name, key = "Enter") => {
      await tabTo(page, name);
      await keyboard.press(key);
    };
    await tabTo(page, "Message");
    await keyboard.type("A lighthouse");
    await keyboard.press("Enter");
    await settled(page);

    await press("Edit");
    await keyboard.press("ControlOrMeta+A");
    await keyboard.type("A garden");
    await keyboard.press("Enter");
    await page.locator(".message.user", { hasText: "A garden" }).waitFor();
    await settled(page);
    await press("Earlier question");
    await page.locator(".message.user", { hasText: "A lighthouse" }).waitFor();
    await press("Again");
    await page.locator(".message.assistant .pager", { hasText: "2 of 2" }).waitFor();
    await settled(page);
    assert.equal(scripted.requests.length, 3);

    await press("Settings");
    await tabTo(page, "Longest answer");
    await keyboard.type("7");
    await press("More about how words are chosen");
    await tabTo(page, "Top k");
    await keyboard.type("5");
    await tabTo(page, "Program");
    await keyboard.type("Python");
    await page.locator("#snippet", { hasText: "from openai import" }).waitFor();
    await keyboard.press("Escape");
    assert.equal(await page.locator("#settings").isVisible(), false);

    await press("Rename");
    await keyboard.type("Roses");
    await keyboard.press("Enter");
    await page.locator(".conversation", { hasText: "Roses" }).waitFor();
    await press("Delete");
    await press("Undo");
    await page.locator(".conversation", { hasText: "Roses" }).waitFor();
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

test("conversations are renamed, searched, deleted, and brought back", async () => {
  await story(async ({ open }) => {
    const page = await open();
    for (const words of ["A lighthouse", "A garden"]) {
      await page.locator("#new-chat").click();
      await ask(page, words);
      await settled(page);
    }
    const row = (title) => page.locator(".conversation", { hasText: title });
    await row("A garden").hover();
    await row("A garden").getByRole("button", { name: /Rename/ }).click();
    await page.keyboard.type("Roses");
    await page.keyboard.press("Enter");
    await row("Roses").waitFor();

    await page.locator("#search").fill("answer to a garden");
    await page.waitForFunction(() => document.querySelectorAll(".conversation").length === 1);
    assert.deepEqual(await titles(page), ["Roses"], "found by what was answered");
    await page.locator("#search").fill("");

    await row("Roses").hover();
    await row("Roses").getByRole("button", { name: /Delete/ }).click();
    await page.waitForFunction(() => document.querySelectorAll(".conversation").length === 1);
    await page.getByRole("button", { name: "Undo" }).click();
    await row("Roses").waitFor();
    await reload(page);
    await row("Roses").waitFor();
    assert.deepEqual((await titles(page)).sort(), ["A lighthouse", "Roses"]);
  }, { answer: brief });
});

test("an edited question and a repeated answer become further versions", async () => {
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "One");
    await settled(page);
    await ask(page, "Two");
    await settled(page);
    const at = (n) => page.locator(".message").nth(n);
    await at(0).hover();
    await at(0).getByRole("button", { name: "Edit" }).click();
    await page.keyboard.press("Control+A");
    await page.keyboard.type("Uno");
    await page.keyboard.press("Enter");
    await page.locator(".message.assistant .body", { hasText: "Answer to Uno" }).waitFor();
    await settled(page);
    assert.deepEqual(await answers(page), ["Answer to Uno"]);
    assert.deepEqual(scripted.requests.at(-1).messages.map(({ content }) => content), ["Uno"]);

    await at(1).getByRole("button", { name: "Again" }).click();
    await at(1).getByText("2 of 2").waitFor();
    await settled(page);
    await at(0).getByRole("button", { name: "Earlier question" }).click();
    await page.locator(".message.assistant .body", { hasText: "Answer to Two" }).waitFor();
    assert.deepEqual(await answers(page), ["Answer to One", "Answer to Two"]);
    await ask(page, "Three");
    await settled(page);
    assert.deepEqual(scripted.requests.at(-1).messages.map(({ content }) => content),
      ["One", "Answer to One", "Two", "Answer to Two", "Three"]);

    await reload(page);
    await page.locator(".message.assistant .body", { hasText: "Answer to Three" }).waitFor();
    assert.equal(await page.locator(".message").count(), 6, "the chosen branch, whole");
    await at(0).getByRole("button", { name: "Later question" }).click();
    await at(1).getByText("2 of 2").waitFor();
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

test("an exported conversation is imported, and a wrong file is refused", async () => {
  let file;
  await story(async ({ open }) => {
    const page = await open();
    await ask(page, "Of the sea");
    await settled(page);
    await page.locator("#open-settings").click();
    const download = page.waitForEvent("download");
    await page.locator("#export-all").click();
    file = await (await download).path().then((path) => readFile(path));
  }, { answer: brief });

  await story(async ({ open }) => {
    const page = await open();
    await page.locator("#open-settings").click();
    const choose = (name, buffer) => page.locator("#import-file")
      .setInputFiles({ name, mimeType: "application/json", buffer });
    await choose("other.json", Buffer.from("{}"));
    await page.locator("#toast", { hasText: "contains no exported conversations" }).waitFor();
    await choose("chats.json", file);
    await page.locator("#toast", { hasText: "Imported 1 conversation." }).waitFor();
    await page.locator(".conversation a").click();
    await page.locator(".message.assistant .body", { hasText: "Answer to Of the sea" }).waitFor();
    await choose("chats.json", file);
    await page.locator("#toast", { hasText: "1 here already" }).waitFor();
    assert.equal(await page.locator(".conversation").count(), 1);
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

test("a conversation deleted during an answer stays deleted until Undo", async () => {
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "Endless");
    await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent === "On and on");
    await page.locator(".conversation").hover();
    await page.locator(".conversation").getByRole("button", { name: /Delete/ }).click();
    await settled(page);
    assert.equal(await page.locator(".conversation").count(), 0);
    assert.equal(scripted.requests.length, 1);
    await page.getByRole("button", { name: "Undo" }).click();
    await page.locator(".conversation a").click();
    await page.locator(".ended", { hasText: "You stopped this answer." }).waitFor();
    assert.deepEqual(await answers(page), ["On and on"]);
  }, { answer: (stream) => stream.say("On and on") });
});

test("two tabs show the same conversations, and one conversation grows in both", async () => {
  await story(async ({ open }) => {
    const first = await open();
    const second = await open();
    await ask(first, "Seen by both");
    await settled(first);
    const title = second.locator(".conversation-title", { hasText: "Seen by both" });
    await title.waitFor();
    await title.click();
    await second.locator(".message.assistant").waitFor();

    await ask(first, "A second question");
    await settled(first);
    await second.waitForFunction(() => [...document.querySelectorAll(".message.assistant .body")]
      .some((body) => body.textContent === "Answer to A second question"));
    await ask(second, "A third");
    await settled(second);
    await first.locator(".message.assistant .body", { hasText: "Answer to A third" }).waitFor();
    assert.equal(await first.locator(".message").count(), 6);
    assert.deepEqual(await answers(first), await answers(second));

    const removed = second.locator(".conversation").first();
    await removed.hover();
    await removed.getByRole("button", { name: /Delete/ }).click();
    await first.waitForFunction(() => document.querySelectorAll(".conversation").length === 0);
    await first.locator("#welcome").waitFor();
  }, { answer: brief });
});

test("the conversation that an older page left in the tab is kept", async () => {
  await story(async ({ open }) => {
    const page = await open();
    await page.evaluate(() => sessionStorage.setItem("moex-chat", JSON.stringify([
      { role: "user", content: "An old question" },
      { role: "assistant", content: "<think>old thoughts</think>An old answer", facts: ["1 token/s"] },
    ])));
    await page.reload();
    await page.locator(".message.assistant").waitFor();
    assert.deepEqual(await answers(page), ["An old answer"]);
    assert.deepEqual(await titles(page), ["An old question"]);
    assert.equal(await page.evaluate(() => sessionStorage.getItem("moex-chat")), null);
  });
});

test("Forget everything asks first, and then deletes all data of all tabs", async () => {
  await story(async ({ open }) => {
    const page = await open();
    const other = await open();
    for (const one of [page, other]) {
      await one.evaluate(async () => {
        sessionStorage.setItem("moex-token", '"secret"');
        sessionStorage.setItem("moex-key", '"secret"');
        localStorage.setItem("moex-nickname", "me");
        await (await caches.open("moex-weights-v1")).put("/weights/x", new Response("weights"));
      });
    }
    await ask(page, "Something private");
    await settled(page);
    await other.locator(".conversation").waitFor();

    await page.locator("#open-settings").click();
    await page.locator("#forget").click();
    await page.locator("#forget-no").click();
    assert.equal(await page.locator(".conversation").count(), 1, "asked, and not wanted");

    await page.locator("#forget").click();
    await Promise.all([page.waitForEvent("load"), page.locator("#forget-yes").click()]);
    await page.locator("#toast", { hasText: "stored in this browser has been deleted." }).waitFor();
    for (const one of [page, other]) {
      await one.locator("#welcome").waitFor();
      await one.waitForFunction(() => document.querySelectorAll(".conversation").length === 0);
      const left = await one.evaluate(async () => ({
        session: Object.keys(sessionStorage), local: Object.keys(localStorage), caches: await caches.keys(),
      }));
      assert.deepEqual(left, { session: [], local: [], caches: [] });
    }
    const kept = await page.evaluate(() => new Promise((resolve) => {
      const request = indexedDB.open("moex-chat");
      request.onsuccess = () => {
        const all = request.result.transaction("conversations").objectStore("conversations").getAll();
        all.onsuccess = () => resolve(all.result);
      };
    }));
    assert.deepEqual(kept, []);
  }, { answer: brief });
});

test("a page without cryptography says so, and still chats", async () => {
  await story(async ({ open, context }) => {
    await context.addInitScript(() => {
      Object.defineProperty(Crypto.prototype, "subtle", { get: () => undefined });      // as on http:// in a network
    });
    const page = await open();
    await page.locator("#trouble", { hasText: "cannot keep the conversation" }).waitFor();
    await ask(page, "Still here?");
    await settled(page);
    assert.deepEqual(await answers(page), ["Answer to Still here?"]);
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

test("a browser without a database says so, and still chats", async () => {
  await story(async ({ open, context }) => {
    await context.addInitScript(() => {
      IDBFactory.prototype.open = () => { throw new DOMException("denied", "SecurityError"); };
    });
    const page = await open();
    await page.locator("#trouble", { hasText: "cannot keep the conversation" }).waitFor();
    await ask(page, "Still here?");
    await settled(page);
    assert.deepEqual(await answers(page), ["Answer to Still here?"]);
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

test("a seed above 2^53 is refused by its field", async () => {
  await story(async ({ open, scripted }) => {
    const page = await open();
    await page.locator("#open-settings").click();
    await page.locator("#seed").fill("99999999999999999999");
    assert.match(await page.locator("#seed-problem").textContent(), /from 0 to 9007199254740991/);
    await page.locator("#close-settings").click();
    await ask(page, "With a seed");
    await page.waitForFunction(() => document.activeElement.id === "seed");
    assert.equal(scripted.requests.length, 0);
    assert.equal(await page.locator("#prompt").inputValue(), "With a seed", "nothing is lost");
    await page.locator("#seed").fill("9007199254740991");
    await page.locator("#send").click();
    await settled(page);
    assert.equal(scripted.requests[0].seed, 9007199254740991);
  }, { answer: brief });
});

// ---- Escape

test("a preset and every sampling field reach the model, wrong values are reported", async () => {
  await story(async ({ open, scripted }) => {
    const page = await open();
    await page.locator("#open-settings").click();
    await page.locator("#preset").selectOption("Brief");
    await page.locator("#system").fill("Speak like a sailor.");
    assert.equal(await page.locator("#preset option:checked").textContent(), "Your own words");
    await page.locator("#save-preset").click();
    await page.reload();
    await page.locator("#open-settings").click();
    assert.equal(await page.locator("#preset option:checked").textContent(), "Speak like a sailor.");
    assert.equal(await page.locator("#drop-preset").isVisible(), true);

    await page.locator("summary", { hasText: "More about how words" }).click();
    await page.locator("#top_k").fill("many");
    await page.locator("#top_k-problem", { hasText: "0 allows all" }).waitFor();
    await page.locator("summary", { hasText: "More about how words" }).click();
    await page.locator("#close-settings").click();
    await ask(page, "Hello");
    assert.equal(scripted.requests.length, 0, "what cannot be sent is shown, not sent");
    assert.equal(await page.locator("#top_k").isVisible(), true);
    await page.locator("#top_k").fill("40");
    await page.locator("#min_p").fill("0.05");
    await ask(page, "Hello");
    await settled(page);
    const { messages, top_k, min_p, repetition_penalty } = scripted.requests.at(-1);
    assert.deepEqual(messages[0], { role: "system", content: "Speak like a sailor." });
    assert.deepEqual([top_k, min_p, repetition_penalty], [40, 0.05, undefined]);
    assert.deepEqual(page.errors, []);
  }, { answer: brief });
});

test("Escape closes panels, ignores input methods, and only then stops an answer", async () => {
  await story(async ({ open }) => {
    const page = await open();
    await page.locator("#search").waitFor({ state: "attached" });
    await page.locator("#new-chat").focus();
    await page.keyboard.press("Escape");
    const focused = await page.evaluate(() => document.activeElement.id);
    assert.equal(focused, "new-chat", "with nothing to stop the focus stays");

    await ask(page, "Endless");
    await page.locator(".message.assistant .body p").waitFor();
    const compose = (more) => page.evaluate((init) => {
      const event = new KeyboardEvent("keydown", { key: "Escape", bubbles: true, ...init });
      document.getElementById("prompt").dispatchEvent(event);
    }, more);
    await compose({ isComposing: true });
    await compose({ keyCode: 229 });
    assert.equal(await page.locator("#stop").isVisible(), true, "an input method's Escape is its own");

    await page.locator("#open-settings").click();
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#settings").isVisible(), false);
    assert.equal(await page.locator("#stop").isVisible(), true, "it closed the settings and no more");
    await page.locator("#open-settings").click();
    await page.locator("#forget").click();
    await page.keyboard.press("Escape");
    await page.locator("#forget-dialog").waitFor({ state: "hidden" });
    assert.equal(await page.locator("#stop").isVisible(), true, "a dialog's Escape is its own");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await page.locator(".ended", { hasText: "You stopped this answer." }).waitFor();
  }, { answer: (stream) => stream.say("On and on") });
});

// ---- layout, and texts that agree with each other

test("nothing scrolls sideways or covers Send for any text of the pill", async () => {
  const pools = [
    { status: "ok", units: 128, covered: 128, workers: 0 }, { status: "ok", units: 128, covered: 128, workers: 1234 },
    { status: "uncovered", units: 128, covered: 3, workers: 12 }, { status: "draining" },
  ];
  let pool = pools[0];
  for (const width of [390, 700, 1280]) {
    await story(async ({ open }) => {
      for (pool of pools) {
        const page = await open();
        await page.waitForFunction(() => document.getElementById("pool-text").textContent !== "connecting");
        const sideways = () => page.evaluate(() => {
          const { scrollWidth, clientWidth } = document.documentElement;
          return scrollWidth - clientWidth;
        });
        assert.equal(await sideways(), 0, `${width}: ${JSON.stringify(pool)}`);
        await page.locator("#open-settings").click();
        assert.equal(await sideways(), 0, `${width}: settings`);
        const boxes = await page.evaluate(() => ["settings", "send", "open-settings"].map((id) => {
          const { left, right, top, bottom } = document.getElementById(id).getBoundingClientRect();
          return { left, right, top, bottom };
        }));
        const [settings, ...buttons] = boxes;
        assert.ok(settings.left >= 0 && settings.right <= width, "the settings are not cut");
        for (const one of buttons) {
          assert.ok(one.top >= settings.bottom || one.right <= settings.left, `${width}: covered`);
        }
        await page.close();
      }
    }, {
      routes: { "/health": (response) => json(pool, pool.status === "ok" ? 200 : 503)(response) },
      viewport: { width, height: 780 },
    });
  }
});

test("the empty page agrees with its pill", async () => {
  await story(async ({ open }) => {
    const page = await open();
    await page.locator("#pool-text", { hasText: "hub only" }).waitFor();
    await page.locator("#welcome-words", { hasText: "the hub computes the answers itself" }).waitFor();
  });
});

test("a hub that hangs is said to be away, and is asked again", async () => {
  const waiting = [];
  let hangs = false;
  await story(async ({ context, open }) => {
    // The page's time limits pass when the story says so.
    await context.addInitScript(() => {
      globalThis.limits = [];
      AbortSignal.timeout = (ms) => {
        const limit = new AbortController();
        globalThis.limits.push({ ms, end: () => limit.abort(new DOMException("hangs", "TimeoutError")) });
        return limit.signal;
      };
    });
    const page = await open();
    await page.locator("#pool-text", { hasText: "hub only" }).waitFor();
    hangs = true;
    const asked = new Promise((resolve) => { waiting.push(resolve); });
    await asked;
    assert.equal(await page.evaluate(() => globalThis.limits.at(-1).ms), 10_000);
    await page.evaluate(() => globalThis.limits.at(-1).end());
    await page.locator("#pool.bad").waitFor();
    hangs = false;
    await page.evaluate(() => globalThis.limits.forEach(({ end }) => end()));      // another look may hang by now
    await page.locator("#pool-text", { hasText: "hub only" }).waitFor();
  }, {
    routes: { "/health": (response) => {
      if (!hangs) json({ status: "ok", workers: 0, units: { covered: 64 } })(response);
      else waiting.shift()?.();
    } },
  });
});
