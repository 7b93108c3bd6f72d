// How often to do what shortens a wait and costs the one who is waited for: poking the GPU process while a readback is
// pending (gpu.js), or keeping it awake before one (awake.js). Too seldom, and it helps little; too often, and the wait
// stands behind it. Where the best lies only this machine knows: of every eight waits one tries the next shorter period
// and one the next longer, and where a neighbour's waits are shorter the period moves there. Pure: waits go in, periods
// come out.
const waits_kept = 16;       // of a period, before it is judged
const better_by = 0.95;      // of the median; a longer period, which costs less, need only be as good

const median = (values) => values.slice().sort((a, b) => a - b)[values.length >> 1];

export class Pace {
  // `periods_us`, ascending.
  constructor(periods_us, first_us) {
    this.periods_us = periods_us;
    this.at = Math.max(0, periods_us.indexOf(first_us));
    this.waits = periods_us.map(() => []);
  }

  // The rung of the periods for the wait of that number. Paces that judge the same waits count them from other numbers,
  // 2 apart, so that one tries while the other does not.
  rungOf(number) {
    const turn = number % 8;
    const step = turn === 3 ? -1 : turn === 7 ? 1 : 0;
    return Math.min(this.periods_us.length - 1, Math.max(0, this.at + step));
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

  get period_us() { return this.periods_us[this.at]; }
}
