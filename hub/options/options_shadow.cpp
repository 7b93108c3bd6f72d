#include "hub/options/options_shadow.h"

#include <algorithm>

namespace moex {
namespace {

constexpr std::string_view shadow_prefix = "shadow:";

bool is_all_digits(std::string_view value) {
    return !value.empty() &&
           std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Error wrong_shadow(std::string_view prefetch, const auto&... why) {
    return Error{ErrorCode::invalid_argument, text("\"", prefetch, "\": ", why...)};
}

}  // namespace

bool names_shadow(std::string_view prefetch) { return prefetch.starts_with(shadow_prefix); }

Result<std::string> parse_shadow_folder(std::string_view prefetch) {
    const std::string_view given = names_shadow(prefetch) ? prefetch.substr(shadow_prefix.size())
                                                          : std::string_view();
    const std::size_t comma = given.find(',');
    std::string_view folder = given.substr(0, comma);
    const std::size_t colon = folder.rfind(':');
    const bool has_count = colon != std::string_view::npos &&
                           is_all_digits(folder.substr(colon + 1));
    if (has_count) folder = folder.substr(0, colon);

    if (folder.empty() || folder == "served")
        return wrong_shadow(prefetch,
                            "write --prefetch shadow:DIR, where DIR is a folder that `moex-hub "
                            "pack --shadow` wrote");
    if (comma != std::string_view::npos)
        return wrong_shadow(prefetch, "token=, kv=, fetch= and ahead= are fixed; write --prefetch ",
                            shadow_prefix, folder);
    if (has_count)
        return wrong_shadow(prefetch, "the number of experts is fixed; write --prefetch ",
                            shadow_prefix, folder);
    return std::string(folder);
}

}  // namespace moex
