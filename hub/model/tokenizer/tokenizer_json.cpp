#include "hub/model/tokenizer/tokenizer_json.h"

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/bpe.h"
#include "protocol/text.h"

namespace moex::tokenizer_json {

namespace {

// GPT-2's own split pattern, which the ByteLevel pre-tokenizer applies if use_regex is set.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr int sequence_depth_max = 8;
// Limits that are above the values of all real files. They exist because each pre-tokenizer step
// and each added id costs time in every encoding.
constexpr std::size_t pre_tokenizer_steps_max = 64, added_ids_max = 64,
                      added_token_bytes_max = 1024;

std::string type_of(const Json& object) {
    const Json& type = member(object, "type");
    return type.is_string() ? type.get<std::string>() : std::string("?");
}

Result<SplitPattern> compile_pattern(const Json& pattern) {
    if (const Json& regex = member(pattern, "Regex"); regex.is_string())
        return SplitPattern::compile_regex(regex.get_ref<const std::string&>());
    if (const Json& literal = member(pattern, "String"); literal.is_string())
        return SplitPattern::compile_literal(literal.get_ref<const std::string&>());
    return bad_file("pre_tokenizer Split has no pattern");
}

Status load_split(const Json& split, std::vector<PreTokenizerStep>& steps) {
    PreTokenizerStep step;
    MOEX_ASSIGN(pattern, compile_pattern(member(split, "pattern")));
    step.pattern = std::move(pattern);

    Fields fields = fields_of(split, "pre_tokenizer Split");
    std::string behavior = "?";
    bool invert = false;
    fields.string("behavior", behavior);
    fields.boolean("invert", invert);
    if (fields.problem()) return *fields.problem();

    if (behavior == "Removed")
        step.keep = invert ? PreTokenizerStep::Keep::matches : PreTokenizerStep::Keep::gaps;
    else if (behavior != "Isolated")
        return unsupported(text("pre_tokenizer Split with behavior \"", behavior, "\""));

    steps.push_back(std::move(step));
    return {};
}

Status load_digits(const Json& object, std::vector<PreTokenizerStep>& steps) {
    Fields fields = fields_of(object, "pre_tokenizer Digits");
    bool individual = false;
    fields.boolean("individual_digits", individual);
    if (fields.problem()) return *fields.problem();

    MOEX_ASSIGN(compiled, SplitPattern::compile_regex(individual ? "\\p{N}" : "\\p{N}+"));
    steps.push_back({std::move(compiled)});
    return {};
}

Status load_byte_level(const Json& object, std::vector<PreTokenizerStep>& steps) {
    Fields fields = fields_of(object, "pre_tokenizer ByteLevel");
    PreTokenizerStep step;
    bool use_regex = true;
    step.add_prefix_space = true;
    fields.boolean("add_prefix_space", step.add_prefix_space);
    fields.boolean("use_regex", use_regex);
    if (fields.problem()) return *fields.problem();

    if (use_regex) {
        MOEX_ASSIGN(compiled, SplitPattern::compile_regex(gpt2_pattern));
        step.pattern = std::move(compiled);
    }

    if (step.pattern || step.add_prefix_space) steps.push_back(std::move(step));
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

Fields fields_of(const Json& object, std::string_view part) {
    return Fields(object, {text("tokenizer.json: ", part.substr(0, 300))});
}

Result<bool> load_normalizer(const Json& normalizer, int depth) {
    if (normalizer.is_null()) return false;
    const std::string type = type_of(normalizer);
    if (type == "NFC") return true;

    if (type == "Sequence" && depth < sequence_depth_max && normalizer.contains("normalizers") &&
        normalizer["normalizers"].is_array()) {
        bool nfc = false;
        for (const Json& part : normalizer["normalizers"]) {
            MOEX_ASSIGN(part_nfc, load_normalizer(part, depth + 1));
            nfc = nfc || part_nfc;
        }
        return nfc;
    }

    return unsupported(text("normalizer \"", type, "\""));
}

Status load_pre_tokenizer(const Json& object, std::vector<PreTokenizerStep>& steps,
                          bool& byte_level, int depth) {
    const std::string type = type_of(object);
    if (byte_level) return unsupported(text("pre_tokenizer \"", type, "\" after ByteLevel"));
    if (steps.size() >= pre_tokenizer_steps_max)
        return unsupported(
            text("a pre_tokenizer of more than ", pre_tokenizer_steps_max, " steps"));

    if (type == "Sequence" && depth < sequence_depth_max && object.contains("pretokenizers") &&
        object["pretokenizers"].is_array()) {
        for (const Json& part : object["pretokenizers"])
            MOEX_TRY(load_pre_tokenizer(part, steps, byte_level, depth + 1));
        return {};
    }

    if (type == "Split") return load_split(object, steps);
    if (type == "Digits") return load_digits(object, steps);

    if (type == "ByteLevel") {
        byte_level = true;
        return load_byte_level(object, steps);
    }

    return unsupported(text("pre_tokenizer \"", type, "\""));
}

Status load_post_processor(const Json& object, AddedIds& added, int depth) {
    if (object.is_null()) return {};
    const std::string type = type_of(object);
    if (type == "ByteLevel") return {};

    if (type == "Sequence" && depth < sequence_depth_max &&
        member(object, "processors").is_array()) {
        for (const Json& part : object["processors"])
            MOEX_TRY(load_post_processor(part, added, depth + 1));
        return {};
    }

    if (type != "TemplateProcessing" || !member(object, "single").is_array())
        return unsupported(text("post_processor \"", type, "\""));

    AddedIds own;
    bool behind_text = false;
    for (const Json& piece : object["single"]) {
        if (const Json& sequence = member(piece, "Sequence"); sequence.is_object()) {
            if (behind_text || member(sequence, "id") != "A")
                return unsupported(
                    text("post_processor TemplateProcessing with ", json_excerpt(piece)));
            behind_text = true;
            continue;
        }

        const Json& name = member(member(piece, "SpecialToken"), "id");
        const Json& token = name.is_string() ? member(member(object, "special_tokens"),
                                                      name.get_ref<const std::string&>().c_str())
                                             : name;
        const Json& ids = member(token, "ids");
        if (!ids.is_array() || ids.empty())
            return bad_file(
                text("post_processor: ", json_excerpt(piece), " has no ids in special_tokens"));

        for (const Json& id : ids) {
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

Status check_decoder(const Json& object, int depth) {
    const std::string type = type_of(object);
    if (object.is_null() || type == "ByteLevel") return {};
    if (type != "Sequence" || depth >= sequence_depth_max || !member(object, "decoders").is_array())
        return unsupported(text("decoder \"", type, "\""));
    for (const Json& part : object["decoders"]) MOEX_TRY(check_decoder(part, depth + 1));
    return {};
}

Result<AddedToken> load_added_token(const Json& object) {
    const Json& content = member(object, "content");
    if (!content.is_string()) return bad_file("an added token has no content");

    AddedToken token;
    token.content = content.get<std::string>();
    if (token.content.empty()) return bad_file("an added token is empty");
    if (token.content.size() > added_token_bytes_max)
        return bad_file(text("an added token of ", token.content.size(), " bytes, wanted at most ",
                             added_token_bytes_max));

    const Json& id = member(object, "id");
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > token_id_max)
        return bad_file(
            text("added token \"", token.content, "\" has no id from 0 to ", token_id_max));

    token.id = id.get<TokenId>();

    Fields fields = fields_of(object, text("added token \"", token.content, "\""));
    bool single_word = false;
    fields.boolean("special", token.special);
    token.normalized = !token.special;
    fields.boolean("normalized", token.normalized);
    fields.boolean("lstrip", token.lstrip);
    fields.boolean("rstrip", token.rstrip);

    fields.boolean("single_word", single_word);
    if (fields.problem()) return *fields.problem();
    if (single_word) return unsupported(text("single_word of added token \"", token.content, "\""));
    return token;
}

}  // namespace moex::tokenizer_json
