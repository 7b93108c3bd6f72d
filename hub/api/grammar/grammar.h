// A grammar as a graph of nodes, and where an answer stands in it: a set of readings, each a stack
// of frames with a leaf on top that takes bytes. What takes bytes: fixed words, texts of an
// automaton, numbers, and named tokens. What is entered and left: sequences, choices, repeats, and
// JSON objects and arrays.
// Two promises: whatever a state accepts can still end well, and it knows how few bytes that takes.
// Immutable once built; states belong to one thread at a time, and copies of one share frames, so
// they stay on that thread, too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/api/grammar/byte_automaton.h"
#include "hub/api/grammar/json_text.h"
#include "hub/model/tokenizer/token_id.h"
#include "protocol/result.h"

namespace moex {

using NodeId = std::uint32_t;

// Texts to choose from, sorted. The id says which it was; those of a rank may be out of reach.
struct Words {
    struct Word {
        std::string text;
        std::uint32_t rank = 0, id = 0;
    };
    std::vector<Word> words;
    void add(std::string text, std::uint32_t rank, std::uint32_t id);
    void sort();
};

struct GrammarNode {
    enum class Kind : std::uint8_t {
        words,
        text,  // of `texts`, `escaped` as inside a JSON string, of min to max code points
        number,
        token,     // the token `token`
        sequence,  // of children
        choice,    // of children; none: nothing at all
        repeat,    // of children[0], min to max times
        object,    // JSON: `properties` in their order, then others
        array,     // JSON: children, then `rest`, min to max of them
    };
    struct Property {
        std::string name;
        NodeId value = 0;
        bool required = false;
    };
    static constexpr NodeId none = 0xffff'ffff;

    Kind kind = Kind::choice;
    bool escaped = false;
    bool any_token = false;  // a text in which special tokens, too, may stand
    TokenId token = 0;
    std::uint32_t min = 0, max = unbounded;
    std::vector<NodeId> children;
    NodeId rest = none;  // of an object: further members' values; of an array: further items
    std::vector<Property> properties;
    SharedAutomaton texts;
    NumberRule number;
    Words words;  // of an object: what may stand at its begin

    // Worked out by Grammar::build().
    Words next_words;                          // of an object: behind a value
    std::vector<std::uint32_t> rest_least;     // of an object behind its first i properties
    std::vector<std::uint32_t> required_from;  // the first required one from i on; or how many
    std::vector<std::string> sorted_names;     // of an object
};

struct GrammarLimits {
    std::uint32_t nodes_max = 50'000;
    std::uint32_t depth_max = 192;        // frames inside each other
    std::uint64_t bytes_max = 32u << 20;  // of words and automata
};

class Grammar {
  public:
    // Works out distances and what is out of reach. unsupported: beyond a limit, or a node that
    // reaches itself without taking a byte; invalid_argument: no text at all.
    static Result<std::shared_ptr<const Grammar>> build(std::vector<GrammarNode> nodes, NodeId root,
                                                        const GrammarLimits& limits = {});
    const GrammarNode& node(NodeId id) const { return nodes_[id]; }
    NodeId root() const { return root_; }
    std::uint32_t least(NodeId id) const { return least_[id]; }    // bytes; endless: no text
    std::uint32_t height(NodeId id) const { return height_[id]; }  // frames of the shortest text
    std::uint32_t depth_max() const { return limits_.depth_max; }
    std::span<const TokenId> named_tokens() const { return named_; }
    // Texts in which any token may stand, named ones aside.
    bool has_any_token_text() const { return any_token_; }

  private:
    Grammar() = default;
    Result<void> check_size() const;
    std::uint32_t least_of(const GrammarNode& node) const;
    std::uint32_t height_of(const GrammarNode& node) const;
    bool relax();
    void drop_unreachable();
    Result<void> check_progress() const;
    void finish_object(GrammarNode& node) const;

    std::vector<GrammarNode> nodes_;
    NodeId root_ = 0;
    GrammarLimits limits_;
    std::vector<std::uint32_t> least_, height_;
    std::vector<TokenId> named_;
    bool any_token_ = false;
};

std::uint32_t add_least(std::uint32_t a, std::uint32_t b);  // endless stays endless

// How a JSON string is written here: the shortest escapes, everything else as it is.
std::string json_string(std::string_view text);

// One form of white space: a blank behind ':' and ',', as chat templates' tojson writes.
inline constexpr std::string_view json_comma = ", ", json_colon = ": ";

}  // namespace moex
