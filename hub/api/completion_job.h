// One completion request from parsed parameters to its answer: submits its sequences, turns
// their tokens into events or one body, and gives the sequences up when the client leaves.
// Threads: start() on a net thread, tokens on the
// engine's thread, disconnect on the connection's strand.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hub/api/answer_text.h"
#include "hub/api/api.h"
#include "hub/api/openai_request.h"
#include "hub/api/openai_response.h"
#include "hub/engine/engine.h"

namespace moex {

struct ApiJobInputs {
    Engine* engine = nullptr;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ApiObserver> observer;
    AnswerHeader header;
    CompletionParams params;
    std::vector<std::vector<TokenId>> prompts;  // each answered params.n times
    std::vector<std::string> echoes;            // per prompt: text in front of the answer
    std::vector<TokenId> stop_ids;
    std::uint32_t context_tokens = 0;
    TimePoint received_at{};
};

class ApiJob : public std::enable_shared_from_this<ApiJob> {
  public:
    ApiJob(ApiJobInputs inputs, std::shared_ptr<HttpResponder> responder);
    void start();

  private:
    struct Choice {
        AnswerText text;
        std::string content;  // of a whole answer
        std::vector<TokenText> tokens;
        std::string finish_reason;
        bool role_sent = false, ended = false, cancelling = false;
        TimePoint first_token_at{}, last_token_at{};
    };

    // Runs `event` now, or when all sequences are submitted:
    // until then the answer may still become a refusal.
    template <class Event>
    void deliver(Event event);
    void arm();
    void give_up();  // cancels every sequence
    void cancel_choice(std::size_t index);

    void on_token(std::size_t index, const SampledToken& token);
    void on_end(std::size_t index, const GenerationEnd& end);
    void on_error(const Error& error);
    void on_all_ended();

    void show(std::size_t index, AnswerText::Shown shown);
    void begin_stream();
    nlohmann::ordered_json chunk(std::size_t index, nlohmann::ordered_json payload,
                                 nlohmann::ordered_json logprobs, const char* finish_reason) const;
    nlohmann::ordered_json logprobs_json(std::span<const TokenText> tokens) const;
    Usage usage() const;

    ApiJobInputs inputs_;
    std::shared_ptr<HttpResponder> responder_;  // empty once answered
    // Touched by one thread at a time: start(), then the engine's.
    std::vector<Choice> choices_;
    std::size_t num_ended_ = 0;
    bool stream_begun_ = false, answered_ = false;
    GenerationStats totals_;

    std::mutex mutex_;  // of what follows
    bool armed_ = false, abandoned_ = false;
    std::vector<std::function<void()>> early_;
    std::vector<GenerationId> ids_;  // [choices], grows while submitting
};

// The HTTP answer to an error of the engine.
HttpResponse engine_error_response(const Error& error);

}  // namespace moex
