// The dialect of a route: the shape of its errors and streams. One core answers all dialects.
// Source: the API references of OpenAI, Anthropic and Ollama.
#pragma once

namespace moex {

enum class Dialect {
    openai,     // errors are {"error": {...}}; events have no name, and [DONE] ends a stream
    responses,  // OpenAI's /v1/responses: errors as in `openai`; events have names
    anthropic,  // errors are {"type": "error", "error": {...}}; events have names
    ollama,     // errors are {"error": "..."}; a stream has one JSON object on each line
};

// Returns true if streams of this dialect are lines of JSON (NDJSON) instead of server-sent events.
constexpr bool streams_lines(Dialect dialect) { return dialect == Dialect::ollama; }

}  // namespace moex
