// Reads the weights of a package for the GPU's decoder, from the files that a hub maps.
#pragma once

#include <memory>
#include <utility>

#include "hub/model/package/package.h"
#include "web-worker/package/named_weights.h"

namespace moex {

// Returns the model description that the GPU's decoder takes, made from a package.
Result<DecoderModel> decoder_model_of(const ModelPackage& package);

// Gives the decoder views of the mapped files of a package. No bytes are copied, because each
// tensor and each expert blob is one contiguous range of a file.
class MappedFiles : public PackageFiles {
  public:
    explicit MappedFiles(const ModelPackage& package) : package_(package) {}
    const ModelConfig& config() const override { return package_.config(); }
    ExpertDtype expert_dtype() const override { return package_.expert_dtype(); }
    std::uint32_t group_size() const override { return package_.expert_shape().group_size; }
    Result<Tensor> tensor(const std::string& name) const override;
    Status read_tensor(const std::string& name, std::uint64_t first_byte, std::uint64_t size_bytes,
                       const AppendBytes& append) const override;
    Status read_scales(const std::string& name, std::uint64_t first_byte, std::uint64_t size_bytes,
                       const AppendBytes& append) const override;
    Status read_expert(std::uint32_t layer, std::uint32_t expert,
                       const AppendBytes& append) const override;

  private:
    const ModelPackage& package_;
};

class PackageWeights : public WeightSource {
  public:
    PackageWeights(std::shared_ptr<const ModelPackage> package, const DecoderModel& model)
        : package_(std::move(package)),
          files_(*package_),
          weights_(files_, model) {}
    PackageWeights(const PackageWeights&) = delete;
    Status read(const WeightPart& part, const AppendBytes& append) override {
        return weights_.read(part, append);
    }

  private:
    std::shared_ptr<const ModelPackage> package_;
    MappedFiles files_;
    NamedWeights weights_;
};

}  // namespace moex
