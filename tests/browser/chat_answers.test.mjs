// Answers on the chat page in a real Chromium: how they are painted, how they end, and how they are continued.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
  answers, ask, keptWhen, realStory, reload, reloadInAnswer, settled, setUp, story,
} from "./support/chat_page.mjs";

setUp();

// ---- reasoning

test("thoughts are a closed block of their own and are not sent back", async () => {
  for (const [name, script] of Object.entries({
    "sent by the hub": (stream) => {
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

// ---- a long answer repaints only its tail

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
    // Colours appear when the library for them has loaded; only finished blocks are coloured.
    const coloured = (count) => page.waitForFunction((wanted) => (
      document.querySelectorAll(".message.assistant .body .hljs-keyword").length >= wanted), count);
    for (let i = 0; i < 4; i += 1) push(block(i));
    await painted("let x = 3;");
    await coloured(3);

    // Mark nodes, select text in the first paragraph, and focus the first copy button.
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

    // An answer painted piece by piece must look like the same answer painted at once.
    const streamed = await page.locator(".message.assistant .body").innerHTML();
    await reload(page);
    await coloured(pushed);
    assert.ok(await page.locator(".message.assistant .body").innerHTML() === streamed, "the same, painted at once");
  }, { answer: (stream) => { live = stream; ready(); } });
});

test("finished code is coloured, formulas are painted, and both are inert", async () => {
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

test("a task list shows finished tasks, and cannot be clicked", async () => {
  await story(async ({ open }) => {
    const page = await open();
    await ask(page, "What is left?");
    await settled(page);
    const items = page.locator(".message.assistant li");
    assert.deepEqual((await items.allTextContents()).map((text) => text.trim()), ["☑ the lamp", "☐ the stairs"]);
    assert.equal(await page.locator(".message.assistant input").count(), 0);
    assert.deepEqual(page.errors, []);
  }, {
    answer: (stream) => {
      stream.say("- [x] the lamp\n- [ ] the stairs\n");
      stream.end();
    },
  });
});

test("a copy button copies its block during the answer", async () => {
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

// ---- the ways in which an answer ends

test("a failed question is shown once, with a reason and a retry", async () => {
  let is_open = false;
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "Will it work?");
    const end = page.locator(".ended.bad");
    await end.waitFor();
    assert.match(await end.textContent(), /too few are connected/);
    assert.doesNotMatch(await end.textContent(), /layer|expert \d|fallback/);
    assert.equal(await page.locator("#prompt").inputValue(), "", "the question is shown in the thread only");

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

test("a broken connection keeps the words, and Continue extends the message", async () => {
  let live;
  await story(async ({ open, scripted }) => {
    const page = await open();
    await ask(page, "A story?");
    await page.waitForFunction(() => document.querySelector(".message.assistant .body")?.textContent === "Once upon");
    live.breakLine();
    const end = page.locator(".ended.bad", { hasText: "The connection to the hub broke" });
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

// ---- a stream that survives its connection

const saysSoFar = (page, words) => page.waitForFunction(
  (wanted) => document.querySelector(".message.assistant .body")?.textContent === wanted, words);
// Runs a story whose answers can be resumed; `live()` returns the stream of the newest answer.
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

test("a page reloaded during an answer continues the answer", async () => {
  await keptStory(async ({ open, scripted, live }) => {
    const page = await open();
    await ask(page, "A story?");
    await saysSoFar(page, "Once upon");
    assert.deepEqual(live().body.moex, { resumable: true });
    await reloadInAnswer(page);
    await saysSoFar(page, "Once upon");
    await page.locator("#stop").waitFor();      // the answer runs
    live().say(" a time");
    await saysSoFar(page, "Once upon a time");

    await reloadInAnswer(page);
    live().say(".");
    live().end();
    // Wait for the text first: settled() also accepts a page that has not yet read its conversations.
    await saysSoFar(page, "Once upon a time.");
    await settled(page);
    assert.deepEqual(await answers(page), ["Once upon a time."]);
    assert.equal(await page.locator(".ended").count(), 0, "the answer is not shown as interrupted");
    assert.equal(scripted.requests.length, 1, "asked once");
    for (const { method, last } of scripted.resumed) assert.deepEqual([method, last], ["GET", "0"]);

    await reload(page);
    await page.locator(".message.assistant").waitFor();
    assert.deepEqual(await answers(page), ["Once upon a time."]);
    assert.deepEqual(page.errors, []);
  });
});

test("a broken connection is replaced, and each word arrives once", async () => {
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

test("Stop ends the stream at the hub, and an unknown stream ends the answer", async () => {
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
    await page.locator(".ended", { hasText: "The page was closed" }).waitFor();
    known.response.destroy();
  });
});

// Waits until the browser has stored which of several answers to the first question is shown.
const choiceIsKept = (page, index) => keptWhen(page, ({ conversations: [one] }) => (
  one?.chosen[one.messages[0].id] === one?.messages[1 + index].id));
const askForThree = async (page) => {
  await page.locator("#open-settings").click();
  await page.locator("#n").fill("3");
  await page.locator("#close-settings").click();
};

test("several answers stream side by side, also after a reload", async () => {
  await keptStory(async ({ open, scripted, live }) => {
    const page = await open();
    const pager = (name) => page.locator(".message.assistant").getByRole("button", { name });
    await askForThree(page);
    await ask(page, "A story?");
    await saysSoFar(page, "Once upon");
    assert.equal(live().body.n, 3);
    live().say("Long ago", 1);
    live().say("In a", 2);
    await pager("Later answer").click();
    await saysSoFar(page, "Long ago");
    live().say(" and far", 1);
    await saysSoFar(page, "Long ago and far");
    await page.locator(".message.assistant .body.cursor").waitFor();
    await choiceIsKept(page, 1);
    await reloadInAnswer(page);
    await page.locator("#stop").waitFor();
    await saysSoFar(page, "Long ago and far");
    live().say(" away.", 1);
    live().say(" wood.", 2);
    live().endChoice(1);
    live().endChoice(2, "length");
    live().say(" a time.");
    live().end("stop", { usage: { prompt_tokens: 5, completion_tokens: 7, total_tokens: 12 } });
    await settled(page);
    await saysSoFar(page, "Long ago and far away.");
    await pager("Earlier answer").click();
    await saysSoFar(page, "Once upon a time.");
    await page.locator(".pager", { hasText: "1 of 3" }).waitFor();
    await pager("Later answer").click();
    await pager("Later answer").click();
    await saysSoFar(page, "In a wood.");
    await page.locator(".ended", { hasText: "context is full" }).waitFor();
    assert.equal(scripted.requests.length, 1, "asked once");

    await choiceIsKept(page, 2);
    await reload(page);
    await saysSoFar(page, "In a wood.");
    assert.deepEqual(page.errors, []);
  });
});

test("with a real hub three answers differ, and Again gives three more", () => realStory(async ({ open }) => {
  const page = await open();
  await askForThree(page);
  await page.locator("#open-settings").click();
  await page.locator("#max_tokens").fill("24");
  await page.locator("#close-settings").click();
  await ask(page, "Tell me a story about a lighthouse");
  await settled(page);
  const texts = new Set();
  for (const at of [1, 2, 3]) {
    await page.locator(".pager", { hasText: `${at} of 3` }).waitFor();
    texts.add((await answers(page))[0]);
    if (at < 3) await page.getByRole("button", { name: "Later answer" }).click();
  }
  assert.equal(texts.size, 3);
  await page.getByRole("button", { name: "Again" }).click();
  await page.locator(".pager", { hasText: "4 of 6" }).waitFor();
  await settled(page);
  assert.deepEqual(page.errors, []);
}));

test("a reload during an answer of a real hub loses nothing", async () => {
  await realStory(async ({ open }) => {
    const page = await open();
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
    assert.equal(await page.locator(".ended", { hasText: "The page was closed" }).count(), 0);
    assert.deepEqual(page.errors, []);
  });
});

test("an answer that ends early says why: limit, context or Stop", async () => {
  const figures = (total_tokens) => ({ usage: { prompt_tokens: 1, completion_tokens: 16, total_tokens } });
  await story(async ({ open, scripted }) => {
    const page = await open();
    await page.locator("#pool.good").waitFor();      // the page then knows the number of serving contributors
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
    assert.match(await ended.textContent(), /length limit that you set, 16 tokens/);
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

test("a tool call is a card with a result, schema JSON a card with rows", async () => {
  const schema = { type: "object", properties: { town: { type: "string" } }, required: ["town"] };
  await story(async ({ open, scripted }) => {
    const page = await open();
    await page.locator("#open-settings").click();
    await page.locator("summary", { hasText: "The form of answers" }).click();
    await page.locator("#tools").fill('[{"name": "weather"}');
    assert.match(await page.locator("#tools-problem").textContent(), /JSON array of tools/);
    await page.locator("#tools").fill('[{"name": "weather"}]');
    await page.locator("#close-settings").click();

    await ask(page, "How is the weather?");
    const card = page.locator(".card-json");
    await page.getByLabel("Result of weather").fill("rain");
    assert.deepEqual(scripted.requests[0].tools, [{ type: "function", function: { name: "weather" } }]);
    assert.equal(scripted.requests[0].tool_choice, "auto");
    assert.match(await card.textContent(), /Calls weather/);
    assert.deepEqual(await card.locator("dt").allTextContents(), ["town", "days", "1", "2"]);
    assert.deepEqual(await card.locator("dd > .value").allTextContents(), ["<b>Bergen</b>", "1", "2"]);
    assert.equal(await page.locator(".ended").count(), 0);

    await page.getByRole("button", { name: "Send the results" }).click();
    await page.locator(".message.assistant", { hasText: "Take an umbrella." }).waitFor();
    await settled(page);
    const told = scripted.requests[1].messages;
    assert.deepEqual(told.map(({ role }) => role), ["user", "assistant", "tool"]);
    assert.deepEqual(told[2], { role: "tool", tool_call_id: "call_0", content: "rain" });
    assert.equal(await card.locator(".result pre").textContent(), "rain");

    await page.locator("#open-settings").click();
    await page.locator("#tools").fill("");
    await page.locator("#schema").fill(JSON.stringify(schema));
    await page.locator("#close-settings").click();
    await ask(page, "Where?");
    const form = page.locator(".message.assistant .body .card-json");
    await form.locator("dt").waitFor();
    await settled(page);
    assert.deepEqual(scripted.requests[2].response_format,
      { type: "json_schema", json_schema: { name: "answer", schema } });
    assert.ok(!("tools" in scripted.requests[2]));
    assert.equal(await form.locator("dd").textContent(), "Bergen");

    await reload(page);
    await form.locator("dt").waitFor();
    assert.equal(await page.locator(".result pre").textContent(), "rain", "kept");
    assert.deepEqual(page.errors, []);
  }, {
    answer: (stream, index) => {
      if (index === 0) {
        stream.call(0, "", "weather");
        stream.call(0, '{"town": "<b>Bergen</b>", ');
        stream.call(0, '"days": [1, 2]}');
        stream.end("tool_calls");
        return;
      }
      stream.say(index === 1 ? "Take an umbrella." : '{"town": "Bergen"}');
      stream.end();
    },
  });
});

test("bias, effort and grammar of the settings are sent if supported", async () => {
  const set = async (page) => {
    await page.locator("#open-settings").click();
    await page.locator("summary", { hasText: "More about how words are chosen" }).click();
    await page.locator("#logit_bias").fill('[[" sea", 400]]');
    assert.match(await page.locator("#logit_bias-problem").textContent(), /from -100 to 100/);
    await page.locator("#logit_bias").fill('[[" sea", 4]]');
    await page.locator("summary", { hasText: "The form of answers" }).click();
    await page.locator("#grammar").fill('root ::= "yes" | "no"');
  };
  const answer = (stream) => {
    stream.say("yes");
    stream.end();
  };
  const asked = (page) => page.locator("#close-settings").click()
    .then(() => ask(page, "Is it?")).then(() => settled(page));
  await story(async ({ open, scripted }) => {
    const page = await open();
    await set(page);
    await page.locator("#effort-field").waitFor({ state: "hidden" });
    await asked(page);
    const [{ logit_bias, grammar, ...rest }] = scripted.requests;
    assert.deepEqual(logit_bias, [[" sea", 4]]);
    assert.equal(grammar, 'root ::= "yes" | "no"');
    assert.ok(!("reasoning_effort" in rest));

    // Let the hub report another model, whose chat template has effort levels.
    scripted.routes["/api/info"] = (response) => response.end(JSON.stringify(
      { model: "thinker", context_tokens: 512, api_key_required: false, reasoning_effort: true }));
    await reload(page);
    await page.locator("#open-settings").click();
    await page.locator("#reasoning_effort").selectOption("high");
    await asked(page);
    assert.equal(scripted.requests[1].reasoning_effort, "high");
    assert.deepEqual(page.errors, []);
  }, { answer });
});

const sum = { name: "add", parameters: { type: "object", additionalProperties: false, required: ["a"],
  properties: { a: { type: "integer", maximum: 9 } } } };
test("a real hub calls a required tool and answers with its result", () => realStory(async ({ open }) => {
  const page = await open();
  await page.locator("#open-settings").click();
  await page.locator("summary", { hasText: "The form of answers" }).click();
  await page.locator("#tools").fill(JSON.stringify([sum]));
  await page.locator("#tool_choice").selectOption("required");
  await page.locator("#max_tokens").fill("120");
  await page.locator("#close-settings").click();

  await ask(page, "Add one.");
  await settled(page);
  const results = page.locator(".results textarea");
  await results.first().waitFor();
  for (const field of await results.all()) await field.fill("3");
  await page.locator("#open-settings").click();
  await page.locator("#tools").fill("");
  await page.locator("#max_tokens").fill("4");
  await page.locator("#close-settings").click();
  await page.getByRole("button", { name: "Send the results" }).click();
  await page.waitForFunction(() => document.querySelectorAll(".message.assistant").length === 2);
  await settled(page);
  const body = page.locator(".message.assistant .body").last();
  await body.filter({ hasText: /\S/ }).waitFor();
  assert.deepEqual(page.errors, []);
}));
