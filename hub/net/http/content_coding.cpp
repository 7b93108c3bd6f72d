#include "hub/net/http/content_coding.h"

#include <algorithm>
#include <optional>
#include <string>

#include "hub/net/http/fields.h"

namespace moex::net {
namespace {

// Parses a qvalue (the weight of a coding): "0" or "1", then "." and up to three digits. Returns
// thousandths.
std::optional<int> weight_of(std::string_view value) {
    if (value.empty() || value.size() > 5 || (value[0] != '0' && value[0] != '1')) return {};
    if (value.size() > 1 && value[1] != '.') return {};

    int weight = (value[0] - '0') * 1000;
    int unit = 100;
    for (const char digit : value.substr(value.size() > 1 ? 2 : 1)) {
        if (digit < '0' || digit > '9') return {};
        weight += (digit - '0') * unit;
        unit /= 10;
    }
    return weight <= 1000 ? std::optional(weight) : std::nullopt;
}

struct Wish {
    std::string name;
    int weight = 1000;
};

// Parses one item of an Accept-Encoding list, such as "gzip;q=0.5". Returns nullopt if the item is
// not valid.
std::optional<Wish> wish_of(std::string_view item) {
    const std::size_t semicolon = item.find(';');
    Wish wish{lower_case(trim_blanks(item.substr(0, semicolon)))};
    if (semicolon == std::string_view::npos) return wish;

    const std::string parameter = lower_case(trim_blanks(item.substr(semicolon + 1)));
    if (!parameter.starts_with("q=")) return {};
    const auto weight = weight_of(std::string_view(parameter).substr(2));
    if (!weight) return {};
    wish.weight = *weight;
    return wish;
}

// Returns the weight that an Accept-Encoding field gives to `coding` by name.
std::optional<int> named_weight(std::string_view field, std::string_view coding) {
    while (!field.empty()) {
        const std::string_view item = field.substr(0, field.find(','));
        field.remove_prefix(std::min(field.size(), item.size() + 1));

        const auto wish = wish_of(item);
        if (wish && wish->name == coding) return wish->weight;
    }
    return {};
}

}  // namespace

std::string_view choose_coding(std::string_view accept_encoding,
                               std::span<const std::string_view> codings) {
    const int of_others = named_weight(accept_encoding, "*").value_or(0);
    const int plain = named_weight(accept_encoding, "identity").value_or(0);
    std::string_view chosen;
    int best = 0;
    for (const std::string_view coding : codings) {
        const int weight = named_weight(accept_encoding, coding).value_or(of_others);
        if (weight <= best || weight < plain) continue;
        best = weight;
        chosen = coding;
    }
    return chosen;
}

}  // namespace moex::net
