#include "web-worker/local/local_question.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "protocol/text.h"

namespace moex {
namespace {

using Body = nlohmann::ordered_json;
constexpr double bias_max = 100;
constexpr std::uint32_t tokens_max = 1'000'000'000;

Error wrong(std::string_view field) {
    return {ErrorCode::invalid_argument, text("'", field, "' has an invalid value")};
}

// Reads a number within [low, high] from `field`. `out` is unchanged if `body` has no such field.
Status read_real(const Body& body, const char* field, double low, double high, double& out) {
    const auto found = body.find(field);
    if (found == body.end() || found->is_null()) return {};
    if (!found->is_number()) return wrong(field);
    const double value = found->get<double>();
    if (!(value >= low && value <= high)) return wrong(field);
    out = value;
    return {};
}

Status read_whole(const Body& body, const char* field, std::int64_t low, std::int64_t high,
                  std::int64_t& out) {
    const auto found = body.find(field);
    if (found == body.end() || found->is_null()) return {};
    if (!found->is_number_integer()) return wrong(field);
    const auto value = found->get<std::int64_t>();
    if (value < low || value > high) return wrong(field);
    out = value;
    return {};
}

// Returns the tokens that `name` selects. `name` is a token id (a number, or digits as an object's
// key) or a text, which may have several tokens. An invalid id gives a token beyond the vocabulary.
std::vector<TokenId> tokens_of(const Body& name, bool is_key, const Tokenizer& tokenizer) {
    constexpr TokenId none = token_id_max + 1;
    const auto id_of = [](std::int64_t id) {
        return id >= 0 && id <= token_id_max ? static_cast<TokenId>(id) : none;
    };
    if (name.is_number_integer()) return {id_of(name.get<std::int64_t>())};

    const auto& words = name.get_ref<const std::string&>();
    constexpr std::size_t digits_max = 9;
    const bool is_id = is_key && !words.empty() &&
                       words.find_first_not_of("0123456789") == std::string::npos;
    if (is_id) return {words.size() > digits_max ? none : id_of(std::stol(words))};
    return tokenizer.encode(words, SpecialTokens::parse);
}

Status add_bias(const Body& name, bool is_key, const Body& bias, const Tokenizer& tokenizer,
                std::uint32_t vocab_size, std::map<TokenId, float>& biases) {
    const bool is_never = bias.is_boolean() && !bias.get<bool>();  // llama.cpp writes false
    const bool is_bias = bias.is_number() && bias.get<double>() >= -bias_max &&
                         bias.get<double>() <= bias_max;
    if (!is_never && !is_bias) return wrong("logit_bias");
    if (!name.is_string() && !name.is_number_integer()) return wrong("logit_bias");

    const std::vector<TokenId> tokens = tokens_of(name, is_key, tokenizer);
    if (tokens.empty()) return wrong("logit_bias");
    for (const TokenId token : tokens) {
        if (token >= vocab_size) return wrong("logit_bias");
        biases[token] = is_never ? static_cast<float>(-bias_max) : bias.get<float>();
    }
    return {};
}

// Reads logit_bias, an object or a list of pairs. The last bias of a token counts, as at the hub.
Status read_bias(const Body& body, const Tokenizer& tokenizer, std::uint32_t vocab_size,
                 std::map<TokenId, float>& biases) {
    const auto found = body.find("logit_bias");
    if (found == body.end() || found->is_null()) return {};
    if (found->is_object()) {
        for (const auto& [key, bias] : found->items())
            MOEX_TRY(add_bias(Body(key), true, bias, tokenizer, vocab_size, biases));
        return {};
    }

    if (!found->is_array()) return wrong("logit_bias");
    for (const Body& pair : *found) {
        if (!pair.is_array() || pair.size() != 2) return wrong("logit_bias");
        MOEX_TRY(add_bias(pair[0], false, pair[1], tokenizer, vocab_size, biases));
    }
    return {};
}

Status read_stops(const Body& body, std::vector<std::string>& out) {
    const auto found = body.find("stop");
    if (found == body.end() || found->is_null()) return {};
    if (!found->is_array()) return wrong("stop");
    for (const Body& words : *found) {
        if (!words.is_string()) return wrong("stop");
        out.push_back(words.get<std::string>());
    }
    return {};
}

SamplingOptions sampling_of(const GenerationDefaults& defaults) {
    return {.temperature = defaults.do_sample ? defaults.temperature : 0.0,
            .top_p = defaults.top_p,
            .sample_top_k = defaults.sample_top_k,
            .min_p = defaults.min_p,
            .repetition_penalty = defaults.repetition_penalty,
            .presence_penalty = defaults.presence_penalty,
            .frequency_penalty = defaults.frequency_penalty};
}

Status read_sampling(const Body& body, SamplingOptions& out) {
    MOEX_TRY(read_real(body, "temperature", 0, 2, out.temperature));
    MOEX_TRY(read_real(body, "top_p", 0, 1, out.top_p));
    MOEX_TRY(read_real(body, "min_p", 0, 1, out.min_p));
    MOEX_TRY(read_real(body, "presence_penalty", -2, 2, out.presence_penalty));
    MOEX_TRY(read_real(body, "frequency_penalty", -2, 2, out.frequency_penalty));
    MOEX_TRY(read_real(body, "repetition_penalty", 0.01, 100, out.repetition_penalty));

    std::int64_t top_k = out.sample_top_k;
    MOEX_TRY(read_whole(body, "top_k", -1, tokens_max, top_k));
    out.sample_top_k = static_cast<std::uint32_t>(std::max<std::int64_t>(top_k, 0));

    std::int64_t seed = 0;
    constexpr auto all = std::numeric_limits<std::int64_t>();
    MOEX_TRY(read_whole(body, "seed", all.min(), all.max(), seed));
    out.seed = static_cast<std::uint64_t>(seed);
    return {};
}

// Reads moex.speculative: "off", "auto" or a number of tokens, as at the hub.
Status read_drafts(const Body& body, std::optional<std::uint32_t>& out) {
    const auto ours = body.find("moex");
    if (ours == body.end() || !ours->is_object()) return {};
    const auto found = ours->find("speculative");
    if (found == ours->end() || found->is_null() || *found == "auto") return {};
    if (*found == "off") {
        out = 0;
        return {};
    }
    constexpr std::int64_t most = 16;
    std::int64_t wanted = 0;
    if (!read_whole(*ours, "speculative", 1, most, wanted).ok()) return wrong("moex.speculative");
    out = static_cast<std::uint32_t>(wanted);
    return {};
}

}  // namespace

Result<LocalQuestion> read_question(const Body& body, const GenerationDefaults& defaults,
                                    const Tokenizer& tokenizer, std::uint32_t vocab_size) {
    for (const char* field : {"tools", "response_format", "grammar", "n", "logprobs"})
        if (body.contains(field))
            return Error{ErrorCode::invalid_argument,
                         text("'", field, "' works with the hub only")};

    LocalQuestion question{.messages = body.value("messages", Body::array()),
                           .sampling = sampling_of(defaults)};
    MOEX_TRY(read_sampling(body, question.sampling));
    MOEX_TRY(read_bias(body, tokenizer, vocab_size, question.sampling.logit_bias));

    std::int64_t length = 0;
    MOEX_TRY(read_whole(body, "max_tokens", 1, tokens_max, length));
    if (length > 0) question.max_tokens = static_cast<std::uint32_t>(length);
    MOEX_TRY(read_stops(body, question.stops));
    question.reasoning_effort = body.value("reasoning_effort", "");
    MOEX_TRY(read_drafts(body, question.draft_tokens));
    return question;
}

}  // namespace moex
