// The whole forward pass of a model on one GPU. For one sequence: tokens go in, logits stay there,
// and the likeliest token becomes the next step's input without having been on the host. For many
// (start(), advance()): rows of all of them in one pass over a shared cache, experts here or
// elsewhere.
// A step is one submission of kernels (decoder_ops.h); nothing is created after create().
// A row's arithmetic depends on its own sequence alone, so a prompt read in chunks of any size
// gives the same bits.
// Calls issue work and return; they come from the device's one thread.
// Source of the loop: Chen et al., "WeInfer", WWW 2025, sections 4.2 and 4.3.
#pragma once

#include <functional>
#include <memory>
#include <optional>
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
    bool likeliest = false;            // room for StepLogits::likeliest; of several sequences, set
    // Set where several sequences share the cache: pages of keys and values in all.
    std::uint32_t pages = 0;
    std::uint32_t lanes = 1;  // of several sequences: batches that may be under way at once
    KvKind kv_kind = KvKind::f32;
    // A table or a layer's experts lie in buffers of at most so many. 0: what the adapter binds.
    std::uint64_t weight_buffer_bytes = 0;
    // A row alone is computed by more lanes, which share fewer outputs: the same bits, sooner on a
    // GPU, later on a processor. Unset: unless the adapter is software.
    std::optional<bool> spread;
};

enum class StepLogits {
    none,
    last,       // of the last token
    every,      // of all tokens; needs GpuDecoderOptions::every_logit
    likeliest,  // of the last token, for read_likeliest(); needs GpuDecoderOptions::likeliest
};

// Rows of several sequences, computed together. Rows of one sequence follow each other as their
// positions do, and their keys and values enter the cache.
struct DecoderBatch {
    std::span<const StepRow> rows;  // first_page: where the pages of its sequence begin in `pages`
    std::span<const std::uint32_t> pages;  // one page table after the other
    std::uint32_t num_pages = 0;           // of the longest of them
    std::uint32_t num_logits = 0;          // of the last rows
    // Of these the first so many: their likeliest tokens, instead of their logits.
    std::uint32_t num_likeliest = 0;
};

// What experts that are elsewhere are asked, a row of each for a row of the batch.
struct RoutedRows {
    std::span<const float> x;               // [num_rows, hidden_size], normalised
    std::span<const std::uint32_t> routes;  // [num_rows, top_k, 2]: expert, its weight as f32 bits
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
    std::uint32_t context_tokens() const { return sizes_.row_pages * kv_page_tokens; }
    // Of a step, at the context's end.
    std::uint32_t rows_max() const { return rows_max(sizes_.row_pages); }
    // Of a step in which no sequence has more than so many pages.
    std::uint32_t rows_max(std::uint32_t num_pages) const;
    std::uint32_t logit_rows_max() const { return sizes_.logit_rows; }
    bool finds_likeliest() const { return sizes_.likeliest; }
    std::uint32_t num_pages() const { return sizes_.pages; }
    std::uint32_t num_lanes() const { return sizes_.lanes; }
    // What create() would choose for this device, for whoever wants to know whether it fits.
    static DecoderSizes sizes_of(const gpu::AdapterInfo& adapter, const DecoderModel& model,
                                 const GpuDecoderOptions& options);
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
    // The last step's logits, or of the batch whose pass was complete last, [rows that were asked
    // for, vocab_size]; of a batch, without those of num_likeliest.
    void read_logits(std::function<void(Result<std::span<const float>>)> done);
    // Forgets all tokens from `num_tokens` on. Chosen tokens that were not read are dropped.
    void rewind(std::uint32_t num_tokens);

    // Several sequences share a cache of GpuDecoderOptions::pages pages, and the caller says whose
    // each is; not beside feed() and what follows it. At most rows_max(batch.num_pages) rows,
    // logit_rows_max() of them with logits, which read_logits() gives in their order.
    // A batch in each lane may be under way: what a layer of one writes to the cache is there for
    // those that advance() computes after it. Logits of one are read before another's last
    // advance().
    void start(const DecoderBatch& batch, std::uint32_t lane = 0);
    // Computes layers up to the next whose experts are elsewhere, and gives its index; num_layers
    // when the pass is complete.
    std::uint32_t advance(std::uint32_t lane = 0);
    // What the layer that advance() named asks its experts.
    void read_routed(std::function<void(Result<RoutedRows>)> done, std::uint32_t lane = 0);
    // Their sums, [num_rows, hidden_size]; before the next advance().
    void answer(std::span<const float> y, std::uint32_t lane = 0);
    // After the last advance(): a list for each of the batch's num_likeliest rows; after a feed()
    // for StepLogits::likeliest one.
    void read_likeliest(std::function<void(Result<std::span<const LikeliestList>>)> done);
    void copy_page(std::uint32_t from, std::uint32_t to);

    // Of one greedy step at this point of the sequence.
    std::uint32_t dispatches_of_a_step() const;

  private:
    GpuDecoder(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes);
    Status make_readbacks();
    void write_rows(std::span<const StepRow> rows, std::uint32_t head_row, std::uint32_t part_pages,
                    std::uint32_t lane = 0);
    static void create_ops(std::shared_ptr<std::unique_ptr<GpuDecoder>> decoder,
                           std::function<void(Result<std::unique_ptr<GpuDecoder>>)> done);
    DecoderOps& ops() const { return *lanes_.front().ops; }
    std::uint32_t pages_at(std::uint32_t position) const { return position / kv_page_tokens + 1; }
    const std::vector<gpu::Command>& greedy_commands(std::uint32_t num_pages) const;
    void append_likeliest();

    static constexpr std::uint32_t num_readbacks = 2;

    struct Lane {
        std::unique_ptr<DecoderOps> ops;
        gpu::BufferId routed_readback;
        // Of a batch, between start() and its last layer.
        std::uint32_t rows = 0, pages = 0, num_logits = 0, num_likeliest = 0, next_layer = 0;
    };

    gpu::Device& device_;
    DecoderModel model_;
    DecoderSizes sizes_;
    std::unique_ptr<DecoderMemory> memory_;
    std::vector<Lane> lanes_;
    gpu::BufferId id_readbacks_[num_readbacks], logit_readback_, likeliest_readback_;
    std::uint32_t next_readback_ = 0;

    std::uint32_t num_tokens_ = 0, num_logits_ = 0, num_likeliest_ = 0;
    std::uint32_t num_chosen_ = 0, num_read_ = 0;
    bool has_choice_ = false;  // the rows' first is a chosen token

    std::vector<gpu::Command> commands_;
    mutable std::vector<gpu::Command> greedy_;  // of greedy_pages_ pages
    mutable std::uint32_t greedy_pages_ = 0;
    std::vector<StepRow> rows_;
    LifeGuard life_;
};

}  // namespace moex
