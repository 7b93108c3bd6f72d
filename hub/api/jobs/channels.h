// Answers in channels, as GPT-OSS writes them. An answer is a list of messages. The header of a
// message names its channel: "analysis" has thoughts, "final" and "commentary" have words. The
// header of a call also names its recipient, functions.NAME, in the channel's header or before it.
//   <|channel|>analysis<|message|>THOUGHTS<|end|><|start|>assistant<|channel|>commentary
//   to=functions.NAME <|constrain|>json<|message|>ARGUMENTS<|call|>
// An answer has at most one call, and ends with it.
// Source: OpenAI, "Harmony response format"; GPT-OSS's chat template.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/vocabulary.h"
#include "hub/api/jobs/tool_calls.h"
#include "hub/model/tokenizer/tokenizer.h"

namespace moex {

// The place where an answer begins: before its first header, or inside a message.
enum class ChannelBegin { header, thoughts, words };
// Returns the place in which a rendered prompt ends. `tail` is the text of its last tokens,
// including special tokens.
ChannelBegin channel_begin(std::string_view tail);

// Returns the tokens that end a message after which nothing is generated, if the vocabulary has
// such tokens.
std::vector<TokenId> channel_stops(const Tokenizer& tokenizer);

// Adds the grammar of answers that call tools as `choice` demands, after their thoughts and words.
// `said` is the node of an answer without a call; nullopt: an answer without a call may be any
// text.
Result<NodeId> add_channel_answer(std::vector<GrammarNode>& nodes, const ToolChoice& choice,
                                  ChannelBegin begin, std::optional<NodeId> said,
                                  const Vocabulary& vocabulary, WeakenedTools& weakened);

struct ChannelText {
    std::string reasoning, content;
    std::vector<CallPiece> calls;
};

// Splits an answer in channels into thoughts, words and calls, piece by piece. The parts do not
// depend on how the text is cut into pieces. A text without any header is content.
class ChannelSplitter {
  public:
    // `calls`: the answer may call tools. Otherwise a call is treated as words.
    ChannelSplitter(ChannelBegin begin, bool calls);
    ChannelText push(std::string_view piece);
    ChannelText finish();

    bool in_reasoning() const { return part_ == Part::thoughts; }
    bool undecided() const { return part_ == Part::header; }  // a token may be either
    std::uint32_t num_calls() const { return num_calls_; }

  private:
    enum class Part { header, thoughts, words, arguments };
    bool step(ChannelText& out);
    bool read_header(ChannelText& out);
    void say(ChannelText& out, std::string text);

    Part part_;
    bool calls_;
    std::string held_;
    std::uint32_t num_calls_ = 0;
};

}  // namespace moex
