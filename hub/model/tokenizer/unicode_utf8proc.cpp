#include <algorithm>
#include <vector>

#include <utf8proc.h>

#include "hub/model/tokenizer/unicode.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/check.h"

namespace moex {
namespace {

static_assert(static_cast<int>(UnicodeCategory::lo) == UTF8PROC_CATEGORY_LO &&
                  static_cast<int>(UnicodeCategory::mn) == UTF8PROC_CATEGORY_MN &&
                  static_cast<int>(UnicodeCategory::nd) == UTF8PROC_CATEGORY_ND &&
                  static_cast<int>(UnicodeCategory::sk) == UTF8PROC_CATEGORY_SK &&
                  static_cast<int>(UnicodeCategory::zs) == UTF8PROC_CATEGORY_ZS &&
                  static_cast<int>(UnicodeCategory::co) == UTF8PROC_CATEGORY_CO,
              "categories have utf8proc's numbers");

char32_t mapped(utf8proc_int32_t (*map)(utf8proc_int32_t), char32_t c) {
    return static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c)));
}

}  // namespace

UnicodeCategory unicode_category(char32_t c) {
    return static_cast<UnicodeCategory>(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
}
char32_t unicode_upper(char32_t c) { return mapped(utf8proc_toupper, c); }
char32_t unicode_lower(char32_t c) { return mapped(utf8proc_tolower, c); }
char32_t unicode_title(char32_t c) { return mapped(utf8proc_totitle, c); }

std::string unicode_normal_form(std::string_view text, NormalForm form) {
    const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
    const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
    const auto decompose = static_cast<utf8proc_option_t>(
        UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : UTF8PROC_DECOMPOSE));
    std::vector<utf8proc_int32_t> code_points;
    code_points.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        at += step.num_bytes;
        utf8proc_int32_t parts[32];
        int last_boundclass = 0;
        const utf8proc_ssize_t num_parts = utf8proc_decompose_char(
            static_cast<utf8proc_int32_t>(step.code_point), parts, 32, decompose, &last_boundclass);

        MOEX_CHECK(num_parts >= 0 && num_parts <= 32, "decomposition of one code point");
        code_points.insert(code_points.end(), parts, parts + num_parts);
    }

    // Sort the combining marks of each run with a stable sort. utf8proc exchanges neighbours, which
    // takes quadratic time on hostile runs.
    const auto combining_class = [](utf8proc_int32_t c) {
        return utf8proc_get_property(c)->combining_class;
    };

    for (std::size_t i = 0; i < code_points.size();) {
        if (combining_class(code_points[i]) == 0) {
            ++i;
            continue;
        }

        std::size_t end = i + 1;
        while (end < code_points.size() && combining_class(code_points[end]) != 0) ++end;
        std::stable_sort(code_points.begin() + static_cast<std::ptrdiff_t>(i),
                         code_points.begin() + static_cast<std::ptrdiff_t>(end),
                         [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
        i = end;
    }

    auto composed = static_cast<utf8proc_ssize_t>(code_points.size());
    if (composes)
        composed = utf8proc_normalize_utf32(
            code_points.data(), composed,
            static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    MOEX_CHECK(composed >= 0, "composition");

    std::string out;
    out.reserve(text.size());
    for (utf8proc_ssize_t i = 0; i < composed; ++i)
        utf8_append(out, static_cast<char32_t>(code_points[static_cast<std::size_t>(i)]));

    return out;
}

}  // namespace moex
