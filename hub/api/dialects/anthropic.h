// Anthropic's /v1/messages: requests are translated into a body of OpenAI's chat, answers are
// written as content blocks and their events. Thoughts are `thinking` blocks without a signature.
// Only max_tokens bounds their length.
// Source: Anthropic's API reference, Messages and Streaming Messages.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint anthropic_endpoint;

// Translates a body of /v1/messages into a body of /v1/chat/completions, and reads the translated
// body.
Checked<CompletionParams> read_anthropic(const OrderedJson& body, const ParamLimits& limits);
// Reads a body of count_tokens, which needs only the prompt: max_tokens may be missing.
Checked<CompletionParams> read_anthropic_prompt(const OrderedJson& body, const ParamLimits& limits);

}  // namespace moex
