// OpenAI's /v1/responses: requests read into the body of a chat, answers as output items and their
// numbered events. `store` is taken and nothing is stored, so every reply says `store: false` and
// what would need a stored one (`previous_response_id`, `conversation`, item references) is
// refused. Source: OpenAI API reference, Responses and Responses streaming.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint responses_endpoint;

// Reads a body as one of /v1/chat/completions.
Checked<CompletionParams> read_responses(const OrderedJson& body, const ParamLimits& limits);

}  // namespace moex
