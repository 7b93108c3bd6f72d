#include "hub/api/grammar/parse_ends.h"

#include <algorithm>

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Part = StackFrame::Part;

// Returns the least bytes of an object from the end of a member to its closing brace.
std::uint32_t least_members(const GrammarNode& node, std::uint32_t position) {
    const auto count = static_cast<std::uint32_t>(node.properties.size());
    const std::uint32_t further = position - std::min(position, count);
    const std::uint32_t missing = node.min - std::min(node.min, further);
    const std::uint64_t sum = std::uint64_t{missing} * node.further_least;
    return add_least(node.rest_least[std::min(position, count)],
                     static_cast<std::uint32_t>(std::min<std::uint64_t>(sum, endless - 1)));
}

// Returns the least bytes of the name of the next further member. It can be empty, unless the
// object has such a member already; then a free name needs further characters.
std::uint32_t least_next_name(const GrammarNode& node,
                              const std::vector<std::shared_ptr<const std::string>>& taken) {
    const std::uint32_t shortest = names_of(node).least_escaped[0];
    const bool is_free = shortest == 0 ? taken.empty() || !taken.front()->empty() : taken.empty();
    return is_free ? shortest
                   : add_least(shortest, least_name_bytes(taken.size(), node.name_choices));
}

}  // namespace

std::uint32_t after_further(const GrammarNode& node, std::uint32_t position) {
    const auto count = static_cast<std::uint32_t>(node.properties.size());
    const std::uint32_t further = std::max(position, count) - count;
    return count + std::min(further + 1, node.max == unbounded ? node.min : node.max);
}

std::uint32_t least_to_free_name(const Parse& name) {
    const auto& taken = *name.frame->taken;
    const std::uint32_t choices = name.node->name_choices;
    const std::uint32_t open = least_text(names_of(*name.node), true, name.text);
    if (open > 0)
        return add_least(open, taken.empty() ? 0 : least_name_bytes(taken.size(), choices));
    if (name.first == name.last || taken[name.first]->size() != name.depth) return 0;
    return least_name_bytes(name.last - name.first, choices);
}

// Returns the least bytes of an array from the end of item `index` to its closing bracket.
std::uint32_t ParseEnds::least_items(const GrammarNode& array, std::uint32_t index) const {
    std::uint32_t sum = 1;
    const auto fixed = static_cast<std::uint32_t>(array.children.size());
    for (std::uint32_t i = index; i < std::min(array.min, fixed); ++i)
        sum = add_least(sum, add_least(grammar_.least(array.children[i]), json_comma.size()));
    if (array.min > std::max(index, fixed)) {
        const std::uint64_t each = grammar_.least(array.rest) + json_comma.size();
        const std::uint64_t rest = each * (array.min - std::max(index, fixed));
        sum = add_least(sum,
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(rest, endless - 1)));
    }
    return sum;
}

std::uint32_t ParseEnds::behind(const StackFrame& frame, std::uint32_t result) const {
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
                here = least_items(node, frame.position + 1);
            else if (result == 0)
                here = add_least(grammar_.least(item_of(node, frame.position)),
                                 least_items(node, frame.position + 1));
            break;
        default: break;
    }
    return add_least(here, frame.below);
}

std::uint32_t ParseEnds::behind_object_part(const StackFrame& frame, std::uint32_t result) const {
    const GrammarNode& node = *frame.node;
    const auto count = static_cast<std::uint32_t>(node.properties.size());
    const auto colon = static_cast<std::uint32_t>(1 + json_colon.size());
    if (frame.part == Part::value) return least_members(node, frame.position);
    if (frame.part == Part::words && result == count) return 0;
    if (frame.part == Part::words && result < count)
        return add_least(grammar_.least(node.properties[result].value),
                         least_members(node, result + 1));

    const std::uint32_t rest = add_least(grammar_.least(node.rest),
                                         least_members(node, after_further(node, frame.position)));
    if (frame.part == Part::colon) return rest;
    if (frame.part == Part::name) return add_least(colon, rest);
    return add_least(least_next_name(node, *frame.taken), add_least(colon, rest));
}

}  // namespace moex
