#include "hub/commands/gpu/load_decoder.h"

#include <optional>
#include <utility>

namespace moex {

Result<std::unique_ptr<GpuDecoder>> load_decoder(gpu::Device& device, gpu::PostedLoop& loop,
                                                 std::shared_ptr<const ModelPackage> package,
                                                 const DecoderModel& model,
                                                 const GpuDecoderOptions& options,
                                                 WeightProgress progress) {
    const DecoderSizes sizes = decoder_sizes_of(device.adapter(), model, options);
    PackageWeights weights(std::move(package), model);
    CountedWeights counted(weights, DecoderMemory::needs_of(model, sizes).weights,
                           std::move(progress));
    bool finished = false;
    std::optional<Result<std::unique_ptr<GpuDecoder>>> made;
    GpuDecoder::create(device, model, options, counted,
                       [&](Result<std::unique_ptr<GpuDecoder>> created) {
                           finished = true;
                           made.emplace(std::move(created));
                       });
    loop.run_until(finished, &device);
    return std::move(*made);
}

}  // namespace moex
