// Schemas of the bodies that clients of Anthropic, Ollama and OpenAI's Responses send and read.
#include "hub/api/openapi.h"

namespace moex {

namespace {

constexpr const char* schemas = R"json({
  "AnthropicBlock": {"type": "object", "required": ["type"], "properties": {
    "type": {"type": "string",
      "enum": ["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]},
    "text": {"type": "string"}, "thinking": {"type": "string"}, "signature": {"type": "string"},
    "id": {"type": "string"}, "name": {"type": "string"}, "input": {"type": "object"},
    "tool_use_id": {"type": "string"}, "is_error": {"type": "boolean"},
    "content": {"type": ["string", "array"]}}},
  "AnthropicMessageParam": {"type": "object", "required": ["role", "content"], "properties": {
    "role": {"type": "string", "enum": ["user", "assistant"]},
    "content": {"oneOf": [{"type": "string"},
      {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicBlock"}}]}}},
  "AnthropicTool": {"type": "object", "required": ["name"], "properties": {
    "name": {"type": "string"}, "description": {"type": "string"},
    "input_schema": {"type": "object"}, "type": {"const": "custom"}}},
  "AnthropicToolChoice": {"type": "object", "required": ["type"], "properties": {
    "type": {"type": "string", "enum": ["auto", "any", "tool", "none"]},
    "name": {"type": "string"}, "disable_parallel_tool_use": {"type": "boolean"}}},
  "AnthropicRequest": {"type": "object", "required": ["model", "messages", "max_tokens"],
    "description": "Neither answers nor prompts can be scored here: see ChatRequest.",
    "properties": {
      "model": {"type": "string"}, "max_tokens": {"type": "integer", "minimum": 1},
      "messages": {"type": "array", "minItems": 1,
        "items": {"$ref": "#/components/schemas/AnthropicMessageParam"}},
      "system": {"type": ["string", "array"]}, "stream": {"type": "boolean", "default": false},
      "stop_sequences": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
      "temperature": {"type": "number", "minimum": 0, "maximum": 2},
      "top_p": {"type": "number", "minimum": 0, "maximum": 1}, "top_k": {"type": "integer"},
      "tools": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicTool"}},
      "tool_choice": {"$ref": "#/components/schemas/AnthropicToolChoice"},
      "moex": {"$ref": "#/components/schemas/StreamWish"},
      "output_config": {"type": "object", "description":
        "format: {type: json_schema, schema}; effort, for templates that have it."},
      "thinking": {"type": "object", "required": ["type"],
        "description": "Thoughts are bounded by max_tokens alone.",
        "properties": {"type": {"type": "string", "enum": ["enabled", "adaptive", "disabled"]},
          "budget_tokens": {"type": "integer"}}}}},
  "AnthropicCountRequest": {"type": "object", "required": ["model", "messages"],
    "description": "As AnthropicRequest, without max_tokens.", "properties": {
      "model": {"type": "string"}, "system": {"type": ["string", "array"]},
      "messages": {"type": "array", "minItems": 1,
        "items": {"$ref": "#/components/schemas/AnthropicMessageParam"}},
      "tools": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicTool"}}}},
  "InputTokens": {"type": "object", "required": ["object", "input_tokens"], "properties": {
    "object": {"const": "response.input_tokens"}, "input_tokens": {"type": "integer"}}},
  "AnthropicCount": {"type": "object", "required": ["input_tokens"], "properties": {
    "input_tokens": {"type": "integer"}}},
  "AnthropicMessage": {"type": "object",
    "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
    "description": "With stream, events from message_start to message_stop.",
    "properties": {
      "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
      "model": {"type": "string"},
      "content": {"type": "array", "items": {"$ref": "#/components/schemas/AnthropicBlock"}},
      "stop_reason": {"type": "string",
        "enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
      "stop_sequence": {"type": ["string", "null"]},
      "usage": {"type": "object", "required": ["input_tokens", "output_tokens"], "properties": {
        "input_tokens": {"type": "integer", "description": "Without those read from the cache."},
        "cache_creation_input_tokens": {"type": "integer"},
        "cache_read_input_tokens": {"type": "integer"},
        "output_tokens": {"type": "integer"}}}}},
  "AnthropicError": {"type": "object", "required": ["type", "error"], "properties": {
    "type": {"const": "error"},
    "error": {"type": "object", "required": ["type", "message"], "properties": {
      "type": {"type": "string"}, "message": {"type": "string"}}}}},

  "ResponseRequest": {"type": "object", "required": ["input"],
    "description": "Answers have logprobs; prompts cannot be scored here: see ChatRequest.",
    "properties": {
    "model": {"type": "string"}, "input": {"type": ["string", "array"],
      "description": "Messages, function calls, their outputs, reasoning."},
    "instructions": {"type": ["string", "null"]}, "stream": {"type": "boolean", "default": false},
    "max_output_tokens": {"type": ["integer", "null"], "minimum": 1},
    "temperature": {"type": "number", "minimum": 0, "maximum": 2},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "tools": {"type": "array", "items": {"type": "object"}},
    "tool_choice": {"type": ["string", "object"]}, "parallel_tool_calls": {"type": "boolean"},
    "text": {"type": "object", "description": "format: text, json_object or json_schema."},
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
    "store": {"type": "boolean", "description": "Taken; nothing is stored."},
    "moex": {"$ref": "#/components/schemas/StreamWish"}, "metadata": {"type": "object"}}},
  "ResponseItem": {"type": "object", "required": ["id", "type", "status"], "properties": {
    "id": {"type": "string"}, "type": {"type": "string",
      "enum": ["reasoning", "message", "function_call"]},
    "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete"]},
    "role": {"const": "assistant"}, "content": {"type": "array", "items": {"type": "object"}},
    "summary": {"type": "array", "items": {"type": "object"}}, "call_id": {"type": "string"},
    "name": {"type": "string"}, "arguments": {"type": "string"}}},
  "Response": {"type": "object", "required": ["id", "object", "status", "output", "usage"],
    "description": "With stream, events from response.created to response.completed.",
    "properties": {
      "id": {"type": "string"}, "object": {"const": "response"}, "created_at": {"type": "integer"},
      "status": {"type": "string", "enum": ["in_progress", "completed", "incomplete", "failed"]},
      "error": {"type": ["object", "null"]}, "incomplete_details": {"type": ["object", "null"]},
      "model": {"type": "string"},
      "output": {"type": "array", "items": {"$ref": "#/components/schemas/ResponseItem"}},
      "instructions": {"type": ["string", "null"]}, "metadata": {"type": "object"},
      "max_output_tokens": {"type": ["integer", "null"]}, "temperature": {"type": "number"},
      "parallel_tool_calls": {"type": "boolean"}, "previous_response_id": {"type": "null"},
      "store": {"const": false}, "text": {"type": "object"},
      "tool_choice": {"type": ["string", "object"]},
      "tools": {"type": "array", "items": {"type": "object"}}, "top_p": {"type": "number"},
      "truncation": {"const": "disabled"},
      "usage": {"type": ["object", "null"],
        "required": ["input_tokens", "output_tokens", "total_tokens"], "properties": {
          "input_tokens": {"type": "integer"}, "input_tokens_details": {"type": "object"},
          "output_tokens": {"type": "integer"}, "output_tokens_details": {"type": "object"},
          "total_tokens": {"type": "integer"}}}}},

  "OllamaOptions": {"type": "object", "properties": {
    "num_predict": {"type": "integer", "description": "Below 1: as far as the context reaches."},
    "temperature": {"type": "number"}, "top_p": {"type": "number"}, "top_k": {"type": "integer"},
    "min_p": {"type": "number"}, "seed": {"type": "integer"}, "stop": {"type": ["string", "array"]},
    "repeat_penalty": {"type": "number"}, "presence_penalty": {"type": "number"},
    "frequency_penalty": {"type": "number"}}},
  "OllamaChatRequest": {"type": "object", "required": ["model", "messages"],
    "description": "Answers have logprobs; prompts cannot be scored here: see ChatRequest.",
    "properties": {
    "model": {"type": "string", "description": "NAME or NAME:latest."},
    "messages": {"type": "array", "items": {"type": "object"}},
    "tools": {"type": "array", "items": {"$ref": "#/components/schemas/Tool"}},
    "tool_choice": {"type": ["string", "object"], "description": "As in ChatRequest."},
    "parallel_tool_calls": {"type": "boolean"},
    "format": {"type": ["string", "object"], "description": "json, or a schema."},
    "stream": {"type": "boolean", "default": true}, "think": {"type": ["boolean", "string"]},
    "options": {"$ref": "#/components/schemas/OllamaOptions"},
    "logprobs": {"type": "boolean"}, "top_logprobs": {"type": "integer"}}},
  "OllamaGenerateRequest": {"type": "object", "required": ["model"], "properties": {
    "model": {"type": "string"}, "prompt": {"type": "string"}, "system": {"type": "string"},
    "suffix": {"type": "string", "description": "The answer stands between prompt and suffix."},
    "raw": {"type": "boolean", "description": "Without the chat template."},
    "format": {"type": ["string", "object"]}, "stream": {"type": "boolean", "default": true},
    "think": {"type": ["boolean", "string"]},
    "options": {"$ref": "#/components/schemas/OllamaOptions"},
    "logprobs": {"type": "boolean"}, "top_logprobs": {"type": "integer"}}},
  "InfillRequest": {"type": "object", "required": ["input_prefix", "input_suffix"],
    "description": "Also the fields of CompletionRequest. A prompt that is too long is cut.",
    "properties": {
    "input_prefix": {"type": "string"}, "input_suffix": {"type": "string"},
    "input_extra": {"type": "array", "description": "Other files of the project.", "items": {
      "type": "object", "required": ["text"], "properties": {
        "text": {"type": "string"}, "filename": {"type": "string"}}}},
    "prompt": {"type": "string", "description": "Text behind input_prefix, which is not cut."},
    "n_predict": {"type": "integer", "description": "-1: to the end of the context; 0: none."},
    "stream": {"type": "boolean", "default": false}, "temperature": {"type": "number"},
    "top_p": {"type": "number"}, "top_k": {"type": "integer"}, "min_p": {"type": "number"},
    "seed": {"type": "integer"}, "stop": {"type": ["string", "array"]},
    "response_fields": {"type": "array", "items": {"type": "string"},
      "description": "Members of the answer to return, e.g. timings/prompt_n."}}},
  "Infill": {"type": "object", "required": ["content", "stop"], "properties": {
    "index": {"type": "integer"}, "content": {"type": "string"},
    "tokens": {"type": "array", "items": {"type": "integer"}}, "id_slot": {"type": "integer"},
    "stop": {"type": "boolean"}, "model": {"type": "string"},
    "tokens_predicted": {"type": "integer"}, "tokens_evaluated": {"type": "integer"},
    "has_new_line": {"type": "boolean"},
    "truncated": {"type": "boolean", "description": "Whether the prompt was cut."},
    "stop_type": {"type": "string", "enum": ["eos", "limit", "word"]},
    "stopping_word": {"type": "string"}, "tokens_cached": {"type": "integer"},
    "timings": {"$ref": "#/components/schemas/Timings"},
    "moex": {"$ref": "#/components/schemas/Provenance"}}},
  "OllamaChat": {"type": "object", "required": ["model", "created_at", "message", "done"],
    "properties": {
      "model": {"type": "string"}, "created_at": {"type": "string"},
      "message": {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"const": "assistant"}, "content": {"type": "string"},
        "thinking": {"type": "string"},
        "tool_calls": {"type": "array", "items": {"type": "object"}}}},
      "logprobs": {"type": "array", "items": {"type": "object"}},
      "done": {"type": "boolean"}, "done_reason": {"type": "string",
        "enum": ["stop", "length", "load"]},
      "total_duration": {"type": "integer", "description": "Nanoseconds, as all durations."},
      "load_duration": {"type": "integer", "description": "Waiting for a place."},
      "prompt_eval_count": {"type": "integer"}, "prompt_eval_duration": {"type": "integer"},
      "eval_count": {"type": "integer"}, "eval_duration": {"type": "integer"}}},
  "OllamaText": {"type": "object", "required": ["model", "created_at", "response", "done"],
    "properties": {
      "model": {"type": "string"}, "created_at": {"type": "string"},
      "response": {"type": "string"}, "thinking": {"type": "string"},
      "logprobs": {"type": "array", "items": {"type": "object"}},
      "done": {"type": "boolean"}, "done_reason": {"type": "string",
        "enum": ["stop", "length", "load"]},
      "total_duration": {"type": "integer"}, "load_duration": {"type": "integer"},
      "prompt_eval_count": {"type": "integer"}, "prompt_eval_duration": {"type": "integer"},
      "eval_count": {"type": "integer"}, "eval_duration": {"type": "integer"}}},
  "OllamaEmbedRequest": {"type": "object", "required": ["model", "input"], "properties": {
    "model": {"type": "string"}, "input": {"type": ["string", "array"]},
    "truncate": {"type": "boolean", "default": true,
      "description": "An input longer than the context loses its end."}}},
  "OllamaEmbeddings": {"type": "object", "required": ["model", "embeddings"], "properties": {
    "model": {"type": "string"},
    "embeddings": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
    "total_duration": {"type": "integer"}, "load_duration": {"type": "integer"},
    "prompt_eval_count": {"type": "integer"}}},
  "OllamaEmbeddingRequest": {"type": "object", "required": ["model", "prompt"], "properties": {
    "model": {"type": "string"}, "prompt": {"type": "string"}}},
  "OllamaEmbedding": {"type": "object", "required": ["embedding"], "properties": {
    "embedding": {"type": "array", "items": {"type": "number"}}}},
  "EmbeddingRequest": {"type": "object", "required": ["input"], "properties": {
    "model": {"type": "string"},
    "input": {"oneOf": [{"type": "string"},
        {"type": "array", "items": {"type": ["string", "integer", "array"]}}],
      "description": "A text, up to 2048 of them, token ids, or several arrays of those."},
    "encoding_format": {"type": "string", "enum": ["float", "base64"], "default": "float",
      "description": "base64: little-endian f32."}}},
  "EmbeddingList": {"type": "object", "required": ["object", "data", "model", "usage"],
    "properties": {
      "object": {"const": "list"}, "model": {"type": "string"},
      "data": {"type": "array", "items": {"type": "object",
        "required": ["object", "index", "embedding"], "properties": {
          "object": {"const": "embedding"}, "index": {"type": "integer"},
          "embedding": {"oneOf": [{"type": "string"},
            {"type": "array", "items": {"type": "number"}}]}}}},
      "usage": {"type": "object", "required": ["prompt_tokens", "total_tokens"], "properties": {
        "prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}}}}},
  "OllamaDetails": {"type": "object", "properties": {
    "parent_model": {"type": "string"}, "format": {"type": "string"},
    "family": {"type": "string"}, "families": {"type": "array", "items": {"type": "string"}},
    "parameter_size": {"type": "string"}, "quantization_level": {"type": "string"}}},
  "OllamaTags": {"type": "object", "required": ["models"], "properties": {
    "models": {"type": "array", "items": {"type": "object", "required": ["name", "model"],
      "properties": {
        "name": {"type": "string"}, "model": {"type": "string"},
        "modified_at": {"type": "string"}, "size": {"type": "integer"},
        "digest": {"type": "string"},
        "details": {"$ref": "#/components/schemas/OllamaDetails"}}}}}},
  "OllamaShowRequest": {"type": "object", "required": ["model"], "properties": {
    "model": {"type": "string"}}},
  "OllamaModel": {"type": "object", "required": ["details", "model_info", "capabilities"],
    "properties": {
      "modelfile": {"type": "string"}, "parameters": {"type": "string"},
      "template": {"type": "string"}, "modified_at": {"type": "string"},
      "details": {"$ref": "#/components/schemas/OllamaDetails"},
      "model_info": {"type": "object"},
      "capabilities": {"type": "array", "items": {"type": "string"}}}},
  "OllamaVersion": {"type": "object", "required": ["version"], "properties": {
    "version": {"type": "string"}}},
  "OllamaError": {"type": "object", "required": ["error"], "properties": {
    "error": {"type": "string"}}},

  "Prompt": {"type": "object", "required": ["prompt"], "properties": {
    "prompt": {"type": "string"}}},
  "Props": {"type": "object", "required": ["default_generation_settings", "chat_template"],
    "properties": {
      "default_generation_settings": {"type": "object", "properties": {
        "n_ctx": {"type": "integer"}, "params": {"type": "object"}}},
      "model_alias": {"type": "string"}, "chat_template": {"type": "string"},
      "modalities": {"type": "object"}}}
})json";

}  // namespace

const char* dialect_schemas() { return schemas; }

}  // namespace moex
