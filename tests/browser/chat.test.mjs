// The chat page in a real Chromium: what it keeps, what it paints again, how an answer ends and goes on. The pages and
// the hub are real; what the model says is scripted where the demo model would not say it.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { after, before, test } from "node:test";

import { Hub } from "./support/hub.mjs";
import { ScriptedHub, json } from "./support/scripted_hub.mjs";
import { launch } from "./support/tab.mjs";

let browser;
let hub;
before(async () => {
  browser = await launch();
  hub = await Hub.start(["--backend", "local"]);
});
after(async () => {
  await browser?.close();
  await hub?.remove();
});

// A story has its own scripted hub and its own browser context, so its own storage.
async function story(run, { answer, routes, ...how } = {}) {
  const scripted = await ScriptedHub.start(hub, { answer, routes });
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...how });
  context.setDefaultTimeout(0);      // the test's own limit counts: a busy machine is no failure
  try {
    await run({ scripted, context, open: (address = "/") => openPage(context, scripted.url + address) });
  } finally {
    await context.close();
    await scripted.stop();
  }
}

async function openPage(context, url) {
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(String(error)));
  await page.goto(url);
  await page.waitForFunction(() => document.getElementById("model").textContent !== "");
  return page;
}

async function ask(page, words) {
  await page.locator("#prompt").fill(words);
  await page.locator("#prompt").press("Enter");
}
const settled = (page) => page.locator("#send").waitFor();
// Loads the page again once its database holds what it shows: a write that is still under way would be lost with it.
async function reload(page) {
  await page.waitForFunction(() => {
    const shown = [...document.querySelectorAll(".conversation-title")].map((node) => node.textContent).sort();
    const request = indexedDB.open("moex-chat");
    request.onsuccess = () => {
      const all = request.result.transaction("conversations").objectStore("conversations").getAll();
      all.onsuccess = () => {
        const has_ended = ({ role, end }) => role === "user" || end !== null;
        const titles = all.result.map(({ title }) => title).sort();
        const are_whole = all.result.every(({ messages }) => messages.every(has_ended));
        window.is_kept = are_whole && titles.join() === shown.join();
        request.result.close();
      };
    };
    return window.is_kept;
  }, null, { polling: 50 });
  await page.reload();
}
const titles = (page) => page.locator(".conversation-title").allTextContents();
const answers = (page) => page.locator(".message.assistant .body").allTextContents();
const brief = (stream) => {
  stream.say(`Answer to ${stream.body.messages.at(-1).content}`);
  stream.end();
};

// ---- D3: conversations

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

test("a question asked differently and an answer given again stand beside the first ones", async () => {
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

test("an exported conversation comes back into an empty browser, and a wrong file is told", async () => {
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
    await page.locator("#toast", { hasText: "holds no exported conversations" }).waitFor();
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

test("a conversation deleted in mid-answer stays deleted, and Undo brings it back as far as it came", async () => {
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

test("Forget everything asks first, and then nothing is left, in no tab", async () => {
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
    await page.locator("#toast", { hasText: "Everything that this site kept in this browser is gone." }).waitFor();
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

test("a browser that keeps no database says so, and chats", async () => {
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

// ---- D2: reasoning

test("thoughts are a closed block of their own and are not sent back", async () => {
  for (const [name, script] of Object.entries({
    "told by the hub": (stream) => {
      stream.think("I should *wonder*.");
      stream.say("Because.");
    },
    "between tags": (stream) => {
      for (const piece of ["<th", "ink>\nI should *won", "der*.\n</thi", "nk>\n\nBe", "cause."]) stream.say(piece);
    },
  })) {
    await story(async ({ open, scripted }) => {
      const page = await open();
      await ask(page, "Why?");
      await settled(page);
      const thoughts = page.locator(".thoughts");
      assert.equal(await thoughts.evaluate((node) => node.open), false, name);
      assert.match(await thoughts.locator("summary").textContent(), /^Thought/);
      assert.deepEqual(await answers(page), ["Because."], name);
      await thoughts.locator("summary").click();
      await thoughts.locator("em", { hasText: "wonder" }).waitFor();

      await ask(page, "And why that?");
      await settled(page);
      assert.deepEqual(scripted.requests[1].messages, [
        { role: "user", content: "Why?" }, { role: "assistant", content: "Because." },
        { role: "user", content: "And why that?" },
      ], name);
      await reload(page);
      await page.locator(".thoughts").first().waitFor();
    }, { answer: (stream) => { script(stream); stream.end(); } });
  }
});

// ---- D4: a long answer paints its tail alone

const sentence = (i) => `Paragraph ${i} with *some* words, \`code\` and a [link](https://example.org/${i}). `;
const code = (i) => `\`\`\`js\nlet x = ${i};\n\`\`\``;
const block = (i) => `## Part ${i}\n\n${sentence(i).repeat(3)}\n\n- one\n- two ${i}\n\n${code(i)}\n\n`;

test("in a streamed answer of 40 KB finished blocks keep their nodes, the selection and the focus", async () => {
  let live;
  let ready;
  const begun = new Promise((resolve) => { ready = resolve; });
  await story(async ({ open }) => {
    const page = await open();
    await ask(page, "Everything, please.");
    await begun;
    let sent = "";
    const push = (piece) => {
      sent += piece;
      live.say(piece);
    };
    const painted = (words) => page.waitForFunction(
      (wanted) => document.querySelector(".message.assistant .body")?.textContent.includes(wanted), words);
    // Colours come when their library has; what is coloured is finished.
    const coloured = (count) => page.waitForFunction((wanted) => (
      document.querySelectorAll(".message.assistant .body .hljs-keyword").length >= wanted), count);
    for (let i = 0; i < 4; i += 1) push(block(i));
    await painted("let x = 3;");
    await coloured(3);

    // Marked nodes, a selection in the first paragraph, the focus on the first copy button.
    await page.evaluate(() => {
      const body = document.querySelector(".message.assistant .body");
      window.marked_nodes = [...body.children].slice(0, 12);
      const words = body.querySelector("p").firstChild;
      getSelection().setBaseAndExtent(words, 0, words, 9);
      body.querySelector(".copy-code").focus();
      window.changes = 0;
      const observer = new MutationObserver((records) => {
        const isMarked = ({ target }) => window.marked_nodes.some((node) => node.contains(target));
        window.changes += records.filter(isMarked).length;
      });
      observer.observe(body, { childList: true, subtree: true, characterData: true });
    });

    let pushed = 4;
    for (; sent.length < 40000; pushed += 1) {
      const text = block(pushed);
      for (let at = 0; at < text.length; at += 37) push(text.slice(at, at + 37));
      await painted(`let x = ${pushed};`);
    }
    live.end();
    await settled(page);
    await coloured(pushed);

    const seen = await page.evaluate(() => {
      const body = document.querySelector(".message.assistant .body");
      return {
        same: window.marked_nodes.every((node, i) => body.children[i] === node),
        changes: window.changes,
        selection: getSelection().toString(),
        focus: document.activeElement === body.querySelector(".copy-code"),
        blocks: body.children.length,
        live: body.closest("[aria-live]") !== null,
        announced: document.getElementById("announce").textContent.length,
      };
    });
    assert.ok(seen.blocks > 150, `${seen.blocks} blocks`);
    assert.equal(seen.same, true, "the first blocks are the very nodes");
    assert.equal(seen.changes, 0, "and nothing inside them was touched");
    assert.equal(seen.selection, "Paragraph");
    assert.equal(seen.focus, true);
    assert.equal(seen.live, false, "no screen reader hears each token");
    assert.ok(seen.announced >= sent.length, "but the finished answer once");
    assert.deepEqual(page.errors, []);

    // What was painted piece by piece looks like what is painted at once.
    const streamed = await page.locator(".message.assistant .body").innerHTML();
    await reload(page);
    await coloured(pushed);
    assert.ok(await page.locator(".message.assistant .body").innerHTML() === streamed, "the same, painted at once");
  }, { answer: (stream) => { live = stream; ready(); } });
});

test("finished code has colours and formulas are formulas, and neither can do anything", async () => {
  const text = [
    "A sum of $5 and $10, and $x^2 + \\frac{1}{2}$.", "$$", "\\sum_{i=1}^n i", "$$", "",
    "$\\href{javascript:xss()}{a} \\text{<img src=x onerror=xss()>}$ and \\(\\unknown{\\)", "",
    "```python", "def light(on):", "    return \"<b>on</b>\"", "```", "",
    "```nobody-knows", "def f():", "```", "", "End.",
  ].join("\n");
  await story(async ({ open, context }) => {
    const asked = [];
    context.on("request", (request) => asked.push(new URL(request.url()).pathname));
    const page = await open();
    await page.evaluate(() => { window.xss = () => { document.title = "hit"; }; });
    await page.locator("#prompt").waitFor();
    assert.ok(!asked.some((path) => /katex|highlight/.test(path)), "fetched when they are wanted, not before");

    await ask(page, "Show me");
    await settled(page);
    await page.locator(".hljs-keyword", { hasText: "def" }).waitFor();
    await page.locator(".math.display math munderover").waitFor();
    assert.equal(await page.locator(".math math").count() >= 2, true);
    assert.equal(await page.locator(".message.assistant .body p").first().innerText().then((words) => (
      words.startsWith("A sum of $5 and $10, and"))), true);
    assert.equal(await page.locator(".message.assistant :is(img, [href^=javascript], annotation, [style])").count(), 0);
    const blocks = await page.locator(".body .code-block code").allTextContents();
    assert.deepEqual(blocks, ['def light(on):\n    return "<b>on</b>"', "def f():"]);
    assert.equal(await page.locator(".body .code-block").nth(1).locator("span[class^=hljs]").count(), 0);

    await reload(page);
    await page.locator(".hljs-keyword", { hasText: "def" }).waitFor();
    await page.locator(".math.display math").waitFor();
    assert.notEqual(await page.title(), "hit");
    assert.deepEqual(page.errors, []);
  }, { answer: (stream) => {
    for (let at = 0; at < text.length; at += 7) stream.say(text.slice(at, at + 7));
    stream.end();
  } });
});

test("a copy button copies its block while the answer goes on", async () => {
  let live;
  await story(async ({ open, context, scripted }) => {
    await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: scripted.url });
    const page = await open();
    await ask(page, "Code, please.");
    await page.locator(".copy-code").first().click();
    await page.locator(".copy-code", { hasText: "Copied" }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "let x = 1;");
    assert.equal(await page.locator(".code-head span").first().textContent(), "js");
    live.end();
    await settled(page);
  }, { answer: (stream) => { live = stream; stream.say("```js\nlet x = 1;\n```\n\nMore follows\n"); } });
});

// ---- D9, D13, D20: how an answer ends

test("a failed question is there once, with a reason and a way to try again", async () => {
  let is_open = false;
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "Will it work?");
    const end = page.locator(".ended.bad");
    await end.waitFor();
    assert.match(await end.textContent(), /too few contributors/);
    assert.doesNotMatch(await end.textContent(), /layer|expert \d|fallback/);
    assert.equal(await page.locator("#prompt").inputValue(), "", "the question stands in the thread, not also below");

    is_open = true;
    await end.getByRole("button", { name: "Try again" }).click();
    await page.waitForFunction(() => document.querySelector(".message.assistant .body").textContent === "It does.");
    assert.equal(await page.locator(".message.user").count(), 1);
    assert.equal(await page.locator(".ended").count(), 0);
    assert.deepEqual(scripted.requests.map(({ messages }) => messages.length), [1, 1]);
  }, {
    answer: (stream) => {
      if (!is_open) {
        return stream.refuse(503, {
          message: "no worker holds expert 0 of layer 0, and local fallback is off", code: "unavailable",
        });
      }
      stream.say("It does.");
      return stream.end();
    },
  });
});

test("a line that breaks in mid-answer keeps the words, and Continue goes on in the same message", async () => {
  let live;
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "A story?");
    await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent === "Once upon");
    live.breakLine();
    const end = page.locator(".ended.bad", { hasText: "The line to the hub broke" });
    await end.getByRole("button", { name: "Continue" }).click();
    await page.waitForFunction(
      () => document.querySelector(".message.assistant .body").textContent === "Once upon a time.");
    await settled(page);
    assert.equal(await page.locator(".message.assistant").count(), 1);
    assert.deepEqual(scripted.requests[1].messages,
      [{ role: "user", content: "A story?" }, { role: "assistant", content: "Once upon" }]);
  }, {
    answer: (stream, index) => {
      live = stream;
      stream.say(index === 0 ? "Once upon" : " a time.");
      if (index > 0) stream.end();
    },
  });
});

// ---- a stream that outlives its line

const saysSoFar = (page, words) => page.waitForFunction(
  (wanted) => document.querySelector(".message.assistant .body")?.textContent === wanted, words);
// Loads the page again in mid-answer, once its database has the answer: whole, or as one that this tab can go on with.
async function reloadInAnswer(page) {
  await page.waitForFunction(() => {
    const request = indexedDB.open("moex-chat");
    request.onsuccess = () => {
      const all = request.result.transaction("conversations").objectStore("conversations").getAll();
      all.onsuccess = () => {
        const has_name = sessionStorage.getItem("moex-stream") !== null;
        const is_safe = ({ role, end }) => role === "assistant" && (end !== null || has_name);
        window.is_kept = all.result.some(({ messages }) => messages.some(is_safe));
        request.result.close();
      };
    };
    return window.is_kept;
  }, null, { polling: 50 });
  await page.reload();
}
// A story whose answers can be resumed; `live()` is the last one.
const keptStory = (run) => {
  let live = null;
  return story((how) => run({ ...how, live: () => live }), {
    answer: (stream, index) => {
      live = stream;
      stream.keep(`stream${index}`);
      stream.say("Once ");
      stream.say("upon");
    },
  });
};

test("a page that is loaded again in mid-answer goes on with the same answer", async () => {
  await keptStory(async ({ open, scripted, live }) => {
    const page = await open();
    await ask(page, "A story?");
    await saysSoFar(page, "Once upon");
    assert.deepEqual(live().body.moex, { resumable: true });
    await reloadInAnswer(page);
    await saysSoFar(page, "Once upon");
    await page.locator("#stop").waitFor();      // it runs
    live().say(" a time");
    await saysSoFar(page, "Once upon a time");

    await reloadInAnswer(page);
    live().say(".");
    live().end();
    await settled(page);
    assert.deepEqual(await answers(page), ["Once upon a time."]);
    assert.equal(await page.locator(".ended").count(), 0, "nothing says that it was left");
    assert.equal(scripted.requests.length, 1, "asked once");
    for (const { method, last } of scripted.resumed) assert.deepEqual([method, last], ["GET", "0"]);

    await reload(page);
    await page.locator(".message.assistant").waitFor();
    assert.deepEqual(await answers(page), ["Once upon a time."]);
    assert.deepEqual(page.errors, []);
  });
});

test("a line that breaks is replaced, and each word comes once", async () => {
  await keptStory(async ({ open, scripted, live }) => {
    const page = await open();
    await ask(page, "A story?");
    await saysSoFar(page, "Once upon");
    live().breakLine();
    live().say(" a");
    await saysSoFar(page, "Once upon a");
    live().breakLine();
    live().say(" time.");
    live().end();
    await settled(page);
    assert.deepEqual(await answers(page), ["Once upon a time."]);
    assert.deepEqual(scripted.resumed, [{ method: "GET", last: "2" }, { method: "GET", last: "3" }]);
    assert.equal(await page.locator(".ended").count(), 0);
  });
});

test("Stop ends the stream at the hub, and one that the hub no longer knows is an answer that was left", async () => {
  await keptStory(async ({ open, scripted, live }) => {
    const page = await open();
    await ask(page, "A story?");
    await saysSoFar(page, "Once upon");
    await page.locator("#stop").click();
    await live().stopped;
    await page.locator(".ended", { hasText: "You stopped this answer." }).waitFor();

    await page.locator("#new-chat").click();
    await ask(page, "Another?");
    await saysSoFar(page, "Once upon");
    const known = scripted.streams.get("stream1");
    scripted.streams.clear();
    await reloadInAnswer(page);
    await page.locator(".ended", { hasText: "The page was left" }).waitFor();
    known.response.destroy();
  });
});

test("with a real hub a reload in mid-answer loses nothing", async () => {
  const context = await browser.newContext();
  context.setDefaultTimeout(0);
  try {
    const page = await openPage(context, hub.url);
    await page.locator("#open-settings").click();
    await page.locator("#max_tokens").fill("200");
    await page.locator("#close-settings").click();
    await ask(page, "Tell me a story about a lighthouse");
    await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent.length > 20);
    const before = (await answers(page))[0];
    await reloadInAnswer(page);
    await page.locator(".message.assistant .facts", { hasText: "tokens" }).waitFor();
    const after = (await answers(page))[0];
    assert.ok(after.startsWith(before.slice(0, 20)), `${before} | ${after}`);
    assert.equal(await page.locator(".ended", { hasText: "The page was left" }).count(), 0);
    assert.deepEqual(page.errors, []);
  } finally {
    await context.close();
  }
});

test("an answer that ends early says why: by its limit, by the context, by Stop", async () => {
  const figures = (total_tokens) => ({ usage: { prompt_tokens: 1, completion_tokens: 16, total_tokens } });
  await story(async ({ open, scripted }) => {
    const page = await open();
    await page.locator("#pool.good").waitFor();      // who serves is known, and is told below
    const ended = page.locator(".message.assistant").last().locator(".ended");
    await ask(page, "No limit");
    await ended.waitFor();
    assert.match(await ended.textContent(), /context is full/);
    assert.equal(await ended.getByRole("button").count(), 0);
    assert.ok(!("max_tokens" in scripted.requests[0]), "as long as the context");

    await page.locator("#open-settings").click();
    await page.locator("#max_tokens").fill("16");
    await page.locator("#close-settings").click();
    await page.locator("#new-chat").click();
    await ask(page, "A limit");
    await ended.waitFor();
    assert.match(await ended.textContent(), /longest answer that you set, 16 tokens/);
    assert.equal(scripted.requests[1].max_tokens, 16);
    await ended.getByRole("button", { name: "Continue" }).waitFor();

    await ask(page, "Stop me");
    await page.waitForFunction(() => [...document.querySelectorAll(".body")].at(-1).textContent === "Endless");
    await page.locator("#stop").click();
    await ended.waitFor();
    assert.match(await ended.textContent(), /You stopped this answer/);
    const facts = page.locator(".message.assistant").last().locator(".facts");
    assert.match(await facts.textContent(), /answered by the hub itself/);
  }, {
    answer: (stream, index) => {
      stream.say(index < 2 ? "Words" : "Endless");
      if (index < 2) stream.end("length", figures(index === 0 ? 1024 : 17));
    },
  });
});

test("a seed beyond 2^53 is not sent rounded: the field says what it takes", async () => {
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

// ---- D10: Escape

test("a ready system prompt and every field of sampling reach the model, and a wrong one says so", async () => {
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

    await page.locator(".more summary").click();
    await page.locator("#top_k").fill("many");
    await page.locator("#top_k-problem", { hasText: "0 admits them all" }).waitFor();
    await page.locator(".more summary").click();
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

test("Escape closes what lies on top, spares input methods, and only then stops an answer", async () => {
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

// ---- D17, D19: room and truth

test("nothing scrolls sideways and nothing lies over Send, whatever the pill says", async () => {
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

test("the empty page says what its pill says", async () => {
  await story(async ({ open }) => {
    const page = await open();
    await page.locator("#pool-text", { hasText: "hub only" }).waitFor();
    await page.locator("#welcome-words", { hasText: "the hub computes the answers itself" }).waitFor();
  });
});
