#include "hub/api/grammar/grammar_parse.h"

#include <algorithm>

namespace moex {

StackFramePointer::StackFramePointer(const StackFramePointer& other) : frame_(other.frame_) {
    if (frame_) ++frame_->references;
}
StackFramePointer::~StackFramePointer() {
    StackFrame* frame = frame_;
    // A loop instead of recursion, since the stack may be deep.
    while (frame && --frame->references == 0) {
        StackFrame* const parent = const_cast<StackFrame*>(frame->parent.get());
        if (parent) ++parent->references;
        delete frame;
        frame = parent;
    }
}

NameText::~NameText() {
    std::shared_ptr<const NameText> rest = std::move(before);
    // A loop instead of recursion, since the name may be long.
    while (rest && rest.use_count() == 1) rest = std::move(const_cast<NameText&>(*rest).before);
}

bool step_in_text(const GrammarNode& node, TextState& text, std::uint32_t& code_points,
                  unsigned char byte) {
    const auto next = step_text(*node.texts, node.escaped, text, byte);
    if (!next) return false;
    if ((node.min > 0 || node.max != unbounded) && begins_code_point(node.escaped, text, byte)) {
        if (code_points >= node.max) return false;
        code_points = std::min(code_points + 1, node.max == unbounded ? node.min : node.max);
    }
    text = *next;
    return true;
}

std::uint32_t least_in_text(const GrammarNode& node, TextState text, std::uint32_t code_points) {
    const std::uint32_t missing = node.min - std::min(node.min, code_points);
    return add_least(missing, least_text(*node.texts, node.escaped, text));
}

bool Parse::same_as(const Parse& other) const {
    const auto hash = [](const StackFramePointer& pointer) { return pointer ? pointer->hash : 0; };
    return leaf == other.leaf && node == other.node && words == other.words &&
           first == other.first && last == other.last && depth == other.depth &&
           rank_first == other.rank_first && rank_last == other.rank_last && text == other.text &&
           code_points == other.code_points && number == other.number && name == other.name &&
           hash(frame) == hash(other.frame);
}

}  // namespace moex
