// Splits an answer into the model's thoughts, between <think> and </think>, and its content. Pure.
// The parts do not depend on how the stream is cut into pieces.
// Rules: a block counts only at the beginning of the answer, after optional blanks, since an answer
// about these tags may show them. The template may have opened the block already. A block that
// never ends is all reasoning. Line ends directly inside the tags and after the block belong to
// neither part.
// Example: "<think>\nA sum.\n</think>\n\n4" gives the reasoning "A sum." and the content "4".
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
    // `inside`: the prompt ends inside an open <think> block.
    explicit ReasoningSplitter(bool inside);
    // Returns the text that is known to be thought or content.
    ReasonedText push(std::string_view piece);
    ReasonedText finish();  // returns the text that was held back until the end

    // in_reasoning() returns true if the text so far ends inside a block of thoughts; undecided(),
    // if it ends before the answer's first character. The job counts tokens by these functions.
    bool in_reasoning() const { return part_ == Part::block_begin || part_ == Part::block; }
    bool undecided() const { return part_ == Part::answer_begin; }

  private:
    enum class Part { answer_begin, block_begin, block, behind_block, content };
    bool step(ReasonedText& out);  // returns false if more text is needed to decide

    Part part_;
    std::string held_;
};

// Returns true if a prompt ends inside an open <think> block, e.g. a block that a chat template
// opened.
bool ends_in_open_block(std::string_view prompt);

}  // namespace moex
