// OpenAI's /v1/responses: requests are translated into bodies of chat completions, answers are
// written as output items and their numbered events. `store` is accepted, but nothing is stored. So
// every reply has `store: false`, and fields that need a stored response (`previous_response_id`,
// `conversation`, item references) are refused. Source: OpenAI API reference, Responses and
// Responses streaming.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint responses_endpoint;

// Translates a body of /v1/responses into a body of /v1/chat/completions, and reads the translated
// body.
Checked<CompletionParams> read_responses(const OrderedJson& body, const ParamLimits& limits);

}  // namespace moex
