// The parts of OpenAI requests that have many spellings: tools and the calls of earlier turns, the
// form of the answer, and the fields that constrain an answer in other servers' dialects. Used by
// openai_request.cpp.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "hub/api/body_fields.h"
#include "hub/api/completion_params.h"

namespace moex {

// Reads the tools of a chat and the choice among them. A tool that is no function is left out and
// named in CompletionParams::notes: the hub runs no tools of its own.
void read_tools(BodyFields& fields, CompletionParams& out);
// Reads the tool calls that the assistant made in an earlier turn into `out`, a message for the
// chat template.
void read_calls(BodyFields& fields, const OrderedJson& message, const std::string& where,
                OrderedJson& out);
// Returns the arguments of an earlier call as an object, which chat templates want. Blanks are no
// arguments. A text that is no JSON object becomes {"text": ...}, so that one broken call does not
// end a chat for ever.
OrderedJson healed_arguments(const OrderedJson& given);

// Reads the form of the answer: OpenAI's response_format, llama.cpp's json_schema and grammar,
// vLLM's structured_outputs and guided_*, SGLang's regex and ebnf. At most one may be given.
void read_form(BodyFields& fields, CompletionParams& out);
// The fields by which other servers' clients constrain an answer. Every dialect passes them on, so
// that read_form() takes them or refuse_unsupported() refuses them.
inline constexpr const char* constraint_fields[] = {"structured_outputs",
                                                    "guided_decoding",
                                                    "guided_json",
                                                    "guided_regex",
                                                    "guided_choice",
                                                    "guided_grammar",
                                                    "grammar",
                                                    "regex",
                                                    "ebnf",
                                                    "min_tokens",
                                                    "stop_token_ids",
                                                    "bad_words",
                                                    "suppress_tokens",
                                                    "logit_bias",
                                                    "allowed_token_ids",
                                                    "structural_tag",
                                                    "ignore_eos",
                                                    "stop_regex",
                                                    "lora",
                                                    "logits_processors",
                                                    "chat_template",
                                                    "use_beam_search",
                                                    "no_stop_trim",
                                                    "n_indent",
                                                    "t_max_predict_ms",
                                                    "truncate_prompt_tokens",
                                                    "include_stop_str_in_output"};

// Refuses fields that ask for something that the hub cannot do. Values that clients send by default
// are accepted.
void refuse_unsupported(BodyFields& fields, const CompletionParams& params);
// Settings of other servers that advise how an answer is sampled, thought or shown, each with the
// value that has no effect. An answer without them is a right answer, so that the hub drops them.
inline constexpr std::pair<const char*, double> advice_fields[] = {{"mirostat", 0},
                                                                   {"dry_multiplier", 0},
                                                                   {"xtc_probability", 0},
                                                                   {"typical_p", 1},
                                                                   {"tfs_z", 1},
                                                                   {"top_a", 0},
                                                                   {"top_n_sigma", -1},
                                                                   {"dynatemp_range", 0},
                                                                   {"length_penalty", 1},
                                                                   {"thinking_budget", -1},
                                                                   {"thinking_budget_tokens", -1},
                                                                   {"reasoning_budget", -1},
                                                                   {"max_thinking_tokens", -1},
                                                                   {"include_reasoning", 1},
                                                                   {"skip_special_tokens", 1},
                                                                   {"safe_prompt", 0},
                                                                   {"context_management", 0}};
// Names those of them that the request sets in CompletionParams::notes ("dropped").
void note_dropped(const BodyFields& fields, CompletionParams& out);

// Returns the refusal with the name that the client's dialect has for the field: `names` has pairs
// of OpenAI's name and the client's name.
Refusal in_clients_words(Refusal refusal,
                         std::span<const std::pair<std::string_view, std::string_view>> names);
// Refuses fields by which a client continues something that a server has stored. A second turn that
// came without its history would be answered as if it were the first.
void refuse_stateful(BodyFields& fields);

}  // namespace moex
