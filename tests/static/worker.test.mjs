// The tab's plain modules: how often a readback is poked. What the join page says of a round's time.
import assert from "node:assert/strict";
import { test } from "node:test";

import { fine } from "../../static/js/format.js";
import { roundWords } from "../../static/js/join/words.js";
import { PokePace, periods_us } from "../../web-worker/browser/poke.js";

// A machine whose waits depend on the period alone, and a worker that waits `count` times on it.
function settled(first_us, wait_of, count = 4000) {
  const pace = new PokePace(first_us);
  for (let i = 0; i < count; i += 1) {
    const rung = pace.next();
    pace.took(rung, wait_of(periods_us[rung], i));
  }
  return pace.period_us;
}

test("ThePokesFindThePeriodThatSuitsTheMachine", () => {
  assert.equal(settled(20, (period) => 100 + period), 20, "cores enough: the shorter the better");
  assert.equal(settled(200, (period) => 100 + period), 20, "from wherever it began");
  // Two cores: pokes take from the GPU process what it needs.
  assert.equal(settled(20, (period) => 300 + 20000 / period + period / 4), 200);
  assert.equal(settled(20, () => 500), 1000, "where it makes no difference, the cheapest");
});

test("NoiseDoesNotDriveThePokesAway", () => {
  let state = 1;
  const noise = () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
  const period = settled(50, (us_between) => (100 + us_between) * (1 + 0.2 * noise()) + (noise() < 0.05 ? 3000 : 0));
  assert.ok(period <= 50, `${period} us`);
});

test("ShortTimesAreSaidInMicroseconds", () => {
  assert.deepEqual([0.064, 0.0004, 1.5, 0].map(fine), ["64 µs", "1 µs", "1.5 ms", "–"]);
  assert.equal(roundWords({ gpu_us_p50: 0 }), "per round, median");
  assert.equal(roundWords({ gpu_us_p50: 61.2 }), "per round, median; 61 µs on the GPU");
});
