// Join links that a contributor pastes. The module is pure: it uses neither the page nor the hub.

// Returns {token, url} of a join link, or null for another text; `text` may also be the token alone.
export function readLink(text) {
  const is_token = /^[\w-]{16,}$/.test(text.trim());
  const token = is_token ? text.trim() : /#(?:.*&)?token=([^&\s]+)/.exec(text)?.[1];
  if (!token) return null;
  try {
    return { token, url: new URL(text.trim()).href };
  } catch { return { token, url: "" }; }
}
