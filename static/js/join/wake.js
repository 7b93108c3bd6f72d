// Keeps the screen on while this tab serves. Browsers release the lock when the page is hidden, so it is requested
// again when the page is shown.
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
