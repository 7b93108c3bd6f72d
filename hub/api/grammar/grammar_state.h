// The state of one answer within its grammar: the set of all parses that fit the text so far.
//
// The problem: while a text grows, its grammar is ambiguous. A parser that chose one alternative
// at once would have to go back when the next bytes fit only another one. So this state keeps every
// possible derivation of the text, a Parse, and advances all parses by each byte.
//
// A parse is a leaf with a stack. The leaf is the node that takes the next bytes. The stack frames
// below it are the nodes that were entered and not left; they say what follows when the leaf is
// done. Parses share the lower frames of their stacks. Choices have no frame, and the last child of
// a sequence has none either.
//
// Example. The schema declares {"a": integer or the constant 12, "b": boolean}, requires "a" and
// allows no further members. After the text `{"a": 1` there are two parses (without the blank the
// text fits no parse):
//   leaf                              stack frames           least   meaning
//   number, digits "1"                object, position 1,    1       "1" is done, or goes on
//                                     part value
//   words {"12"}, depth 1             the same frame         2       "12" lacks its second byte
// The number may end here, so expand() adds what may follow it:
//   words {`, "a": ` rank 0,          object, position 1,    1       the end, or the next member
//          `, "b": ` rank 1,          part words
//          `}`       rank 2},
//   depth 0, ranks 1 to 2
// `position` 1 says that member 0 was written. Words of rank 0 are out of reach because "a" must
// not come again; rank_last would be 1 if "b" were required. `least` is the number of bytes to the
// shortest end of the whole answer, here the brace.
//
// Limits: a parse that would need more frames than Grammar::depth_max() is not followed. Of more
// than parses_max parses only those with the shortest ends are kept. Both rules only drop parses,
// so each parse that remains can still end well.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/api/grammar/grammar.h"
#include "hub/api/grammar/grammar_parse.h"

namespace moex {

class GrammarState {
  public:
    static constexpr std::size_t parses_max = 64;

    explicit GrammarState(std::shared_ptr<const Grammar> grammar);
    // Advances all parses by `bytes`. Returns false, and leaves the state unchanged, if no parse
    // fits them.
    bool take(std::string_view bytes);
    bool take(unsigned char byte);
    // Advances by a token that is not text: a token that the grammar names, or any other special
    // token inside a text with any_token.
    bool take_token(TokenId id);

    std::uint32_t least() const;  // least number of bytes to the end of the answer
    bool may_end() const { return least() == 0; }
    // Returns the bytes that all possible ends of the answer begin with, at most `bytes_max`, as
    // far as words decide it: texts, names and numbers count as a choice.
    std::string forced(std::size_t bytes_max) const;
    std::span<const Parse> parses() const { return parses_; }
    const Grammar& grammar() const { return *grammar_; }

    // ---- The following functions work on the given parses and do not change this state. They
    // serve walks over many tokens.
    // Copies `parses` to `out`. For each parse whose leaf may end here, it also adds the parses
    // that may follow after that leaf.
    void expand(const Parses& parses, Parses& out) const;
    // Advances the result of expand() by one byte; drops parses that the byte does not fit.
    void step(const Parses& expanded, unsigned char byte, Parses& out) const;
    std::uint32_t least(const Parse& parse) const;
    std::uint32_t least(const Parses& parses) const;
    bool may_end(const Parse& parse) const;  // true if the parse's leaf may end here
    // Bytes from the end of the leaf to the answer's end.
    std::uint32_t least_behind(const Parse& parse) const;
    // Adds the parses that follow a finished leaf.
    void resume(const Parse& parse, Parses& out) const;

  private:
    std::optional<char> only_byte(const Parses& expanded) const;
    bool adopt(Parses next);

    std::shared_ptr<const Grammar> grammar_;
    Parses parses_;
};

}  // namespace moex
