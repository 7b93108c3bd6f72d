// Anthropic's /v1/messages: requests read into the body of OpenAI's chat, answers as content blocks
// and their events. Thoughts are `thinking` blocks without a signature; how long a model thinks is
// bounded by max_tokens alone.
// Source: Anthropic's API reference, Messages and Streaming Messages.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint anthropic_endpoint;

// Reads a body as one of /v1/chat/completions.
Checked<CompletionParams> read_anthropic(const OrderedJson& body, const ParamLimits& limits);
// The same body for its prompt alone, as count_tokens gets it.
Checked<CompletionParams> read_anthropic_prompt(const OrderedJson& body, const ParamLimits& limits);

}  // namespace moex
