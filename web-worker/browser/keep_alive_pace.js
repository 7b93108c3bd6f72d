// Chooses how often a pending readback sends a keep-alive write to the GPU process (gpu.js).
//
// Problem: with too few writes the answer is noticed late. With too many, on a machine with few cores, the writes take
// processor time that the GPU process needs. Only a measurement on this machine shows which case applies. Therefore, of
// every eight waits, one tries the next shorter period and one the next longer period. If the waits with a tried
// period are shorter, it becomes the period. This module is pure: wait times go in, periods come out.
export const periods_us = [20, 50, 100, 200, 500, 1000];
const waits_kept = 16;       // measured waits of a period that are needed before it is judged
// A shorter period is chosen only if its median wait is at most this fraction of the current median. A longer period
// costs less, so an equal median is enough.
const better_by = 0.95;

const median = (values) => values.slice().sort((a, b) => a - b)[values.length >> 1];

// Finds the best period for keep-alive writes by measuring waits.
export class KeepAlivePace {
  constructor(first_us) {
    this.at = Math.max(0, periods_us.indexOf(first_us));
    this.turn = 0;
    this.waits = periods_us.map(() => []);
  }

  // Returns the index into `periods_us` for the next wait.
  next() {
    this.turn = (this.turn + 1) % 8;
    const step = this.turn === 3 ? -1 : this.turn === 7 ? 1 : 0;
    return Math.min(periods_us.length - 1, Math.max(0, this.at + step));
  }

  // Records that a wait with the period periods_us[rung] took the time `wait`, in any unit.
  took(rung, wait) {
    const kept = this.waits[rung];
    kept.push(wait);
    if (kept.length > waits_kept) kept.shift();
    if (rung === this.at || kept.length < waits_kept || this.waits[this.at].length < waits_kept) return;

    const worth = rung > this.at ? 1 : better_by;
    if (median(kept) > worth * median(this.waits[this.at])) {
      kept.length = 0;         // judge this period again after new waits
      return;
    }
    this.at = rung;
    for (const one of this.waits) one.length = 0;
  }

  get period_us() { return periods_us[this.at]; }
}
