// Where an answer stands in its grammar: all parses that fit so far.
// A parse that would need more than the grammar's depth is not followed, and of very many the
// shortest are: what remains can still end well.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/api/grammar/grammar.h"

namespace moex {

// Names that an object's further members may not have, sorted: declared ones, and those it has.
using TakenNames = std::shared_ptr<const std::vector<std::shared_ptr<const std::string>>>;

// What goes on when the node on top of it is done. Shared among states of one thread.
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
    enum class Part : std::uint8_t { words, name, colon, value };  // of objects and arrays
    std::uint32_t references = 1;
    std::uint32_t depth = 0;
    const GrammarNode* node = nullptr;
    std::uint32_t position = 0;  // which child; how many repeats or items were begun before
    Part part = Part::words;
    std::uint32_t below = 0;  // least bytes behind this node to the end of all
    std::uint64_t hash = 0;   // of everything here and below
    TakenNames taken;
    StackFramePointer parent;
};

// The name of a further member while it is written.
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

// One byte into a text within the node's bounds, its length counted up to what they ask.
bool step_in_text(const GrammarNode& node, TextState& text, std::uint32_t& code_points,
                  unsigned char byte);
std::uint32_t least_in_text(const GrammarNode& node, TextState text, std::uint32_t code_points);

struct Parse {
    enum class Leaf : std::uint8_t { end, words, text, name, number, token };
    Leaf leaf = Leaf::end;
    const GrammarNode* node = nullptr;
    const Words* words = nullptr;
    // words: those in [first, last) begin alike for `depth` bytes; ranks in [rank_first, rank_last]
    // are within reach. A name: of the taken names those that begin alike.
    std::uint32_t first = 0, last = 0, depth = 0, rank_first = 0, rank_last = 0;
    TextState text;
    std::uint32_t code_points = 0;  // of the text, up to what its bounds ask
    NumberState number;
    std::shared_ptr<const NameText> name;
    StackFramePointer frame;

    bool same_as(const Parse& other) const;
};

class GrammarState {
  public:
    static constexpr std::size_t parses_max = 64;

    explicit GrammarState(std::shared_ptr<const Grammar> grammar);
    // False: nothing may go on so, and the state is left as it was.
    bool take(std::string_view bytes);
    bool take(unsigned char byte);
    // A named token, or one that is no text where any may stand.
    bool take_token(TokenId id);

    std::uint32_t least() const;  // bytes to an end
    bool may_end() const { return least() == 0; }
    std::span<const Parse> parses() const { return parses_; }
    const Grammar& grammar() const { return *grammar_; }

    // ---- For walks over many tokens: parses by themselves.
    using Parses = std::vector<Parse>;
    // Each parse that may end is followed by what then may go on.
    void expand(const Parses& parses, Parses& out) const;
    // One step of parses that were expanded.
    void step(const Parses& expanded, unsigned char byte, Parses& out) const;
    std::uint32_t least(const Parse& parse) const;
    std::uint32_t least(const Parses& parses) const;
    bool may_end(const Parse& parse) const;                // its leaf
    std::uint32_t least_behind(const Parse& parse) const;  // behind its leaf
    void resume(const Parse& parse, Parses& out) const;    // its leaf is done

  private:
    class Walker;
    bool adopt(Parses next);

    std::shared_ptr<const Grammar> grammar_;
    Parses parses_;
};

}  // namespace moex
