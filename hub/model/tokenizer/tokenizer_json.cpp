#include "hub/model/tokenizer/tokenizer_json.h"

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/bpe.h"
#include "protocol/text.h"

namespace moex::tokenizer_parts {

using nlohmann::json;

namespace {

// GPT-2's own pattern, which ByteLevel applies with use_regex.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int sequence_depth_max = 8;
// More than any real file has; encoding takes time with each.
constexpr std::size_t pre_tokenizer_steps_max = 64, added_ids_max = 64,
                      added_token_bytes_max = 1024;

std::string type_of(const json& object) {
    return object.is_object() && object.contains("type") && object["type"].is_string()
               ? object["type"].get<std::string>()
               : std::string("?");
}

Status load_split(const json& split, std::vector<PreTokenizerStep>& steps) {
    PreTokenizerStep step;
    const json& pattern = member(split, "pattern");
    if (pattern.is_object() && pattern.contains("Regex") && pattern["Regex"].is_string()) {
        MOEX_ASSIGN(compiled,
                    SplitPattern::compile_regex(pattern["Regex"].get_ref<const std::string&>()));
        step.pattern = std::move(compiled);
    } else if (pattern.is_object() && pattern.contains("String") && pattern["String"].is_string()) {
        MOEX_ASSIGN(compiled,
                    SplitPattern::compile_literal(pattern["String"].get_ref<const std::string&>()));
        step.pattern = std::move(compiled);
    } else {
        return bad_file("pre_tokenizer Split has no pattern");
    }
    const std::string behavior = split.contains("behavior") && split["behavior"].is_string()
                                     ? split["behavior"].get<std::string>()
                                     : "?";
    const bool invert = flag(split, "invert", false);
    if (behavior == "Removed")
        step.keep = invert ? PreTokenizerStep::Keep::matches : PreTokenizerStep::Keep::gaps;
    else if (behavior != "Isolated")
        return unsupported(text("pre_tokenizer Split with behavior \"", behavior, "\""));
    steps.push_back(std::move(step));
    return {};
}

}  // namespace

Error bad_file(const std::string& message) {
    return {ErrorCode::bad_file,
            text("tokenizer.json: ", std::string_view(message).substr(0, 300))};
}
Error unsupported(const std::string& message) {
    return {
        ErrorCode::unsupported,
        text("tokenizer.json: ", std::string_view(message).substr(0, 300), " is not supported")};
}

bool flag(const json& object, const char* key, bool otherwise) {
    const auto found = object.find(key);
    return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}
const json& member(const json& object, const char* key) {
    static const json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
}

Result<bool> load_normalizer(const json& normalizer, int depth) {
    if (normalizer.is_null()) return false;
    const std::string type = type_of(normalizer);
    if (type == "NFC") return true;
    if (type == "Sequence" && depth < sequence_depth_max && normalizer.contains("normalizers") &&
        normalizer["normalizers"].is_array()) {
        bool nfc = false;
        for (const json& part : normalizer["normalizers"]) {
            MOEX_ASSIGN(part_nfc, load_normalizer(part, depth + 1));
            nfc = nfc || part_nfc;
        }
        return nfc;
    }
    return unsupported(text("normalizer \"", type, "\""));
}

Status load_pre_tokenizer(const json& object, std::vector<PreTokenizerStep>& steps,
                          bool& byte_level, int depth) {
    const std::string type = type_of(object);
    if (byte_level) return unsupported(text("pre_tokenizer \"", type, "\" after ByteLevel"));
    if (steps.size() >= pre_tokenizer_steps_max)
        return unsupported(
            text("a pre_tokenizer of more than ", pre_tokenizer_steps_max, " steps"));
    if (type == "Sequence" && depth < sequence_depth_max && object.contains("pretokenizers") &&
        object["pretokenizers"].is_array()) {
        for (const json& part : object["pretokenizers"])
            MOEX_TRY(load_pre_tokenizer(part, steps, byte_level, depth + 1));
        return {};
    }
    if (type == "Split") return load_split(object, steps);
    if (type == "Digits") {
        MOEX_ASSIGN(compiled, SplitPattern::compile_regex(
                                  flag(object, "individual_digits", false) ? "\\p{N}" : "\\p{N}+"));
        steps.push_back({std::move(compiled)});
        return {};
    }
    if (type == "ByteLevel") {
        PreTokenizerStep step;
        step.add_prefix_space = flag(object, "add_prefix_space", true);
        if (flag(object, "use_regex", true)) {
            MOEX_ASSIGN(compiled, SplitPattern::compile_regex(gpt2_pattern));
            step.pattern = std::move(compiled);
        }
        byte_level = true;
        if (step.pattern || step.add_prefix_space) steps.push_back(std::move(step));
        return {};
    }
    return unsupported(text("pre_tokenizer \"", type, "\""));
}

Status load_post_processor(const json& object, AddedIds& added, int depth) {
    if (object.is_null()) return {};
    const std::string type = type_of(object);
    if (type == "ByteLevel") return {};
    if (type == "Sequence" && depth < sequence_depth_max &&
        member(object, "processors").is_array()) {
        for (const json& part : object["processors"])
            MOEX_TRY(load_post_processor(part, added, depth + 1));
        return {};
    }
    if (type != "TemplateProcessing" || !member(object, "single").is_array())
        return unsupported(text("post_processor \"", type, "\""));
    AddedIds own;
    bool behind_text = false;
    for (const json& piece : object["single"]) {
        if (const json& sequence = member(piece, "Sequence"); sequence.is_object()) {
            if (behind_text || member(sequence, "id") != "A")
                return unsupported(
                    text("post_processor TemplateProcessing with ", json_excerpt(piece)));
            behind_text = true;
            continue;
        }
        const json& name = member(member(piece, "SpecialToken"), "id");
        const json& token = name.is_string() ? member(member(object, "special_tokens"),
                                                      name.get_ref<const std::string&>().c_str())
                                             : name;
        const json& ids = member(token, "ids");
        if (!ids.is_array() || ids.empty())
            return bad_file(
                text("post_processor: ", json_excerpt(piece), " has no ids in special_tokens"));
        for (const json& id : ids) {
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() > token_id_max)
                return bad_file(text("post_processor: ids of ", json_excerpt(name), " are ",
                                     json_excerpt(ids)));
            (behind_text ? own.after : own.before).push_back(id.get<TokenId>());
        }
    }
    if (!behind_text)
        return bad_file("post_processor TemplateProcessing: \"single\" lacks the text");
    if (added.before.size() + added.after.size() + own.before.size() + own.after.size() >
        added_ids_max)
        return unsupported(text("a post_processor that adds more than ", added_ids_max, " tokens"));
    added.before.insert(added.before.begin(), own.before.begin(), own.before.end());
    added.after.insert(added.after.end(), own.after.begin(), own.after.end());
    return {};
}

Status check_decoder(const json& object, int depth) {
    const std::string type = type_of(object);
    if (object.is_null() || type == "ByteLevel") return {};
    if (type != "Sequence" || depth >= sequence_depth_max || !member(object, "decoders").is_array())
        return unsupported(text("decoder \"", type, "\""));
    for (const json& part : object["decoders"]) MOEX_TRY(check_decoder(part, depth + 1));
    return {};
}

Result<AddedToken> load_added_token(const json& object) {
    if (!object.is_object() || !object.contains("content") || !object["content"].is_string())
        return bad_file("an added token has no content");
    AddedToken token;
    token.content = object["content"].get<std::string>();
    if (token.content.empty()) return bad_file("an added token is empty");
    if (token.content.size() > added_token_bytes_max)
        return bad_file(text("an added token of ", token.content.size(), " bytes, wanted at most ",
                             added_token_bytes_max));
    if (!object.contains("id") || !object["id"].is_number_unsigned() ||
        object["id"].get<std::uint64_t>() > token_id_max)
        return bad_file(
            text("added token \"", token.content, "\" has no id from 0 to ", token_id_max));
    token.id = object["id"].get<TokenId>();
    token.special = flag(object, "special", false);
    token.normalized = flag(object, "normalized", !token.special);
    token.lstrip = flag(object, "lstrip", false);
    token.rstrip = flag(object, "rstrip", false);
    if (flag(object, "single_word", false))
        return unsupported(text("single_word of added token \"", token.content, "\""));
    return token;
}

}  // namespace moex::tokenizer_parts
