// The tab's plain modules: the pace of keep-alive writes, and the texts for times that the pages show.
import assert from "node:assert/strict";
import { test } from "node:test";

import { csvOf, shareOfBound, us } from "../../static/js/bench/words.js";
import { fine } from "../../static/js/format.js";
import { roundWords } from "../../static/js/join/words.js";
import { fleet_columns, fleetRows } from "../../static/js/fleet.js";
import { onDemandWords, tierWords } from "../../static/js/status/on_demand.js";
import { layersWords, setAsideWords, spanWords } from "../../static/js/status/spans.js";
import { splitWords } from "../../static/js/status/split.js";
import { Arrivals } from "../../web-worker/browser/arrivals.js";
import { HandOff, Records } from "../../web-worker/browser/hand_off.js";
import { KeepAlivePace, periods_us } from "../../web-worker/browser/keep_alive_pace.js";

// Simulates a machine whose waits depend only on the period, and a worker that waits `count` times.
function settled(first_us, wait_of, count = 4000) {
  const pace = new KeepAlivePace(first_us);
  for (let i = 0; i < count; i += 1) {
    const rung = pace.next();
    pace.took(rung, wait_of(periods_us[rung], i));
  }
  return pace.period_us;
}

test("KeepAlivePaceFindsThePeriodThatSuitsTheMachine", () => {
  assert.equal(settled(20, (period) => 100 + period), 20, "cores enough: the shorter the better");
  assert.equal(settled(200, (period) => 100 + period), 20, "from wherever it began");
  // With two cores, keep-alive writes take processor time that the GPU process needs.
  assert.equal(settled(20, (period) => 300 + 20000 / period + period / 4), 200);
  assert.equal(settled(20, () => 500), 1000, "where it makes no difference, the cheapest");
});

test("KeepAlivePaceStaysShortDespiteNoise", () => {
  let state = 1;
  const noise = () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
  const period = settled(50, (us_between) => (100 + us_between) * (1 + 0.2 * noise()) + (noise() < 0.05 ? 3000 : 0));
  assert.ok(period <= 50, `${period} us`);
});

test("ShortTimesAreShownInMicroseconds", () => {
  assert.deepEqual([0.064, 0.0004, 1.5, 0].map(fine), ["64 µs", "1 µs", "1.5 ms", "–"]);
  assert.deepEqual([2.34, 64.4, 12345, 0].map(us), ["2.3 µs", "64 µs", "12.3 ms", ""]);
  assert.equal(roundWords({ gpu_us_p50: 0 }), "per round, median");
  assert.equal(roundWords({ gpu_us_p50: 61.2 }), "per round, median; 61 µs on the GPU");
});

test("StatusPageShowsThePartsOfARound", () => {
  assert.equal(splitWords(undefined), "");
  assert.equal(splitWords({ groups: 0, group_ms: 0, worker_ms: 0, gpu_ms: 0 }), "");
  assert.equal(splitWords({ groups: 9, group_ms: 1.66, worker_ms: 0.36, gpu_ms: 0.1 }),
    "Of a round's 1.7 ms: 1.3 ms in the hub's queue and on the wire, 260 µs in the contributor's program, "
    + "100 µs on its GPU.");
  assert.equal(splitWords({ groups: 9, group_ms: 2, worker_ms: 0.5, gpu_ms: 0 }),
    "Of a round's 2.0 ms: 1.5 ms in the hub's queue and on the wire, 500 µs at the contributor.");
});

test("BenchRowsAreThoseOfKernelBench", () => {
  const row = {
    what: "gate_up", shape: "paper", rows: 8, p10_us: 0, p50_us: 0, p99_us: 0, gpu_us: 12.34, dispatches: 1, mb: 8.9,
    gb_s: 721.2,
  };
  const [head, line] = csvOf([row]).split("\n");
  assert.equal(head, "what,shape,slots,rows,routing,p10_us,p50_us,p99_us,gpu_us,dispatches,mb,gb_s");
  assert.equal(line, "gate_up,paper,,8,same,,,,12.3,1,8.9,721");
  assert.equal(shareOfBound(row, 1442.4), "50 %");
  assert.equal(shareOfBound({ gb_s: 0 }, 1442.4), "");
});

const on_demand = { asked: 400, hits: 300, misses: 100, late: 3, expired: 2, foreseen: 90, lead_ms: 1.25, loads: 40,
  load_ms: 2.5, wasted_bytes: 1.2e6 };
const demand = { calls: { on_demand, load_window: { groups: 4, most_ms: 0.8 } },
  engine: { prompt_tokens: 30, generated_tokens: 20, cached_tokens: 0 },
  workers: [{ ready_in: { store: 100, memory: 0, slot: 28 } }, { ready_in: { store: 0, memory: 0, slot: 128 } }] };

test("TiersAndPrefetchedExpertsAreShown", () => {
  assert.deepEqual(demand.workers.map(tierWords), ["28 on its GPU, 100 on disk", ""]);
  assert.equal(tierWords({ ready_in: { store: 1, memory: 2, slot: 3 } }), "3 on its GPU, 2 in memory, 1 on disk");
  assert.equal(onDemandWords(demand), "Of the experts on demand, 28 were on contributors' GPUs when these became "
    + "ready, 0 in memory, 100 on disk. 75 % of the requested experts were loaded, 2 per token were not. Hints had "
    + "prefetched 90 of the loaded experts, 1.3 ms ahead; 3 were still in flight, 2 hints arrived too late, 1.2 MB "
    + "were prefetched in vain. Calls that waited for experts took 2.5 ms longer; 800 µs would be hidden with 4 groups "
    + "of contributors if all experts were predicted.");
});

test("LayersThatAreComputedWholeAreShown", () => {
  const spans = { step_rows: 10, step_bytes: 15000, answer_rows: 10, answer_bytes: 30000, kv_bytes: 2e6, held: [
    { worker: 2, first_layer: 2, end_layer: 5, used: true, standby: false },
    { worker: 3, first_layer: 2, end_layer: 5, used: false, standby: true },
    { worker: 4, first_layer: 5, end_layer: 6, used: true, standby: false }] };
  const replicas = [[], ...Array(7).fill([1, 1])];
  assert.equal(layersWords({ id: 2 }, spans), "computes layers 2 to 4 whole");
  assert.equal(layersWords({ id: 3 }, spans), "computes layers 2 to 4 whole (standby)");
  assert.equal(layersWords({ id: 4 }, spans), "computes layer 5 whole");
  assert.equal(layersWords({ id: 5 }, spans), "");
  assert.equal(layersWords({ id: 2 }, undefined), "");
  assert.equal(spanWords({ spans, replicas }), "A token takes 5 round trips, since contributors compute some layers "
    + "whole; with experts alone it would take 7. A row is sent to them with 1.5 kB and comes back with 3.0 kB; 2.0 MB "
    + "of keys and values were sent in addition.");
  assert.equal(spanWords({ spans: { ...spans, held: [] }, replicas }), "");
  assert.equal(spanWords({ replicas }), "");
  assert.equal(setAsideWords({ spans: { ...spans, set_aside: 0 } }), "");
  assert.equal(setAsideWords({}), "");
  assert.equal(setAsideWords({ spans: { ...spans, set_aside: 2 } }), "2 contributors compute no layers whole any "
    + "more: two answers of each differed too much from this hub's own. That may be honest rounding, so nobody was "
    + "banned, and experts are computed as before.");
  assert.match(setAsideWords({ spans: { ...spans, set_aside: 1 } }),
    /^1 contributor computes no layers whole any more: two of its answers differed/);
});

test("NothingIsShownWithoutExpertsOnDemand", () => {
  const none = Object.fromEntries(Object.keys(on_demand).map((name) => [name, 0]));
  assert.equal(onDemandWords({ ...demand, workers: [], calls: { ...demand.calls, on_demand: none } }), "");
});

test("RecordsAreReadWhateverTheirPieces", () => {
  const lengths = [5, 0, 1, 300, 0, 70];
  const stream = [];
  for (const length of lengths) {
    stream.push(length & 255, length >> 8, 0, 0, ...Array.from({ length }, (_, i) => (i + length) & 255));
  }
  for (const piece of [1, 2, 3, 4, 7, 64, 1000]) {
    const records = new Records(), found = [];
    for (let at = 0; at < stream.length; at += piece) {
      records.push(new Uint8Array(stream.slice(at, at + piece)));
      for (let one = records.next(); one; one = records.next()) found.push(one);
    }
    assert.deepEqual(found.map(({ length }) => length), lengths.filter((length) => length > 0), `pieces of ${piece}`);
    for (const one of found) assert.ok(one.every((byte, i) => byte === ((i + one.length) & 255)));
    assert.equal(records.bytes, 0);
  }
  const records = new Records();
  records.push(new Uint8Array([255, 255, 255, 255]));
  assert.throws(() => records.next(), /a page of 4294967295 bytes/);
});

test("PagesThatComeMoreSlowlyThanThisDeviceReadsAreGivenUp", () => {
  const hand_off = new HandOff({});
  const ago = (ms) => performance.now() - ms;
  const page_bytes = 1e6;      // of 128 tokens
  assert.equal(hand_off.isSlow(1e6, page_bytes, ago(1000)), false, "unknown: this device was not measured");
  hand_off.ended({
    prompt_tokens: 100, cached_tokens: 0, completion_tokens: 20, prompt_tokens_per_s: 200, tokens_per_s: 9,
  });
  assert.equal(hand_off.isSlow(1e6, page_bytes, ago(1000)), true, "128 tokens a second of 200");
  assert.equal(hand_off.isSlow(3e6, page_bytes, ago(1000)), false);
  assert.equal(hand_off.isSlow(1e5, page_bytes, ago(100)), false, "too early to say");
  hand_off.downloaded(1e6, 100);
  assert.equal(hand_off.measured.bytes_per_s, 1e7);
  hand_off.downloaded(1e6, 1000);
  assert.equal(hand_off.measured.bytes_per_s, 1e7, "a download is the first measurement only");
});

test("LayersWaitForTheirFilesOnly", async () => {
  const arrivals = new Arrivals();
  const order = [];
  const files = (...names) => names.map((sha256) => ({ sha256 }));
  const first = arrivals.all(files("a", "b")).then(() => order.push("first"));
  const second = arrivals.all(files("c")).then(() => order.push("second"));
  arrivals.add("c");
  await second;
  arrivals.add("a");
  arrivals.add("b");
  await first;
  assert.deepEqual(order, ["second", "first"]);
  const never = arrivals.all(files("d"));
  arrivals.fail(new Error("the line broke"));
  await assert.rejects(never, /the line broke/);
  await arrivals.all(files("a"));      // what is here stays usable
});

test("HubsOfAFleetAreListedWithTheirStates", () => {
  const hub = { hub: "0a1b2c3d", is_this: true, lives: true, lease_ms: 8000, address: "https://a.example", model: "m",
    same_package: true, version: "0.1.0", streams: 1200, workers: 3, units: 96, units_missing: 0, units_thin: 0 };
  const [here, other, gone] = fleetRows([hub, { ...hub, hub: "11111111", is_this: false, same_package: false },
    { ...hub, hub: "22222222", is_this: false, lives: false, lease_ms: -61_400 }]);
  assert.deepEqual(here.cells, ["0a1b2c3d (this one)", "serves", "8 s", "0.1.0", "1,200", "3", "lacks none",
    "https://a.example"]);
  assert.equal(here.cells.length, fleet_columns.length);
  assert.deepEqual([here.kind, other.kind, gone.kind], ["good", "warn", "bad"]);
  assert.equal(other.cells[1], "serves m");
  assert.deepEqual(gone.cells.slice(1, 3), ["gone for 61 s", "ended"]);
  const unitsOf = (more) => fleetRows([{ ...hub, ...more }])[0].cells[fleet_columns.indexOf("hub_units")];
  assert.equal(unitsOf({ units_missing: 12, units_thin: 1 }), "lacks 12 of 96, 1 with too few copies");
  assert.equal(unitsOf({ units_thin: 96 }), "96 with too few copies");
  assert.equal(unitsOf({ units: 0 }), "–", "it computes alone");
  assert.equal(unitsOf({ units: undefined, units_missing: undefined, units_thin: undefined }), "–", "an older hub");
  assert.deepEqual(fleetRows(undefined), [], "a hub that is alone");
});
