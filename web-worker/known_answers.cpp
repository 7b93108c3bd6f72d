#include "web-worker/known_answers.h"

#include "protocol/check.h"

namespace moex {
namespace {

// A fixed sequence of values in [-1, 1) that is the same on every machine.
class Sequence {
  public:
    float next() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
    }

  private:
    std::uint64_t state_ = 20261121;
};

}  // namespace

KnownAnswers::KnownAnswers(ExpertForm form) {
    const bool is_mxfp4 = form == ExpertForm::mxfp4 || form == ExpertForm::mxfp4_clamped;
    if (is_mxfp4) shape.codes = ExpertDtype::mxfp4;
    if (form == ExpertForm::clamped || form == ExpertForm::mxfp4_clamped) {
        shape.has_bias = true;
        shape.clamp = 0.4f;  // about a quarter of the values reach it
    }
    Sequence sequence;
    ExpertWeights weights{.shape = shape};
    const auto fill = [&](std::vector<float>& values, std::size_t size, float largest) {
        values.resize(size);
        for (float& value : values) value = largest * sequence.next();
    };
    for (auto* matrix : {&weights.gate, &weights.up, &weights.down})
        fill(*matrix, std::size_t{hidden} * inner, 0.1f);
    fill(x, std::size_t{num_tokens} * hidden, 1.0f);
    if (shape.has_bias) {
        for (auto* bias : {&weights.gate_bias, &weights.up_bias}) fill(*bias, inner, 0.3f);
        fill(weights.down_bias, hidden, 0.3f);
    }
    blob = quantize_expert(weights);

    const auto view = view_expert_blob(blob, shape, shape.codes);
    MOEX_CHECK(view.ok(), "the self-test's blob");
    expected.resize(x.size());
    expert_reference(std::span<double>(expected), dequantize_expert(*view),
                     std::vector<double>(x.begin(), x.end()));
}

}  // namespace moex
