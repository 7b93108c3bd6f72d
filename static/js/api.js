// The hub's API as the pages use it.

export async function getJson(path, key) {
  const response = await fetch(path, { headers: key ? { Authorization: `Bearer ${key}` } : {}, cache: "no-store" });
  const body = await response.json().catch(() => null);
  return { ok: response.ok, status: response.status, body };
}

export async function postJson(path, body, key) {
  const response = await fetch(path, {
    method: "POST", body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
  });
  return { ok: response.ok, status: response.status, body: await response.json().catch(() => null) };
}

// `status`: of HTTP; 200 for an error inside a stream, 0 for a stream that ended without its last word.
export class ApiError extends Error {
  constructor(status, error) {
    super(error?.message ?? `the hub answered ${status}`);
    this.status = status;
    this.code = error?.code ?? "";
  }
}

// The data of one event of a text/event-stream, "" for a comment.
function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

// Streams a chat completion. `onChunk(chunk)` gets each parsed event; resolves at [DONE].
export async function streamChat(body, { key, signal, onChunk }) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => null))?.error);

  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };      // the line broke
    });
    if (done) throw new ApiError(0, { message: "the connection to the hub ended in mid-answer" });
    held += value;
    for (let end; (end = held.indexOf("\n\n")) >= 0; held = held.slice(end + 2)) {
      const data = dataOf(held.slice(0, end));
      if (!data) continue;
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk.error);
      onChunk(chunk);
    }
  }
}
