// Keeps the screen on while this tab serves. Browsers take the lock back when the page is hidden: it is asked for again
// when people come back to it.
let lock = null;
let is_wanted = false;

export async function keepAwake(on) {
  is_wanted = on;
  try {
    if (lock?.released) lock = null;
    if (on && !lock) lock = await navigator.wakeLock?.request("screen") ?? null;
    else if (!on && lock) {
      await lock.release();
      lock = null;
    }
  } catch { /* the browser decides; the tab serves all the same */ }
}

document.addEventListener("visibilitychange", () => {
  if (is_wanted && document.visibilityState === "visible") keepAwake(true);
});
