// Writes answers of OpenAI's chat completions and completions. The chunks of a stream have the
// order that llama.cpp's server tests require.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint openai_chat_endpoint, openai_text_endpoint;

}  // namespace moex
