// Drafted tokens of "this device": n-grams of the answer's own text, prompt included
// (hub/draft/repetition.h). How often they are right and what their rows cost is learned by the
// hub's own rules (hub/engine/{draft_rates,draft_budget}.h), over all answers of this device.
#pragma once

#include <optional>
#include <vector>

#include "hub/draft/repetition.h"
#include "hub/engine/draft_budget.h"
#include "hub/engine/draft_rates.h"
#include "web-worker/decoder/token_drafts.h"

namespace moex {

class LocalDrafts : public TokenDrafts {
  public:
    // A loop that waits for each step, or one that issues steps before earlier ones have ended.
    // The steps of both take different times.
    enum class Steps { waited_for, issued_ahead };

    // Begins an answer to `prompt`; what was learned stays. `wanted`: the number of drafted tokens
    // in each step, whatever they cost; nullopt: as many as pay.
    void begin(std::span<const TokenId> prompt, Steps steps,
               std::optional<std::uint32_t> wanted = std::nullopt);

    TokenIds propose(std::uint32_t tokens_max) override;
    std::uint32_t num_paying() override;
    void record(TokenIds drawn, std::uint32_t num_rows, std::chrono::nanoseconds took) override;

  private:
    std::optional<std::uint32_t> wanted_;
    std::vector<TokenId> tokens_;
    Repetitions repetitions_;
    std::vector<TokenId> proposed_;
    std::uint32_t proposal_class_ = 0;

    DraftRates rates_{32}, all_rates_{256};  // of this answer, and of all answers
    DraftBudget budgets_[2];                 // by Steps
    DraftBudget* budget_ = budgets_;
};

}  // namespace moex
