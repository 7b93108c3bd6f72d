// Runs dishonest workers against a real hub, with wrong rows of whole layers, and counts the wrong answers that are
// used and the texts that change.
//   node bench/span_lies_bench.mjs [--liars 8] [--shares 1,0.1,0.01] [--kinds rows,keys,values] [--records new,proven]
//     [--header]
// MOEX_BUILD: build folder [build], with moex-hub, moex-worker and delay_line. Each liar is a native worker on Vulkan
// behind a proxy that changes a share of its SPAN_ANSWER frames (tests/browser/support/span_liar.mjs): the rows, the
// keys alone, or the values alone. A `new` one lies from its first answer on, a `proven` one from the moment at which
// the hub uses its answers. The hub computes no experts itself: one honest worker holds them, 10 ms away. A liar serves
// until it is banned. Where a liar of a share that is not 1 lies, its answers last long: such cells run a quarter of
// the liars, at least 2.
// CSV: a row for each cell. answers: texts that were asked for; changed: those among them with another text than the
// hub's way without spans; lies: answers that were changed; found: checks that were wrong; used: lies that no check met
// and that were not late; used_mean: for each liar; expected: what span_trust.h expects of it.
// exit: 1 when a liar was not banned, or a new liar of every answer changed a text
// example: nice node bench/span_lies_bench.mjs --header > bench/results/span_lies.MACHINE.csv
import { readFlags } from "./flags.mjs";

const options = { liars: "8", shares: "1,0.1,0.01", kinds: "rows,keys,values", records: "new,proven" };
const with_header = readFlags("span_lies_bench", options);
process.env.MOEX_BUILD ??= "build";
const { Hub, NativeWorker, chat } = await import("../tests/browser/support/hub.mjs");
const { SpanLiar } = await import("../tests/browser/support/span_liar.mjs");
const { farAway } = await import("./far_away.mjs");

const prompts = ["Tell me a story about a garden.", "Write a story about a ship.", "Once upon a time there was a king.",
  "Tell me a story about a key and a garden."];
const request = (turn, spans = "auto") => ({
  model: "moex-demo", messages: [{ role: "user", content: prompts[turn % prompts.length] }], temperature: 0,
  max_tokens: 48, ignore_eos: true, moex: { spans },
});

// SpanCheckRule and expected_wrong_answers() of hub/dispatch/span/span_trust.h.
const rule = { to_prove: 8, rate: 1 / 64, doubted_checks: 256 };
function expected(lies, is_proven) {
  const used = (1 - rule.rate) / rule.rate;
  const found = 1 - (1 - lies) ** rule.doubted_checks;
  if (is_proven) return used / found;
  const at_once = (1 - lies) ** rule.to_prove;
  return (at_once + (1 - at_once) * (1 - found)) * (used / found);
}

const hub = await Hub.start(["--arithmetic", "exact", "--speculative", "off", "--prefix-cache", "off",
  "--timeout-ms", "60000", "--round-deadline-s", "300", "--local-fallback", "off", "--spans", "auto"]);
const line = await farAway(hub.port, 10);
const far = { url: `http://127.0.0.1:${line.address().port}`, join: hub.join };
const experts = await NativeWorker.start(far, ["--backend", "cpu", "--arithmetic", "exact"]);

async function ask(turn, spans) {
  const answer = await chat(hub, request(turn, spans));
  if (answer.error) throw new Error(JSON.stringify(answer.error));
  return answer.text;
}
const spansOf = async () => (await hub.status()).spans;

// Runs one liar until it is banned. Resolves to its counts.
async function meet(kind, share, record, texts, asked) {
  const liar = await SpanLiar.start(hub, kind, { share, lies: record === "new" });
  if (record === "proven") {
    while (!(await spansOf()).held.some(({ used }) => used)) await ask(asked.turn++);
    liar.lies = true;
  }
  const from = await spansOf();
  const met = { answers: 0, changed: 0, lies: 0, found: 0, late: 0, banned: 0 };
  for (let now = from; now.lies === from.lies; now = await spansOf()) {
    const turn = asked.turn++;
    met.changed += await ask(turn) !== texts[turn % prompts.length];
    met.answers += 1;
  }
  const now = await spansOf();
  met.lies = liar.num_lies;
  met.found = now.wrong - from.wrong;
  met.late = now.late + now.failed - from.late - from.failed;
  await hub.until(({ workers }) => workers.length === 1, "the liar's end");
  met.banned = 1;
  await liar.stop();
  return met;
}

const columns = ["answers", "changed", "lies", "found", "late", "banned"];
let is_right = true;
try {
  const texts = [];
  for (const turn of prompts.keys()) texts.push(await ask(turn, "off"));
  if (with_header) console.log(`kind,record,share,liars,${columns.join(",")},used,used_mean,expected`);
  const asked = { turn: 0 };
  for (const record of options.records.split(",")) {
    for (const share of options.shares.split(",").map(Number)) {
      for (const kind of options.kinds.split(",")) {
        const num_liars = share === 1 ? Number(options.liars) : Math.max(2, Number(options.liars) >> 2);
        const sum = Object.fromEntries(columns.map((name) => [name, 0]));
        for (let i = 0; i < num_liars; i += 1) {
          const met = await meet(kind, share, record, texts, asked);
          for (const name of columns) sum[name] += met[name];
        }
        const used = Math.max(0, sum.lies - sum.found - sum.late);
        is_right &&= sum.banned === num_liars && (record !== "new" || share !== 1 || sum.changed === 0);
        console.log([kind, record, share, num_liars, ...columns.map((name) => sum[name]), used,
          (used / num_liars).toFixed(1), expected(share, record === "proven").toFixed(1)].join(","));
      }
    }
  }
} finally {
  await experts.stop("SIGKILL");
  line.close();
  await hub.remove();
}
process.exit(is_right ? 0 : 1);
