// Calls the hub's HTTP API for the pages: JSON requests, and streamed chat completions.

// The address of the hub, ending with a slash: https://hub.example/moex/ where a proxy serves it below /moex/. It is
// found from the address of this file, so that no page names a path from the root of its origin.
export const root = new URL("../", import.meta.url).href;
// Returns the address of a file or route of the hub; `path` has no leading slash.
export const at = (path) => root + path;

const get_ms_max = 10_000;      // a hub that takes longer for a small answer hangs

export async function getJson(path, key) {
  const response = await fetch(at(path), {
    headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store",
    signal: AbortSignal.timeout?.(get_ms_max),
  });
  const body = await response.json().catch(() => null);
  return { ok: response.ok, status: response.status, body };
}

export async function postJson(path, body, key) {
  const response = await fetch(at(path), {
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
  });
  return { ok: response.ok, status: response.status, body: await response.json().catch(() => null) };
}

// An error of the hub. `status`: HTTP status, 200 for an error inside a stream, 0 for a stream that ended without
// [DONE].
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the hub answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

const withKey = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

// Parses one event of a text/event-stream to {id, data}; both are "" for a comment of the stream.
function partsOf(event) {
  const lines = event.split("\n");
  const valuesOf = (name) => lines.filter((line) => line.startsWith(`${name}:`))
    .map((line) => line.slice(name.length + 1).trimStart());
  return { id: valuesOf("id").at(-1) ?? "", data: valuesOf("data").join("\n") };
}

const broken = () => new ApiError(0, { message: "the connection to the hub ended in mid-answer" });

// Reads the events of a stream. Returns true at [DONE], false when the connection broke. `stream.last` is the number of
// the last event that was passed to `onChunk`.
async function readEvents(response, stream, onChunk) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (done) return false;
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      const { id, data } = partsOf(held.slice(0, end));
      if (!data) continue;
      if (id) stream.last = id;
      if (data === "[DONE]") return true;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk.error);
      onChunk(chunk);
    }
  }
}

const pause = (wait_ms, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, wait_ms);
  signal?.addEventListener("abort", () => {
    clearTimeout(timer);
    reject(signal.reason);
  }, { once: true });
});

// Opens a new connection to a stream, which continues after the last received event. Resolves to null when the hub does
// not answer. Throws when the hub does not know the stream.
async function lineTo(stream, { key, signal }) {
  const headers = { ...withKey(key), "Last-Event-ID": stream.last };
  const response = await fetch(at(`v1/streams/${stream.id}`), { headers, signal, cache: "no-store" }).catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response && !response.ok) throw broken();
  return response;
}

// The time for which the hub keeps a stream after its connection broke.
const kept_ms = 60000;
const wait_first_ms = 250, wait_max_ms = 4000;

async function newLine(stream, how) {
  const until = performance.now() + kept_ms;
  for (let wait_ms = wait_first_ms; performance.now() < until; wait_ms = Math.min(wait_max_ms, wait_ms * 2)) {
    await pause(wait_ms, how.signal);
    const response = await lineTo(stream, how);
    if (response) return response;
  }
  throw broken();
}

async function follow(response, stream, how) {
  for (;;) {
    stream.id = response.headers.get("X-Moex-Stream") ?? stream.id;
    how.onStream?.(stream.id);
    if (await readEvents(response, stream, how.onChunk)) return;
    if (!stream.id) throw broken();
    response = await newLine(stream, how);
  }
}

// Streams a chat completion. `onStream(id)` is called with the stream's id for each new connection, "" if the stream
// cannot be resumed. `onChunk(chunk)` is called once for each parsed event. Resolves at [DONE]. A broken connection is
// replaced by a new one.
export async function streamChat(body, how) {
  const moex = { ...body.moex, resumable: true };
  const response = await fetch(at("v1/chat/completions"), {
    method: "POST",
    headers: { "Content-Type": "application/json", ...withKey(how.key) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true }, moex }),
    signal: how.signal,
  });
  if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => null))?.error);
  await follow(response, { id: "", last: "0" }, how);
}

// Reads a stream that another page began, from its first event on; the callbacks are those of streamChat().
export async function resumeChat(id, how) {
  const stream = { id, last: "0" };
  await follow(await lineTo(stream, how) ?? await newLine(stream, how), stream, how);
}

// Notifies the hub that no client will resume the stream.
export function stopChat(id, key) {
  fetch(at(`v1/streams/${id}`), { method: "DELETE", headers: withKey(key), keepalive: true }).catch(() => {});
}
