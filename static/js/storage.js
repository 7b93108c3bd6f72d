// What a page remembers, in its tab or in the browser. Storage may be full or forbidden: the page then goes on without.
export function read(name, fallback) {
  try { return JSON.parse(sessionStorage.getItem(name)) ?? fallback; } catch { return fallback; }
}
// False when it could not be kept.
export function write(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch { return false; }
}

// The same for what the browser keeps for later visits: texts.
export function recall(name, fallback) {
  try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; }
}
export function remember(name, text) {
  try { localStorage.setItem(name, text); } catch { /* for this visit only */ }
}
export function forgetAll() {
  try { localStorage.clear(); } catch { /* nothing was kept */ }
}
