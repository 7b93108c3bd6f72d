// Enters and leaves nodes of a grammar, and collects the parses that follow: what an answer may go
// on with when the node that took its last bytes is done.
//   schema {"a": integer, "b": boolean}, text `{"a": 1`. leave() of the number's frame adds one
//   parse: the words `, "b": ` and `}`
// The number of collected parses is limited; further ones are dropped. A node that would need a
// deeper stack than Grammar::depth_max() is not entered.
#pragma once

#include <cstdint>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/grammar_parse.h"
#include "hub/api/grammar/parse_ends.h"

namespace moex {

class GrammarWalker {
  public:
    // Adds parses to `out`. Both outlive this object.
    GrammarWalker(const Grammar& grammar, Parses& out)
        : grammar_(grammar),
          ends_(grammar),
          out_(out) {}

    // Enters the node `id` on the stack `parent`, down to the leaves that take the next bytes.
    void enter(NodeId id, const StackFramePointer& parent);
    // Continues the parse in `frame` after a child of the frame's node is done. If the child was a
    // list of words, `result` is the id of the word that the text has. If the child was the name of
    // a member that the schema does not list, `name` is that name.
    void leave(const StackFramePointer& frame, std::uint32_t result, const NameText* name);

  private:
    static constexpr std::size_t out_max = 4096;
    static constexpr std::uint32_t all_ranks = 0xffff'ffff;

    void add(Parse parse);
    StackFramePointer push(const GrammarNode& node, const StackFramePointer& parent,
                           std::uint32_t position, StackFrame::Part part,
                           TakenNames taken = nullptr) const;
    void enter_child(const GrammarNode& node, std::uint32_t index, const StackFramePointer& parent);
    void enter_repeat(const GrammarNode& node, std::uint32_t count,
                      const StackFramePointer& parent);
    Parse words(const GrammarNode& node, const Words& words, const StackFramePointer& frame,
                std::uint32_t rank_first = 0, std::uint32_t rank_last = all_ranks) const;
    StackFramePointer object_frame(const GrammarNode& node, const StackFramePointer& parent) const;
    void add_object_words(const StackFramePointer& frame, const Words& list);
    void add_array_words(const StackFramePointer& frame, const Words& list);
    void leave_object_part(const StackFramePointer& frame, std::uint32_t result,
                           const NameText* name);
    void add_name(StackFramePointer frame);
    void leave_array_part(const StackFramePointer& frame, std::uint32_t result);

    const Grammar& grammar_;
    const ParseEnds ends_;
    Parses& out_;
};

}  // namespace moex
