// Ollama's /api/chat, /api/generate and /api/embed: requests are translated into bodies of OpenAI's
// API, answers are written as lines of JSON. `stream` is true by default. Durations are
// nanoseconds. NAME:latest means NAME. Options about memory and machines (num_ctx, num_gpu,
// keep_alive) have no effect. Source: Ollama's API reference, docs/api.md of its repository.
#pragma once

#include <chrono>
#include <string>

#include "hub/api/jobs/embedding_job.h"
#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint ollama_chat_endpoint, ollama_generate_endpoint;
extern const EmbeddingEndpoint ollama_embedding_endpoint;
extern const EmbeddingEndpoint ollama_one_embedding_endpoint;  // /api/embeddings

// Returns the `model` of a body, or the member `name`, which older clients send instead, without
// ":latest".
Checked<std::string> read_ollama_model(const OrderedJson& body);

// Formats a time as RFC 3339 in UTC with nanoseconds.
std::string ollama_time(std::chrono::nanoseconds since_epoch);

}  // namespace moex
