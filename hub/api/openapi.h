// Makes the description of the HTTP API that tools read (OpenAPI 3.1). The paths are those of the
// route table in hub/net, so that the description cannot differ from the routes. The schemas of the
// bodies are in openapi.cpp and openapi_dialects.cpp, next to the code that reads and writes them.
// Source: the OpenAPI Specification 3.1.0; JSON Schema 2020-12.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hub/api/dialect.h"

namespace moex {

struct DescribedRoute {
    const char* method = "GET";
    std::string path;  // "/v1/models/{model}"
    const char* summary = "";
    // Name of the request body's schema; null: the route takes no body, or takes bytes.
    const char* request = nullptr;
    bool takes_bytes = false;           // the request's body is bytes, not JSON
    const char* answer = nullptr;       // name of the answer's schema; null: the answer is not JSON
    Dialect dialect = Dialect::openai;  // dialect of the route's error bodies
    bool takes_key = false;             // the route demands a key, except on loopback
    bool counts = false;  // requests count against the rate limits, so that 429 is possible
};

// Schemas of the bodies of Anthropic, Ollama, OpenAI's Responses and embeddings, as JSON.
const char* dialect_schemas();

// Returns the whole document. Requires that `request` and `answer` name schemas that exist.
std::string openapi_document(std::span<const DescribedRoute> routes, std::string_view version);

}  // namespace moex
