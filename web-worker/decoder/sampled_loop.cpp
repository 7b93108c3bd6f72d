#include "web-worker/decoder/sampled_loop.h"

#include <algorithm>

namespace moex {
namespace {

// Returns the candidates of `list` without the empty entries at its end, which exist if the
// vocabulary is smaller than the list.
TokenChooser::Candidates tokens_of(const LikeliestList& list, std::uint32_t vocab_size) {
    const TokenChooser::Candidates all(list.candidates);
    const auto end = std::find_if(all.begin(), all.end(),
                                  [&](const auto& one) { return one.token >= vocab_size; });
    return all.first(static_cast<std::size_t>(end - all.begin()));
}

}  // namespace

SampledLoop::SampledLoop(GpuDecoder& decoder, SampledOptions options,
                         std::unique_ptr<TokenChooser> chooser, Events events)
    : decoder_(decoder),
      options_(std::move(options)),
      chooser_(std::move(chooser)),
      events_(std::move(events)) {}

void SampledLoop::start(std::span<const std::uint32_t> prompt) {
    const std::uint32_t likeliest = chooser_->num_likeliest();
    const bool by_list = decoder_.finds_likeliest() && likeliest > 0 &&
                         likeliest <= LikeliestList::kept;
    wanted_ = by_list ? StepLogits::likeliest : StepLogits::last;
    const Status fed = feed_prompt(decoder_, prompt, wanted_);
    if (!fed.ok()) return end(fed.error());

    // Add 1: the answer's last token is chosen but not fed, so it takes no position of the context.
    options_.max_tokens = std::min(options_.max_tokens,
                                   decoder_.context_tokens() - decoder_.num_tokens() + 1);
    read();
}

void SampledLoop::read() {
    if (wanted_ == StepLogits::likeliest)
        return decoder_.read_likeliest([this](Result<std::span<const LikeliestList>> lists) {
            if (!lists.ok()) return take(lists.error());
            const auto tokens = tokens_of(lists->front(), decoder_.model().vocab_size);
            if (tokens.empty()) return take(Error{ErrorCode::internal, "logits are not numbers"});
            take(chooser_->choose(tokens));
        });
    decoder_.read_logits([this](Result<std::span<const float>> logits) {
        if (!logits.ok()) return take(logits.error());
        take(chooser_->choose(*logits));
    });
}

void SampledLoop::take(Result<std::uint32_t> token) {
    if (!token.ok()) return end(token.error());
    if (cancelled_) return end(AnswerEnd::cancelled);
    const auto& stops = options_.stop_ids;
    if (std::find(stops.begin(), stops.end(), *token) != stops.end()) return end(AnswerEnd::stop);

    chooser_->accept(*token);
    ++num_tokens_;
    events_.on_tokens(std::span(&*token, 1));
    if (cancelled_) return end(AnswerEnd::cancelled);
    if (num_tokens_ == options_.max_tokens) return end(AnswerEnd::length);

    const Status fed = decoder_.feed(std::span(&*token, 1), wanted_);
    if (!fed.ok()) return end(fed.error());
    read();
}

void SampledLoop::end(Result<AnswerEnd> how) { events_.on_end(std::move(how)); }

}  // namespace moex
