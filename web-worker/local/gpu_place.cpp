// The GPU of the browser as the place of a whole model.
#include <algorithm>
#include <optional>
#include <utility>

#include "web-worker/decoder/greedy_loop.h"
#include "web-worker/gpu/webgpu/webgpu_device.h"
#include "web-worker/local/gpu_sequence.h"
#include "web-worker/local/local_pages.h"
#include "web-worker/local/local_place.h"

namespace moex {
namespace {

// Rows of a step with drafts: one tile of a product.
constexpr std::uint32_t draft_rows = 8;

// Of a model with a recurrent state, whatever the share is, all keys and values are in the GPU's
// memory: they are few, and where it is short, the page asks for a shorter context.
GpuDecoderOptions options_for(const DecoderModel& model, const LocalMemory& memory) {
    const std::uint32_t wanted = std::min(model.context_tokens, memory.context_tokens_max);
    GpuDecoderOptions options{
        .context_tokens = wanted, .draft_rows = draft_rows, .likeliest = true};
    if (model.has_delta()) {
        const StateSlotSizes places = GpuSequence::places_for(model);
        options.state_slots = places.num_slots();
        options.journals = places.sequences_max;
        return options;
    }
    const std::uint32_t num_pages = (wanted + kv_page_tokens - 1) / kv_page_tokens;
    if (memory.kv_share > 1) options.slots = std::max(1u, num_pages / memory.kv_share);
    options.evicted = memory.evicted;
    return options;
}

class GpuPlace : public LocalPlace {
  public:
    // The latest place whose decoder was not made. The call that reports the failure still uses its
    // device, so that it lives until the next place is opened.
    static std::unique_ptr<GpuPlace>& failed() {
        static std::unique_ptr<GpuPlace> place;
        return place;
    }
    explicit GpuPlace(std::unique_ptr<gpu::Device> device) : device_(std::move(device)) {}

    SequenceDecoder& decoder() override { return *sequence_; }
    Status load_layer(std::uint32_t layer) override {
        MOEX_TRY(decoder_->load_layer(layer, *weights_));
        if (!decoder_->is_whole()) return {};
        weights_.reset();
        named_.reset();
        return {};
    }
    KvSource kv_source() const override { return source_; }
    PlaceFacts facts() const override {
        const gpu::AdapterInfo& adapter = device_->adapter();
        return {.adapter = adapter.description.empty() ? adapter.architecture : adapter.description,
                .is_software = adapter.software};
    }
    // With pages outside of the GPU's memory, or with a recurrent state, each step waits.
    std::unique_ptr<AnswerLoop> greedy_loop(std::uint32_t max_tokens,
                                            const std::vector<std::uint32_t>& stop_ids,
                                            TokenDrafts* drafts,
                                            AnswerLoop::Events events) override {
        if (decoder_->is_paged() || decoder_->model().has_delta()) return nullptr;
        return std::make_unique<GreedyLoop>(
            *decoder_,
            GreedyOptions{.max_tokens = max_tokens, .stop_ids = stop_ids, .drafts = drafts},
            std::move(events));
    }

    static void make(std::unique_ptr<GpuPlace> place, const TabModel& tab,
                     std::function<void(Result<std::unique_ptr<LocalPlace>>)> done) {
        const auto model = decoder_model_of(*tab.files);
        if (!model.ok()) return done(model.error());

        const GpuDecoderOptions options = options_for(*model, tab.memory);
        GpuPlace& self = *place;
        const DecoderSizes sizes = decoder_sizes_of(self.device_->adapter(), *model, options);
        self.named_ = std::make_unique<NamedWeights>(*tab.files, *model);
        self.weights_ = std::make_unique<CountedWeights>(
            *self.named_, DecoderMemory::needs_of(*model, sizes).weights, tab.progress);
        self.source_ = local_kv_source(tab.files->config(), options.kv_kind, {}, {});
        const auto held = std::make_shared<std::unique_ptr<GpuPlace>>(std::move(place));
        GpuDecoder::create(
            *self.device_, *model, options, *self.weights_,
            [held, done = std::move(done)](Result<std::unique_ptr<GpuDecoder>> made) {
                if (!made.ok()) {
                    failed() = std::move(*held);
                    return done(made.error());
                }
                (*held)->decoder_ = *std::move(made);
                (*held)->sequence_.emplace(*(*held)->decoder_);
                done(std::unique_ptr<LocalPlace>(std::move(*held)));
            });
    }

  private:
    std::unique_ptr<gpu::Device> device_;
    // The source of layers that are not loaded yet; null when the decoder is whole.
    std::unique_ptr<NamedWeights> named_;
    std::unique_ptr<CountedWeights> weights_;
    std::unique_ptr<GpuDecoder> decoder_;
    std::optional<GpuSequence> sequence_;
    KvSource source_;
};

}  // namespace

void open_place(const TabModel& model,
                std::function<void(Result<std::unique_ptr<LocalPlace>>)> done) {
    GpuPlace::failed().reset();
    gpu::open_webgpu_device(
        [model, done = std::move(done)](Result<std::unique_ptr<gpu::Device>> opened) {
            if (!opened.ok()) return done(opened.error());
            (*opened)->on_lost([on_lost = model.on_lost](gpu::Loss loss) {
                const bool is_memory = loss.kind == gpu::LossKind::out_of_memory;
                on_lost({is_memory ? ErrorCode::no_space : ErrorCode::device_lost, loss.reason});
            });
            GpuPlace::make(std::make_unique<GpuPlace>(*std::move(opened)), model, done);
        });
}

}  // namespace moex
