// The ends of parses: the number of bytes that an answer needs at least from a place in its grammar
// on, and which words still lead to an end. A mask asks these questions for many tokens, so that
// the small ones are inline.
//   schema {"a": integer}, text `{"a": 1`: behind() of the object's frame is 1, for the brace
#pragma once

#include <cstdint>
#include <string>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/grammar_parse.h"

namespace moex {

// The words between the name of a further member and its value.
inline const Words& name_end() {
    static const Words words = [] {
        Words out;
        out.add("\"" + std::string(json_colon), 0, 0);
        return out;
    }();
    return words;
}

// Returns the item of an array with this index.
inline NodeId item_of(const GrammarNode& array, std::uint32_t index) {
    return index < array.children.size() ? array.children[index] : array.rest;
}

// Returns the position after one more further member, counted as far as the bounds need it.
std::uint32_t after_further(const GrammarNode& node, std::uint32_t position);

// Returns the least bytes from the present position to the end of a member name that the object
// does not have yet. Inside a character or an escape the resulting name is not known yet, so the
// worst case is assumed.
std::uint32_t least_to_free_name(const Parse& name);

// Answers for the parses of one grammar. It is cheap to make and keeps no state.
class ParseEnds {
  public:
    explicit ParseEnds(const Grammar& grammar) : grammar_(grammar) {}  // outlives this object

    // Returns true if the stack has room for node `id` above `parent`.
    bool fits(NodeId id, const StackFramePointer& parent) const {
        return add_least(parent ? parent->depth : 0, grammar_.height(id)) <= grammar_.depth_max();
    }
    // Returns the least bytes from the end of the node above `frame` to the end of the answer.
    // `result`: the id of the word that the text has, if that node was a list of words.
    std::uint32_t behind(const StackFrame& frame, std::uint32_t result) const;
    // Returns true if a word may be chosen: its rank is allowed here, and the value that follows
    // the word fits into the largest stack depth.
    bool in_reach(const Parse& parse, const Words::Word& word) const {
        if (word.rank < parse.rank_first || word.rank > parse.rank_last) return false;
        if (!parse.frame || parse.node->kind != GrammarNode::Kind::object ||
            parse.words == &name_end())
            return true;
        const auto count = parse.node->properties.size();
        if (word.id == count) return true;
        return fits(word.id < count ? parse.node->properties[word.id].value : parse.node->rest,
                    parse.frame);
    }

  private:
    std::uint32_t behind_object_part(const StackFrame& frame, std::uint32_t result) const;
    std::uint32_t least_items(const GrammarNode& array, std::uint32_t index) const;

    const Grammar& grammar_;
};

}  // namespace moex
