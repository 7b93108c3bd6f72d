#include "hub/api/grammar/grammar.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "protocol/text.h"

namespace moex {
namespace {

using Kind = GrammarNode::Kind;

}  // namespace

std::uint32_t add_least(std::uint32_t a, std::uint32_t b) {
    const std::uint64_t sum = std::uint64_t{a} + b;
    return a == endless || b == endless
               ? endless
               : static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, endless - 1));
}

namespace {
std::uint32_t times_least(std::uint32_t count, std::uint32_t least) {
    if (count == 0) return 0;
    if (least == endless) return endless;
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(std::uint64_t{count} * least, endless - 1));
}
}  // namespace

std::uint32_t least_name_bytes(std::uint64_t taken, std::uint32_t choices) {
    std::uint32_t bytes = 1;
    for (std::uint64_t names = choices; names <= taken; names *= choices) ++bytes;
    return bytes;
}

const ByteAutomaton& names_of(const GrammarNode& object) {
    static const SharedAutomaton any = any_text();
    return object.texts ? *object.texts : *any;
}

std::uint32_t name_choices_of(const ByteAutomaton& names) {
    std::uint32_t fewest = endless;
    for (ByteAutomaton::State state = 0; state < names.num_states(); ++state) {
        if (!names.accepts[state]) continue;
        std::uint32_t count = 0;
        for (unsigned char byte = 0x20; byte < 0x7f; ++byte) {
            if (byte == '"' || byte == '\\') continue;
            const ByteAutomaton::State next = names.step(state, byte);
            count += next != ByteAutomaton::dead && names.accepts[next];
        }
        fewest = std::min(fewest, count);
    }
    return fewest == endless ? 0 : fewest;
}

std::string json_string(std::string_view text) { return nlohmann::json(std::string(text)).dump(); }

void Words::add(std::string text, std::uint32_t rank, std::uint32_t id) {
    words.push_back({std::move(text), rank, id});
}

void Words::sort() {
    std::stable_sort(words.begin(), words.end(),
                     [](const Word& a, const Word& b) { return a.text < b.text; });
    words.erase(std::unique(words.begin(), words.end(),
                            [](const Word& a, const Word& b) { return a.text == b.text; }),
                words.end());
}

Result<void> Grammar::check_size() const {
    if (nodes_.size() > limits_.nodes_max)
        return Error{ErrorCode::unsupported,
                     text("too large: more than ", limits_.nodes_max, " parts")};
    std::uint64_t bytes = 0;
    std::vector<const ByteAutomaton*> counted;
    for (const GrammarNode& node : nodes_) {
        for (const Words::Word& word : node.words.words) bytes += word.text.size() + 48;
        for (const GrammarNode::Property& property : node.properties)
            bytes += 3 * property.name.size() + 160;
        if (node.texts &&
            std::find(counted.begin(), counted.end(), node.texts.get()) == counted.end()) {
            counted.push_back(node.texts.get());
            bytes += node.texts->num_bytes();
        }
    }
    if (bytes > limits_.bytes_max)
        return Error{ErrorCode::unsupported,
                     text("too large: ", bytes >> 20, " MiB of words and automata, at most ",
                          limits_.bytes_max >> 20, " are allowed")};
    return {};
}

// Returns the least bytes of a further member with the comma before it, if as many names are taken
// as the object needs at the least.
std::uint32_t Grammar::least_of_further(const GrammarNode& node) const {
    const std::uint64_t taken = node.properties.size() + node.forbidden_names.size() + node.min;
    std::uint32_t name = names_of(node).num_states() == 0 ? endless
                                                          : names_of(node).least_escaped[0];
    if (taken > 0) name = add_least(name, least_name_bytes(taken, node.name_choices));
    const auto frame = static_cast<std::uint32_t>(json_comma.size() + 2 + json_colon.size());
    return add_least(add_least(name, frame), least_[node.rest]);
}

// Returns the length in bytes of a node's shortest text, computed from the present lengths of other
// nodes.
std::uint32_t Grammar::least_of(const GrammarNode& node) const {
    switch (node.kind) {
        case Kind::words: {
            std::uint32_t best = endless;
            for (const Words::Word& word : node.words.words)
                best = std::min(best, static_cast<std::uint32_t>(word.text.size()));
            return best;
        }
        case Kind::text:
            if (node.texts->num_states() == 0 || node.min > node.max) return endless;
            return std::max(node.min, least_text(*node.texts, node.escaped, {}));
        case Kind::number: return least_number(node.number, {});
        case Kind::token: return 1;
        case Kind::sequence: {
            std::uint32_t sum = 0;
            for (const NodeId child : node.children) sum = add_least(sum, least_[child]);
            return sum;
        }
        case Kind::choice: {
            std::uint32_t best = endless;
            for (const NodeId child : node.children) best = std::min(best, least_[child]);
            return best;
        }
        case Kind::repeat:
            return node.min > node.max ? endless : times_least(node.min, least_[node.children[0]]);
        case Kind::object: {
            std::uint32_t sum = 2, members = 0;
            for (const GrammarNode::Property& property : node.properties) {
                if (!property.required) continue;
                const std::size_t name = json_string(property.name).size() + json_colon.size();
                sum = add_least(add_least(sum, static_cast<std::uint32_t>(name)),
                                least_[property.value]);
                if (members++ > 0) sum = add_least(sum, json_comma.size());
            }
            if (node.min == 0) return sum;
            if (node.rest == GrammarNode::none || node.min > node.max) return endless;
            return add_least(sum, times_least(node.min, least_of_further(node)));
        }
        case Kind::array: {
            if (node.min > node.max) return endless;
            std::uint32_t sum = 2;
            const auto fixed = std::min<std::uint32_t>(
                node.min, static_cast<std::uint32_t>(node.children.size()));
            for (std::uint32_t i = 0; i < fixed; ++i)
                sum = add_least(sum, least_[node.children[i]]);
            if (node.min > fixed)
                sum = add_least(sum, node.rest == GrammarNode::none
                                         ? endless
                                         : times_least(node.min - fixed, least_[node.rest]));
            if (node.min > 1) sum = add_least(sum, times_least(node.min - 1, json_comma.size()));
            return sum;
        }
    }
    return endless;
}

// Returns the number of stack frames that the shortest text of a node needs.
std::uint32_t Grammar::height_of(const GrammarNode& node) const {
    std::uint32_t most = 0;
    const auto with = [&](NodeId child) { most = std::max(most, add_least(1, height_[child])); };
    switch (node.kind) {
        case Kind::sequence:
            for (const NodeId child : node.children) with(child);
            return most;
        case Kind::choice: {
            std::uint32_t best = endless, fewest = endless;
            for (const NodeId child : node.children)
                if (least_[child] < best || (least_[child] == best && height_[child] < fewest)) {
                    best = least_[child];
                    fewest = height_[child];
                }
            return fewest;
        }
        case Kind::repeat:
            if (node.min > 0) with(node.children[0]);
            return most;
        case Kind::object:
            most = 1;
            for (const GrammarNode::Property& property : node.properties)
                if (property.required) with(property.value);
            if (node.min > 0 && node.rest != GrammarNode::none) with(node.rest);
            return most;
        case Kind::array:
            most = 1;
            for (std::uint32_t i = 0; i < std::min<std::size_t>(node.min, node.children.size());
                 ++i)
                with(node.children[i]);
            if (node.min > node.children.size() && node.rest != GrammarNode::none) with(node.rest);
            return most;
        default: return 0;
    }
}

bool Grammar::relax() {
    bool changed = false;
    for (std::size_t i = nodes_.size(); i-- > 0;) {
        const std::uint32_t least = least_of(nodes_[i]);
        if (least < least_[i]) {
            least_[i] = least;
            changed = true;
        }
    }
    return changed;
}

// Removes children that accept no text, where the node does not need them, so that no parse enters
// such a child.
void Grammar::drop_unreachable() {
    const auto is_dead = [&](NodeId id) { return least_[id] == endless; };
    for (GrammarNode& node : nodes_) {
        if (node.kind == Kind::choice) std::erase_if(node.children, is_dead);
        if (node.kind == Kind::repeat && is_dead(node.children[0])) node.max = 0;
        if (node.rest != GrammarNode::none && is_dead(node.rest)) node.rest = GrammarNode::none;
        std::erase_if(node.properties, [&](const GrammarNode::Property& property) {
            const bool is_impossible = !property.required && is_dead(property.value);
            if (is_impossible) node.forbidden_names.push_back(property.name);
            return is_impossible;
        });
        if (node.kind != Kind::array) continue;
        const auto dead = std::find_if(node.children.begin(), node.children.end(), is_dead);
        if (dead != node.children.end()) {
            node.max = std::min(node.max, static_cast<std::uint32_t>(dead - node.children.begin()));
            node.children.erase(dead, node.children.end());
        }
        if (node.rest == GrammarNode::none)
            node.max = std::min(node.max, static_cast<std::uint32_t>(node.children.size()));
    }
}

// Refuses a node that can be entered again before a byte of the text is taken: a parse would enter
// the node endlessly.
Result<void> Grammar::check_progress() const {
    enum class Mark : std::uint8_t { unseen, open, done };
    std::vector<Mark> marks(nodes_.size(), Mark::unseen);
    std::vector<std::pair<NodeId, bool>> stack;
    for (NodeId start = 0; start < nodes_.size(); ++start) {
        stack.push_back({start, false});
        while (!stack.empty()) {
            const auto [id, leaving] = stack.back();
            stack.pop_back();
            if (leaving) {
                marks[id] = Mark::done;
                continue;
            }
            if (marks[id] == Mark::done) continue;
            if (marks[id] == Mark::open)
                return Error{ErrorCode::unsupported,
                             "it refers to itself without a character in between"};
            marks[id] = Mark::open;
            stack.push_back({id, true});

            const GrammarNode& node = nodes_[id];
            const auto enters = [&](NodeId child) -> bool {
                if (marks[child] == Mark::open) return false;
                if (marks[child] == Mark::unseen) stack.push_back({child, false});
                return true;
            };
            bool fine = true;
            if (node.kind == Kind::choice || node.kind == Kind::repeat)
                for (const NodeId child : node.children) fine = fine && enters(child);
            if (node.kind == Kind::sequence)
                for (const NodeId child : node.children) {
                    fine = fine && enters(child);
                    if (least_[child] > 0) break;
                }
            if (!fine)
                return Error{ErrorCode::unsupported,
                             "it refers to itself without a character in between"};
            if (node.kind == Kind::repeat && node.max > 1 && least_[node.children[0]] == 0)
                return Error{ErrorCode::unsupported, "it repeats something that may be empty"};
        }
    }
    return {};
}

// Computes the words that structure a JSON object (names, commas and braces). The id of a word is
// the index of its property, the number of properties for the closing brace, and one more for the
// quote of a further member's name. The rank of the closing brace is the highest, so that it can be
// forbidden by itself.
void Grammar::finish_object(GrammarNode& node) const {
    const auto count = static_cast<std::uint32_t>(node.properties.size());
    node.words = {};
    node.next_words = {};
    for (std::uint32_t i = 0; i < count; ++i) {
        const std::string name = json_string(node.properties[i].name) + std::string(json_colon);
        node.words.add("{" + name, i, i);
        node.next_words.add(std::string(json_comma) + name, i, i);
        node.sorted_names.push_back(node.properties[i].name);
    }
    node.words.add("{}", count + 1, count);
    node.next_words.add("}", count + 1, count);
    if (node.rest != GrammarNode::none) {
        node.words.add("{\"", count, count + 1);
        node.next_words.add(std::string(json_comma) + "\"", count, count + 1);
    }
    node.words.sort();
    node.next_words.sort();
    node.sorted_names.insert(node.sorted_names.end(), node.forbidden_names.begin(),
                             node.forbidden_names.end());
    if (node.rest != GrammarNode::none) node.further_least = least_of_further(node);
    std::sort(node.sorted_names.begin(), node.sorted_names.end());

    node.rest_least.assign(count + 1, 1);
    node.required_from.assign(count + 1, count + 1);
    for (std::uint32_t i = count; i-- > 0;) {
        const GrammarNode::Property& property = node.properties[i];
        node.rest_least[i] = node.rest_least[i + 1];
        node.required_from[i] = property.required ? i : node.required_from[i + 1];
        if (!property.required) continue;
        const std::size_t name = json_comma.size() + json_string(property.name).size() +
                                 json_colon.size();
        node.rest_least[i] = add_least(
            add_least(node.rest_least[i], static_cast<std::uint32_t>(name)),
            least_[property.value]);
    }
}

Result<std::shared_ptr<const Grammar>> Grammar::build(std::vector<GrammarNode> nodes, NodeId root,
                                                      const GrammarLimits& limits) {
    std::shared_ptr<Grammar> grammar(new Grammar());
    grammar->nodes_ = std::move(nodes);
    grammar->root_ = root;
    grammar->limits_ = limits;
    MOEX_TRY(grammar->check_size());

    const std::size_t count = grammar->nodes_.size();
    grammar->least_.assign(count, endless);
    for (std::uint32_t round = 0; grammar->relax(); ++round)
        if (round > 2000)
            return Error{ErrorCode::unsupported, "too large: its parts are nested too deeply"};
    if (grammar->least_[root] == endless)
        return Error{ErrorCode::invalid_argument, "nothing satisfies it"};

    grammar->drop_unreachable();
    MOEX_TRY(grammar->check_progress());
    grammar->height_.assign(count, endless);
    for (bool changed = true; changed;) {
        changed = false;
        for (std::size_t i = count; i-- > 0;) {
            const std::uint32_t height = grammar->height_of(grammar->nodes_[i]);
            if (height >= grammar->height_[i]) continue;
            grammar->height_[i] = height;
            changed = true;
        }
    }
    if (grammar->height_[root] > limits.depth_max)
        return Error{ErrorCode::unsupported,
                     text("too deep: more than ", limits.depth_max, " levels at the least")};

    for (GrammarNode& node : grammar->nodes_) {
        if (node.kind == Kind::object) grammar->finish_object(node);
        if (node.kind == Kind::words) node.words.sort();
        if (node.kind == Kind::token) grammar->named_.push_back(node.token);
        grammar->any_token_ = grammar->any_token_ || node.any_token;
    }
    std::sort(grammar->named_.begin(), grammar->named_.end());
    grammar->named_.erase(std::unique(grammar->named_.begin(), grammar->named_.end()),
                          grammar->named_.end());
    return std::shared_ptr<const Grammar>(std::move(grammar));
}

}  // namespace moex
