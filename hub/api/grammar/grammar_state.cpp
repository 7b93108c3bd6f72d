#include "hub/api/grammar/grammar_state.h"

#include <algorithm>

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Leaf = Parse::Leaf;
using Part = StackFrame::Part;
using Parses = GrammarState::Parses;

constexpr std::uint32_t all_ranks = 0xffff'ffff;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
    hash ^= value + 0x9e37'79b9'7f4a'7c15 + (hash << 6) + (hash >> 2);
    hash *= 0xff51'afd7'ed55'8ccd;
    return hash ^ hash >> 32;
}

const Words& array_begin() {
    static const Words words = [] {
        Words out;
        out.add("[", 0, 0);
        out.add("[]", 1, 1);
        out.sort();
        return out;
    }();
    return words;
}
const Words& array_next() {
    static const Words words = [] {
        Words out;
        out.add(std::string(json_comma), 0, 0);
        out.add("]", 1, 1);
        out.sort();
        return out;
    }();
    return words;
}
const Words& name_end() {
    static const Words words = [] {
        Words out;
        out.add("\"" + std::string(json_colon), 0, 0);
        return out;
    }();
    return words;
}

std::string name_of(const NameText* text) {
    std::string out(text ? text->length : 0, '\0');
    for (; text && text->length > 0; text = text->before.get()) out[text->length - 1] = text->last;
    return out;
}

NodeId item_of(const GrammarNode& array, std::uint32_t index) {
    return index < array.children.size() ? array.children[index] : array.rest;
}

// Returns the least bytes of an array from the end of item `index` to its closing bracket.
std::uint32_t least_items(const Grammar& grammar, const GrammarNode& array, std::uint32_t index) {
    std::uint32_t sum = 1;
    const auto fixed = static_cast<std::uint32_t>(array.children.size());
    for (std::uint32_t i = index; i < std::min(array.min, fixed); ++i)
        sum = add_least(sum, add_least(grammar.least(array.children[i]), json_comma.size()));
    if (array.min > std::max(index, fixed)) {
        const std::uint64_t each = grammar.least(array.rest) + json_comma.size();
        const std::uint64_t rest = each * (array.min - std::max(index, fixed));
        sum = add_least(sum,
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(rest, endless - 1)));
    }
    return sum;
}

// Returns the least bytes from the present position to the end of a member name that the object
// does not have yet. Inside a character or an escape the resulting name is not known yet, so the
// worst case is assumed.
std::uint32_t least_to_free_name(const Parse& name) {
    const auto& taken = *name.frame->taken;
    const std::uint32_t choices = name.node->name_choices;
    const std::uint32_t open = least_text(names_of(*name.node), true, name.text);
    if (open > 0)
        return add_least(open, taken.empty() ? 0 : least_name_bytes(taken.size(), choices));
    if (name.first == name.last || taken[name.first]->size() != name.depth) return 0;
    return least_name_bytes(name.last - name.first, choices);
}

}  // namespace

// Enters and leaves nodes of the grammar, and adds the resulting parses to `out`.
class GrammarState::Walker {
  public:
    Walker(const Grammar& grammar, Parses& out) : grammar_(grammar), out_(out) {}

    void enter(NodeId id, const StackFramePointer& parent) {
        const GrammarNode& node = grammar_.node(id);
        if (!fits(id, parent)) return;
        switch (node.kind) {
            case Kind::words: return add(words(node, node.words, parent));
            case Kind::text: return add({.leaf = Leaf::text, .node = &node, .frame = parent});
            case Kind::number: return add({.leaf = Leaf::number, .node = &node, .frame = parent});
            case Kind::token: return add({.leaf = Leaf::token, .node = &node, .frame = parent});
            case Kind::sequence:
                return node.children.empty() ? leave(parent, 0, nullptr)
                                             : enter_child(node, 0, parent);
            case Kind::choice:
                for (const NodeId child : node.children) enter(child, parent);
                return;
            case Kind::repeat:
                if (node.max > 0) enter_repeat(node, 0, parent);
                if (node.min == 0) leave(parent, 0, nullptr);
                return;
            case Kind::object: return add_object_words(object_frame(node, parent), node.words);
            case Kind::array:
                return add_array_words(push(node, parent, 0, Part::words), array_begin());
        }
    }

    // Continues the parse in `frame` after a child of the frame's node is done. If the child was a
    // list of words, `result` is the id of the word that the text has. If the child was the name of
    // a member that the schema does not list, `name` is that name.
    void leave(const StackFramePointer& frame, std::uint32_t result, const NameText* name) {
        if (!frame) return add({});
        const GrammarNode& node = *frame->node;
        switch (node.kind) {
            case Kind::sequence: return enter_child(node, frame->position + 1, frame->parent);
            case Kind::repeat: {
                std::uint32_t count = frame->position + 1;
                if (node.max == unbounded) count = std::min(count, node.min);
                if (count < node.max) enter_repeat(node, count, frame->parent);
                if (count >= node.min) leave(frame->parent, 0, nullptr);
                return;
            }
            case Kind::object: return leave_object_part(frame, result, name);
            case Kind::array: return leave_array_part(frame, result);
            default: return;
        }
    }

  private:
    static constexpr std::size_t out_max = 4096;

    void add(Parse parse) {
        if (out_.size() >= out_max) return;
        const bool is_known = std::any_of(out_.begin(), out_.end(),
                                          [&](const Parse& known) { return known.same_as(parse); });
        if (!is_known) out_.push_back(std::move(parse));
    }

    bool fits(NodeId id, const StackFramePointer& parent) const {
        return add_least(parent ? parent->depth : 0, grammar_.height(id)) <= grammar_.depth_max();
    }

    StackFramePointer push(const GrammarNode& node, const StackFramePointer& parent,
                           std::uint32_t position, Part part, TakenNames taken = nullptr) const {
        auto* const frame = new StackFrame;
        frame->node = &node;
        frame->parent = parent;
        frame->position = position;
        frame->part = part;
        frame->depth = (parent ? parent->depth : 0) + 1;
        frame->below = parent ? behind(*parent, 0) : 0;
        std::uint64_t hash = mix(parent ? parent->hash : 1,
                                 reinterpret_cast<std::uintptr_t>(&node));
        hash = mix(hash, std::uint64_t{position} << 8 | static_cast<unsigned>(part));
        frame->hash = mix(hash, reinterpret_cast<std::uintptr_t>(taken.get()));
        frame->taken = std::move(taken);
        return StackFramePointer(frame);
    }

    // The last child of a sequence needs no stack frame, so a rule that recurs at its end does not
    // grow the stack.
    void enter_child(const GrammarNode& node, std::uint32_t index,
                     const StackFramePointer& parent) {
        if (index + 1 == node.children.size()) return enter(node.children[index], parent);
        enter(node.children[index], push(node, parent, index, Part::value));
    }

    void enter_repeat(const GrammarNode& node, std::uint32_t count,
                      const StackFramePointer& parent) {
        enter(node.children[0], push(node, parent, count, Part::value));
    }

    Parse words(const GrammarNode& node, const Words& words, const StackFramePointer& frame,
                std::uint32_t rank_first = 0, std::uint32_t rank_last = all_ranks) const {
        return {.leaf = Leaf::words,
                .node = &node,
                .words = &words,
                .first = 0,
                .last = static_cast<std::uint32_t>(words.words.size()),
                .rank_first = rank_first,
                .rank_last = rank_last,
                .frame = frame};
    }

    StackFramePointer object_frame(const GrammarNode& node, const StackFramePointer& parent) const {
        TakenNames taken;
        if (node.rest != GrammarNode::none) {
            auto names = std::make_shared<std::vector<std::shared_ptr<const std::string>>>();
            for (const std::string& name : node.sorted_names)
                names->push_back(std::make_shared<const std::string>(name));
            taken = std::move(names);
        }
        return push(node, parent, 0, Part::words, std::move(taken));
    }

    // Members that the schema declares keep their order, and a required member is not skipped.
    // Further members and the closing brace follow the declared ones. The position of an object's
    // frame goes on counting with the further members.
    void add_object_words(const StackFramePointer& frame, const Words& list) {
        const GrammarNode& node = *frame->node;
        const auto count = static_cast<std::uint32_t>(node.properties.size());
        const std::uint32_t further = frame->position - std::min(frame->position, count);
        const std::uint32_t closing = count + 1;
        std::uint32_t from = std::min(frame->position, count);
        std::uint32_t last = node.required_from[from];
        if (further < node.min) last = std::min(last, count);
        if (frame->position >= count && further >= node.max) from = closing;
        add(words(node, list, frame, from, last));
    }

    void add_array_words(const StackFramePointer& frame, const Words& list) {
        const GrammarNode& node = *frame->node;
        const std::uint32_t count = frame->position;
        const NodeId item = count < node.max ? item_of(node, count) : GrammarNode::none;
        const bool may_go_on = item != GrammarNode::none && fits(item, frame);
        const bool may_close = count >= node.min;
        if (!may_go_on && !may_close) return;
        add(words(node, list, frame, may_go_on ? 0 : 1, may_close ? 1 : 0));
    }

    // Returns the position after one more further member, counted as far as the bounds need it.
    static std::uint32_t after_further(const GrammarNode& node, std::uint32_t position) {
        const auto count = static_cast<std::uint32_t>(node.properties.size());
        const std::uint32_t further = std::max(position, count) - count;
        return count + std::min(further + 1, node.max == unbounded ? node.min : node.max);
    }

    void leave_object_part(const StackFramePointer& frame, std::uint32_t result,
                           const NameText* name) {
        const GrammarNode& node = *frame->node;
        const auto count = static_cast<std::uint32_t>(node.properties.size());
        const std::uint32_t position = std::max(frame->position, count);
        switch (frame->part) {
            case Part::words:
                if (result == count) return leave(frame->parent, 0, nullptr);
                if (result < count)
                    return enter(node.properties[result].value,
                                 push(node, frame->parent, result + 1, Part::value, frame->taken));
                return add_name(push(node, frame->parent, position, Part::name, frame->taken));
            case Part::name: {
                auto names = std::make_shared<std::vector<std::shared_ptr<const std::string>>>(
                    *frame->taken);
                auto own = std::make_shared<const std::string>(name_of(name));
                names->insert(
                    std::lower_bound(names->begin(), names->end(), own,
                                     [](const auto& a, const auto& b) { return *a < *b; }),
                    own);
                return add(
                    words(node, name_end(),
                          push(node, frame->parent, position, Part::colon, std::move(names))));
            }
            case Part::colon:
                return enter(node.rest, push(node, frame->parent, after_further(node, position),
                                             Part::value, frame->taken));
            case Part::value:
                return add_object_words(
                    push(node, frame->parent, frame->position, Part::words, frame->taken),
                    node.next_words);
        }
    }

    void add_name(StackFramePointer frame) {
        const GrammarNode* node = frame->node;
        const auto last = static_cast<std::uint32_t>(frame->taken->size());
        add({.leaf = Leaf::name, .node = node, .last = last, .frame = std::move(frame)});
    }

    void leave_array_part(const StackFramePointer& frame, std::uint32_t result) {
        const GrammarNode& node = *frame->node;
        if (frame->part == Part::words) {
            if (result == 1) return leave(frame->parent, 0, nullptr);
            return enter(item_of(node, frame->position),
                         push(node, frame->parent, frame->position, Part::value));
        }
        std::uint32_t count = frame->position + 1;
        if (node.max == unbounded)
            count = std::min(count,
                             std::max(node.min, static_cast<std::uint32_t>(node.children.size())));
        add_array_words(push(node, frame->parent, count, Part::words), array_next());
    }

  public:
    // Returns the least bytes from the end of the node above `frame` to the end of the answer.
    std::uint32_t behind(const StackFrame& frame, std::uint32_t result) const {
        const GrammarNode& node = *frame.node;
        std::uint32_t here = 0;
        switch (node.kind) {
            case Kind::sequence:
                for (std::size_t i = frame.position + 1; i < node.children.size(); ++i)
                    here = add_least(here, grammar_.least(node.children[i]));
                break;
            case Kind::repeat:
                if (node.min > frame.position + 1) {
                    const std::uint64_t sum = std::uint64_t{node.min - frame.position - 1} *
                                              grammar_.least(node.children[0]);
                    here = static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, endless - 1));
                }
                break;
            case Kind::object: here = behind_object_part(frame, result); break;
            case Kind::array:
                if (frame.part == Part::value)
                    here = least_items(grammar_, node, frame.position + 1);
                else if (result == 0)
                    here = add_least(grammar_.least(item_of(node, frame.position)),
                                     least_items(grammar_, node, frame.position + 1));
                break;
            default: break;
        }
        return add_least(here, frame.below);
    }

    // Returns true if a word may be chosen: its rank is allowed here, and the value that follows
    // the word fits into the largest stack depth.
    bool in_reach(const Parse& parse, const Words::Word& word) const {
        if (word.rank < parse.rank_first || word.rank > parse.rank_last) return false;
        if (!parse.frame || parse.node->kind != Kind::object || parse.words == &name_end())
            return true;
        const auto count = parse.node->properties.size();
        if (word.id == count) return true;
        return fits(word.id < count ? parse.node->properties[word.id].value : parse.node->rest,
                    parse.frame);
    }

  private:
    // Returns the least bytes of an object from the end of a member to its closing brace.
    static std::uint32_t least_members(const GrammarNode& node, std::uint32_t position) {
        const auto count = static_cast<std::uint32_t>(node.properties.size());
        const std::uint32_t further = position - std::min(position, count);
        const std::uint32_t missing = node.min - std::min(node.min, further);
        const std::uint64_t sum = std::uint64_t{missing} * node.further_least;
        return add_least(node.rest_least[std::min(position, count)],
                         static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, endless - 1)));
    }

    std::uint32_t behind_object_part(const StackFrame& frame, std::uint32_t result) const {
        const GrammarNode& node = *frame.node;
        const auto count = static_cast<std::uint32_t>(node.properties.size());
        const auto colon = static_cast<std::uint32_t>(1 + json_colon.size());
        if (frame.part == Part::value) return least_members(node, frame.position);
        if (frame.part == Part::words && result == count) return 0;
        if (frame.part == Part::words && result < count)
            return add_least(grammar_.least(node.properties[result].value),
                             least_members(node, result + 1));

        const std::uint32_t rest = add_least(
            grammar_.least(node.rest), least_members(node, after_further(node, frame.position)));
        if (frame.part == Part::colon) return rest;
        if (frame.part == Part::name) return add_least(colon, rest);
        return add_least(least_next_name(node, *frame.taken), add_least(colon, rest));
    }

    // Returns the least bytes of the name of the next further member. It can be empty, unless the
    // object has such a member already; then a free name needs further characters.
    static std::uint32_t least_next_name(
        const GrammarNode& node, const std::vector<std::shared_ptr<const std::string>>& taken) {
        const std::uint32_t shortest = names_of(node).least_escaped[0];
        const bool is_free = shortest == 0 ? taken.empty() || !taken.front()->empty()
                                           : taken.empty();
        return is_free ? shortest
                       : add_least(shortest, least_name_bytes(taken.size(), node.name_choices));
    }

    const Grammar& grammar_;
    Parses& out_;
};

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar) : grammar_(std::move(grammar)) {
    Walker(*grammar_, parses_).enter(grammar_->root(), {});
}

bool GrammarState::may_end(const Parse& parse) const {
    switch (parse.leaf) {
        case Leaf::end:
        case Leaf::token: return false;
        case Leaf::words: {
            const Words::Word& word = parse.words->words[parse.first];
            Parses none;
            return word.text.size() == parse.depth && Walker(*grammar_, none).in_reach(parse, word);
        }
        case Leaf::text:
            return parse.code_points >= parse.node->min &&
                   may_end_text(*parse.node->texts, parse.text);
        case Leaf::name: return least_to_free_name(parse) == 0;
        case Leaf::number: return may_end_number(parse.node->number, parse.number);
    }
    return false;
}

void GrammarState::resume(const Parse& parse, Parses& out) const {
    const std::uint32_t result = parse.leaf == Leaf::words ? parse.words->words[parse.first].id : 0;
    Walker(*grammar_, out).leave(parse.frame, result, parse.name.get());
}

std::uint32_t GrammarState::least_behind(const Parse& parse) const {
    Parses none;
    return parse.frame ? Walker(*grammar_, none).behind(*parse.frame, 0) : 0;
}

std::uint32_t GrammarState::least(const Parse& parse) const {
    std::uint32_t here = 0;
    switch (parse.leaf) {
        case Leaf::end: return 0;
        case Leaf::token: here = 1; break;
        case Leaf::words: {
            Parses none;
            const Walker walker(*grammar_, none);
            std::uint32_t best = endless;
            for (std::uint32_t i = parse.first; i < parse.last; ++i) {
                const Words::Word& word = parse.words->words[i];
                if (!walker.in_reach(parse, word)) continue;
                const auto left = static_cast<std::uint32_t>(word.text.size() - parse.depth);
                best = std::min(
                    best, add_least(left, parse.frame ? walker.behind(*parse.frame, word.id) : 0));
            }
            return best;
        }
        case Leaf::text: here = least_in_text(*parse.node, parse.text, parse.code_points); break;
        case Leaf::name: here = least_to_free_name(parse); break;
        case Leaf::number: here = least_number(parse.node->number, parse.number); break;
    }
    return add_least(here, least_behind(parse));
}

std::uint32_t GrammarState::least(const Parses& parses) const {
    std::uint32_t best = endless;
    for (const Parse& parse : parses) best = std::min(best, least(parse));
    return best;
}
std::uint32_t GrammarState::least() const { return least(parses_); }

void GrammarState::expand(const Parses& parses, Parses& out) const {
    out = parses;
    for (std::size_t i = 0; i < out.size() && out.size() < 16 * parses_max; ++i) {
        if (!may_end(out[i])) continue;
        const Parse ended = out[i];  // a copy, since resume() adds elements to `out`
        resume(ended, out);
    }
}

// Returns the only byte that may be next, if only words may be next and agree on it.
std::optional<char> GrammarState::only_byte(const Parses& expanded) const {
    Parses none;
    const Walker walker(*grammar_, none);
    std::optional<char> only;
    for (const Parse& parse : expanded) {
        if (parse.leaf != Leaf::words) return std::nullopt;
        for (std::uint32_t i = parse.first; i < parse.last; ++i) {
            const Words::Word& word = parse.words->words[i];
            if (word.text.size() == parse.depth || !walker.in_reach(parse, word)) continue;
            if (only && *only != word.text[parse.depth]) return std::nullopt;
            only = word.text[parse.depth];
        }
    }
    return only;
}

std::string GrammarState::forced(std::size_t bytes_max) const {
    std::string bytes;
    Parses at = parses_, expanded;
    while (bytes.size() < bytes_max) {
        expand(at, expanded);
        const std::optional<char> only = only_byte(expanded);
        if (!only) break;
        bytes += *only;
        step(expanded, static_cast<unsigned char>(*only), at);
    }
    return bytes;
}

namespace {

bool step_words(Parse& parse, unsigned char byte) {
    const auto& words = parse.words->words;
    const auto byte_at = [&](std::uint32_t i) -> int {
        return parse.depth < words[i].text.size()
                   ? static_cast<unsigned char>(words[i].text[parse.depth])
                   : -1;
    };
    std::uint32_t low = parse.first, high = parse.last;
    while (low < high) {
        const std::uint32_t middle = (low + high) / 2;
        if (byte_at(middle) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    parse.first = low;
    while (high < parse.last && byte_at(high) == byte) ++high;
    parse.last = high;
    ++parse.depth;
    return parse.first < parse.last;
}

// Narrows [first, last) to the taken names that continue with `byte`, and appends `byte` to the
// name that is being written.
void narrow_taken(Parse& parse, char byte) {
    const auto& taken = *parse.frame->taken;
    const auto fits = [&](std::uint32_t i) {
        return parse.depth < taken[i]->size() && (*taken[i])[parse.depth] == byte;
    };
    while (parse.first < parse.last && !fits(parse.first)) ++parse.first;
    std::uint32_t last = parse.first;
    while (last < parse.last && fits(last)) ++last;
    parse.last = last;
    ++parse.depth;
    parse.name = std::make_shared<const NameText>(parse.name, parse.depth, byte);
}

bool step_name(Parse& parse, unsigned char byte) {
    const ByteAutomaton& texts = names_of(*parse.node);
    const TextState before = parse.text;
    const auto next = step_text(texts, true, before, byte);
    if (!next) return false;
    parse.text = *next;
    if (before.escape == 0 && byte != '\\') {
        narrow_taken(parse, static_cast<char>(byte));
        return true;
    }
    for (const char c : decoded_by(before, byte)) narrow_taken(parse, c);
    return true;
}

}  // namespace

void GrammarState::step(const Parses& expanded, unsigned char byte, Parses& out) const {
    out.clear();
    Parses none;
    for (const Parse& before : expanded) {
        if (before.leaf == Leaf::end || before.leaf == Leaf::token) continue;
        Parse parse = before;
        bool alive = false;
        switch (parse.leaf) {
            case Leaf::words: {
                const Walker walker(*grammar_, none);
                alive = step_words(parse, byte);
                bool reaches = false;
                for (std::uint32_t i = parse.first; alive && !reaches && i < parse.last; ++i)
                    reaches = walker.in_reach(parse, parse.words->words[i]);
                alive = alive && reaches;
                break;
            }
            case Leaf::text:
                alive = step_in_text(*parse.node, parse.text, parse.code_points, byte);
                break;
            case Leaf::name: alive = step_name(parse, byte); break;
            case Leaf::number:
                if (const auto next = step_number(parse.node->number, parse.number, byte)) {
                    parse.number = *next;
                    alive = true;
                }
                break;
            default: break;
        }
        if (!alive) continue;
        const bool is_known = std::any_of(out.begin(), out.end(),
                                          [&](const Parse& known) { return known.same_as(parse); });
        if (!is_known) out.push_back(std::move(parse));
    }
}

bool GrammarState::adopt(Parses next) {
    if (next.empty()) return false;
    if (next.size() > parses_max) {
        std::vector<std::pair<std::uint32_t, std::size_t>> order;
        for (std::size_t i = 0; i < next.size(); ++i) order.emplace_back(least(next[i]), i);
        std::sort(order.begin(), order.end());
        Parses kept;
        for (std::size_t i = 0; i < parses_max; ++i) kept.push_back(next[order[i].second]);
        next = std::move(kept);
    }
    parses_ = std::move(next);
    return true;
}

bool GrammarState::take(unsigned char byte) {
    Parses expanded, next;
    expand(parses_, expanded);
    step(expanded, byte, next);
    return adopt(std::move(next));
}

bool GrammarState::take(std::string_view bytes) {
    const Parses before = parses_;
    for (const char c : bytes)
        if (!take(static_cast<unsigned char>(c))) {
            parses_ = before;
            return false;
        }
    return true;
}

bool GrammarState::take_token(TokenId id) {
    const std::span<const TokenId> named = grammar_->named_tokens();
    const bool is_named = std::binary_search(named.begin(), named.end(), id);
    Parses expanded, next;
    expand(parses_, expanded);
    for (const Parse& parse : expanded) {
        if (parse.leaf == Leaf::token && parse.node->token == id)
            resume(parse, next);
        else if (!is_named && parse.leaf == Leaf::text && parse.node->any_token)
            next.push_back(parse);
    }
    return adopt(std::move(next));
}

}  // namespace moex
