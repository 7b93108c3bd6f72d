// Whole models without a checkpoint, for benches: the shapes that others publish times of, in
// random weights. What is computed with is of no matter to a time; the sizes are the models' own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "web-worker/decoder/decoder_model.h"

namespace moex {

// demo, smollm-135m, qwen2-0.5b, tinyllama-1.1b, qwen2-1.5b, llama3-8b, qwen3-30b-a3b
std::vector<std::string> bench_shapes();

// `weights`: int4 is everything in groups of 32; bf16 and f32 everything; mixed is a package's:
// bf16 and, for experts, INT4 in groups of 128. unsupported names what is unknown.
Result<DecoderModel> bench_model(std::string_view shape, std::string_view weights,
                                 std::uint32_t context_tokens);

// What a token reads of the weights.
std::uint64_t weight_bytes_of_a_token(const DecoderModel& model);

// Weights of a sane size: the same few megabytes over and over.
class PatternWeights : public WeightSource {
  public:
    explicit PatternWeights(const DecoderModel& model);

    Status read(const WeightPart& part, const Append& append) override;
    // Matrices come as stretches that are one of these, or its beginning; norms and biases do not.
    std::vector<ByteView> patterns() const;

  private:
    void codes(WeightKind kind, std::uint64_t size_bytes, const Append& append) const;
    void matrix(WeightKind kind, std::uint32_t num_out, std::uint32_t num_in,
                const Append& append) const;
    void ffn(std::uint32_t layer, const Append& append) const;

    const DecoderModel& model_;
    std::vector<float> floats_, ones_;
    std::vector<std::uint16_t> halves_;
    std::vector<std::uint32_t> codes_, scales_;
};

}  // namespace moex
