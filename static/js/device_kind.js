// Finds defaults that suit the device of this browser, by what the browser reports; the user can change all of them.
// The module is pure: `seen` is the browser's navigator, or what a test makes of one.

// Returns true for phones and tablets, whose browsers end a page that takes much memory (WebKit at 1.5 GB).
export function isPhone(seen = globalThis.navigator) {
  if (seen?.userAgentData?.mobile) return true;
  // An iPad reports a Mac, which has no touch screen.
  const is_ipad = /Macintosh/.test(seen?.userAgent ?? "") && seen.maxTouchPoints > 1;
  return is_ipad || /Android|iPhone|iPad|iPod|Mobile/.test(seen?.userAgent ?? "");
}

// Returns the memory in GB that the browser reports, rounded and 8 at most; null if it reports none.
export const memoryGb = (seen = globalThis.navigator) => seen?.deviceMemory ?? null;

// Returns the memory in MB that a tab lends unless its user chooses another limit.
export function lentMb(seen = globalThis.navigator) {
  const memory_gb = memoryGb(seen);
  if (isPhone(seen) || (memory_gb !== null && memory_gb <= 2)) return 256;
  return memory_gb !== null && memory_gb <= 4 ? 512 : 1024;
}
