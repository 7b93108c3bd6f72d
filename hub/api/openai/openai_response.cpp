#include "hub/api/openai/openai_response.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "protocol/text.h"

namespace moex {
namespace {

std::string token_text(const Tokenizer* tokenizer, TokenId id) {
    return tokenizer ? tokenizer->decode(std::span(&id, 1), false) : std::to_string(id);
}
OrderedJson token_bytes(const Tokenizer* tokenizer, TokenId id) {
    OrderedJson bytes = OrderedJson::array();
    for (const char c : tokenizer ? tokenizer->token_bytes(id) : std::to_string(id))
        bytes.push_back(static_cast<unsigned char>(c));
    return bytes;
}
double per_second(std::uint64_t count, double ms) {
    return ms > 0 ? static_cast<double>(count) * 1e3 / ms : 0.0;
}

// Clamps a log-probability to zero: a sum of floats may be slightly above, and no client expects a
// probability above one.
float at_most_zero(float logprob) { return logprob > 0 ? 0.0f : logprob; }

}  // namespace

AnswerHeader make_answer_header(const char* id_prefix, std::string_view model,
                                std::string_view package_sha256, std::string_view own_id) {
    static constexpr char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    thread_local std::mt19937_64 generator{std::random_device{}()};
    std::string id = text(id_prefix, own_id);
    for (int i = 0; own_id.empty() && i < 24; ++i)
        id += letters[generator() % (sizeof letters - 1)];

    const auto created = std::chrono::duration_cast<std::chrono::seconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
    return {std::move(id), created, std::string(model),
            text("moex-", package_sha256.substr(0, 12))};
}

OrderedJson answer_object(const AnswerHeader& header, bool is_chat, bool is_chunk) {
    const char* object = is_chat ? (is_chunk ? "chat.completion.chunk" : "chat.completion")
                                 : "text_completion";
    return {{"id", header.id},
            {"object", object},
            {"created", header.created_s},
            {"model", header.model},
            {"system_fingerprint", header.fingerprint},
            {"choices", OrderedJson::array()}};
}

OrderedJson usage_json(const Usage& usage) {
    OrderedJson out{{"prompt_tokens", usage.prompt_tokens},
                    {"completion_tokens", usage.completion_tokens},
                    {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                    {"prompt_tokens_details",
                     {{"cached_tokens", usage.cached_tokens},
                      {"cached_tokens_disk", usage.cached_tokens_disk}}}};
    if (usage.reasoning_tokens)
        out["completion_tokens_details"] = {{"reasoning_tokens", *usage.reasoning_tokens}};
    return out;
}

OrderedJson timings_json(const GenerationStats& stats, const Usage& usage) {
    // `decode` is the time from the first token to the last, so it spans one interval fewer than
    // there are tokens.
    const double prompt_ms = to_ms(stats.prefill), predicted_ms = to_ms(stats.decode);
    // As in llama.cpp, the field prompt_n does not count cached tokens.
    const std::uint64_t prompt_n = usage.prompt_tokens - usage.cached_tokens;
    return {
        {"queued_ms", to_ms(stats.queued)},
        {"cache_n", usage.cached_tokens},
        {"prompt_n", prompt_n},
        {"prompt_ms", prompt_ms},
        {"prompt_per_second", per_second(prompt_n, prompt_ms)},
        {"predicted_n", usage.completion_tokens},
        {"predicted_ms", predicted_ms},
        {"predicted_per_second",
         per_second(usage.completion_tokens > 0 ? usage.completion_tokens - 1 : 0, predicted_ms)}};
}

OrderedJson progress_json(const PromptProgress& progress) {
    return {{"total", progress.total_tokens},
            {"cache", progress.cached_tokens},
            {"processed", progress.ready_tokens},
            {"time_ms", std::lround(to_ms(progress.elapsed))}};
}

namespace {

// The drafted tokens of an answer; null if it had none. Names as in vLLM's metrics.
OrderedJson speculative_json(const DraftStats& drafts, std::uint64_t completion_tokens) {
    if (drafts.drafts == 0) return nullptr;
    const auto ratio = [](std::uint64_t part, std::uint64_t whole) {
        return static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(1, whole));
    };
    std::size_t length = drafts.accepted_histogram.size();
    while (length > 1 && drafts.accepted_histogram[length - 1] == 0) --length;
    OrderedJson histogram = OrderedJson::array();
    for (std::size_t i = 0; i < length; ++i) histogram.push_back(drafts.accepted_histogram[i]);
    return {{"mean_acceptance_length", 1 + ratio(drafts.accepted_tokens, drafts.drafts)},
            {"draft_acceptance_rate", ratio(drafts.accepted_tokens, drafts.drafted_tokens)},
            {"acceptance_histogram", std::move(histogram)},
            {"tokens_per_step", ratio(completion_tokens, drafts.steps)},
            {"kind", drafts.kind}};
}

}  // namespace

OrderedJson provenance_json(const AnswerTotals& totals) {
    const GenerationStats& stats = totals.stats;
    const auto& excess = totals.perplexity_excess;
    OrderedJson out{{"workers", stats.workers.size()},
                    {"calls_remote", stats.pairs_remote},
                    {"calls_local", stats.pairs_local},
                    {"hedged", stats.pairs_hedged},
                    // Parts of calls_remote. verified: calls that were computed again before their
                    // result was used. proven: calls to contributors with a good record, whose
                    // answers are checked at a rate. unchecked: all other calls.
                    {"verified", stats.pairs_verified},
                    {"proven", stats.pairs_proven},
                    {"unchecked", stats.pairs_remote - stats.pairs_verified - stats.pairs_proven},
                    {"doubted", totals.doubted},
                    // Expert calls that the hub did not wait for (moex.late_ms): default vectors
                    // replace their results.
                    {"replaced", stats.pairs_late},
                    {"speculative", speculative_json(stats.drafts, totals.usage.completion_tokens)},
                    {"experts", totals.experts},
                    {"perplexity_excess", excess ? OrderedJson(*excess) : OrderedJson()}};
    out.update(totals.notes);
    return out;
}

OrderedJson chat_logprobs_json(std::span<const TokenText> tokens, const Tokenizer* tokenizer) {
    OrderedJson content = OrderedJson::array();
    for (const TokenText& token : tokens) {
        OrderedJson top = OrderedJson::array();
        for (const TokenLogprob& one : token.top)
            top.push_back({{"token", token_text(tokenizer, one.id)},
                           {"logprob", at_most_zero(one.logprob)},
                           {"bytes", token_bytes(tokenizer, one.id)}});

        content.push_back({{"token", token.text},
                           {"logprob", at_most_zero(token.logprob)},
                           {"bytes", token_bytes(tokenizer, token.id)},
                           {"top_logprobs", std::move(top)}});
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
}

OrderedJson legacy_logprobs_json(std::span<const TokenText> tokens, const Tokenizer* tokenizer) {
    OrderedJson texts = OrderedJson::array(), logprobs = OrderedJson::array(),
                tops = OrderedJson::array(), offsets = OrderedJson::array();
    for (const TokenText& token : tokens) {
        texts.push_back(token.text);
        logprobs.push_back(at_most_zero(token.logprob));
        offsets.push_back(token.offset_characters);

        OrderedJson top = OrderedJson::object();
        for (const TokenLogprob& one : token.top)
            top[token_text(tokenizer, one.id)] = at_most_zero(one.logprob);
        tops.push_back(std::move(top));
    }
    return {{"tokens", std::move(texts)},
            {"token_logprobs", std::move(logprobs)},
            {"top_logprobs", std::move(tops)},
            {"text_offset", std::move(offsets)}};
}

OrderedJson prompt_logprobs_json(std::span<const SampledToken> scores, const Tokenizer* tokenizer) {
    OrderedJson out = OrderedJson::array({nullptr});
    for (const SampledToken& scored : scores) {
        OrderedJson place = OrderedJson::object();
        const auto add = [&](TokenId id, float logprob) -> OrderedJson& {
            OrderedJson& entry = place[std::to_string(id)];
            entry["logprob"] = at_most_zero(logprob);
            entry["decoded_token"] = token_text(tokenizer, id);
            return entry;
        };
        add(scored.id, scored.logprob);
        for (std::size_t i = 0; i < scored.top.size(); ++i)
            add(scored.top[i].id, scored.top[i].logprob)["rank"] = i + 1;
        out.push_back(std::move(place));
    }
    return out;
}

OrderedJson echo_logprobs_json(std::span<const TokenText> prompt, std::span<const TokenText> answer,
                               const Tokenizer* tokenizer) {
    std::vector<TokenText> tokens(prompt.begin(), prompt.end());
    std::uint64_t prompt_characters = 0;
    for (const TokenText& token : prompt)
        prompt_characters += static_cast<std::uint64_t>(std::count_if(
            token.text.begin(), token.text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
    for (TokenText token : answer) {
        token.offset_characters += prompt_characters;
        tokens.push_back(std::move(token));
    }

    OrderedJson out = legacy_logprobs_json(tokens, tokenizer);
    out["token_logprobs"][0] = nullptr;
    out["top_logprobs"][0] = nullptr;
    return out;
}

}  // namespace moex
