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
#include <utility>
#include <vector>

#include "hub/api/grammar/grammar.h"

namespace moex {

// Names that further members of an object may not have, sorted: the declared names, and the names
// of the further members that the object already has.
using TakenNames = std::shared_ptr<const std::vector<std::shared_ptr<const std::string>>>;

// One level of a parse's stack. The parse continues in this frame when the node above it is done.
// Reference-counted without atomics, so that all states that share frames belong to one thread.
struct StackFrame;
class StackFramePointer {
  public:
    StackFramePointer() = default;
    explicit StackFramePointer(StackFrame* frame) : frame_(frame) {}  // takes the first reference
    StackFramePointer(const StackFramePointer& other);
    StackFramePointer(StackFramePointer&& other) noexcept : frame_(other.frame_) {
        other.frame_ = nullptr;
    }
    StackFramePointer& operator=(StackFramePointer other) noexcept {
        std::swap(frame_, other.frame_);
        return *this;
    }
    ~StackFramePointer();
    const StackFrame& operator*() const { return *frame_; }
    const StackFrame* operator->() const { return frame_; }
    const StackFrame* get() const { return frame_; }
    explicit operator bool() const { return frame_ != nullptr; }

  private:
    StackFrame* frame_ = nullptr;
};

struct StackFrame {
    // The part of an object or array that is next.
    enum class Part : std::uint8_t { words, name, colon, value };
    std::uint32_t references = 1;
    std::uint32_t depth = 0;
    const GrammarNode* node = nullptr;
    // In a sequence, the index of the child. In a repeat, an object or an array, the number of
    // repetitions, declared members or items that were begun before.
    std::uint32_t position = 0;
    Part part = Part::words;
    std::uint32_t below = 0;  // least bytes from the end of this node to the end of the answer
    std::uint64_t hash = 0;   // hash of this frame and all frames below it
    TakenNames taken;
    StackFramePointer parent;
};

// The name of a further member while the answer writes it: a linked list of bytes, from the last
// byte to the first.
struct NameText {
    NameText(std::shared_ptr<const NameText> begin, std::uint32_t bytes, char end)
        : before(std::move(begin)),
          length(bytes),
          last(end) {}
    NameText(const NameText&) = delete;
    ~NameText();
    std::shared_ptr<const NameText> before;
    std::uint32_t length = 0;
    char last = 0;
};

// Advances `text` by one byte. Counts `code_points` up to the node's bounds, and returns false if
// the byte does not fit the node's texts or their bound on length.
bool step_in_text(const GrammarNode& node, TextState& text, std::uint32_t& code_points,
                  unsigned char byte);
std::uint32_t least_in_text(const GrammarNode& node, TextState text, std::uint32_t code_points);

// A possible derivation of the text so far: a leaf that takes bytes, on a stack of frames.
struct Parse {
    enum class Leaf : std::uint8_t { end, words, text, name, number, token };
    Leaf leaf = Leaf::end;
    const GrammarNode* node = nullptr;
    const Words* words = nullptr;
    // Leaf::words: the words in [first, last) share their first `depth` bytes with the text, and
    // ranks in [rank_first, rank_last] are allowed here. Leaf::name: [first, last) are the taken
    // names that begin with the name so far, which has `depth` bytes.
    std::uint32_t first = 0, last = 0, depth = 0, rank_first = 0, rank_last = 0;
    TextState text;
    // Code points of the text so far, counted up to the node's bounds.
    std::uint32_t code_points = 0;
    NumberState number;
    std::shared_ptr<const NameText> name;
    StackFramePointer frame;

    bool same_as(const Parse& other) const;
};

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
    using Parses = std::vector<Parse>;
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
    class Walker;
    std::optional<char> only_byte(const Parses& expanded) const;
    bool adopt(Parses next);

    std::shared_ptr<const Grammar> grammar_;
    Parses parses_;
};

}  // namespace moex
