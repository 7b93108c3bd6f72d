// What a page remembers, in its tab or in the browser. Storage may be full or forbidden: the page then goes on without.
// forget.js ends all of it.

// For this tab alone: JSON.
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
export function drop(name) {
  try { sessionStorage.removeItem(name); } catch { /* it was not kept */ }
}

// The same for what the browser keeps for later visits: texts.
export function recall(name, fallback) {
  try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; }
}
export function remember(name, text) {
  try { localStorage.setItem(name, text); } catch { /* for this visit only */ }
}
