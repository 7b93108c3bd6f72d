#include "hub/api/text_inputs.h"

#include <optional>

namespace moex {
namespace {

constexpr const char* wanted_inputs = "a string, an array of token ids, or an array of those";

std::optional<std::vector<TokenId>> read_ids(BodyFields& fields, const char* name,
                                             const OrderedJson& array, std::size_t vocab_size) {
    std::vector<TokenId> ids;
    ids.reserve(array.size());
    for (const OrderedJson& one : array) {
        const auto id = whole_number(one);
        if (!id || *id < 0 || static_cast<std::uint64_t>(*id) >= vocab_size) {
            fields.wrong(name, text("token ids from 0 to ", vocab_size - 1), one);
            return std::nullopt;
        }
        ids.push_back(static_cast<TokenId>(*id));
    }
    return ids;
}

std::vector<TextInput> read_array(BodyFields& fields, const char* name, const OrderedJson& array,
                                  const TextInputLimits& limits) {
    if (array.size() > limits.count_max) {
        fields.refuse(text("'", name, "' has ", array.size(), " entries, at most ",
                           limits.count_max, " are allowed."),
                      "invalid_value", name);
        return {};
    }

    std::vector<TextInput> inputs;
    for (const OrderedJson& one : array) {
        if (one.is_string()) {
            inputs.emplace_back(one.get<std::string>());
        } else if (one.is_array() && !one.empty()) {
            auto ids = read_ids(fields, name, one, limits.vocab_size);
            if (!ids) return {};
            inputs.emplace_back(*std::move(ids));
        } else {
            fields.wrong(name, wanted_inputs, one);
            return {};
        }
    }
    return inputs;
}

}  // namespace

std::vector<TextInput> read_text_inputs(BodyFields& fields, const char* name,
                                        const TextInputLimits& limits) {
    const OrderedJson* const given = fields.find(name);
    if (!given) {
        fields.refuse(text("Missing required parameter: '", name, "'."),
                      "missing_required_parameter", name);
        return {};
    }

    if (given->is_string()) return {given->get<std::string>()};
    if (!given->is_array() || given->empty()) {
        fields.wrong(name, wanted_inputs, *given);
        return {};
    }
    if (!(*given)[0].is_number()) return read_array(fields, name, *given, limits);

    auto ids = read_ids(fields, name, *given, limits.vocab_size);
    if (!ids) return {};
    return {*std::move(ids)};
}

}  // namespace moex
