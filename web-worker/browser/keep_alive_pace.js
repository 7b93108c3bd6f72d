// How often a pending readback pokes the GPU process (gpu.js). Too seldom, and the answer is noticed late; too often,
// and on a machine with few cores the pokes take from the GPU process what it needs. Which of the two it is here only
// this machine knows: of every eight waits one tries the next shorter period and one the next longer, and where a
// neighbour's waits are shorter the period moves there. Pure: waits go in, periods come out.
export const periods_us = [20, 50, 100, 200, 500, 1000];
const waits_kept = 16;       // of a period, before it is judged
const better_by = 0.95;      // of the median; a longer period, which costs less, need only be as good

const median = (values) => values.slice().sort((a, b) => a - b)[values.length >> 1];

export class KeepAlivePace {
  constructor(first_us) {
    this.at = Math.max(0, periods_us.indexOf(first_us));
    this.turn = 0;
    this.waits = periods_us.map(() => []);
  }

  // The rung of `periods_us` for the next wait.
  next() {
    this.turn = (this.turn + 1) % 8;
    const step = this.turn === 3 ? -1 : this.turn === 7 ? 1 : 0;
    return Math.min(periods_us.length - 1, Math.max(0, this.at + step));
  }

  // What a wait of that rung took, in any unit.
  took(rung, wait) {
    const kept = this.waits[rung];
    kept.push(wait);
    if (kept.length > waits_kept) kept.shift();
    if (rung === this.at || kept.length < waits_kept || this.waits[this.at].length < waits_kept) return;

    const worth = rung > this.at ? 1 : better_by;
    if (median(kept) > worth * median(this.waits[this.at])) {
      kept.length = 0;         // asked again later, with other waits
      return;
    }
    this.at = rung;
    for (const one of this.waits) one.length = 0;
  }

  get period_us() { return periods_us[this.at]; }
}
