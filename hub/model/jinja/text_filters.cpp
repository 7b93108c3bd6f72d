#include "hub/model/jinja/text_filters.h"

#include <algorithm>

#include "hub/model/jinja/text_values.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex::jinja {

MarkedText soft_text(Renderer& renderer, const Value& value) {
    renderer.charge(weight_of(value));
    return print(value);
}

bool flag(const CallArguments& arguments, std::size_t position, std::string_view name,
          bool otherwise) {
    const Value* value = arguments.find(position, name);
    return value ? truth(*value) : otherwise;
}

Value filter_indent(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const MarkedText source = soft_text(renderer, operand);
    const Value* width = arguments.find(0, "width");
    const bool first = flag(arguments, 1, "first"), blank = flag(arguments, 2, "blank");
    std::string padding(4, ' ');
    if (width)
        padding = width->text() ? width->text()->bytes()
                                : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                                  integer_argument(*width, "indent"), 0, 200)),
                                              ' ');

    MarkedText out;
    // The filter adds a line end first, so that a line end of the text's own gives an empty line.
    MarkedText ended = source;
    ended.append("\n", false);
    const auto lines = split_lines(ended, false);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        if (i > 0) out.append("\n", false);
        renderer.charge_bytes(padding.size());
        if (i == 0 ? first : blank || !lines[i].empty()) out.append(padding, false);
        out.append(lines[i]);
    }

    return make_text(std::move(out));
}

Value filter_trim(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* characters = arguments.find(0, "chars");
    const MarkedText source = soft_text(renderer, operand);
    if (!characters || characters->is_none()) return make_text(strip(source, Side::both));
    const std::string& wanted = text_argument(*characters, "trim").bytes();
    renderer.charge(wanted.size() * (1 + source.size() / 64));
    return make_text(strip(source, Side::both, wanted));
}

Value filter_replace(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value *from = arguments.find(0, "old"), *to = arguments.find(1, "new"),
                *count = arguments.find(2, "count");
    if (!from || !to) fail("replace wants two strings: the old text and the new text");
    MarkedText out = replace(soft_text(renderer, operand), print(*from), print(*to),
                             count && !count->is_none() ? integer_argument(*count, "replace") : -1,
                             renderer.limits().output_bytes_max);
    renderer.charge_bytes(2 * out.size());
    return make_text(std::move(out));
}

// Escapes a text for HTML. Strings have no mark for "escaped already", so a second call escapes the
// text again.
Value filter_escape(Renderer& renderer, const Value& operand, const CallArguments&) {
    const MarkedText source = soft_text(renderer, operand);
    const std::string& bytes = source.bytes();
    MarkedText out;
    std::size_t copied = 0;

    for (std::size_t at = 0; at < bytes.size(); ++at) {
        const char c = bytes[at];
        const char* const entity = c == '&'    ? "&amp;"
                                   : c == '<'  ? "&lt;"
                                   : c == '>'  ? "&gt;"
                                   : c == '\'' ? "&#39;"
                                   : c == '"'  ? "&#34;"
                                               : nullptr;

        if (!entity) continue;
        out.append(source, copied, at);
        out.append(entity, source.is_outside(at));
        copied = at + 1;
    }

    out.append(source, copied, bytes.size());
    renderer.charge_bytes(out.size());
    return make_text(std::move(out));
}

Value filter_center(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const Value* width_value = arguments.find(0, "width");
    const std::int64_t width = width_value ? integer_argument(*width_value, "center") : 80;
    renderer.charge(static_cast<std::uint64_t>(std::max<std::int64_t>(width, 0)));
    return make_text(fill(soft_text(renderer, operand), width, " ", Fill::both));
}

Value filter_truncate(Renderer& renderer, const Value& operand, const CallArguments& arguments) {
    const auto count = [&](std::size_t position, std::string_view name, std::int64_t otherwise) {
        const Value* value = arguments.find(position, name);
        return value && !value->is_none() ? integer_argument(*value, "truncate") : otherwise;
    };

    const Value* end_value = arguments.find(2, "end");
    const MarkedText end = end_value ? text_argument(*end_value, "truncate")
                                     : MarkedText(std::string("..."));
    const std::int64_t length = count(0, "length", 255), leeway = count(3, "leeway", 5);
    const auto end_length = static_cast<std::int64_t>(utf8_count(end.bytes()));
    if (length < end_length || leeway < 0)
        fail(
            text("truncate wants a length of at least ", end_length, " and a leeway of 0 or more"));

    const MarkedText source = soft_text(renderer, operand);
    const std::vector<std::size_t> starts = code_point_starts(source.bytes());
    if (static_cast<std::int64_t>(starts.size()) - 1 - leeway <= length) return make_text(source);

    MarkedText out = source.part(0, starts[static_cast<std::size_t>(length - end_length)]);
    if (!flag(arguments, 1, "killwords")) out = split(out, " ", 1, true).front();
    out.append(end);
    return make_text(std::move(out));
}

Value filter_wordcount(Renderer& renderer, const Value& operand, const CallArguments&) {
    const MarkedText source = soft_text(renderer, operand);
    std::int64_t count = 0;
    bool inside = false;
    for (std::size_t at = 0; at < source.size();) {
        const Utf8Step step = utf8_step(source.bytes(), at);
        const bool word = step.code_point == U'_' || is_word_character(step.code_point);
        if (word && !inside) ++count;
        inside = word;
        at += step.num_bytes;
    }

    return make_integer(count);
}

}  // namespace moex::jinja
