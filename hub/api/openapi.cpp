#include "hub/api/openapi.h"

#include <nlohmann/json.hpp>

#include "hub/model/json_fields.h"
#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {
namespace {

// Fields that the bodies of chats and plain completions share.
constexpr const char* sampling_fields = R"json({
  "model": {"type": "string", "description": "May be left out; a name that is not served is 404."},
  "stream": {"type": "boolean", "default": false},
  "return_progress": {"type": "boolean"},
  "timings_per_token": {"type": "boolean"},
  "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
  "max_tokens": {"type": "integer", "minimum": 1,
    "description": "Default: the rest of the context, unless the operator set another one."},
  "max_completion_tokens": {"type": "integer", "minimum": 1},
  "n": {"type": "integer", "minimum": 1, "maximum": 8},
  "temperature": {"type": "number", "minimum": 0, "maximum": 2},
  "top_p": {"type": "number", "minimum": 0, "maximum": 1},
  "top_k": {"type": "integer", "minimum": -1},
  "min_p": {"type": "number", "minimum": 0, "maximum": 1},
  "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
  "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
  "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 100},
  "seed": {"type": "integer"},
  "min_tokens": {"type": "integer", "minimum": 0,
    "description": "The answer does not end before it has as many tokens."},
  "ignore_eos": {"type": "boolean", "description": "The model's own end is never written."},
  "bad_words": {"type": "array", "items": {"type": "string"}, "maxItems": 256,
    "description": "Words that the answer does not have, as vLLM tokenises them."},
  "suppress_tokens": {"type": "array", "items": {"type": "integer"}},
  "stop": {"oneOf": [{"type": "string"},
                     {"type": "array", "items": {"type": "string"}}]},
  "logit_bias": {
    "description": "A text means each of its own tokens, wherever they occur in the answer.",
    "oneOf": [
      {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Bias"},
       "description": "By token id; a key that is no number is a text."},
      {"type": "array", "items": {"type": "array", "minItems": 2, "maxItems": 2,
         "prefixItems": [{"type": ["integer", "string"]}, {"$ref": "#/components/schemas/Bias"}]},
       "description": "Pairs of token id or text, and bias; the last to name a token counts."}]},
  "prompt_logprobs": {"type": "integer", "minimum": 0, "maximum": 20,
    "description": "Scores the prompt, with this many likeliest tokens a place; no stream."},
  "response_format": {"type": "object", "required": ["type"], "properties": {
      "type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
      "json_schema": {"type": "object", "required": ["schema"], "properties": {
        "name": {"type": "string"}, "strict": {"type": "boolean"},
        "schema": {"type": ["object", "boolean"]}}}},
    "description": "The form of the answer; it holds also if max_tokens ends it."},
  "json_schema": {"type": ["object", "boolean"],
    "description": "The same as response_format with this schema."},
  "grammar": {"type": "string", "description": "GBNF, llama.cpp's notation: root ::= ..."},
  "moex": {"$ref": "#/components/schemas/StreamWish"}
})json";

constexpr const char* chat_fields = R"json({
  "messages": {"type": "array", "minItems": 1, "maxItems": 4096,
    "items": {"$ref": "#/components/schemas/Message"},
    "description": "An assistant's turn at the end is continued."},
  "logprobs": {"type": "boolean"},
  "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
  "continue_final_message": {"type": "boolean",
    "description": "Default: whether the last message is the assistant's."},
  "add_generation_prompt": {"type": "boolean"},
  "reasoning_format": {"type": "string", "enum": ["auto", "deepseek", "none"],
    "description": "none leaves <think> blocks in content; channels are always apart."},
  "tools": {"type": "array", "maxItems": 512, "items": {"$ref": "#/components/schemas/Tool"}},
  "tool_choice": {"oneOf": [{"type": "string", "enum": ["none", "auto", "required"]},
    {"type": "object", "required": ["type", "function"], "properties": {
      "type": {"const": "function"}, "function": {"type": "object", "required": ["name"],
        "properties": {"name": {"type": "string"}}}}}],
    "description": "Default: auto where there are tools. Calls fit their schemas in every answer."},
  "parallel_tool_calls": {"type": "boolean", "default": true},
  "reasoning_effort": {"type": "string",
    "enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"],
    "description": "Where the chat template has it; elsewhere it is dropped and named."},
  "chat_template_kwargs": {"type": "object"}
})json";

constexpr const char* completion_fields = R"json({
  "prompt": {"oneOf": [{"type": "string"},
                       {"type": "array", "items": {"type": ["string", "integer", "array"]}}],
    "description": "A text, several, token ids, or several arrays of those."},
  "suffix": {"type": "string",
    "description": "The answer stands between prompt and suffix, if the model can do that."},
  "logprobs": {"type": ["integer", "boolean"]},
  "echo": {"type": "boolean",
    "description": "With logprobs the prompt is scored, too; max_tokens may then be 0."}
})json";

constexpr const char* other_schemas = R"json({
  "Bias": {"oneOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": false}],
    "description": "Added to the logit; false is -100. A special token's text names that token."},
  "Message": {"type": "object", "required": ["role"], "properties": {
    "role": {"type": "string", "enum": ["system", "developer", "user", "assistant", "tool"]},
    "content": {"oneOf": [{"type": "string"}, {"type": "null"},
      {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}}]},
    "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}},
    "tool_call_id": {"type": "string"},
    "reasoning_content": {"type": ["string", "null"]}}},
  "Tool": {"type": "object", "required": ["type", "function"], "properties": {
    "type": {"const": "function"},
    "function": {"type": "object", "required": ["name"], "properties": {
      "name": {"type": "string"}, "description": {"type": "string"},
      "parameters": {"type": "object"}}}}},
  "ToolCall": {"type": "object", "required": ["id", "type", "function"], "properties": {
    "id": {"type": "string"}, "type": {"const": "function"},
    "function": {"type": "object", "required": ["name", "arguments"], "properties": {
      "name": {"type": "string"},
      "arguments": {"type": "string", "description": "JSON of the tool's schema."}}}}},
  "TextPart": {"type": "object", "required": ["type", "text"], "properties": {
    "type": {"const": "text"}, "text": {"type": "string"}}},
  "ChatCompletion": {"type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "description": "With stream, events of chat.completion.chunk with a delta in each choice.",
    "properties": {
      "id": {"type": "string"}, "object": {"const": "chat.completion"},
      "created": {"type": "integer"}, "model": {"type": "string"},
      "system_fingerprint": {"type": "string"},
      "choices": {"type": "array", "items": {"$ref": "#/components/schemas/ChatChoice"}},
      "prompt_logprobs": {"$ref": "#/components/schemas/PromptScores"},
      "usage": {"$ref": "#/components/schemas/Usage"},
      "timings": {"$ref": "#/components/schemas/Timings"},
      "moex": {"$ref": "#/components/schemas/Provenance"}}},
  "ChatChoice": {"type": "object", "required": ["index", "message", "finish_reason"],
   "properties": {
    "index": {"type": "integer"},
    "message": {"type": "object", "required": ["role", "content"], "properties": {
      "role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
      "tool_calls": {"type": "array", "items": {"$ref": "#/components/schemas/ToolCall"}},
      "reasoning_content": {"type": "string"}, "refusal": {"type": "null"},
      "reasoning": {"type": "string", "description": "The same as reasoning_content."}}},
    "logprobs": {"type": ["object", "null"]},
    "finish_reason": {"type": "string", "enum": ["stop", "length", "tool_calls"]}}},
  "Completion": {"type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage"],
    "properties": {
      "id": {"type": "string"}, "object": {"const": "text_completion"},
      "created": {"type": "integer"}, "model": {"type": "string"},
      "system_fingerprint": {"type": "string"},
      "choices": {"type": "array", "items": {"type": "object",
        "required": ["index", "text", "finish_reason"], "properties": {
          "index": {"type": "integer"}, "text": {"type": "string"},
          "logprobs": {"type": ["object", "null"]},
          "prompt_logprobs": {"$ref": "#/components/schemas/PromptScores"},
          "finish_reason": {"type": "string", "enum": ["stop", "length"]}}}},
      "usage": {"$ref": "#/components/schemas/Usage"},
      "timings": {"$ref": "#/components/schemas/Timings"},
      "moex": {"$ref": "#/components/schemas/Provenance"}}},
  "PromptScores": {"type": "array",
    "description": "With prompt_logprobs: by id, for each token of the prompt but the first.",
    "items": {"type": ["object", "null"], "additionalProperties": {"type": "object",
      "required": ["logprob", "decoded_token"], "properties": {
        "logprob": {"type": "number", "maximum": 0}, "decoded_token": {"type": "string"},
        "rank": {"type": "integer", "minimum": 1,
          "description": "Its place among the likeliest tokens that were requested."}}}}},
  "Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "properties": {
      "prompt_tokens": {"type": "integer"}, "completion_tokens": {"type": "integer"},
      "total_tokens": {"type": "integer"},
      "prompt_tokens_details": {"type": "object", "properties": {
        "cached_tokens": {"type": "integer",
          "description": "Prompt tokens computed for an earlier request of this client."},
        "cached_tokens_disk": {"type": "integer",
          "description": "Those of them that the hub had kept on disk."}}},
      "completion_tokens_details": {"type": "object", "properties": {
        "reasoning_tokens": {"type": "integer"}}}}},
  "Timings": {"type": "object", "properties": {
    "queued_ms": {"type": "number"}, "cache_n": {"type": "integer"},
    "prompt_n": {"type": "integer", "description": "Prompt tokens, without cache_n."},
    "prompt_ms": {"type": "number"}, "prompt_per_second": {"type": "number"},
    "predicted_n": {"type": "integer"}, "predicted_ms": {"type": "number"},
    "predicted_per_second": {"type": "number"}}},
  "Provenance": {"type": "object", "description": "The workers and shares of the answer.",
    "required": ["workers", "calls_remote", "calls_local", "hedged", "verified", "proven",
      "unchecked", "doubted", "replaced", "speculative", "experts", "perplexity_excess"],
    "properties": {
      "speculative": {"type": ["object", "null"],
        "description": "The drafted tokens of the answer; null: it had none.",
        "required": ["mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram",
          "tokens_per_step", "kind"], "properties": {
          "mean_acceptance_length": {"type": "number",
            "description": "Tokens of a step that had a draft."},
          "draft_acceptance_rate": {"type": "number"},
          "acceptance_histogram": {"type": "array", "items": {"type": "integer"},
            "description": "Drafts by the number of their tokens that were accepted."},
          "tokens_per_step": {"type": "number", "description": "Over all steps of the answer."},
          "kind": {"type": "string", "description": "The source of the latest draft."}}},
      "replaced": {"type": "integer",
        "description": "Calls that moex.late_ms did not wait for: default vectors are used."},
      "experts": {"type": "string",
        "description": "Other than exact: a lossy mode, the answer is not the model's own."},
      "perplexity_excess": {"type": ["number", "null"],
        "description": "Measured increase of the perplexity of such answers; 0: exact."},
      "workers": {"type": "integer"}, "calls_remote": {"type": "integer"},
      "calls_local": {"type": "integer"}, "hedged": {"type": "integer"},
      "verified": {"type": "integer",
        "description": "Of calls_remote: computed again and found right before they counted."},
      "proven": {"type": "integer",
        "description": "Of calls_remote: of contributors with a record, checked at a rate."},
      "unchecked": {"type": "integer", "description": "Of calls_remote: could not be checked."},
      "doubted": {"type": "integer",
        "description": "Workers caught with a false answer, in this reply or elsewhere."}}},
  "PrefillRequest": {"type": "object", "required": ["prompt"], "properties": {
    "model": {"type": "string"},
    "prompt": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
    "first_page": {"type": "integer", "minimum": 0, "default": 0,
      "description": "Pages of 128 tokens before this one are not sent."},
    "rows": {"enum": ["f32", "f16", "u8"], "default": "f16"}}},
  "PagesRequest": {"type": "object", "required": ["prompt"], "properties": {
    "model": {"type": "string"},
    "prompt": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
    "held": {"type": "integer", "minimum": 0,
      "description": "Tokens of the prompt that the client has rows of; default: all."},
    "pages": {"type": "string", "description": "The name of an earlier text, to go on with it."}}},
  "TakenPages": {"type": "object", "required": ["pages", "tokens"], "properties": {
    "pages": {"type": ["string", "null"],
      "description": "The text's name, for moex.pages; null: there is none, the hub knows all."},
    "tokens": {"type": "integer", "description": "Tokens that the hub has rows of."}}},
  "TokenizeRequest": {"type": "object", "required": ["content"], "properties": {
    "content": {"type": "string"}, "parse_special": {"type": "boolean", "default": true},
    "with_pieces": {"type": "boolean", "default": false}}},
  "Tokens": {"type": "object", "required": ["tokens"], "properties": {
    "tokens": {"type": "array", "items": {"oneOf": [{"type": "integer"},
      {"type": "object", "required": ["id", "piece"], "properties": {
        "id": {"type": "integer"}, "piece": {"type": "string"}}}]}}}},
  "DetokenizeRequest": {"type": "object", "required": ["tokens"], "properties": {
    "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}}}},
  "Text": {"type": "object", "required": ["content"],
    "properties": {"content": {"type": "string"}}},
  "Model": {"type": "object", "required": ["id", "object"], "properties": {
    "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
    "owned_by": {"type": "string"},
    "meta": {"type": "object", "properties": {
      "n_ctx": {"type": "integer"}, "vocab_size": {"type": "integer"},
      "experts": {"type": "array", "description": "Modes for moex.experts, the default first.",
        "items": {"type": "string"}},
      "experts_perplexity": {"type": ["object", "null"],
        "description": "By mode, measured on held-out text; null: not for this package.",
        "additionalProperties": {"type": "number"}}}}}},
  "ModelList": {"type": "object", "required": ["object", "data"], "properties": {
    "object": {"const": "list"},
    "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
  "Health": {"type": "object", "required": ["status"],
    "description": "200 while ok. degraded: workers or, with 200, the shared store do not answer.",
    "properties": {
      "status": {"type": "string", "enum": ["ok", "degraded", "uncovered", "loading", "draining"]},
      "reason": {"type": "string"}, "units": {"type": "integer"},
      "covered": {"type": "integer", "description": "Experts that could be computed now."},
      "returning": {"type": "integer", "description": "Others that a lost worker had."},
      "workers": {"type": "integer"},
      "prompts_kept_hours": {"type": "integer",
        "description": "How long prompts and answers are kept on disk, encrypted."}}},
  "Info": {"type": "object", "required": ["name", "version", "model", "context_tokens"],
    "properties": {
      "name": {"type": "string"}, "version": {"type": "string"}, "model": {"type": "string"},
      "context_tokens": {"type": "integer"}, "api_key_required": {"type": "boolean"},
      "gives_model": {"type": "boolean", "description": "Whether /api/package answers."},
      "device_model": {"type": "string",
        "description": "The model of /api/package; another one with serve --device-model."},
      "reasoning_effort": {"type": "boolean"},
      "join_path": {"type": "string"}}},
  "Package": {"type": "object", "required": ["name", "sha256", "bytes", "files"], "properties": {
    "name": {"type": "string"},
    "sha256": {"type": "string", "description": "Hash of manifest.json; names the package."},
    "bytes": {"type": "integer", "description": "Of all files."},
    "signed": {"type": "object", "description": "The hub's signature: sha256, bytes, signature."},
    "files": {"type": "array", "items": {"type": "object",
      "required": ["name", "sha256", "bytes"], "properties": {
        "name": {"type": "string"}, "sha256": {"type": "string"},
        "bytes": {"type": "integer"}}}}}},
  "Signature": {"type": "object", "required": ["key", "changes", "manifest", "pages"],
    "properties": {
      "key": {"type": "string", "description": "The hub's Ed25519 key, 64 digits."},
      "fingerprint": {"type": "string", "description": "Its first half, for people to compare."},
      "changes": {"type": "array", "items": {"type": "object",
        "description": "A change of the key, signed by the old one: from, to, signature."}},
      "manifest": {"type": "object", "description": "sha256, bytes and signature."},
      "pages": {"type": "object", "description": "The pages, a line each, and their signature."}}},
  "Status": {"type": "object",
    "required": ["version", "uptime_s", "model", "health", "coverage", "engine", "calls",
                 "workers"],
    "properties": {
      "version": {"type": "string"}, "uptime_s": {"type": "number"},
      "model": {"type": "object"}, "options": {"type": "object"},
      "health": {"type": "string"}, "coverage": {"type": "object"},
      "replicas": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
      "tiers": {"type": "array", "items": {"type": "string"},
        "description": "By layer, one letter an expert: s slot, m memory, d disk, - none."},
      "shadow": {"type": ["object", "null"], "description": "With --prefetch shadow:NAME."},
      "spans": {"type": "object", "description": "Workers that compute layers whole."},
      "engine": {"type": "object"}, "calls": {"type": "object"},
      "host": {"type": "object",
        "description": "Seconds until the certificate ends, and the disk of the state."},
      "fleet": {"type": "array", "items": {"type": "object"},
        "description": "With --store: all hubs of the store, as this hub saw them last."},
      "workers": {"type": "array", "items": {"type": "object"}},
      "join_url": {"type": "string", "description": "With its token; for admins and loopback."}}},
  "History": {"type": "object", "required": ["now_s", "span_s", "step_s", "points"],
    "properties": {
      "now_s": {"type": "integer"}, "span_s": {"type": "integer"}, "step_s": {"type": "integer"},
      "points": {"type": "array", "description": "Steps in which the hub ran, the oldest first.",
        "items": {"type": "object", "properties": {
          "time_s": {"type": "integer"}, "tokens_per_s": {"type": "number"},
          "first_token_ms": {"type": ["number", "null"]},
          "call_p50_ms": {"type": ["number", "null"]},
          "call_p99_ms": {"type": ["number", "null"]},
          "call_p999_ms": {"type": ["number", "null"]},
          "workers": {"type": "integer"}, "covered": {"type": "integer"},
          "units": {"type": "integer"}}}}}},
  "TokenUse": {"type": "object", "properties": {
    "requests": {"type": "integer"}, "prompt_tokens": {"type": "integer"},
    "answer_tokens": {"type": "integer"}}},
  "Key": {"type": "object", "required": ["id", "name", "role", "state"], "properties": {
    "id": {"type": "string", "description": "The first 8 digits of the key's SHA-256."},
    "name": {"type": "string"}, "role": {"type": "string", "enum": ["api", "join", "admin"]},
    "state": {"type": "string", "enum": ["open", "expired", "revoked"]},
    "tokens_per_minute": {"type": "integer", "description": "0: no limit."},
    "created_s": {"type": "integer"},
    "expires_s": {"type": "integer", "description": "Unix time; 0: never."},
    "revoked_s": {"type": "integer"},
    "today": {"$ref": "#/components/schemas/TokenUse"},
    "all": {"$ref": "#/components/schemas/TokenUse"},
    "key": {"type": "string", "description": "The key itself, shown this once."}}},
  "Keys": {"type": "object", "required": ["keys", "local"], "properties": {
    "keys": {"type": "array", "items": {"$ref": "#/components/schemas/Key"}},
    "local": {"type": "object", "description": "Requests without a key.", "properties": {
      "today": {"$ref": "#/components/schemas/TokenUse"},
      "all": {"$ref": "#/components/schemas/TokenUse"}}}}},
  "KeyWish": {"type": "object", "required": ["name", "role"], "properties": {
    "name": {"type": "string", "description": "1 to 64 bytes."},
    "role": {"type": "string", "enum": ["api", "join", "admin"]},
    "tokens_per_minute": {"type": "integer", "minimum": 0},
    "expires_days": {"type": "integer", "minimum": 0, "maximum": 36500}}},
  "KeyId": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
  "WorkerOrder": {"type": "object", "required": ["worker"], "properties": {
    "worker": {"type": "integer", "minimum": 1, "description": "Its number in /api/status."},
    "on": {"type": "boolean", "default": true, "description": "false ends it."}}},
  "BanWish": {"type": "object", "required": ["worker"], "properties": {
    "worker": {"type": "integer", "minimum": 1},
    "days": {"type": "integer", "minimum": 0, "maximum": 36500, "default": 30,
      "description": "At least; a key that was banned before stays closed for longer."}}},
  "BanKey": {"type": "object", "required": ["worker_key"], "properties": {
    "worker_key": {"type": "string", "description": "The key, or its first characters."}}},
  "Ban": {"type": "object", "required": ["worker_key", "until_s"], "properties": {
    "worker_key": {"type": "string"}, "nickname": {"type": "string"},
    "reason": {"type": "string"}, "times": {"type": "integer"}, "banned_s": {"type": "integer"},
    "until_s": {"type": "integer", "description": "Unix time."}, "is_over": {"type": "boolean"}}},
  "Bans": {"type": "object", "required": ["bans"], "properties": {
    "bans": {"type": "array", "items": {"$ref": "#/components/schemas/Ban"}}}},
  "ClaimedKey": {"type": "object", "required": ["id", "key"], "properties": {
    "id": {"type": "string"}, "key": {"type": "string"}}},
  "JoinLink": {"type": "object", "required": ["url"], "properties": {
    "url": {"type": "string"},
    "qr": {"type": "array", "description": "Rows of a QR code of it; 1 is dark.",
      "items": {"type": "string"}}}},
  "Work": {"type": "object", "description": "Pairs of expert and row that workers answered.",
    "properties": {"pairs": {"type": "integer"}, "verified": {"type": "integer"}}},
  "Lend": {"type": "object", "required": ["model", "workers", "units", "held"], "properties": {
    "model": {"type": "string"}, "workers": {"type": "integer"},
    "units": {"type": "integer", "description": "Experts of all layers."},
    "held": {"type": "integer", "description": "Experts that some worker holds."},
    "replicas": {"type": "integer", "description": "Wanted copies of each expert."},
    "calls_per_token": {"type": "integer", "description": "Expert calls that a token makes."},
    "expert_blob_bytes": {"type": "integer"},
    "computes_itself": {"type": "boolean", "description": "The hub computes missing experts."},
    "worker_state": {"type": ["string", "null"], "description": "Of ?worker=."},
    "scarce": {"type": "array", "description": "The layers that lack most.", "items": {
      "type": "object", "properties": {"layer": {"type": "integer"},
        "missing": {"type": "integer", "description": "Experts without a worker."},
        "copies": {"type": "integer", "description": "Wanted copies."}}}}}},
  "Contributors": {"type": "object", "required": ["board", "mine", "today"], "properties": {
    "now_s": {"type": "integer"}, "contributors": {"type": "integer"},
    "verifies": {"type": "boolean", "description": "Whether the hub computes answers again."},
    "today": {"$ref": "#/components/schemas/Work"},
    "board": {"type": "array", "items": {"type": "object", "properties": {
      "rank": {"type": "integer"}, "nickname": {"type": "string"}, "mine": {"type": "boolean"},
      "pairs": {"type": "integer"}, "verified": {"type": "integer"}}}},
    "mine": {"type": ["object", "null"], "properties": {
      "pairs": {"type": "integer"}, "verified": {"type": "integer"},
      "nickname": {"type": "string", "description": "As others see it; empty: not at all."},
      "rank": {"type": "integer"}, "first_seen_s": {"type": "integer"},
      "streak_days": {"type": "integer"}, "today": {"$ref": "#/components/schemas/Work"},
      "days": {"type": "array", "items": {"type": "object", "properties": {
        "day_s": {"type": "integer"}, "pairs": {"type": "integer"},
        "verified": {"type": "integer"}}}}}},
    "challenge": {"type": "string", "description": "To sign for /api/contributors/forget."}}},
  "ForgetWish": {"type": "object", "required": ["key", "challenge", "signature"], "properties": {
    "key": {"type": "string"}, "challenge": {"type": "string"},
    "signature": {"type": "string"}}},
  "Forgotten": {"type": "object", "properties": {"forgotten": {"type": "boolean"}}},
  "Settings": {"type": "object", "required": ["settings"], "properties": {
    "settings": {"type": "array", "items": {"type": "object", "properties": {
      "name": {"type": "string"}, "value": {"type": "string"},
      "source": {"type": "string", "enum": ["default", "file", "environment", "flag"]},
      "help": {"type": "string"}}}}}},
  "StreamWish": {"type": "object", "properties": {
    "experts": {"type": "string", "default": "exact",
      "description": "exact, or a lossy mode that /v1/models lists; speculative is early:1."},
    "late_ms": {"type": "integer", "minimum": 1, "maximum": 60000,
      "description": "A lossy mode: the longest wait for an expert call of the answer."},
    "late_max": {"type": "integer", "minimum": 1,
      "description": "At most this many such calls; default: as many as the hub allows."},
    "speculative": {"oneOf": [{"enum": ["off", "auto"]},
        {"type": "integer", "minimum": 1, "maximum": 16}], "default": "auto",
      "description": "Tokens to draft in each step; the text does not depend on it."},
    "spans": {"enum": ["off", "auto"], "default": "auto",
      "description": "off: no worker computes whole layers of the answer (serve --spans)."},
    "open_objects": {"type": "boolean", "default": false,
      "description": "Schemas allow members that no keyword speaks of, as the standard has it."},
    "store": {"type": "boolean", "default": true,
      "description": "false: the hub keeps nothing of this request on disk (--kv-disk-mb)."},
    "pages": {"type": "string",
      "description": "The name of a text whose keys and values were sent (/v1/pages)."},
    "resumable": {"type": "boolean", "default": false,
      "description": "The stream continues for 60 s after a lost connection: /v1/streams."}}},
  "StoppedStream": {"type": "object", "required": ["id", "stopped"], "properties": {
    "id": {"type": "string"}, "stopped": {"const": true}}},
  "Nothing": {"type": "object", "description": "An empty object."},
  "Error": {"type": "object", "required": ["error"], "properties": {
    "error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
      "message": {"type": "string"}, "type": {"type": "string"},
      "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]},
      "n_prompt_tokens": {"type": "integer"}, "n_ctx": {"type": "integer"},
      "n_min_tokens": {"type": "integer"}, "n_max_tokens": {"type": "integer"}}}}}
})json";

OrderedJson request_schema(const char* own_fields, const char* required) {
    OrderedJson properties = OrderedJson::parse(own_fields);
    properties.update(OrderedJson::parse(sampling_fields));
    return {{"type", "object"},
            {"required", OrderedJson::array({required})},
            {"properties", std::move(properties)}};
}

OrderedJson all_schemas() {
    OrderedJson schemas = OrderedJson::parse(other_schemas);
    schemas.update(OrderedJson::parse(dialect_schemas()));
    schemas["ChatRequest"] = request_schema(chat_fields, "messages");
    schemas["CompletionRequest"] = request_schema(completion_fields, "prompt");
    return schemas;
}

OrderedJson json_content(const OrderedJson& schemas, const char* name) {
    MOEX_CHECK(schemas.contains(name), text("openapi: no schema ", name));
    const OrderedJson reference{{"$ref", text("#/components/schemas/", name)}};
    return {{"application/json", {{"schema", reference}}}};
}

OrderedJson answer_of(const char* description, const OrderedJson& content) {
    OrderedJson answer{{"description", description}};
    if (!content.empty()) answer["content"] = content;
    return answer;
}

const char* error_schema(Dialect dialect) {
    if (dialect == Dialect::anthropic) return "AnthropicError";
    return dialect == Dialect::ollama ? "OllamaError" : "Error";
}

OrderedJson operation_of(const DescribedRoute& route, const OrderedJson& schemas) {
    OrderedJson out{{"summary", route.summary}};

    const std::size_t open = route.path.find('{'), close = route.path.find('}');
    if (open != std::string::npos)
        out["parameters"] = {{{"name", route.path.substr(open + 1, close - open - 1)},
                              {"in", "path"},
                              {"required", true},
                              {"schema", {{"type", "string"}}}}};
    if (route.request)
        out["requestBody"] = {{"required", true},
                              {"content", json_content(schemas, route.request)}};
    if (route.takes_bytes)
        out["requestBody"] = {
            {"required", true},
            {"content", {{"application/octet-stream", {{"schema", {{"type", "string"}}}}}}}};

    const OrderedJson error = json_content(schemas, error_schema(route.dialect));
    OrderedJson& answers = out["responses"];
    answers["200"] = answer_of(
        "Done.", route.answer ? json_content(schemas, route.answer) : OrderedJson::object());
    if (route.request || route.takes_bytes)
        answers["400"] = answer_of("The body is not valid.", error);
    if (route.takes_key) answers["401"] = answer_of("A key is needed, or another key.", error);
    if (route.counts) {
        answers["429"] = answer_of("Too many requests; retry after Retry-After.", error);
        answers["503"] = answer_of("The hub cannot answer now; see Retry-After.", error);
    }

    // A hub demands keys of clients that are not on loopback, and of clients on loopback only if it
    // is configured so.
    if (route.takes_key)
        out["security"] = OrderedJson::array(
            {{{"bearer", OrderedJson::array()}}, {{"header", OrderedJson::array()}}});
    return out;
}

}  // namespace

std::string openapi_document(std::span<const DescribedRoute> routes, std::string_view version) {
    const OrderedJson schemas = all_schemas();
    OrderedJson paths = OrderedJson::object();
    for (const DescribedRoute& route : routes) {
        std::string method(route.method);
        for (char& c : method) c = static_cast<char>(c - 'A' + 'a');
        paths[route.path][method] = operation_of(route, schemas);
    }

    const OrderedJson document{
        {"openapi", "3.1.0"},
        {"info",
         {{"title", "MoEx hub"},
          {"version", std::string(version)},
          {"description",
           "The API of a Mixture-of-Experts model whose experts run in browsers and "
           "workers, in the dialects of OpenAI, Anthropic and Ollama."},
          {"license", {{"name", "Apache-2.0"}, {"identifier", "Apache-2.0"}}}}},
        {"paths", std::move(paths)},
        {"components",
         {{"schemas", schemas},
          {"securitySchemes",
           {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
            {"header", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}}}}}};
    return document.dump();
}

}  // namespace moex
