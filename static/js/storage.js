// What a page remembers in its tab. Storage may be full or forbidden: the page then goes on without.
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
