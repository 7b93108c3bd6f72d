#include "hub/api/grammar/grammar_walker.h"

#include <algorithm>

namespace moex {
namespace {

using Kind = GrammarNode::Kind;
using Leaf = Parse::Leaf;
using Part = StackFrame::Part;

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

std::string name_of(const NameText* text) {
    std::string out(text ? text->length : 0, '\0');
    for (; text && text->length > 0; text = text->before.get()) out[text->length - 1] = text->last;
    return out;
}

}  // namespace

void GrammarWalker::enter(NodeId id, const StackFramePointer& parent) {
    const GrammarNode& node = grammar_.node(id);
    if (!ends_.fits(id, parent)) return;
    switch (node.kind) {
        case Kind::words: return add(words(node, node.words, parent));
        case Kind::text: return add({.leaf = Leaf::text, .node = &node, .frame = parent});
        case Kind::number: return add({.leaf = Leaf::number, .node = &node, .frame = parent});
        case Kind::token: return add({.leaf = Leaf::token, .node = &node, .frame = parent});
        case Kind::sequence:
            return node.children.empty() ? leave(parent, 0, nullptr) : enter_child(node, 0, parent);
        case Kind::choice:
            for (const NodeId child : node.children) enter(child, parent);
            return;
        case Kind::repeat:
            if (node.max > 0) enter_repeat(node, 0, parent);
            if (node.min == 0) leave(parent, 0, nullptr);
            return;
        case Kind::object: return add_object_words(object_frame(node, parent), node.words);
        case Kind::array: return add_array_words(push(node, parent, 0, Part::words), array_begin());
    }
}

void GrammarWalker::leave(const StackFramePointer& frame, std::uint32_t result,
                          const NameText* name) {
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

void GrammarWalker::add(Parse parse) {
    if (out_.size() >= out_max) return;
    const bool is_known = std::any_of(out_.begin(), out_.end(),
                                      [&](const Parse& known) { return known.same_as(parse); });
    if (!is_known) out_.push_back(std::move(parse));
}

StackFramePointer GrammarWalker::push(const GrammarNode& node, const StackFramePointer& parent,
                                      std::uint32_t position, StackFrame::Part part,
                                      TakenNames taken) const {
    auto* const frame = new StackFrame;
    frame->node = &node;
    frame->parent = parent;
    frame->position = position;
    frame->part = part;
    frame->depth = (parent ? parent->depth : 0) + 1;
    frame->below = parent ? ends_.behind(*parent, 0) : 0;
    std::uint64_t hash = mix(parent ? parent->hash : 1, reinterpret_cast<std::uintptr_t>(&node));
    hash = mix(hash, std::uint64_t{position} << 8 | static_cast<unsigned>(part));
    frame->hash = mix(hash, reinterpret_cast<std::uintptr_t>(taken.get()));
    frame->taken = std::move(taken);
    return StackFramePointer(frame);
}

// The last child of a sequence needs no stack frame, so a rule that recurs at its end does not
// grow the stack.
void GrammarWalker::enter_child(const GrammarNode& node, std::uint32_t index,
                                const StackFramePointer& parent) {
    if (index + 1 == node.children.size()) return enter(node.children[index], parent);
    enter(node.children[index], push(node, parent, index, Part::value));
}

void GrammarWalker::enter_repeat(const GrammarNode& node, std::uint32_t count,
                                 const StackFramePointer& parent) {
    enter(node.children[0], push(node, parent, count, Part::value));
}

Parse GrammarWalker::words(const GrammarNode& node, const Words& words,
                           const StackFramePointer& frame, std::uint32_t rank_first,
                           std::uint32_t rank_last) const {
    return {.leaf = Leaf::words,
            .node = &node,
            .words = &words,
            .first = 0,
            .last = static_cast<std::uint32_t>(words.words.size()),
            .rank_first = rank_first,
            .rank_last = rank_last,
            .frame = frame};
}

StackFramePointer GrammarWalker::object_frame(const GrammarNode& node,
                                              const StackFramePointer& parent) const {
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
void GrammarWalker::add_object_words(const StackFramePointer& frame, const Words& list) {
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

void GrammarWalker::add_array_words(const StackFramePointer& frame, const Words& list) {
    const GrammarNode& node = *frame->node;
    const std::uint32_t count = frame->position;
    const NodeId item = count < node.max ? item_of(node, count) : GrammarNode::none;
    const bool may_go_on = item != GrammarNode::none && ends_.fits(item, frame);
    const bool may_close = count >= node.min;
    if (!may_go_on && !may_close) return;
    add(words(node, list, frame, may_go_on ? 0 : 1, may_close ? 1 : 0));
}

void GrammarWalker::leave_object_part(const StackFramePointer& frame, std::uint32_t result,
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
            names->insert(std::lower_bound(names->begin(), names->end(), own,
                                           [](const auto& a, const auto& b) { return *a < *b; }),
                          own);
            return add(words(node, name_end(),
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

void GrammarWalker::add_name(StackFramePointer frame) {
    const GrammarNode* node = frame->node;
    const auto last = static_cast<std::uint32_t>(frame->taken->size());
    add({.leaf = Leaf::name, .node = node, .last = last, .frame = std::move(frame)});
}

void GrammarWalker::leave_array_part(const StackFramePointer& frame, std::uint32_t result) {
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

}  // namespace moex
