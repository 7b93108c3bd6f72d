// Whose words a route speaks: which shape its errors and streams have. One core answers all.
// Source: the API references of OpenAI, Anthropic and Ollama.
#pragma once

namespace moex {

enum class Dialect {
    openai,     // {"error": {...}}; events without a name, [DONE] at the end
    responses,  // OpenAI's /v1/responses: the same errors, events with names
    anthropic,  // {"type": "error", "error": {...}}; events with names
    ollama,     // {"error": "..."}; one JSON object a line
};

// Streams of this dialect are lines of JSON (NDJSON), not server-sent events.
constexpr bool streams_lines(Dialect dialect) { return dialect == Dialect::ollama; }

}  // namespace moex
