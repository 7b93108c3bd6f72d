// The whole forward pass of a model on one GPU, for one sequence: tokens go in, logits stay there,
// and the likeliest token becomes the next step's input without having been on the host.
// A step is one submission of kernels (decoder_ops.h); nothing is created after create().
// A row's arithmetic depends on its own sequence alone, so a prompt read in chunks of any size
// gives the same bits.
// Calls issue work and return; they come from the device's one thread.
// Source of the loop: Chen et al., "WeInfer", WWW 2025, sections 4.2 and 4.3.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/decoder/decoder_model.h"
#include "web-worker/decoder/decoder_ops.h"
#include "web-worker/decoder/step_rows.h"
#include "web-worker/gpu/device.h"

namespace moex {

struct GpuDecoderOptions {
    std::uint32_t context_tokens = 0;  // room in the cache; 0: the model's own context
    std::uint32_t rows_max = 64;       // tokens of a prompt that one step reads at most
    std::uint32_t ring_ids = 256;      // a power of two: tokens chosen and not yet read, at most
    bool every_logit = false;          // room for the logits of all rows of a step
    // A table or a layer's experts lie in buffers of at most so many. 0: what the adapter binds.
    std::uint64_t weight_buffer_bytes = 0;
};

enum class StepLogits {
    none,
    last,   // of the last token
    every,  // of all tokens; needs GpuDecoderOptions::every_logit
};

class GpuDecoder {
  public:
    using TokenIds = std::span<const std::uint32_t>;

    // Uploads the weights that `source` gives, then compiles the kernels; `source` is not needed
    // after this call has returned. `device` outlives the decoder.
    static void create(gpu::Device& device, const DecoderModel& model,
                       const GpuDecoderOptions& options, WeightSource& source,
                       std::function<void(Result<std::unique_ptr<GpuDecoder>>)> done);
    ~GpuDecoder();

    const DecoderModel& model() const { return model_; }
    std::uint32_t context_tokens() const { return sizes_.pages * kv_page_tokens; }
    std::uint32_t rows_max() const { return sizes_.rows; }
    std::uint32_t num_tokens() const { return num_tokens_; }  // in the cache
    std::uint64_t weight_bytes() const { return memory_->weight_bytes; }
    std::uint64_t kv_bytes() const { return memory_->kv_bytes; }

    // `tokens` continue the sequence: 1 to rows_max() of them, within the vocabulary and the
    // context; otherwise an error, and nothing was done.
    Status feed(TokenIds tokens, StepLogits logits);
    // Takes the likeliest token by the last step's logits as the next step's input, and into the
    // ring.
    void choose();
    // One step of what choose() took, and choose(). overloaded when the ring is full of tokens
    // that nobody read; invalid_argument at the end of the context.
    Status step();
    // How many chosen tokens were not asked for by read_chosen() yet.
    std::uint32_t num_unread() const { return num_chosen_ - num_read_; }
    // The first `count` of them, at most half a ring, once the GPU has them. Up to two readings may
    // be under way.
    void read_chosen(std::uint32_t count, std::function<void(Result<TokenIds>)> done);
    // The last step's logits, [rows that were asked for, vocab_size].
    void read_logits(std::function<void(Result<std::span<const float>>)> done);
    // Forgets all tokens from `num_tokens` on. Chosen tokens that were not read are dropped.
    void rewind(std::uint32_t num_tokens);

    // Of one greedy step at this point of the sequence.
    std::uint32_t dispatches_of_a_step() const;

  private:
    GpuDecoder(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes);
    Status make_readbacks();
    void write_rows(TokenIds tokens, std::uint32_t head_row);
    std::uint32_t pages_at(std::uint32_t position) const { return position / kv_page_tokens + 1; }
    const std::vector<gpu::Command>& greedy_commands(std::uint32_t num_pages) const;

    static constexpr std::uint32_t num_readbacks = 2;

    gpu::Device& device_;
    DecoderModel model_;
    DecoderSizes sizes_;
    std::unique_ptr<DecoderMemory> memory_;
    std::unique_ptr<DecoderOps> ops_;
    gpu::BufferId id_readbacks_[num_readbacks], logit_readback_;
    std::uint32_t next_readback_ = 0;

    std::uint32_t num_tokens_ = 0, num_logits_ = 0;
    std::uint32_t num_chosen_ = 0, num_read_ = 0;
    bool has_choice_ = false;  // the rows' first is a chosen token

    std::vector<gpu::Command> commands_;
    mutable std::vector<gpu::Command> greedy_;  // of greedy_pages_ pages
    mutable std::uint32_t greedy_pages_ = 0;
    std::vector<std::uint32_t> row_words_;
    LifeGuard life_;
};

}  // namespace moex
