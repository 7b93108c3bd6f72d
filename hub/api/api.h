// The API over the engine, in the dialects of OpenAI, Anthropic and Ollama: bodies in, texts
// and events out. Knows requests and responders, not sockets.
// The first byte of a stream leaves with its first token: what
// fails before that is a plain answer with its own status.
// Threads: bodies are read, templates rendered and texts tokenised
// on the TextPool's threads; a handler only queues the request there.
// Source: OpenAI API reference; llama.cpp's server tests for the order of a stream.
#pragma once

#include <memory>
#include <string>

#include "hub/api/http.h"
#include "hub/api/resumable.h"
#include "hub/api/text_pool.h"
#include "hub/engine/engine.h"
#include "hub/model/chat_template.h"
#include "hub/model/package/package.h"

namespace moex {

struct ApiDoor;
struct EmbeddingDoor;

struct ApiOptions {
    std::uint32_t default_max_tokens = 0;  // 0: as far as the context reaches
    std::uint32_t n_max = 8;
    std::uint32_t body_bytes_max = 1u << 20;
    std::uint32_t context_tokens = 0;  // prompt plus answer; 0: the model's own
    // temperature 0 where the request names none (--deterministic does not set this)
    bool prefer_greedy = false;
    bool any_model_name = false;  // a request may name any model; this one answers
    TextPoolOptions texts;
    ResumableOptions resumable;
    bool speculative = false;  // where moex.experts says nothing
    // Why "speculative" is refused; empty: it is not, and the engine has a speculator.
    std::string no_speculation = "this hub has no speculator.";
};

// Totals for /metrics, and latency samples handed to `observe`.
struct ApiObserver {
    std::function<void(const char* finish_reason)> on_finished;
    std::function<void(double ttft_s, double e2e_s, double mean_inter_token_s, double queue_s)>
        on_latency;
    // Whether a worker was caught with a false answer, until now. Any thread.
    std::function<bool(std::uint64_t worker)> has_lied;
};

class Api {
  public:
    // `tokenizer` and `chat_template` may be null (a package without
    // them): then prompts must be token ids, chat answers 400.
    Api(std::shared_ptr<const ModelPackage> package, std::shared_ptr<const Tokenizer> tokenizer,
        std::shared_ptr<const ChatTemplate> chat_template, Engine& engine, ApiOptions options,
        ApiObserver observer = {});
    ~Api();  // what waits for a thread is dropped

    // One handler for each of our routes; who calls it has matched path and method.
    // None blocks or throws; each answers, now or later, exactly once.
    using Responder = std::shared_ptr<HttpResponder>;
    void chat(HttpRequest request, Responder responder);
    void complete(HttpRequest request, Responder responder);
    void respond(HttpRequest request, Responder responder);  // /v1/responses
    void anthropic_message(HttpRequest request, Responder responder);
    void anthropic_count(HttpRequest request, Responder responder);
    void ollama_chat(HttpRequest request, Responder responder);
    void ollama_generate(HttpRequest request, Responder responder);
    void ollama_show(HttpRequest request, Responder responder);
    void ollama_tags(HttpRequest request, Responder responder);
    // `request.rest` is a stream's id.
    void resume_stream(HttpRequest request, Responder responder);
    void stop_stream(HttpRequest request, Responder responder);
    void ollama_embed(HttpRequest request, Responder responder);
    void embed(HttpRequest request, Responder responder);  // /v1/embeddings
    void tokenize(HttpRequest request, Responder responder);
    void detokenize(HttpRequest request, Responder responder);
    void apply_template(HttpRequest request, Responder responder);
    void props(HttpRequest request, Responder responder);
    void models(HttpRequest request, Responder responder);
    void model(HttpRequest request, Responder responder);  // `request.rest` is its id

    // Whether the chat template has a level of thinking. Any thread.
    bool has_reasoning_effort() const;

    // Once a second: ends streams to which nobody came back.
    void sweep_streams();

  private:
    struct State;
    using Answer = Checked<HttpResponse> (State::*)(const HttpRequest&) const;
    void queue_completion(HttpRequest request, const ApiDoor& door, Responder responder);
    void queue_embedding(HttpRequest request, const EmbeddingDoor& door, Responder responder);
    // `work` on a thread of the pool; not at all when the client has left meanwhile.
    void queue(HttpRequest request, Responder responder,
               std::function<void(const State&, const HttpRequest&, const Responder&)> work);
    void queue_answer(HttpRequest request, Responder responder, Answer answer);

    std::shared_ptr<State> state_;
    TextPool texts_;  // last, so that its threads end first
};

}  // namespace moex
