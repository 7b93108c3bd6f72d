#include "hub/options/options_shadow.h"

#include <charconv>

namespace moex {
namespace {

constexpr std::string_view prefix = "shadow:";

struct Key {
    std::string_view name;
    std::uint32_t min, max;
};
constexpr Key keys[] = {
    {"token", 0, 1u << 20}, {"kv", 0, 1u << 20}, {"fetch", 1, 1024}, {"ahead", 0, 1}};

Error wrong(std::string_view prefetch, const auto&... why) {
    return Error{ErrorCode::invalid_argument, text("\"", prefetch, "\": ", why...)};
}

Result<std::uint32_t> number_of(std::string_view prefetch, const Key& key, std::string_view value) {
    std::uint32_t number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure != std::errc() || end != value.data() + value.size() || number < key.min ||
        number > key.max)
        return wrong(prefetch, key.name, " wants a number from ", key.min, " to ", key.max,
                     ", found \"", value, "\"");
    return number;
}

}  // namespace

bool wishes_shadow(std::string_view prefetch) { return prefetch.starts_with(prefix); }

Result<ShadowWish> parse_shadow_wish(std::string_view prefetch) {
    std::string_view rest = prefetch.substr(std::min(prefix.size(), prefetch.size()));
    const auto take = [&rest] {
        const std::string_view one = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(one.size() + 1, rest.size()));
        return one;
    };
    const bool ends_in_comma = rest.ends_with(',');
    ShadowWish wish{.name = std::string(take())};
    if (!wishes_shadow(prefetch) || wish.name.empty() || ends_in_comma)
        return wrong(prefetch, "wanted shadow:NAME, then what is set, like shadow:DIR,kv=4");

    while (!rest.empty()) {
        const std::string_view one = take(), name = one.substr(0, one.find('='));
        const Key* key = std::begin(keys);
        while (key != std::end(keys) && key->name != name) ++key;
        if (key == std::end(keys) || name.size() == one.size())
            return wrong(prefetch, "a shadow has token=, kv=, fetch= and ahead=, found \"", one,
                         "\"");
        MOEX_ASSIGN(number, number_of(prefetch, *key, one.substr(name.size() + 1)));
        if (name == "token") wish.token_period = number;
        if (name == "kv") wish.kv_period = number;
        if (name == "fetch") wish.fetch = number;
        if (name == "ahead") wish.draws_ahead = number == 1;
    }
    if (!wish.draws_ahead && wish.token_period != 1)
        return wrong(prefetch, "with ahead=0 each token is the model's, token=", wish.token_period,
                     " wants ahead=1");
    return wish;
}

}  // namespace moex
