// One request for embeddings: each input's rows behind the model's final norm, their mean, at
// length 1. An input's numbers depend on nothing but its tokens: not on what stands beside it.
// Of a long list few are in the engine at a time, and a full queue makes the rest wait.
// Threads: start() on a thread of the TextPool, ends on the engine's, disconnect on the
// connection's strand.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hub/api/api_options.h"
#include "hub/api/http.h"
#include "hub/api/text_inputs.h"
#include "hub/engine/engine.h"

namespace moex {

struct EmbeddingParams {
    std::string model;  // empty: not named
    std::vector<TextInput> inputs;
    bool base64 = false;     // little-endian f32, instead of numbers
    bool truncates = false;  // an input that is too long loses its end
};

struct Embeddings {
    std::vector<std::vector<float>> rows;  // [inputs][hidden_size], of length 1
    std::uint64_t prompt_tokens = 0;
    Duration took{}, queued{};
    std::string model;
    bool base64 = false;
};

// A dialect's words for it.
struct EmbeddingEndpoint {
    Checked<EmbeddingParams> (*read)(const OrderedJson& body, std::size_t vocab_size) = nullptr;
    OrderedJson (*write)(const Embeddings& embeddings) = nullptr;
};
extern const EmbeddingEndpoint openai_embedding_endpoint;

struct EmbeddingJobInputs {
    Engine* engine = nullptr;
    std::shared_ptr<const ApiObserver> observer;
    const EmbeddingEndpoint* endpoint = nullptr;
    std::vector<std::vector<TokenId>> prompts;
    std::string model, client;
    bool base64 = false;
    std::shared_ptr<RequestAccount> account;  // null: nobody
    TimePoint received_at{};
};

class EmbeddingJob : public std::enable_shared_from_this<EmbeddingJob> {
  public:
    EmbeddingJob(EmbeddingJobInputs inputs, std::shared_ptr<HttpResponder> responder);
    ~EmbeddingJob();  // settles the account
    void start();

  private:
    void submit_more();
    bool submit(std::size_t index);
    void on_end(std::size_t index, const GenerationEnd& end);
    void fail(const Refusal& refusal);
    void finish(std::shared_ptr<HttpResponder> responder);
    void give_up();

    const EmbeddingJobInputs inputs_;

    std::mutex mutex_;                          // of what follows
    std::shared_ptr<HttpResponder> responder_;  // empty once answered, or left
    std::deque<std::size_t> todo_;
    std::vector<GenerationId> ids_;
    std::size_t num_running_ = 0, num_done_ = 0;
    Embeddings out_;
    std::uint64_t computed_tokens_ = 0;
};

}  // namespace moex
