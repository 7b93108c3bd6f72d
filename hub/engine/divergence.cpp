#include "hub/engine/divergence.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels.h"
#include "hub/engine/scores.h"

namespace moex {
namespace {

std::ptrdiff_t likeliest_of(std::span<const float> logits) {
    return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// The sums of one model over all windows.
class DivergenceSums {
  public:
    explicit DivergenceSums(std::size_t vocab_size) : expected_(vocab_size), found_(vocab_size) {}

    void add(std::span<const float> expected, std::span<const float> found, TokenId next) {
        log_softmax(expected, expected_);
        log_softmax(found, found_);
        reference_nll_ -= expected_[next];
        nll_ -= found_[next];
        for (std::size_t i = 0; i < found.size(); ++i)
            kl_ += std::exp(double{expected_[i]}) * (double{expected_[i]} - found_[i]);
        num_same_ += likeliest_of(expected) == likeliest_of(found) ? 1 : 0;
        ++count_;
    }
    Divergence result() const {
        const auto count = static_cast<double>(count_);
        return {.reference_perplexity = std::exp(reference_nll_ / count),
                .perplexity = std::exp(nll_ / count),
                .mean_kl = kl_ / count,
                .same_likeliest = static_cast<double>(num_same_) / count,
                .num_predictions = count_};
    }

  private:
    std::vector<float> expected_, found_;  // log-probabilities, [vocab_size]
    double reference_nll_ = 0, nll_ = 0, kl_ = 0;
    std::uint64_t num_same_ = 0, count_ = 0;
};

}  // namespace

Result<std::vector<Divergence>> measure_divergence(
    const ReadingModel& reference, std::span<const ReadingModel> models,
    std::span<const TokenId> tokens, const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& progress) {
    const ModelConfig& config = reference.decoder.config();
    const std::size_t vocab_size = config.vocab_size;
    MOEX_ASSIGN(windows, TextWindows::create(tokens, config, options));
    for (const ReadingModel& model : models) {
        MOEX_TRY(TextWindows::create(tokens, model.decoder.config(), options));
        if (model.decoder.config().vocab_size != vocab_size)
            return Error{ErrorCode::invalid_argument,
                         text("the vocabulary has ", model.decoder.config().vocab_size,
                              " tokens, the reference's ", vocab_size)};
    }

    std::vector<DivergenceSums> sums(models.size(), DivergenceSums(vocab_size));
    std::vector<float> expected;
    for (std::uint32_t window = 0; window < windows.size(); ++window) {
        expected.clear();
        KvCache reference_cache = windows.make_cache(config, reference.kv_dtype);
        MOEX_TRY(windows.read(window, reference.decoder, reference.experts, reference_cache,
                              [&](std::span<const float> logits, TokenId) {
                                  expected.insert(expected.end(), logits.begin(), logits.end());
                              }));

        for (std::size_t i = 0; i < models.size(); ++i) {
            const ReadingModel& model = models[i];
            KvCache cache = windows.make_cache(model.decoder.config(), model.kv_dtype);
            std::size_t at = 0;
            MOEX_TRY(windows.read(window, model.decoder, model.experts, cache,
                                  [&](std::span<const float> logits, TokenId next) {
                                      sums[i].add(std::span(expected).subspan(at, vocab_size),
                                                  logits, next);
                                      at += vocab_size;
                                  }));
        }
        if (progress) progress(window + 1, windows.size());
    }

    std::vector<Divergence> found;
    for (const DivergenceSums& one : sums) found.push_back(one.result());
    return found;
}

}  // namespace moex
