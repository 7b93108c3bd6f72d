// A parse: one possible derivation of an answer's text so far. grammar_state.h has the set of all
// parses of an answer, with an example; this file has the parts of one parse, and how a single text
// of a parse takes a byte.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
using Parses = std::vector<Parse>;

}  // namespace moex
