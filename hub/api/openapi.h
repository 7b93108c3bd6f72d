// The description of the HTTP API that tools read (OpenAPI 3.1): paths come from the door's
// route table, so that what is served and what is described cannot differ; the
// main bodies' schemas stand in openapi.cpp, beside the code that reads and writes them.
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
    const char* request = nullptr;      // a schema; null: no body
    const char* answer = nullptr;       // null: no JSON
    Dialect dialect = Dialect::openai;  // of its errors
    bool takes_key = false;             // off loopback
    bool counts = false;                // against the rates: 429 may come
};

// Of the bodies that other clients than OpenAI's chats and completions know, and of embeddings.
const char* dialect_schemas();

// The whole document. `request` and `answer` name schemas that exist.
std::string openapi_document(std::span<const DescribedRoute> routes, std::string_view version);

}  // namespace moex
