// Whole models without a checkpoint, for benches: shapes for which others have published times,
// filled with random weights. Times do not depend on the values of the weights; the sizes are those
// of the real models.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "web-worker/decoder/decoder_model.h"

namespace moex {

// Returns the names of the shapes: demo, bench-moe, smollm-135m, qwen2-0.5b, tinyllama-1.1b,
// qwen2-1.5b, llama3-8b, qwen3-30b-a3b, gpt-oss-20b, glm-4.5-air, qwen3.6-35b-a3b.
std::vector<std::string> bench_shapes();

// `weights`: int4 means all weights in groups of 32; bf16 and f32 mean all weights in that type;
// mixed is the form of a package: bf16, and for experts INT4 in the largest groups; mxfp4 is the
// same with experts in MXFP4. The error `unsupported` names an unknown shape or form.
Result<DecoderModel> bench_model(std::string_view shape, std::string_view weights,
                                 std::uint32_t context_tokens);

// Returns the bytes of weights that are read to compute a token.
std::uint64_t weight_bytes_of_a_token(const DecoderModel& model);

// A source of weights with plausible magnitudes: it repeats the same few megabytes.
class PatternWeights : public WeightSource {
  public:
    explicit PatternWeights(const DecoderModel& model);

    Status read(const WeightPart& part, const Append& append) override;
    // The byte patterns on which all matrices are based: each stretch of a matrix equals a pattern,
    // or the beginning of a pattern. Norms and biases do not use the patterns.
    std::vector<ByteView> patterns() const;

  private:
    void codes(WeightKind kind, std::uint64_t size_bytes, const Append& append) const;
    void matrix(WeightKind kind, std::uint32_t num_out, std::uint32_t num_in,
                const Append& append) const;
    void ffn(const ExpertShape& shape, WeightKind kind, const Append& append) const;

    const DecoderModel& model_;
    std::vector<float> floats_, ones_;
    std::vector<std::uint16_t> halves_;
    std::vector<std::uint32_t> codes_, scales_, exponents_;
};

}  // namespace moex
