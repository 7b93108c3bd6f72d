// Runs one request for embeddings. An embedding is the mean of an input's rows after the model's
// final norm, normalised to length 1, unless the model has another form (EmbeddingForm). It depends
// on the tokens of the input alone, not on the other inputs of the request. Only a few inputs of a
// long list are in the engine at a time. If the engine's queue is full, the other inputs wait in
// the job. Threads: start() runs on a thread of the TextPool, inputs end on the engine's thread, a
// disconnect arrives on the connection's strand.
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
    std::string model;  // empty: the request names no model
    std::vector<TextInput> inputs;
    bool base64 = false;     // write each embedding as little-endian f32 in base64
    bool truncates = false;  // cut the end of an input that is too long
};

struct Embeddings {
    // [inputs][hidden_size], embeddings; normalised to length 1 unless the model says otherwise
    std::vector<std::vector<float>> rows;
    std::uint64_t prompt_tokens = 0;
    Duration took{}, queued{};
    std::string model;
    bool base64 = false;
};

// Reads and writes embeddings in one dialect.
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
    EmbeddingForm form;
    bool base64 = false;
    std::shared_ptr<RequestAccount> account;  // charged for the tokens; null: no account
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

    std::mutex mutex_;  // guards the following members
    // Empty once the request is answered or its client has disconnected.
    std::shared_ptr<HttpResponder> responder_;
    std::deque<std::size_t> todo_;
    std::vector<GenerationId> ids_;
    std::size_t num_running_ = 0, num_done_ = 0;
    Embeddings out_;
    std::uint64_t computed_tokens_ = 0;
};

}  // namespace moex
