// llama.cpp's /infill, which its extensions for editors ask: input_prefix, input_suffix,
// input_extra (other files) and prompt. Requests are translated into bodies of OpenAI's
// completions; answers have the form of llama.cpp's /completion. A prompt that does not fit the
// context is cut, as editors expect it. Fields about caches, samplers and times have no effect.
// Source: llama.cpp's server, README.md, POST /infill and POST /completion.
#pragma once

#include "hub/api/jobs/reply_writer.h"

namespace moex {

extern const CompletionEndpoint infill_endpoint;

}  // namespace moex
