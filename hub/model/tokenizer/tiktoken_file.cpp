#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/base64.h"
#include "hub/model/tokenizer/bpe.h"
#include "hub/model/tokenizer/tokenizer_files.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Json = nlohmann::json;

constexpr std::size_t rank_bytes_max = 1024;

// The words that both patterns share, and the classes' own parts.
constexpr std::string_view kimi_pattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct TiktokenClass {
    std::string_view name;
    std::string_view pattern;
    bool nfc = false;
    // The special tokens behind the ranks; tokenizer_config.json names the others.
    std::vector<std::string> (*special_tokens)(std::size_t num_ranks);
};

std::vector<std::string> kimi_tokens(std::size_t num_ranks) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < 256; ++i)
        names.push_back(text("<|reserved_token_", num_ranks + i, "|>"));
    return names;
}

std::vector<std::string> qwen_tokens(std::size_t) {
    std::vector<std::string> names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 205; ++i) names.push_back(text("<|extra_", i, "|>"));
    return names;
}

const TiktokenClass classes[] = {{"TikTokenTokenizer", kimi_pattern, false, kimi_tokens},
                                 {"QWenTokenizer", qwen_pattern, true, qwen_tokens}};

// Returns the class that tokenizer_config.json names; a checkpoint may name it in "auto_map" alone.
Result<const TiktokenClass*> class_of(const Json& config) {
    std::string found;
    if (const Json& name = member(config, "tokenizer_class"); name.is_string())
        found = name.get<std::string>();
    const Json& mapped = member(member(config, "auto_map"), "AutoTokenizer");
    const Json& entry = mapped.is_array() && !mapped.empty() ? mapped[0] : mapped;
    if (found.empty() && entry.is_string()) {
        found = entry.get<std::string>();
        found = found.substr(found.rfind('.') + 1);
    }

    for (const TiktokenClass& known : classes)
        if (known.name == found) return &known;
    return Error{ErrorCode::unsupported,
                 text("tokenizer_config.json: tokenizer_class \"", found.substr(0, 100),
                      "\" has no known split pattern for its file of tiktoken; wanted ",
                      classes[0].name, " or ", classes[1].name, ", or a tokenizer.json")};
}

Error bad_line(std::size_t line, std::string_view why) {
    return {ErrorCode::bad_file, text("line ", line, " of the file of tiktoken ", why)};
}

// Returns the tokens by rank, as bytes.
Result<std::vector<std::string>> read_ranks(std::string_view file) {
    std::vector<std::string> tokens;
    std::size_t number = 0;
    while (!file.empty()) {
        ++number;
        const std::size_t end = std::min(file.find('\n'), file.size());
        std::string_view line = file.substr(0, end);
        file.remove_prefix(std::min(end + 1, file.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) continue;

        const std::size_t space = line.find(' ');
        if (space == std::string_view::npos || space > 2 * rank_bytes_max)
            return bad_line(number, "has no token and rank");
        const auto bytes = base64_bytes(line.substr(0, space));
        if (!bytes || bytes->empty()) return bad_line(number, "has a token that is not base64");

        std::size_t rank = 0;
        const char* const last = line.data() + line.size();
        const auto [stop, problem] = std::from_chars(line.data() + space + 1, last, rank);
        if (problem != std::errc() || stop != last || rank >= vocab_tokens_max)
            return bad_line(number, text("has no rank below ", vocab_tokens_max));
        if (rank >= tokens.size()) tokens.resize(rank + 1);
        if (!tokens[rank].empty()) return bad_line(number, text("repeats the rank ", rank));
        tokens[rank] = *bytes;
    }
    if (tokens.empty()) return Error{ErrorCode::bad_file, "the file of tiktoken has no tokens"};
    return tokens;
}

// tiktoken joins the two neighbours whose joined bytes have the lowest rank. The same as merges:
// every way to cut a token into two tokens, in the order of the tokens' ranks.
Json merges_of_ranks(const std::vector<std::string>& tokens,
                     const std::vector<std::string>& spellings) {
    std::unordered_map<std::string_view, std::size_t> ranks;
    for (std::size_t rank = 0; rank < tokens.size(); ++rank)
        if (!tokens[rank].empty()) ranks.emplace(tokens[rank], rank);

    Json merges = Json::array();
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (const std::string_view token : tokens) {
        pairs.clear();
        for (std::size_t at = 1; at < token.size(); ++at) {
            const auto left = ranks.find(token.substr(0, at)), right = ranks.find(token.substr(at));
            if (left != ranks.end() && right != ranks.end())
                pairs.emplace_back(left->second, right->second);
        }
        std::sort(pairs.begin(), pairs.end());
        for (const auto& [left, right] : pairs)
            merges.push_back(text(spellings[left], ' ', spellings[right]));
    }
    return merges;
}

}  // namespace

Result<std::string> tokenizer_json_of_tiktoken(std::string_view ranks_file,
                                               std::string_view tokenizer_config_json) {
    Json config;
    if (!tokenizer_config_json.empty()) {
        MOEX_ASSIGN(parsed, parse_strict_json(tokenizer_config_json, "tokenizer_config.json"));
        config = std::move(parsed);
    }
    MOEX_ASSIGN(known, class_of(config));
    MOEX_ASSIGN(tokens, read_ranks(ranks_file));

    std::vector<std::string> spellings;
    Json vocab = Json::object();
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
        spellings.push_back(bytes_to_byte_level(tokens[rank]));
        if (tokens[rank].empty()) continue;
        if (!vocab.emplace(spellings.back(), rank).second)
            return Error{ErrorCode::bad_file,
                         text("the file of tiktoken has the token of rank ", rank, " twice")};
    }

    Json added = Json::array();
    const Json& names = member(config, "added_tokens_decoder");
    const std::vector<std::string> special = known->special_tokens(tokens.size());
    for (std::size_t i = 0; i < special.size(); ++i) {
        const std::size_t id = tokens.size() + i;
        const Json& name = member(member(names, std::to_string(id)), "content");
        added.push_back({{"id", id},
                         {"content", name.is_string() ? name : Json(special[i])},
                         {"special", true},
                         {"normalized", false}});
    }

    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", known->pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    const Json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    Json file = {{"version", "1.0"},
                 {"added_tokens", std::move(added)},
                 {"normalizer", known->nfc ? Json{{"type", "NFC"}} : Json()},
                 {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
                 {"post_processor", nullptr},
                 {"decoder", {{"type", "ByteLevel"}}}};
    file["model"] = {{"type", "BPE"},
                     {"ignore_merges", true},
                     {"merges", merges_of_ranks(tokens, spellings)},
                     {"vocab", std::move(vocab)}};
    return file.dump();
}

}  // namespace moex
