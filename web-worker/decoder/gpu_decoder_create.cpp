// How a decoder is made: the check of its options, its memory and its kernels, and the buffers to
// which results are copied to be read.
#include <algorithm>

#include "web-worker/decoder/gpu_decoder.h"

namespace moex {

void GpuDecoder::create(gpu::Device& device, const DecoderModel& model,
                        const GpuDecoderOptions& options, WeightSource& source,
                        std::function<void(Result<std::unique_ptr<GpuDecoder>>)> done) {
    if (const Status fits = check_model(model); !fits.ok()) return done(fits.error());
    if (model.has_delta() && options.pages > 0 &&
        (options.state_slots == 0 || options.journals == 0))
        return done(Error{ErrorCode::invalid_argument,
                          "several sequences of a model with a gated delta rule need places for "
                          "their states"});
    if ((options.slots > 0 || options.evicted != nullptr) &&
        (options.pages > 0 || model.has_delta()))
        return done(Error{ErrorCode::invalid_argument,
                          "pages outside of the GPU's memory are those of one sequence, of a model "
                          "without a gated delta rule"});

    const auto decoder = std::make_shared<std::unique_ptr<GpuDecoder>>(
        new GpuDecoder(device, model, decoder_sizes_of(device.adapter(), model, options)));
    DecoderMemory::create(
        device, (*decoder)->model_, (*decoder)->sizes_, source,
        [decoder, store = options.evicted,
         done = std::move(done)](Result<std::unique_ptr<DecoderMemory>> memory) mutable {
            if (!memory.ok()) return done(memory.error());
            GpuDecoder& self = **decoder;
            self.memory_ = std::move(*memory);
            self.lanes_.resize(self.sizes_.lanes);
            if (const Status made = self.make_readbacks(); !made.ok()) return done(made.error());
            create_ops(decoder,
                       [store, done = std::move(done)](Result<std::unique_ptr<GpuDecoder>> made) {
                           if (made.ok() && (*made)->is_paged())
                               if (const Status ready = (*made)->make_paged(*store); !ready.ok())
                                   return done(ready.error());
                           done(std::move(made));
                       });
        });
}

Status GpuDecoder::make_paged(EvictedPages& store) {
    paged_ = std::make_unique<PagedSteps>(device_, model_, sizes_, *memory_, ops(), store);
    return paged_->create();
}

// Creates the kernels of the next lane, one lane after the other. All lanes have the same kernels,
// which are compiled once.
void GpuDecoder::create_ops(std::shared_ptr<std::unique_ptr<GpuDecoder>> decoder,
                            std::function<void(Result<std::unique_ptr<GpuDecoder>>)> done) {
    GpuDecoder& self = **decoder;
    const auto next = std::find_if(self.lanes_.begin(), self.lanes_.end(),
                                   [](const Lane& one) { return !one.ops; });
    if (next == self.lanes_.end()) return done(std::move(*decoder));

    next->ops = std::make_unique<DecoderOps>(
        self.device_, self.model_, self.sizes_, *self.memory_,
        static_cast<std::uint32_t>(next - self.lanes_.begin()));
    next->ops->create([decoder, done = std::move(done)](Status made) mutable {
        if (!made.ok()) return done(made.error());
        create_ops(std::move(decoder), std::move(done));
    });
}

Status GpuDecoder::make_readbacks() {
    for (gpu::BufferId& readback : id_readbacks_) {
        MOEX_ASSIGN(buffer, device_.create_buffer(sizeof(std::uint32_t) * sizes_.ring_ids / 2,
                                                  gpu::BufferUsage::readback, "ids readback"));
        readback = buffer;
    }
    if (model_.is_span) {
        std::uint64_t row_bytes = sizeof(float) * model_.hidden_size;
        for (std::uint32_t layer = 0; layer < model_.num_layers; ++layer)
            row_bytes += DecoderMemory::span_kv_layer_bytes(model_, layer, 1);
        MOEX_ASSIGN(span, device_.create_buffer(row_bytes * sizes_.rows, gpu::BufferUsage::readback,
                                                "span readback"));
        span_readback_ = span;
        return {};
    }
    MOEX_ASSIGN(logits, device_.create_buffer(
                            sizeof(float) * std::uint64_t{sizes_.logit_rows} * model_.vocab_size,
                            gpu::BufferUsage::readback, "logits readback"));
    logit_readback_ = logits;
    if (sizes_.likeliest) {
        MOEX_ASSIGN(likeliest,
                    device_.create_buffer(sizeof(LikeliestList) * sizes_.logit_rows,
                                          gpu::BufferUsage::readback, "likeliest tokens readback"));
        likeliest_readback_ = likeliest;
    }
    if (sizes_.sends_layers) {
        const std::uint64_t kv_bytes = DecoderMemory::span_kv_at(model_, model_.num_layers,
                                                                 sizes_.rows),
                            state_bytes = model_.has_delta() ? DecoderMemory::state_bytes(model_)
                                                             : 0;
        MOEX_ASSIGN(
            kv, device_.create_buffer(std::max(kv_bytes, state_bytes), gpu::BufferUsage::readback,
                                      "keys and values readback"));
        kv_readback_ = kv;
    }
    if (sizes_.reads_rows || sizes_.sends_layers) {
        MOEX_ASSIGN(rows, device_.create_buffer(
                              sizeof(float) * std::uint64_t{sizes_.rows} * model_.hidden_size,
                              gpu::BufferUsage::readback, "rows readback"));
        rows_readback_ = rows;
    }
    if (!model_.experts_elsewhere) return {};

    for (Lane& lane : lanes_) {
        MOEX_ASSIGN(routed, device_.create_buffer(
                                std::uint64_t{sizes_.rows} * (sizeof(float) * model_.hidden_size +
                                                              2 * sizeof(float) * model_.top_k),
                                gpu::BufferUsage::readback, "routed rows readback"));
        lane.routed_readback = routed;
    }
    return {};
}

}  // namespace moex
