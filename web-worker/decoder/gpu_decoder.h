// The whole forward pass of a model on one GPU. For one sequence: tokens go in, logits stay on the
// GPU, and the likeliest token becomes the next step's input without a copy to the host. For
// several sequences (start(), advance()): one pass computes rows of all sequences over a shared
// cache, with the experts on this GPU or elsewhere.
//
// A step is one submission of kernels (decoder_ops.h); nothing is created after create(). A row's
// arithmetic depends on its own sequence alone, so a prompt that is read in chunks of any size
// gives the same bits. Calls issue work and return; all calls are made on the device's one thread.
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
#include "web-worker/decoder/decoder_options.h"
#include "web-worker/decoder/early_rows.h"
#include "web-worker/decoder/kv_rows.h"
#include "web-worker/decoder/paged_steps.h"
#include "web-worker/decoder/step_rows.h"
#include "web-worker/gpu/device.h"

namespace moex {

// Rows of several sequences that one pass computes together. Rows of the same sequence are listed
// in order of their positions, and their keys and values are written to the cache.
struct DecoderBatch {
    std::span<const StepRow> rows;         // StepRow::first_page is an index into `pages`
    std::span<const std::uint32_t> pages;  // page tables of the sequences, one after the other
    // The same for layers with a window, if they have pages of their own. Entries of pages that no
    // row sees are any numbers of pages.
    std::span<const std::uint32_t> window_pages = {};
    // For a model with a gated delta rule: the rows of each sequence.
    std::span<const DeltaRun> runs = {};
    std::uint32_t num_pages = 0;   // pages of the longest sequence in the batch
    std::uint32_t num_logits = 0;  // logits are computed for the last `num_logits` rows
    // The first `num_likeliest` of the rows with logits return their likeliest tokens instead of
    // logits.
    std::uint32_t num_likeliest = 0;
    bool reads_rows = false;  // read_rows() returns all rows after the final norm
};

// The output of a span: rows of the residual stream behind its last layer, and what the layers keep
// of the rows (DecoderMemory::span_kv_layer_bytes()).
struct SpanOutput {
    std::span<const float> x;  // [num_rows, hidden_size]
    // f16, each layer [num_rows, key then value, kv_size], or of a gated delta rule [num_rows,
    // inputs of the convolution, then b and a of each value head]
    ByteView kv;
};

// The input of experts that are computed elsewhere, with one row for each row of the batch.
struct RoutedRows {
    std::span<const float> x;  // [num_rows, hidden_size], normalised
    // [num_rows, top_k, 2]: expert id, router weight as f32 bits
    std::span<const std::uint32_t> routes;
};

// Computes all layers of a model on one GPU.
//
// Example of one greedy answer: feed(prompt, StepLogits::last); choose(); step(); step();
// read_chosen(3, done) gives the first three tokens of the answer.
// Example of a batch with experts elsewhere: start(batch); advance() returns layer 0;
// read_routed(); answer(y); advance() returns layer 1; ...; advance() returns num_layers;
// read_logits().
class GpuDecoder {
  public:
    using TokenIds = std::span<const std::uint32_t>;
    // Uploads the weights that `source` gives, layer by layer, as it prepares them; then compiles
    // the kernels. `source` is not used after it has prepared the last layer; `device` outlives the
    // decoder. A source that is destroyed before ends the load, and `done` is not called then.
    // Layers that the source did not have follow by load_layer().
    static void create(gpu::Device& device, const DecoderModel& model,
                       const GpuDecoderOptions& options, WeightSource& source,
                       std::function<void(Result<std::unique_ptr<GpuDecoder>>)> done);
    ~GpuDecoder();

    // A decoder whose last layers are still on their way. load_layer() uploads the rest of a layer.
    // begin_early() begins to read `tokens`, at most rows_max(), through the layers that are here;
    // each later layer is computed as soon as it and the layers before it are loaded. No logits are
    // computed, so that the caller leaves the prompt's last token out. on_layers(n) is called when
    // the GPU has computed the first n layers. The tokens count for num_tokens() once all layers
    // are computed; rewind() drops them before. All other steps require is_whole().
    //   layers 0 and 1 of 4 are here: begin_early(5 tokens) computes them; load_layer(2) and
    //   load_layer(3) compute one layer each; num_tokens() is 5
    bool is_whole() const { return num_loaded() == model_.num_layers; }
    // Returns the number of layers that are loaded, up to the first one that is not.
    std::uint32_t num_loaded() const;
    Status load_layer(std::uint32_t layer, WeightSource& source);
    Status begin_early(TokenIds tokens, std::function<void(std::uint32_t)> on_layers,
                       const DeltaRun* run = nullptr);
    bool reads_early() const { return !is_paged(); }

    const DecoderModel& model() const { return model_; }
    std::uint32_t vocab_size() const { return model_.vocab_size; }
    std::uint32_t num_layers() const { return model_.num_layers; }
    bool goes_back() const { return !model_.has_delta() || sizes_.journals > 0; }
    std::uint32_t context_tokens() const { return sizes_.row_pages * kv_page_tokens; }
    // Returns the row limit of a step at the end of the context.
    std::uint32_t rows_max() const { return rows_max(sizes_.row_pages); }
    // Returns the row limit of a step in which no sequence has more than `num_pages` pages.
    std::uint32_t rows_max(std::uint32_t num_pages) const;
    std::uint32_t logit_rows_max() const { return sizes_.logit_rows; }
    bool finds_likeliest() const { return sizes_.likeliest; }
    // Returns true if the GPU's memory has not room for all pages of the context. choose(), step()
    // and begin_early() are then not available.
    bool is_paged() const { return sizes_.staging_pages > 0; }
    std::uint32_t num_pages() const { return sizes_.pages; }
    std::uint32_t num_window_slots() const { return sizes_.window_slots; }
    std::uint32_t num_lanes() const { return sizes_.lanes; }
    std::uint32_t num_tokens() const { return num_tokens_; }
    std::uint64_t weight_bytes() const { return memory_->weight_bytes; }
    std::uint64_t kv_bytes() const { return memory_->kv_bytes; }
    // of a model with a gated delta rule: bytes of all states and journals
    std::uint64_t state_bytes() const { return memory_->state_bytes_all; }

    // The steps of one sequence: as in SequenceDecoder (sequence_decoder.h). `run` says which
    // states the step reads and writes, if the decoder has a journal; rewind() and resume() then
    // move no state.
    Status feed(TokenIds tokens, StepLogits logits, const DeltaRun* run = nullptr);
    // Makes the likeliest token by the last step's logits the input of the next step, and appends
    // it to the ring.
    void choose();
    // Computes one step for the token of the last choose(), then calls choose(). Returns overloaded
    // when the ring is full of unread tokens; invalid_argument at the end of the context.
    Status step();
    // Returns the number of chosen tokens that read_chosen() has not requested yet.
    std::uint32_t num_unread() const { return num_chosen_ - num_read_; }
    // Reads the first `count` unread tokens, at most half a ring, when the GPU has computed them.
    // At most two reads may be in flight.
    void read_chosen(std::uint32_t count, std::function<void(Result<TokenIds>)> done);
    // Reads the last step's logits, or the logits of the last complete batch: [rows with
    // logits, vocab_size]. For a batch, the rows of num_likeliest are left out.
    void read_logits(std::function<void(Result<std::span<const float>>)> done);
    // Chosen tokens that were not read are dropped.
    void rewind(std::uint32_t num_tokens);
    void resume(std::uint32_t num_tokens);

    // Starts a pass over `batch` for several sequences. They share a cache of
    // GpuDecoderOptions::pages pages, and the caller assigns the pages to sequences. Do not mix
    // start() and advance() with feed() and the other calls for one sequence. The batch has at most
    // rows_max(batch.num_pages) rows, and at most logit_rows_max() rows with logits, which
    // read_logits() returns in order.
    //
    // One batch per lane may be in flight: a batch sees the cache entries that a layer of another
    // batch wrote before its own advance() for that layer. Read the logits of a batch before the
    // last advance() of another.
    void start(const DecoderBatch& batch, std::uint32_t lane = 0);
    // Computes layers up to the next one whose experts are elsewhere, and returns the index of that
    // layer. Returns num_layers when the pass is complete.
    std::uint32_t advance(std::uint32_t lane = 0) { return advance_to(model_.num_layers, lane); }
    // Does the same, but stops before layer `end_layer` and returns that number.
    std::uint32_t advance_to(std::uint32_t end_layer, std::uint32_t lane);
    // Reads the input for the experts of the layer that advance() returned, to compute them
    // elsewhere; then starts the layer's shared expert. Call it before another lane's advance().
    void read_routed(std::function<void(Result<RoutedRows>)> done, std::uint32_t lane = 0);
    // Takes the weighted sums of the experts' outputs, [num_rows, hidden_size]. Call it before the
    // next advance().
    void answer(std::span<const float> y, std::uint32_t lane = 0);
    // Reads the rows of a batch with `reads_rows` after the final norm, [num_rows, hidden_size],
    // after its last advance(), and before that of another batch.
    void read_rows(std::function<void(Result<std::span<const float>>)> done, std::uint32_t lane);
    // Reads one list for each of the batch's num_likeliest rows, after the last advance(); or the
    // lists of a feed() with StepLogits::likeliest (one) or every_likeliest (one for each token).
    void read_likeliest(std::function<void(Result<std::span<const LikeliestList>>)> done);
    // For layers that others compute whole; needs sends_layers(). At the layer before which
    // advance_to() has stopped, read_residual() reads the rows of the residual stream, [num_rows,
    // hidden_size], before another lane's advance. skip_to() continues the pass before layer
    // `layer`, with the rows `x` that others computed.
    // Example of layers 2 to 6 of 8 elsewhere: advance_to(2) returns 2; read_residual(); skip_to(7,
    // x); write_kv_rows(); advance() continues with layer 7.
    bool sends_layers() const { return sizes_.sends_layers; }
    void read_residual(std::function<void(Result<std::span<const float>>)> done,
                       std::uint32_t lane);
    void skip_to(std::uint32_t layer, std::span<const float> x, std::uint32_t lane);
    // Returns the layer that the next advance() computes first.
    std::uint32_t next_layer(std::uint32_t lane) const { return lanes_[lane].next_layer; }
    // Copy keys and values of rows out of the cache and into it, for the layers [first_layer,
    // end_layer), none of which has a gated delta rule: f16 [layers, rows, key then value,
    // kv_size]. There are at most kv_rows_max() rows, with their pages and nothing else.
    std::uint32_t kv_rows_max() const { return sizes_.rows; }
    void read_kv_rows(const DecoderBatch& rows, std::uint32_t first_layer, std::uint32_t end_layer,
                      std::function<void(Result<ByteView>)> done);
    void write_kv_rows(const DecoderBatch& rows, std::uint32_t first_layer, std::uint32_t end_layer,
                       ByteView kv);
    // The same for a layer with a gated delta rule. read_kept() reads what the layer keeps of the
    // rows of a lane, f16 [rows, channels + 2 * value_heads], right after advance_to() has returned
    // the layer. take_kept() moves the states on as the layer does for rows of which this is kept,
    // by the runs of the lane's batch. read_state() reads the state before the rows of a run of the
    // lane's batch, as write_state() has it; it uses the last slot, which no run may name.
    void read_kept(std::uint32_t layer, std::uint32_t lane,
                   std::function<void(Result<ByteView>)> done);
    void take_kept(std::uint32_t layer, std::uint32_t lane, std::span<const float> kept);
    void read_state(std::uint32_t layer, std::uint32_t lane, std::size_t run,
                    std::function<void(Result<std::span<const float>>)> done);
    // These three move the rows of all layers. With window_slots they move those of layers with a
    // window (`is_window`), or of the others. kv_rows.h converts the rows of a page. `rows` has
    // kv_rows_of_page() bytes.
    void copy_page(std::uint32_t from, std::uint32_t to, bool is_window = false);
    void read_page(std::uint32_t page, std::span<std::byte> rows, std::function<void(Status)> done,
                   bool is_window = false);
    Status write_page(std::uint32_t page, ByteView rows, bool is_window = false);

    // For a span (DecoderModel::is_span, keys and values as f16). compute_span() computes its
    // layers for rows `x` of the residual stream, [rows, hidden_size]; the batch has no logits. One
    // call at a time: the next one follows `done`. write_span_kv() stores keys and values of the
    // batch's rows, which were computed elsewhere, in the order of SpanOutput::kv, without layers
    // that have a gated delta rule. clear_page(), clear_state() and clear_journal() overwrite with
    // zeros. All take effect in the order of the calls.
    void compute_span(const DecoderBatch& batch, std::span<const float> x,
                      std::function<void(Result<SpanOutput>)> done);
    void write_span_kv(const DecoderBatch& batch, ByteView kv);
    void clear_page(std::uint32_t page);

    // Store a state in a slot, and read it: of one layer with a gated delta rule its matrices
    // [value_heads, key_dim, value_dim], then the latest inputs of the convolution, [conv_taps - 1,
    // channels]; or all such layers one after the other, state_slot_bytes(). One read at a time.
    std::uint64_t state_slot_bytes() const;
    void write_state(std::uint32_t slot, std::uint32_t layer, std::span<const float> floats);
    void write_state(std::uint32_t slot, ByteView state);
    void read_state(std::uint32_t slot, std::span<std::byte> state,
                    std::function<void(Status)> done);
    void clear_state(std::uint32_t slot);
    void clear_journal(std::uint32_t journal);

    // Returns the number of dispatches in a greedy step at the current length of the sequence.
    std::uint32_t dispatches_of_a_step() const;

  private:
    GpuDecoder(gpu::Device& device, const DecoderModel& model, const DecoderSizes& sizes);
    Status make_readbacks();
    Status make_paged(EvictedPages& store);
    void write_runs(std::span<const DeltaRun> runs, std::uint32_t lane);
    void write_only_run(const DeltaRun* run, std::uint32_t num_rows);
    void write_copied_rows(const DecoderBatch& rows);
    std::vector<gpu::BufferId> kv_buffers(bool is_window) const;
    KvPageShape page_shape(bool is_window) const;
    void append_end_of_pass(std::uint32_t lane);
    void write_rows(std::span<const StepRow> rows, std::uint32_t head_row, std::uint32_t part_pages,
                    std::uint32_t lane = 0);
    static void create_ops(std::shared_ptr<std::unique_ptr<GpuDecoder>> decoder,
                           std::function<void(Result<std::unique_ptr<GpuDecoder>>)> done);
    DecoderOps& ops() const { return *lanes_.front().ops; }
    std::uint32_t pages_at(std::uint32_t position) const { return position / kv_page_tokens + 1; }
    const std::vector<gpu::Command>& greedy_commands(std::uint32_t num_pages) const;
    void append_likeliest(std::uint32_t num_lists);
    void run_paged(std::uint32_t head_row, std::uint32_t num_pages);
    // Reads the logits of rows [first, first + count) of those that have logits.
    void copy_logits(std::uint32_t first, std::uint32_t count,
                     std::function<void(Result<std::span<const float>>)> done);
    void copy_likeliest(std::uint32_t count,
                        std::function<void(Result<std::span<const LikeliestList>>)> done);
    void advance_early();

    static constexpr std::uint32_t num_readbacks = 2;

    struct Lane {
        std::unique_ptr<DecoderOps> ops;
        gpu::BufferId routed_readback;
        // State of a batch, between start() and its last layer.
        std::uint32_t rows = 0, pages = 0, num_logits = 0, num_likeliest = 0, next_layer = 0;
        std::uint32_t num_runs = 1;
        std::vector<DeltaRun> runs;
        bool reads_rows = false;
        bool is_whole = false;  // the rows have the output of the layer before next_layer
    };

    gpu::Device& device_;
    DecoderModel model_;
    DecoderSizes sizes_;
    std::unique_ptr<DecoderMemory> memory_;
    std::vector<Lane> lanes_;
    std::unique_ptr<PagedSteps> paged_;  // if is_paged()
    gpu::BufferId id_readbacks_[num_readbacks], logit_readback_, likeliest_readback_;
    gpu::BufferId span_readback_;   // of a span: x, then keys and values
    gpu::BufferId kv_readback_;     // of read_kv_rows()
    gpu::BufferId rows_readback_;   // of rows after the final norm, or of the residual stream
    gpu::BufferId page_readback_;   // made by the first read_page()
    gpu::BufferId state_readback_;  // made by the first read_state()
    Bytes page_bytes_;              // of write_page()
    std::uint32_t next_readback_ = 0;

    std::uint32_t num_tokens_ = 0, num_logits_ = 0, num_likeliest_ = 0;
    std::uint32_t num_chosen_ = 0, num_read_ = 0;
    bool has_choice_ = false;  // the next input row holds a chosen token

    std::optional<EarlyRows> early_;  // made by the first begin_early()

    std::vector<gpu::Command> commands_;
    // The commands of a greedy step whose sequence has greedy_pages_ pages.
    mutable std::vector<gpu::Command> greedy_;
    mutable std::uint32_t greedy_pages_ = 0;
    std::vector<StepRow> rows_;
    LifeGuard life_;
};

}  // namespace moex
