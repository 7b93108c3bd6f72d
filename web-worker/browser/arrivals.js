// Files that arrive one after the other, and waiting for some of them.
export class Arrivals {
  constructor() {
    this.here = new Set();
    this.error = null;
    this.waiting = [];       // callbacks to call at the next arrival
  }

  add(sha256) {
    this.here.add(sha256);
    for (const look of this.waiting.splice(0)) look();
  }
  // The other files do not arrive.
  fail(error) {
    this.error ??= error;
    for (const look of this.waiting.splice(0)) look();
  }

  // Resolves when all `files` ({sha256}) are here. Rejects with the error of fail().
  async all(files) {
    while (files.some(({ sha256 }) => !this.here.has(sha256))) {
      if (this.error) throw this.error;
      await new Promise((resolve) => { this.waiting.push(resolve); });
    }
  }
}
