// Splits the text of one choice into thoughts, words and calls, piece by piece, as the model writes
// them: in channels (channels.h), or with <think> blocks and calls in the words (reasoning.h,
// tool_calls.h). Counts the tokens of thoughts. Pure; the parts do not depend on how the text is
// cut into pieces.
//   "<think>\nA sum.\n</think>\n\n4"    thoughts "A sum.", words "4"
// If an answer may have calls or channels, stop strings end its words alone, since an argument or a
// thought may contain any text. Otherwise AnswerText looks for them in the whole text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/jobs/channels.h"
#include "hub/api/jobs/reasoning.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/model/tokenizer/stop_filter.h"

namespace moex {

class AnswerParts {
  public:
    struct Options {
        std::optional<ChannelBegin> channels;   // set if the model answers in channels
        std::optional<CallSyntax> call_syntax;  // set if the answer may call tools
        bool calls_at_once = false;             // the answer has only calls and no words
        std::vector<Tool> tools;
        bool splits_reasoning = false;     // without channels: separate the <think> block
        bool begins_in_reasoning = false;  // the prompt ends inside a <think> block
        std::optional<std::vector<std::string>> stops;  // stop strings that end the words
        std::uint32_t min_tokens = 0;  // `stops` are looked for behind the first tokens
    };
    explicit AnswerParts(Options options);

    struct Piece {
        ReasonedText text;
        std::vector<CallPiece> calls;
    };
    // Splits the text of one more token. `num_tokens`: tokens of the answer so far, this one
    // included. `is_last`: the answer ends with `text`, which belongs to no further token, and what
    // was held back is returned, too.
    Piece push(std::string text, std::uint32_t num_tokens, bool is_last);

    std::uint32_t num_calls() const;
    // The number of tokens inside thoughts; nullopt: thoughts are not separated.
    std::optional<std::uint64_t> reasoning_tokens() const;
    // Without `Options::stops`, the words have no stop strings, and stop() is null.
    bool stopped() const { return stops_ && stops_->stopped(); }
    const std::string* stop() const { return stops_ ? &stops_->stop() : nullptr; }

  private:
    Piece push_channels(std::string_view text, bool is_last);
    Piece push_plain(std::string text, bool is_last);
    template <class Splitter>
    void count_reasoning(const Splitter& splitter);

    std::optional<ChannelSplitter> channels_;  // replaces the next two if set
    std::optional<ReasoningSplitter> reasoning_;
    std::optional<CallSplitter> calls_;
    std::optional<StopFilter> stops_;
    std::uint32_t min_tokens_;
    std::uint64_t reasoning_tokens_ = 0, undecided_tokens_ = 0;
};

}  // namespace moex
