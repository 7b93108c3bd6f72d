#include "hub/model/tokenizer/utf8.h"

#include <algorithm>

#include "hub/model/tokenizer/unicode.h"

namespace moex {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t at) {
    return static_cast<std::uint8_t>(text[at]);
}

}  // namespace

Utf8Step utf8_step(std::string_view text, std::size_t at) {
    if (at >= text.size()) return {0, 0, true, false};
    const std::uint8_t lead = byte_at(text, at);
    if (lead < 0x80) return {lead, 1, true, false};

    std::uint32_t needed = 0;
    // range of the second byte; narrower for some first bytes, to exclude overlong forms,
    // surrogates and code points above U+10FFFF
    std::uint8_t lower = 0x80, upper = 0xBF;
    char32_t code_point = 0;
    if (lead >= 0xC2 && lead <= 0xDF) {
        needed = 1, code_point = lead & 0x1F;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        needed = 2, code_point = lead & 0x0F;
        if (lead == 0xE0) lower = 0xA0;
        if (lead == 0xED) upper = 0x9F;
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        needed = 3, code_point = lead & 0x07;
        if (lead == 0xF0) lower = 0x90;
        if (lead == 0xF4) upper = 0x8F;
    } else {
        return {0xFFFD, 1, false, false};
    }

    for (std::uint32_t i = 1; i <= needed; ++i) {
        if (at + i >= text.size()) return {0xFFFD, i, false, true};
        const std::uint8_t next = byte_at(text, at + i);
        if (next < lower || next > upper) return {0xFFFD, i, false, false};
        lower = 0x80, upper = 0xBF;
        code_point = (code_point << 6) | (next & 0x3F);
    }

    return {code_point, needed + 1, true, false};
}

void utf8_append(std::string& out, char32_t c) {
    if (c < 0x80) {
        out += static_cast<char>(c);
    } else if (c < 0x800) {
        out += static_cast<char>(0xC0 | (c >> 6));
        out += static_cast<char>(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        out += static_cast<char>(0xE0 | (c >> 12));
        out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
        out += static_cast<char>(0x80 | (c & 0x3F));
    } else {
        out += static_cast<char>(0xF0 | (c >> 18));
        out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
        out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
        out += static_cast<char>(0x80 | (c & 0x3F));
    }
}

bool utf8_is_valid(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        if (byte_at(text, at) < 0x80) {
            ++at;
            continue;
        }
        const Utf8Step step = utf8_step(text, at);
        if (!step.valid) return false;
        at += step.num_bytes;
    }

    return true;
}

std::string utf8_repair(std::string_view text) {
    if (utf8_is_valid(text)) return std::string(text);
    std::string out;
    out.reserve(text.size() + 8);
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        if (step.valid)
            out.append(text.substr(at, step.num_bytes));
        else
            utf8_append(out, 0xFFFD);
        at += step.num_bytes;
    }

    return out;
}

std::size_t utf8_incomplete_tail(std::string_view text) {
    // A sequence has at most four bytes, so an incomplete sequence starts within the last three
    // bytes.
    for (std::size_t back = 1; back <= 3 && back <= text.size(); ++back) {
        const std::size_t at = text.size() - back;
        if ((byte_at(text, at) & 0xC0) == 0x80) continue;
        const Utf8Step step = utf8_step(text, at);
        return step.cut && step.num_bytes == back ? back : 0;
    }
    return 0;
}

std::size_t utf8_count(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<std::uint8_t>(c) & 0xC0) != 0x80;
    }));
}

std::string utf8_nfc(std::string_view text) { return utf8_normal_form(text, NormalForm::nfc); }

std::string utf8_normal_form(std::string_view text, NormalForm form) {
    // A text whose characters are all below U+0300 is already in normal form C, because these
    // characters do not compose or reorder. ASCII is the same in all forms.
    const std::uint8_t first_changed = form == NormalForm::nfc ? 0xCC : 0x80;
    if (std::none_of(text.begin(), text.end(),
                     [&](char c) { return static_cast<std::uint8_t>(c) >= first_changed; }))
        return std::string(text);
    return unicode_normal_form(text, form);
}

bool is_unicode_space(char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

std::string_view utf8_trim_end(std::string_view text) {
    std::size_t end = 0;  // position after the last character that is not white space
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        at += step.num_bytes;
        if (!is_unicode_space(step.code_point)) end = at;
    }
    return text.substr(0, end);
}

std::string_view utf8_trim_start(std::string_view text) {
    std::size_t at = 0;
    while (at < text.size()) {
        const Utf8Step step = utf8_step(text, at);
        if (!is_unicode_space(step.code_point)) break;
        at += step.num_bytes;
    }
    return text.substr(at);
}

}  // namespace moex
