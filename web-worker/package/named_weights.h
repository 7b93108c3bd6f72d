// A package for the decoder on the GPU: the description of its model, and a source of its weights
// by name.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "web-worker/decoder/decoder_model.h"
#include "web-worker/package/package_files.h"

namespace moex {

// Describes a package's model for the decoder. Matrices stay bf16 if all matrices of the same kind
// are bf16; otherwise they become f32. Codes of 4 bits stay int4 if the model's INT4 has the same
// group size; other codes become bf16 as they are read.
Result<DecoderModel> decoder_model_of(const PackageFiles& files);

// Reads the weights of a package by name. `files` outlives this object.
class NamedWeights : public WeightSource {
  public:
    NamedWeights(const PackageFiles& files, const DecoderModel& model)
        : files_(files),
          model_(model) {}
    Status read(const WeightPart& part, const AppendBytes& append) override;
    bool is_here(const WeightPart& part) const override {
        const bool is_expert = part.name == WeightPart::Name::ffn && model_.is_moe(part.layer);
        return !is_expert || files_.holds_experts(part.layer);
    }

  private:
    Status rows(const std::string& name, WeightKind kind, std::uint64_t first_row,
                std::uint64_t num_rows, const AppendBytes& append) const;
    Status rows_of_codes(const std::string& name, const PackageFiles::Tensor& tensor,
                         WeightKind kind, std::uint64_t first_row, std::uint64_t num_rows,
                         const AppendBytes& append) const;
    Status int4_scales(const std::string& name, const AppendBytes& append) const;
    Status stacked(const std::vector<std::string>& names, WeightKind kind,
                   const AppendBytes& append) const;
    Status whole(const std::string& name, WeightKind kind, const AppendBytes& append) const;
    Status blob_of(const std::array<std::string, 3>& names, WeightKind kind,
                   const ExpertShape& shape, const AppendBytes& append) const;
    Status norm(const std::string& name, float divisor, const AppendBytes& append) const;

    const PackageFiles& files_;
    DecoderModel model_;
};

// Receives the number of bytes that were read so far, and the number to read in total.
using WeightProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)>;

// Passes on the weights of another source and reports the progress.
class CountedWeights : public WeightSource {
  public:
    CountedWeights(WeightSource& source, std::uint64_t all_bytes, WeightProgress progress)
        : source_(source),
          all_bytes_(all_bytes),
          progress_(std::move(progress)) {}
    Status read(const WeightPart& part, const AppendBytes& append) override {
        return source_.read(part, [&](ByteView bytes) {
            append(bytes);
            done_bytes_ += bytes.size();
            if (progress_) progress_(std::min(done_bytes_, all_bytes_), all_bytes_);
        });
    }
    bool is_here(const WeightPart& part) const override { return source_.is_here(part); }

  private:
    WeightSource& source_;
    std::uint64_t all_bytes_, done_bytes_ = 0;
    WeightProgress progress_;
};

}  // namespace moex
