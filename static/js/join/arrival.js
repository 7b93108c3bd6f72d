// The pace at which a tab's experts arrive, from the counts of its reports. The module is pure.
const window_ms = 10000;     // the pace is that of the newest 10 s
const least_ms = 1000;       // a shorter stretch says nothing yet

export class Arrival {
  constructor() { this.counts = []; }   // {time_ms, bytes}, oldest first

  // Adds a count of fetched bytes. A count below the last one begins anew: the worker has started again.
  add(time_ms, bytes) {
    if (bytes < (this.counts.at(-1)?.bytes ?? 0)) this.counts = [];
    this.counts.push({ time_ms, bytes });
    while (this.counts.length > 2 && this.counts[1].time_ms <= time_ms - window_ms) this.counts.shift();
  }

  // Returns {bytes_per_s, seconds_left} for `bytes_to_fetch` bytes in all; null while the pace is unknown or zero.
  pace(bytes_to_fetch) {
    if (this.counts.length < 2) return null;
    const first = this.counts[0], last = this.counts.at(-1);
    const bytes = last.bytes - first.bytes;
    if (last.time_ms - first.time_ms < least_ms || bytes <= 0) return null;
    const bytes_per_s = (1000 * bytes) / (last.time_ms - first.time_ms);
    return { bytes_per_s, seconds_left: Math.max(0, bytes_to_fetch - last.bytes) / bytes_per_s };
  }
}
