// A package's weights as the GPU's decoder asks for them.
#pragma once

#include <memory>

#include "hub/model/package/package.h"
#include "web-worker/decoder/decoder_model.h"

namespace moex {

// What `package` is to the GPU. Matrices stay bf16 where all of their kind are; others are f32.
Result<DecoderModel> decoder_model_of(const ModelPackage& package);

class PackageWeights : public WeightSource {
  public:
    explicit PackageWeights(std::shared_ptr<const ModelPackage> package, const DecoderModel& model)
        : package_(std::move(package)),
          model_(model) {}
    Status read(const WeightPart& part, const std::function<void(ByteView)>& append) override;

  private:
    using Append = std::function<void(ByteView)>;
    Status rows(const std::string& name, WeightKind kind, std::uint64_t first_row,
                std::uint64_t num_rows, const Append& append) const;
    Status whole(const std::string& name, WeightKind kind, const Append& append) const;
    Status ffn(const WeightPart& part, const std::string& layer, const Append& append) const;

    std::shared_ptr<const ModelPackage> package_;
    DecoderModel model_;
};

// Hears how many bytes of all were given.
using WeightProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)>;

// Another source's weights, and who asks is told how far they are.
class CountedWeights : public WeightSource {
  public:
    CountedWeights(WeightSource& source, std::uint64_t all_bytes, WeightProgress progress)
        : source_(source),
          all_bytes_(all_bytes),
          progress_(std::move(progress)) {}
    Status read(const WeightPart& part, const std::function<void(ByteView)>& append) override {
        return source_.read(part, [&](ByteView bytes) {
            append(bytes);
            done_bytes_ += bytes.size();
            if (progress_) progress_(std::min(done_bytes_, all_bytes_), all_bytes_);
        });
    }

  private:
    WeightSource& source_;
    std::uint64_t all_bytes_, done_bytes_ = 0;
    WeightProgress progress_;
};

}  // namespace moex
