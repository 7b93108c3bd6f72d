#include "hub/model/jinja/text_values.h"

#include <algorithm>
#include <utility>

#include "hub/model/jinja/letter_case.h"
#include "hub/model/jinja/renderer.h"
#include "hub/model/tokenizer/unicode.h"
#include "hub/model/tokenizer/utf8.h"

namespace moex::jinja {
namespace {

// Replaces each character i of a text by `map(characters, i)`. The replacement keeps the mark of
// the character's origin (template or outside).
template <class Map>
MarkedText map_characters(const MarkedText& source, const Map& map) {
    std::u32string characters;
    std::vector<std::size_t> begins;
    for (std::size_t at = 0; at < source.size();) {
        const Utf8Step step = utf8_step(source.bytes(), at);
        characters += step.code_point;
        begins.push_back(at);
        at += step.num_bytes;
    }

    MarkedText out;
    std::string piece;  // pending bytes that have the same origin
    bool piece_is_outside = false;
    for (std::size_t i = 0; i < characters.size(); ++i) {
        if (const bool outside = source.is_outside(begins[i]); outside != piece_is_outside) {
            out.append(std::exchange(piece, {}), piece_is_outside);
            piece_is_outside = outside;
        }
        for (const char32_t c : map(characters, i)) utf8_append(piece, c);
    }

    out.append(piece, piece_is_outside);
    return out;
}

}  // namespace

bool is_python_space(char32_t c) { return is_unicode_space(c) || (c >= 0x1C && c <= 0x1F); }
bool is_letter(char32_t c) {
    const auto category = unicode_category(c);
    return category >= UnicodeCategory::lu && category <= UnicodeCategory::lo;
}
bool is_decimal_digit(char32_t c) { return unicode_category(c) == UnicodeCategory::nd; }

bool is_word_character(char32_t c) { return is_letter(c) || is_decimal_digit(c); }

bool all_are(std::string_view bytes, const std::function<bool(char32_t)>& kind) {
    for (std::size_t at = 0; at < bytes.size();) {
        const Utf8Step step = utf8_step(bytes, at);
        if (!kind(step.code_point)) return false;
        at += step.num_bytes;
    }
    return !bytes.empty();
}

MarkedText strip(const MarkedText& source, Side side,
                 const std::optional<std::string>& characters) {
    std::u32string wanted;
    for (std::size_t at = 0; characters && at < characters->size();) {
        const Utf8Step step = utf8_step(*characters, at);
        wanted += step.code_point;
        at += step.num_bytes;
    }

    const auto strips = [&](char32_t c) {
        return characters ? wanted.find(c) != std::u32string::npos : is_python_space(c);
    };

    const std::string& bytes = source.bytes();
    std::size_t begin = 0, end = bytes.size();
    while (side != Side::right && begin < end) {
        const Utf8Step step = utf8_step(bytes, begin);
        if (!strips(step.code_point)) break;
        begin += step.num_bytes;
    }

    while (side != Side::left && end > begin) {
        std::size_t last = end - 1;
        while (last > begin && (static_cast<std::uint8_t>(bytes[last]) & 0xC0) == 0x80) --last;
        if (!strips(utf8_step(bytes, last).code_point)) break;
        end = last;
    }

    return source.part(begin, end);
}

std::vector<MarkedText> split(const MarkedText& source, std::string_view separator,
                              std::int64_t splits_max, bool from_right) {
    if (separator.empty()) fail("empty separator");
    const std::string& bytes = source.bytes();
    std::vector<std::size_t> cuts;
    if (from_right) {
        std::size_t end = bytes.size();
        while (end >= separator.size() &&
               (splits_max < 0 || static_cast<std::int64_t>(cuts.size()) < splits_max)) {
            const std::size_t at = bytes.rfind(separator, end - separator.size());
            if (at == std::string::npos) break;
            cuts.push_back(at);
            end = at;
        }

        std::reverse(cuts.begin(), cuts.end());
    } else {
        for (std::size_t at = bytes.find(separator); at != std::string::npos;
             at = bytes.find(separator, at + separator.size())) {
            if (splits_max >= 0 && static_cast<std::int64_t>(cuts.size()) >= splits_max) break;
            cuts.push_back(at);
        }
    }

    std::vector<MarkedText> parts;
    std::size_t start = 0;
    for (const std::size_t cut : cuts) {
        parts.push_back(source.part(start, cut));
        start = cut + separator.size();
    }

    parts.push_back(source.part(start, bytes.size()));
    return parts;
}

std::vector<MarkedText> split_spaces(const MarkedText& source, std::int64_t splits_max) {
    const std::string& bytes = source.bytes();
    std::vector<MarkedText> parts;
    std::size_t at = 0;
    const auto skip = [&](bool spaces) {
        while (at < bytes.size()) {
            const Utf8Step step = utf8_step(bytes, at);
            if (is_python_space(step.code_point) != spaces) break;
            at += step.num_bytes;
        }
    };

    for (skip(true); at < bytes.size(); skip(true)) {
        const std::size_t begin = at;
        if (splits_max >= 0 && static_cast<std::int64_t>(parts.size()) >= splits_max) {
            parts.push_back(strip(source.part(begin, bytes.size()), Side::right));
            break;
        }
        skip(false);
        parts.push_back(source.part(begin, at));
    }

    return parts;
}

std::vector<MarkedText> split_lines(const MarkedText& source, bool keep_ends) {
    const std::string& bytes = source.bytes();
    std::vector<MarkedText> lines;
    std::size_t start = 0;
    for (std::size_t at = 0; at < bytes.size();) {
        const Utf8Step step = utf8_step(bytes, at);
        const char32_t c = step.code_point;
        std::size_t next = at + step.num_bytes;
        const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                          c == 0x2028 || c == 0x2029;

        if (ends) {
            if (c == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
            lines.push_back(source.part(start, keep_ends ? next : at));
            start = next;
        }

        at = next;
    }

    if (start < bytes.size()) lines.push_back(source.part(start, bytes.size()));
    return lines;
}

MarkedText replace(const MarkedText& source, const MarkedText& from, const MarkedText& to,
                   std::int64_t count_max, std::size_t bytes_max) {
    const std::string& bytes = source.bytes();
    MarkedText out;
    std::size_t start = 0;
    std::int64_t count = 0;

    const auto next_at = [&](std::size_t after) -> std::size_t {
        if (!from.empty()) return bytes.find(from.bytes(), after);
        // An empty search pattern matches before and after every character.
        return after <= bytes.size() ? after : std::string::npos;
    };

    for (std::size_t at = next_at(0);
         at != std::string::npos && (count_max < 0 || count < count_max); ++count) {
        out.append(source, start, at);
        out.append(to);
        if (out.size() > bytes_max)
            throw Failure{ErrorCode::overloaded, "replace() makes too long a string"};
        start = at + from.size();
        at = from.empty() ? next_at(at < bytes.size() ? at + utf8_step(bytes, at).num_bytes
                                                      : bytes.size() + 1)
                          : next_at(start);
    }

    out.append(source, start, bytes.size());
    return out;
}

MarkedText fill(const MarkedText& source, std::int64_t width, std::string_view filler, Fill side) {
    const auto length = static_cast<std::int64_t>(utf8_count(source.bytes()));
    const std::int64_t missing = std::max<std::int64_t>(width - length, 0);
    const std::int64_t left = side == Fill::left    ? missing
                              : side == Fill::right ? 0
                                                    : missing / 2 + (missing & width & 1);

    const auto repeated = [&](std::int64_t count) {
        std::string out;
        for (std::int64_t i = 0; i < count; ++i) out += filler;
        return out;
    };

    MarkedText out;
    out.append(repeated(left), false);
    out.append(source);
    out.append(repeated(missing - left), false);

    return out;
}

MarkedText upper(const MarkedText& source) {
    return map_characters(source, [](const auto& all, std::size_t i) { return upper_of(all[i]); });
}

MarkedText lower(const MarkedText& source) {
    return map_characters(source, [](const auto& all, std::size_t i) { return lower_of(all, i); });
}

MarkedText swap_case(const MarkedText& source) {
    return map_characters(source, [](const auto& all, std::size_t i) {
        const auto category = unicode_category(all[i]);
        if (category == UnicodeCategory::lu) return lower_of(all, i);
        if (category == UnicodeCategory::ll) return upper_of(all[i]);
        return std::u32string(1, all[i]);
    });
}

MarkedText capitalize(const MarkedText& source) {
    return map_characters(source, [](const auto& all, std::size_t i) {
        return i == 0 ? title_of(all[0]) : lower_of(all, i);
    });
}

MarkedText title(const MarkedText& source) {
    return map_characters(source, [](const auto& all, std::size_t i) {
        const bool inside_word = i > 0 && is_cased(all[i - 1]);
        return inside_word ? lower_of(all, i) : title_of(all[i]);
    });
}

MarkedText title_words(const MarkedText& source) {
    constexpr std::u32string_view before_word = U"-({[<";
    return map_characters(source, [&](const auto& all, std::size_t i) {
        const bool begins = i == 0 || is_python_space(all[i - 1]) ||
                            before_word.find(all[i - 1]) != std::u32string_view::npos;
        return begins ? upper_of(all[i]) : lower_of(all, i);
    });
}

}  // namespace moex::jinja
