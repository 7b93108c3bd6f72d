// Ollama's /api/chat, /api/generate and /api/embed: requests read into the bodies of OpenAI's,
// answers as lines of JSON. `stream` is true where it is not given; durations are nanoseconds;
// NAME:latest is NAME. Options about memory and machines (num_ctx, num_gpu, keep_alive) change
// nothing here. Source: Ollama's API reference, docs/api.md of its repository.
#pragma once

#include <chrono>
#include <string>

#include "hub/api/jobs/embedding_job.h"
#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint ollama_chat_endpoint, ollama_generate_endpoint;
extern const EmbeddingEndpoint ollama_embedding_endpoint;

// The `model` of a body, or `name` as older clients call it, without ":latest".
Checked<std::string> read_ollama_model(const OrderedJson& body);

// RFC 3339 in UTC with nanoseconds.
std::string ollama_time(std::chrono::nanoseconds since_epoch);

}  // namespace moex
