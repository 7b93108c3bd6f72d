// The dialect of a route: the shape of its errors and streams. One core answers all dialects.
// Source: the API references of OpenAI, Anthropic and Ollama.
#pragma once

namespace moex {

enum class Dialect {
    openai,     // {"error": {...}}; events without a name, [DONE] at the end
    responses,  // OpenAI's /v1/responses: the same errors, events with names
    anthropic,  // {"type": "error", "error": {...}}; events with names
    ollama,     // {"error": "..."}; one JSON object on each line
};

// Returns true if streams of this dialect are lines of JSON (NDJSON) instead of server-sent events.
constexpr bool streams_lines(Dialect dialect) { return dialect == Dialect::ollama; }

}  // namespace moex
