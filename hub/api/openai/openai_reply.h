// Answers as OpenAI's chat completions and completions have them; chunks of a stream in the order
// that llama.cpp's server tests ask for.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint openai_chat_endpoint, openai_text_endpoint;

}  // namespace moex
