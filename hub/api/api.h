// The OpenAI-compatible API over the engine: bodies in, texts
// and events out. Knows requests and responders, not sockets.
//   POST /v1/chat/completions, POST /v1/completions, GET /v1/models (and /v1/models/ID), POST
//   /tokenize, POST /detokenize
// The first byte of a stream leaves with its first token: what
// fails before that is a plain answer with its own status.
// Source: OpenAI API reference; llama.cpp's server tests for the order of a stream.
#pragma once

#include <memory>
#include <string>

#include "hub/api/http.h"
#include "hub/engine/engine.h"
#include "hub/model/chat_template.h"
#include "hub/model/package/package.h"

namespace moex {

struct ApiOptions {
    std::uint32_t default_max_tokens = 512;
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    std::uint32_t context_tokens = 0;  // prompt plus answer; 0: the model's own
    bool prefer_greedy =
        false;  // temperature 0 where the request names none (--deterministic does not set this)
};

// Totals for /metrics, and latency samples handed to `observe`.
struct ApiObserver {
    std::function<void(const char* finish_reason)> on_finished;
    std::function<void(double ttft_s, double e2e_s, double mean_inter_token_s, double queue_s)>
        on_latency;
};

class Api {
  public:
    // `tokenizer` and `chat_template` may be null (a package without
    // them): then prompts must be token ids, chat answers 400.
    Api(std::shared_ptr<const ModelPackage> package, std::shared_ptr<const Tokenizer> tokenizer,
        std::shared_ptr<const ChatTemplate> chat_template, Engine& engine, ApiOptions options,
        ApiObserver observer = {});
    ~Api();
    // Handles a request whose path is one of ours; answers
    // 404 or 405 otherwise. Never blocks, never throws.
    void handle(const HttpRequest& request, std::shared_ptr<HttpResponder> responder);

  private:
    struct State;
    std::shared_ptr<State> state_;
};

// {"error":{"message","type","code","param"}} with the type and status that OpenAI clients expect.
HttpResponse api_error(unsigned status, std::string_view message, std::string_view code = {},
                       std::string_view param = {});

}  // namespace moex
