// A source of drafts for tests, which knows the texts in advance.
#pragma once

#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "hub/engine/draft_source.h"

namespace moex {

// Knows the texts in advance, and proposes tokens that are right, wrong, or either at random.
class KnownTexts : public DraftSource {
  public:
    enum class Says { right, wrong, random };
    explicit KnownTexts(Says says) : says_(says) {}
    const char* name() const override { return "known"; }
    void know(const std::vector<TokenId>& prompt, std::uint64_t seed, std::uint32_t choice,
              std::vector<TokenId> answer) {
        answers_[{prompt, seed, choice}] = std::move(answer);
    }
    std::unique_ptr<Draft> begin(const GenerationRequest& request) override {
        auto draft = std::make_unique<Known>();
        const auto found = answers_.find(
            {request.prompt, request.sampling.seed, request.sampling.choice});
        if (found != answers_.end()) draft->answer = found->second;
        draft->prompt = request.prompt.size();
        return draft;
    }
    void propose(std::span<DraftCall> calls) override {
        for (DraftCall& call : calls) {
            const auto& known = static_cast<const Known&>(*call.draft);
            for (std::size_t i = call.tokens.size() - known.prompt;
                 i < known.answer.size() && call.proposed.size() < call.tokens_max; ++i) {
                const bool lies = says_ == Says::wrong ||
                                  (says_ == Says::random && random_() % 3 == 0);
                call.proposed.push_back((known.answer[i] + (lies ? 1 : 0)) % 256);
            }
            call.proposal_class = random_() % draft_classes;
        }
    }

  private:
    struct Known : Draft {
        std::vector<TokenId> answer;
        std::size_t prompt = 0;
    };
    const Says says_;
    std::map<std::tuple<std::vector<TokenId>, std::uint64_t, std::uint32_t>, std::vector<TokenId>>
        answers_;
    std::mt19937 random_{5};
};

}  // namespace moex
