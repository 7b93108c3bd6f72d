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

KnownAnswers::KnownAnswers() {
    Sequence sequence;
    ExpertWeights weights{.shape = shape};
    for (auto* matrix : {&weights.gate, &weights.up, &weights.down}) {
        matrix->resize(std::size_t{hidden} * inner);
        for (float& value : *matrix) value = 0.1f * sequence.next();
    }

    blob = quantize_expert_int4(weights);
    x.resize(std::size_t{num_tokens} * hidden);
    for (float& value : x) value = sequence.next();

    const auto view = view_expert_blob(blob, shape, ExpertDtype::int4);
    MOEX_CHECK(view.ok(), "the self-test's blob");
    expected.resize(x.size());
    expert_reference(std::span<double>(expected), dequantize_expert(*view),
                     std::vector<double>(x.begin(), x.end()));
}

}  // namespace moex
