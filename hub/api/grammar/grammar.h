// A grammar as a graph of nodes. grammar_state.h follows an answer through the graph: its state is
// a set of parses, each a stack of frames with a leaf on top that takes the next bytes of the
// answer. Nodes that take bytes: fixed words, texts of an automaton, numbers, and named tokens.
// Nodes that are entered and left: sequences, choices, repeats, and JSON objects and arrays. Two
// promises: every text that a state accepts can still end well, and the state knows how few bytes
// that takes.
// A grammar is immutable once built. A state belongs to one thread at a time. Copies of a state
// share frames, so they stay on that thread, too.
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

// A sorted list of texts, one of which the answer has to write, e.g. {`{"a": `, `{}`}. The id of a
// word says which text was written. At a given position words of some ranks may be forbidden.
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
        // A text that `texts` accepts, of min to max code points; `escaped`: inside a JSON string.
        text,
        number,
        token,     // the token `token`
        sequence,  // accepts all children, in their order
        choice,    // accepts one of the children; without children no text at all
        repeat,    // repeats children[0], min to max times
        // JSON object: `properties` in their order, then min to max further members, whose names
        // are texts of `texts` (null: any text)
        object,
        array,  // JSON array: one item for each child, then items of `rest`; min to max items
    };
    struct Property {
        std::string name;
        NodeId value = 0;
        bool required = false;
    };
    static constexpr NodeId none = 0xffff'ffff;

    Kind kind = Kind::choice;
    bool escaped = false;
    bool any_token = false;  // the text may also contain special tokens
    TokenId token = 0;
    std::uint32_t min = 0, max = unbounded;
    std::vector<NodeId> children;
    NodeId rest = none;  // node of further members' values (object), or of further items (array)
    std::vector<Property> properties;
    // Names that no member may have, in addition to those of `properties`.
    std::vector<std::string> forbidden_names;
    SharedAutomaton texts;
    // JSON objects with `texts`: after a possible name, at least this many characters give another
    // possible name each.
    std::uint32_t name_choices = 93;
    NumberRule number;
    Words words;  // the texts of Kind::words, or the possible beginnings of a JSON object

    // Grammar::build() computes the following fields for JSON objects.
    Words next_words;  // the texts that may follow a member's value
    // [i]: least bytes of the object after its first i properties.
    std::vector<std::uint32_t> rest_least;
    // [i]: first required property from i on, or the rank of the closing brace.
    std::vector<std::uint32_t> required_from;
    std::vector<std::string> sorted_names;  // declared and forbidden names, sorted
    std::uint32_t further_least = 0;        // least bytes of a further member, its comma included
};

struct GrammarLimits {
    std::uint32_t nodes_max = 50'000;
    std::uint32_t depth_max = 192;        // nested stack frames
    std::uint64_t bytes_max = 32u << 20;  // memory of the words and automata, in bytes
};

class Grammar {
  public:
    // Makes a grammar: computes the least bytes of each node, and drops nodes that no text reaches.
    // Errors: `unsupported` for a grammar beyond a limit, or with a node that reaches itself
    // without taking a byte; `invalid_argument` for a grammar without any text.
    static Result<std::shared_ptr<const Grammar>> build(std::vector<GrammarNode> nodes, NodeId root,
                                                        const GrammarLimits& limits = {});
    const GrammarNode& node(NodeId id) const { return nodes_[id]; }
    NodeId root() const { return root_; }
    std::uint32_t least(NodeId id) const { return least_[id]; }    // bytes; endless: no text
    std::uint32_t height(NodeId id) const { return height_[id]; }  // frames for the shortest text
    std::uint32_t depth_max() const { return limits_.depth_max; }
    std::span<const TokenId> named_tokens() const { return named_; }
    // Returns true if texts of this grammar may also contain special tokens that the grammar does
    // not name.
    bool has_any_token_text() const { return any_token_; }

  private:
    Grammar() = default;
    Result<void> check_size() const;
    std::uint32_t least_of(const GrammarNode& node) const;
    std::uint32_t least_of_further(const GrammarNode& node) const;
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

// Returns how many characters a name needs so that there are more possible names than the `taken`
// ones, if each character can be any of `choices`.
std::uint32_t least_name_bytes(std::uint64_t taken, std::uint32_t choices);
// Returns the automaton of the names that further members of an object may have.
const ByteAutomaton& names_of(const GrammarNode& object);
// Returns GrammarNode::name_choices of an automaton; 0 or 1: the automaton may run out of names.
std::uint32_t name_choices_of(const ByteAutomaton& names);

// Returns `text` as a JSON string. Characters that need an escape get the shortest one; all others
// are unchanged.
std::string json_string(std::string_view text);

// The only white space that a JSON answer has: a blank after ':' and ',', as tojson of chat
// templates writes.
inline constexpr std::string_view json_comma = ", ", json_colon = ": ";

}  // namespace moex
