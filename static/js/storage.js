// Values that a page keeps in its tab or in the browser. Storage may be full or forbidden: the page then works without
// it. forget.js deletes these values.

// Reads a value of this tab only, stored as JSON.
export function read(name, fallback) {
  try { return JSON.parse(sessionStorage.getItem(name)) ?? fallback; } catch { return fallback; }
}
// Stores a value of this tab as JSON. Returns false if it could not be stored.
export function write(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch { return false; }
}
export function drop(name) {
  try { sessionStorage.removeItem(name); } catch { /* it was not kept */ }
}

// Reads a text that the browser keeps for later visits, in all tabs.
export function recall(name, fallback) {
  try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; }
}
export function remember(name, text) {
  try { localStorage.setItem(name, text); } catch { /* for this visit only */ }
}
