// A whole model on a processor, for one sequence: the hub's own decoder (hub/engine/decoder.h) and
// its own experts, behind the interface of the loops that answer. With the settings that a hub has
// by default, its words are the hub's: products of integers have equal bits on all instruction
// sets. Sums in f32 (norms, attention, routers) are added in the order of the instruction set's
// lanes, so their last bits may differ from another machine's.
//
// A step occupies the thread until it has ended. So a fed step waits for a turn of the thread's
// event loop (`Later`), and messages, such as a cancel, are heard between two steps:
//   feed(32 of 70 tokens), feed(32), feed(6), read_logits(): four turns; drop_steps() after the
//   first turn leaves a sequence of 32 tokens
// Of a model with a gated delta rule, copies of the recurrent state at ends of pages are kept,
// within `state_bytes_max`. A text that is edited goes on from the last one before the edit. Pages
// that return go to their place in the cache one by one, and count once the state behind them has
// come; so a text of any length is in memory once.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/model/package/package.h"
#include "protocol/kv_page.h"
#include "protocol/life_guard.h"
#include "web-worker/decoder/sequence_decoder.h"

namespace moex {

// Measured rates of a processor; prompts are read in steps of many rows.
struct ProcessorSpeed {
    double prompt_tokens_per_s = 0, answer_tokens_per_s = 0;
};

// The memory that a model takes on a processor, before it is loaded.
struct ProcessorMemory {
    std::uint64_t weight_bytes = 0;   // at most so many
    std::uint64_t kv_page_bytes = 0;  // of kv_page_tokens tokens
    std::uint64_t state_bytes = 0;    // of recurrent states, with the copies that are kept
};
ProcessorMemory processor_memory(const ModelConfig& config, const ExpertShape& experts,
                                 ExpertDtype expert_dtype);
// Returns the number of tokens, whole pages up to `context_tokens_max`, whose keys and values fit
// into `bytes_max` beside the weights. Error no_space, in words for people: fewer than
// `context_tokens_min` fit.
Result<std::uint32_t> context_that_fits(const ProcessorMemory& memory, std::uint64_t bytes_max,
                                        std::uint32_t context_tokens_min,
                                        std::uint32_t context_tokens_max);

class ProcessorDecoder final : public SequenceDecoder {
  public:
    // Calls its argument in a later turn of the thread's event loop.
    using Later = std::function<void(std::function<void()>)>;

    // Packs the hub's matrices for this processor. The experts of each layer follow by
    // load_layer(). `context_tokens` is rounded up to whole pages.
    static Result<std::unique_ptr<ProcessorDecoder>> create(
        std::shared_ptr<const ModelPackage> package, std::uint32_t context_tokens,
        std::size_t num_threads, Later later);

    // Packs the experts of a layer; layers are loaded in order. A dense layer has none.
    Status load_layer(std::uint32_t layer);
    std::uint32_t num_loaded() const { return num_loaded_; }
    // Computes a few rows and drops them. Requires all layers, and an empty sequence.
    Result<ProcessorSpeed> measure();
    // Returns what determines the bits of this decoder's pages, except the hashes of the files.
    KvSource kv_source() const;

    std::uint32_t vocab_size() const override { return config().vocab_size; }
    std::uint32_t num_layers() const override { return config().num_layers; }
    bool goes_back() const override { return true; }
    std::uint32_t context_tokens() const override { return num_pages_ * kv_page_tokens; }
    std::uint32_t num_tokens() const override { return num_tokens_; }
    std::uint32_t rows_max() const override;
    std::uint32_t logit_rows_max() const override;
    bool is_whole() const override { return num_loaded_ == num_layers(); }

    Status feed(TokenIds tokens, StepLogits logits) override;
    void read_logits(std::function<void(Result<std::span<const float>>)> done) override;
    void read_likeliest(std::function<void(Result<std::span<const LikeliestList>>)> done) override;
    void drop_steps() override;
    void rewind(std::uint32_t num_tokens) override;
    void resume(std::uint32_t num_tokens) override { rewind(num_tokens); }
    std::uint64_t state_bytes() const override { return sizeof(float) * state_floats(); }
    bool keeps_state(std::uint32_t num_tokens) const override {
        return states_.contains(num_tokens);
    }
    void hold_state(std::uint32_t num_tokens) override { held_state_ = num_tokens; }
    void read_state(std::uint32_t num_tokens, std::span<std::byte> state,
                    std::function<void(Status)> done) override;
    Status write_state(std::uint32_t num_tokens, ByteView state) override;
    // A model of which some layers see a window only has no pages that leave: unsupported.
    void read_page(std::uint32_t page, std::span<std::byte> rows,
                   std::function<void(Status)> done) override;
    Status write_page(std::uint32_t page, ByteView rows) override;

  private:
    struct Step {
        std::vector<TokenId> tokens;
        StepLogits logits = StepLogits::none;
    };
    using LogitsRead = std::function<void(Result<std::span<const float>>)>;

    ProcessorDecoder(std::shared_ptr<const ModelPackage> package, std::uint32_t num_pages,
                     std::size_t num_threads, Later later);
    const ModelConfig& config() const { return package_->config(); }
    Status check(TokenIds tokens, StepLogits logits) const;
    Status check_page(std::uint32_t page, std::size_t size_bytes) const;
    Status compute(const Step& step);
    Status compute_rows(const Step& step);
    std::size_t rows_of_next(std::uint32_t first, std::size_t num_left) const;
    bool has_states() const { return config().has_delta_net(); }
    std::size_t state_floats() const;
    std::uint32_t states_max() const;
    void keep_state();
    void add_state(std::uint32_t num_tokens, std::vector<float> state);
    void go_back_to_state(std::uint32_t num_tokens);
    void drop_written();
    void copy_rows(std::uint32_t page, std::span<std::byte> rows) const;
    void take_turn();
    void on_turn();
    void give_up(Error error);

    std::shared_ptr<const ModelPackage> package_;
    Later later_;
    Arithmetic arithmetic_;
    ThreadPool threads_;
    std::unique_ptr<Decoder> decoder_;
    std::unique_ptr<LocalExperts> experts_;
    std::uint32_t num_pages_ = 0, num_loaded_ = 0;
    KvCache cache_;
    KvCache::Sequence sequence_;

    // Recurrent states by the tokens that they have read.
    std::map<std::uint32_t, std::vector<float>> states_;
    std::uint32_t held_state_ = 0;
    // The pages before this one were written to the cache, ahead of the sequence's tokens, which
    // they become with a state; 0: none.
    std::uint32_t written_end_ = 0;

    std::uint32_t num_tokens_ = 0;  // of the sequence, and of the steps that wait
    std::deque<Step> waiting_;
    bool has_turn_ = false;        // a turn of the event loop is asked for
    LogitsRead reading_;           // waits for the last step; empty: nobody reads
    StepResult result_;            // of the last step
    std::optional<Error> failed_;  // why steps were dropped
    LifeGuard life_;
};

}  // namespace moex
