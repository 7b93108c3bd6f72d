// The processor of the browser as the place of a whole model, for browsers without WebGPU.
#include <emscripten.h>

#include <utility>

#include "web-worker/local/local_place.h"
#include "web-worker/local/turn_bridge.h"
#include "web-worker/processor/processor_decoder.h"

namespace moex {
namespace {

// The smallest context that is useful for a chat.
constexpr std::uint32_t context_tokens_min = 512;

// Functions that wait for a turn of the worker's event loop.
std::vector<std::function<void()>>& waiting() {
    static std::vector<std::function<void()>> functions;
    return functions;
}
void call_later(std::function<void()> function) {
    waiting().push_back(std::move(function));
    if (waiting().size() == 1) mx_ask_for_turn();
}

class ProcessorPlace : public LocalPlace {
  public:
    ProcessorPlace(const ModelConfig& config, std::unique_ptr<ProcessorDecoder> decoder,
                   bool is_short, std::uint64_t all_bytes, WeightProgress progress)
        : config_(config),
          decoder_(std::move(decoder)),
          is_short_(is_short),
          all_bytes_(all_bytes),
          progress_(std::move(progress)) {}

    SequenceDecoder& decoder() override { return *decoder_; }
    Status load_layer(std::uint32_t layer) override {
        if (layer < decoder_->num_loaded()) return {};
        MOEX_TRY(decoder_->load_layer(layer));
        return load_dense_layers();
    }
    // Loads the next layers without experts, which have nothing to wait for.
    Status load_dense_layers() {
        while (!decoder_->is_whole() && !config_.is_moe(decoder_->num_loaded()))
            MOEX_TRY(decoder_->load_layer(decoder_->num_loaded()));
        tell();
        // A question that was asked meanwhile may have brought pages.
        if (!decoder_->is_whole() || decoder_->num_tokens() > 0) return {};
        MOEX_ASSIGN(speed, decoder_->measure());
        speed_ = speed;
        return {};
    }
    KvSource kv_source() const override { return decoder_->kv_source(); }
    PlaceFacts facts() const override {
        return {.is_processor = true,
                .is_short = is_short_,
                .speed = {speed_.prompt_tokens_per_s, speed_.answer_tokens_per_s}};
    }

  private:
    // Reports the progress by layers; the matrices of the hub count as one more.
    void tell() const {
        const std::uint64_t parts = decoder_->num_layers() + 1;
        progress_(all_bytes_ * (decoder_->num_loaded() + 1) / parts, all_bytes_);
    }

    ModelConfig config_;
    std::unique_ptr<ProcessorDecoder> decoder_;
    bool is_short_ = false;
    std::uint64_t all_bytes_ = 0;
    ProcessorSpeed speed_;
    WeightProgress progress_;
};

Result<std::unique_ptr<LocalPlace>> make_place(const TabModel& model) {
    // In a tab, a package's folder is named by the hash of its manifest (tab_package.cpp).
    MOEX_ASSIGN(package, ModelPackage::open(model.manifest_sha256));
    const ModelConfig& config = package->config();
    const ProcessorMemory memory = processor_memory(config, package->expert_shape(),
                                                    package->expert_dtype());
    const std::uint32_t wanted = std::min(config.context_tokens, model.memory.context_tokens_max);
    MOEX_ASSIGN(context,
                context_that_fits(memory, model.memory.bytes_max, context_tokens_min, wanted));
    // Threads would need a module of their own, and a SharedWorker cannot start any.
    MOEX_ASSIGN(decoder, ProcessorDecoder::create(package, context, 1, call_later));
    auto place = std::make_unique<ProcessorPlace>(config, std::move(decoder), context < wanted,
                                                  memory.weight_bytes, model.progress);
    MOEX_TRY(place->load_dense_layers());
    return Result<std::unique_ptr<LocalPlace>>(std::move(place));
}

}  // namespace

void open_place(const TabModel& model,
                std::function<void(Result<std::unique_ptr<LocalPlace>>)> done) {
    call_later([model, done = std::move(done)] { done(make_place(model)); });
}

extern "C" {

// Answers mx_ask_for_turn().
EMSCRIPTEN_KEEPALIVE void mx_on_turn() {
    for (const auto& function : std::exchange(waiting(), {})) function();
}

}  // extern "C"

}  // namespace moex
