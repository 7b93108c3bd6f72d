// Takes an answer apart into what the model thought, between <think> and </think>, and what
// it says. Pure; the same parts come out wherever the stream was cut into pieces.
// A block counts only at the beginning of the answer, blanks aside: an answer about these
// tags may show them. A template may have opened the block already. A block that never ends
// is all reasoning. Line ends right inside the tags and behind the block belong to neither.
#pragma once

#include <string>
#include <string_view>

namespace moex {

inline constexpr std::string_view think_open = "<think>", think_close = "</think>";

struct ReasonedText {
    std::string reasoning, content;
    bool empty() const { return reasoning.empty() && content.empty(); }
};

class ReasoningSplitter {
  public:
    // `inside`: the prompt ends in an open block.
    explicit ReasoningSplitter(bool inside);
    ReasonedText push(std::string_view piece);  // what can be told apart by now
    ReasonedText finish();                      // what was held back

    // Whether what came so far ends before or inside a block; tokens are counted by it.
    bool in_reasoning() const { return part_ == Part::block_begin || part_ == Part::block; }
    bool undecided() const { return part_ == Part::answer_begin; }

  private:
    enum class Part { answer_begin, block_begin, block, behind_block, content };
    bool step(ReasonedText& out);  // false: more text is needed

    Part part_;
    std::string held_;
};

// Whether a prompt ends in an open block, e.g. one that a chat template wrote.
bool ends_in_open_block(std::string_view prompt);

}  // namespace moex
