// Values that a page keeps in its tab or in the browser. Storage may be full or forbidden: the page then works without
// it. forget.js deletes these values.

// Values for this tab only, as JSON.
export function read(name, fallback) {
  try { return JSON.parse(sessionStorage.getItem(name)) ?? fallback; } catch { return fallback; }
}
// Returns false if the value could not be stored.
export function write(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch { return false; }
}
export function drop(name) {
  try { sessionStorage.removeItem(name); } catch { /* it was not kept */ }
}

// The same for values that the browser keeps for later visits, as texts.
export function recall(name, fallback) {
  try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; }
}
export function remember(name, text) {
  try { localStorage.setItem(name, text); } catch { /* for this visit only */ }
}
