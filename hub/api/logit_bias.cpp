#include "hub/api/logit_bias.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moex {
namespace {

constexpr const char* field = "logit_bias";
constexpr float bias_max = 100;

struct Reader {
    BodyFields& fields;
    std::size_t vocab_size;
    const Tokenizer* tokenizer;
    std::map<TokenId, float> biases = {};

    void read_object(const OrderedJson& object);
    void read_list(const OrderedJson& list);
    void add_id(const OrderedJson& named, std::optional<std::uint64_t> id, const OrderedJson& bias);
    void add_text(const std::string& words, const OrderedJson& bias);
    std::optional<float> read_bias(const OrderedJson& bias);
};

// Reads a token id from a string of digits; nullopt: the string has too many digits.
std::optional<std::uint64_t> id_of(const std::string& digits) {
    constexpr std::size_t digits_max = 9;
    if (digits.size() > digits_max) return std::nullopt;
    return std::stoull(digits);
}

void Reader::read_object(const OrderedJson& object) {
    for (const auto& [key, bias] : object.items()) {
        const bool is_id = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
        if (is_id)
            add_id(OrderedJson(key), id_of(key), bias);
        else
            add_text(key, bias);
        if (fields.problem()) return;
    }
}

void Reader::read_list(const OrderedJson& list) {
    for (const OrderedJson& pair : list) {
        if (!pair.is_array() || pair.size() != 2 || !(pair[0].is_string() || pair[0].is_number()))
            return fields.wrong(field, "pairs [token id or text, bias]", pair);

        if (pair[0].is_string()) {
            add_text(pair[0].get_ref<const std::string&>(), pair[1]);
        } else {
            const auto id = whole_number(pair[0]);
            add_id(pair[0], id && *id >= 0 ? std::optional<std::uint64_t>(*id) : std::nullopt,
                   pair[1]);
        }
        if (fields.problem()) return;
    }
}

void Reader::add_id(const OrderedJson& named, std::optional<std::uint64_t> id,
                    const OrderedJson& bias) {
    if (!id || *id >= vocab_size)
        return fields.refuse(text("Invalid key in '", field, "': wanted a token id below ",
                                  vocab_size, ", or text; found ", json_excerpt(named), "."),
                             "invalid_value", field);
    if (const auto value = read_bias(bias)) biases[static_cast<TokenId>(*id)] = *value;
}

void Reader::add_text(const std::string& words, const OrderedJson& bias) {
    if (!tokenizer)
        return fields.unsupported(field, "the model has no tokenizer; name tokens by their ids.");
    if (words.empty())
        return fields.refuse(text("Invalid key in '", field, "': an empty text has no tokens."),
                             "invalid_value", field);

    const auto value = read_bias(bias);
    if (!value) return;
    for (const TokenId id : tokenizer->encode(words, SpecialTokens::parse))
        if (id < vocab_size) biases[id] = *value;
}

// Reads a bias. `false`, llama.cpp's word for "never", is the lowest possible bias.
std::optional<float> Reader::read_bias(const OrderedJson& bias) {
    if (bias.is_boolean() && !bias.get<bool>()) return -bias_max;
    const bool is_bias = bias.is_number() && bias.get<double>() >= -bias_max &&
                         bias.get<double>() <= bias_max;
    if (is_bias) return bias.get<float>();
    fields.wrong(field, "biases from -100 to 100, or false", bias);
    return std::nullopt;
}

}  // namespace

std::map<TokenId, float> read_logit_bias(BodyFields& fields, std::size_t vocab_size,
                                         const Tokenizer* tokenizer) {
    const OrderedJson* const given = fields.find(field);
    if (!given) return {};

    Reader reader{fields, vocab_size, tokenizer};
    if (given->is_object())
        reader.read_object(*given);
    else if (given->is_array())
        reader.read_list(*given);
    else
        fields.wrong(field, "an object of token ids or texts and biases, or a list of pairs",
                     *given);
    return std::move(reader.biases);
}

}  // namespace moex
