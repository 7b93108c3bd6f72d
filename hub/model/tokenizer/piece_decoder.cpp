#include "hub/model/tokenizer/piece_decoder.h"

#include "hub/model/tokenizer/token_model.h"
#include "hub/model/tokenizer/tokenizer_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

using namespace tokenizer_json;

constexpr std::size_t new_text_bytes_max = 64;

std::optional<int> hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return std::nullopt;
}

}  // namespace

std::optional<std::uint8_t> byte_of_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
    const auto high = hex_digit(token[3]), low = hex_digit(token[4]);
    if (!high || !low) return std::nullopt;
    return static_cast<std::uint8_t>(*high * 16 + *low);
}

void LeadingTrim::apply(std::string& part) {
    if (count == 0 || part.empty()) return;
    std::size_t begin = 0;
    while (count > 0 && std::string_view(part).substr(begin).starts_with(content)) {
        begin += content.size();
        --count;
    }
    part.erase(0, begin);
    if (!part.empty()) count = 0;
}

Result<PieceDecoder> PieceDecoder::load(const nlohmann::json& decoder) {
    PieceDecoder loaded;
    MOEX_TRY(loaded.add(decoder, 0));
    return loaded;
}

Status PieceDecoder::add(const nlohmann::json& object, int depth) {
    const std::string type = type_of(object);
    if (type == "Sequence" && depth < sequence_depth_max && member(object, "decoders").is_array()) {
        for (const nlohmann::json& part : object["decoders"]) MOEX_TRY(add(part, depth + 1));
        return {};
    }

    // The steps before Fuse change single tokens, and those behind it the whole text.
    const bool of_tokens = type == "Replace" || type == "Metaspace" || type == "ByteFallback";
    if (of_tokens && fuses_) return unsupported(text("decoder \"", type, "\" after Fuse"));
    if (type == "ByteFallback") {
        byte_fallback_ = true;
        return {};
    }
    if (type == "Fuse") {
        fuses_ = true;
        return {};
    }
    if (replaced_.size() >= steps_max)
        return unsupported(text("a decoder of more than ", steps_max, " steps"));
    if (type == "Replace") return add_replace(object);
    if (type == "Metaspace") return add_metaspace(object);
    if (type == "Strip" && fuses_) return add_strip(object);
    return unsupported(text("decoder \"", type, "\""));
}

Status PieceDecoder::add_replace(const nlohmann::json& object) {
    Fields fields = fields_of(object, "decoder Replace");
    std::string content;
    fields.string("content", content);
    if (fields.problem()) return *fields.problem();
    if (content.size() > new_text_bytes_max)
        return bad_file(text("decoder Replace: content has ", content.size(),
                             " bytes, wanted at most ", new_text_bytes_max));
    MOEX_ASSIGN(pattern, compile_pattern(member(object, "pattern"), "decoder Replace"));
    replaced_.emplace_back(std::move(pattern), std::move(content));
    return {};
}

Status PieceDecoder::add_metaspace(const nlohmann::json& object) {
    Fields fields = fields_of(object, "decoder Metaspace");
    std::string replacement = "\u2581";
    fields.string("replacement", replacement);
    if (fields.problem()) return *fields.problem();
    if (replacement.empty()) return bad_file("decoder Metaspace: replacement is empty");
    MOEX_ASSIGN(pattern, SplitPattern::compile_literal(replacement));
    replaced_.emplace_back(std::move(pattern), " ");
    trim_ = {.content = " ", .count = 1};
    return {};
}

Status PieceDecoder::add_strip(const nlohmann::json& object) {
    Fields fields = fields_of(object, "decoder Strip");
    std::uint32_t start = 0, stop = 0;
    fields.whole("start", 0, 1024, start);
    fields.whole("stop", 0, 1024, stop);
    fields.string("content", trim_.content);
    if (fields.problem()) return *fields.problem();
    // Text that leaves a stream cannot be taken back.
    if (stop != 0) return unsupported(text("decoder Strip with stop ", stop));
    if (trim_.content.empty()) return bad_file("decoder Strip: content is empty");
    trim_.count = start;
    return {};
}

std::string PieceDecoder::bytes_of(std::string_view token) const {
    std::string changed(token);
    std::vector<SplitPattern::Range> matches;
    for (const auto& [pattern, content] : replaced_) {
        pattern.find(changed, matches);
        if (matches.empty()) continue;
        std::string next;
        std::size_t copied = 0;
        for (const auto& [begin, end] : matches) {
            next.append(changed, copied, begin - copied).append(content);
            copied = end;
        }
        changed = next.append(changed, copied);
    }

    if (byte_fallback_)
        if (const auto byte = byte_of_token(changed))
            return std::string(1, static_cast<char>(*byte));
    return changed;
}

}  // namespace moex
