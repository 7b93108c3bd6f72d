#include "bench/foresight/loss_trial.h"

#include <algorithm>
#include <cmath>

#include "hub/engine/kernels.h"
#include "hub/foresight/predict/windows.h"

namespace moex::bench {
namespace {

constexpr std::uint32_t trial_page_tokens = 16;
constexpr std::size_t chunk_tokens = 64;  // tokens of a step; this bounds the memory of the logits

// The loss of the prediction from one row, compared with the exact model's prediction.
struct RowLoss {
    double nll = 0, kl = 0;
    bool same_first = false;
};

// Computes the loss of one row. `exact` and `said` are the logits of the exact model and of the
// mode, [vocab_size].
RowLoss row_loss(std::span<const float> exact, std::span<const float> said, TokenId next) {
    const double exact_sum = log_sum_exp(exact), said_sum = log_sum_exp(said);
    RowLoss loss{.nll = said_sum - said[next]};
    for (std::size_t i = 0; i < exact.size(); ++i) {
        const double log_p = exact[i] - exact_sum;
        loss.kl += std::exp(log_p) * (log_p - (said[i] - said_sum));
    }
    loss.same_first = std::ranges::max_element(exact) - exact.begin() ==
                      std::ranges::max_element(said) - said.begin();
    return loss;
}

class Trial {
  public:
    Trial(Decoder& decoder, ExpertBackend& experts, std::span<const LossyMode> modes,
          const PerplexityOptions& options)
        : decoder_(decoder),
          experts_(experts),
          modes_{LossyMode{}},
          cache_(decoder.config(),
                 {trial_page_tokens,
                  static_cast<std::uint32_t>(modes.size() + 1) *
                      ((options.window_tokens + trial_page_tokens - 1) / trial_page_tokens),
                  options.kv_dtype}) {
        modes_.insert(modes_.end(), modes.begin(), modes.end());
        losses_.resize(modes_.size());
    }

    Status read(std::span<const TokenId> window) {
        std::vector<KvCache::Sequence> sequences;
        for (std::size_t i = 0; i < modes_.size(); ++i) sequences.emplace_back(cache_);
        window_nll_.assign(modes_.size(), 0);

        for (std::size_t first = 0; first + 1 < window.size(); first += chunk_tokens) {
            const std::size_t count = std::min(chunk_tokens, window.size() - 1 - first);
            // The tokens of a chunk, and the token that follows the chunk.
            const auto ids = window.subspan(first, count + 1);
            std::vector<float> exact;
            for (std::size_t i = 0; i < modes_.size(); ++i) {
                const StepRows rows{.kv = &sequences[i],
                                    .tokens = ids.first(count),
                                    .all_logits = true,
                                    .speculator = modes_[i].speculator};
                MOEX_ASSIGN(step, decoder_.step({&rows, 1},
                                                modes_[i].experts ? *modes_[i].experts : experts_));
                if (i == 0) exact = step.logits;
                take(i, exact, step.logits, ids);
                decoder_.recycle(std::move(step));
            }
        }

        for (std::size_t i = 0; i < modes_.size(); ++i)
            losses_[i].nll_excess.add((window_nll_[i] - window_nll_[0]) /
                                      static_cast<double>(window.size() - 1));
        return {};
    }

    std::vector<Loss> losses(std::uint32_t num_windows) const {
        std::vector<Loss> all = losses_;
        for (Loss& loss : all) {
            Perplexity& perplexity = loss.perplexity;
            perplexity.num_windows = num_windows;
            perplexity.mean_nll /= static_cast<double>(perplexity.num_predictions);
            perplexity.perplexity = std::exp(perplexity.mean_nll);
            loss.mean_kl /= static_cast<double>(perplexity.num_predictions);
        }
        return all;
    }

  private:
    void take(std::size_t mode, std::span<const float> exact, std::span<const float> said,
              std::span<const TokenId> ids) {
        const std::size_t vocab = decoder_.config().vocab_size;
        std::vector<RowLoss> rows(ids.size() - 1);
        decoder_.threads().parallel_for(rows.size(), 1, [&](std::size_t begin, std::size_t end) {
            for (std::size_t row = begin; row < end; ++row)
                rows[row] = row_loss(exact.subspan(row * vocab, vocab),
                                     said.subspan(row * vocab, vocab), ids[row + 1]);
        });

        Loss& loss = losses_[mode];
        for (const RowLoss& row : rows) {
            loss.perplexity.mean_nll += row.nll;
            window_nll_[mode] += row.nll;
            loss.mean_kl += mode == 0 ? 0 : row.kl;
            loss.same_first += row.same_first ? 1 : 0;
        }
        loss.perplexity.num_predictions += rows.size();
    }

    Decoder& decoder_;
    ExpertBackend& experts_;
    std::vector<LossyMode> modes_;  // the modes; the first one is the exact model
    KvCache cache_;
    std::vector<Loss> losses_;  // sums over rows; losses() divides them
    std::vector<double> window_nll_;
};

}  // namespace

Result<std::vector<Loss>> measure_loss(
    Decoder& decoder, ExpertBackend& experts, std::span<const LossyMode> modes,
    std::span<const TokenId> tokens, const PerplexityOptions& options,
    const std::function<void(std::uint32_t, std::uint32_t)>& progress) {
    MOEX_ASSIGN(num_windows, count_windows(decoder.config(), tokens.size(),
                                           {.window_tokens = options.window_tokens,
                                            .num_windows = options.num_windows}));
    Trial trial(decoder, experts, modes, options);
    for (std::uint32_t window = 0; window < num_windows; ++window) {
        MOEX_TRY(trial.read(
            tokens.subspan(std::size_t{window} * options.window_tokens, options.window_tokens)));
        if (progress) progress(window + 1, num_windows);
    }
    return trial.losses(num_windows);
}

}  // namespace moex::bench
