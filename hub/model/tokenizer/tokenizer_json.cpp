#include "hub/model/tokenizer/tokenizer_json.h"

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/bpe.h"
#include "protocol/text.h"

namespace moex::tokenizer_json {

namespace {

// Limits that are above the values of all real files. They exist because each added id costs time
// in every encoding.
constexpr std::size_t added_ids_max = 64, added_token_bytes_max = 1024;

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

std::string type_of(const Json& object) {
    const Json& type = member(object, "type");
    return type.is_string() ? type.get<std::string>() : std::string("?");
}

Result<SplitPattern> compile_pattern(const Json& pattern, std::string_view part) {
    if (const Json& regex = member(pattern, "Regex"); regex.is_string())
        return SplitPattern::compile_regex(regex.get_ref<const std::string&>());
    if (const Json& literal = member(pattern, "String"); literal.is_string())
        return SplitPattern::compile_literal(literal.get_ref<const std::string&>());
    return bad_file(text(part, " has no pattern"));
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

Status check_byte_level_decoder(const Json& object, int depth) {
    const std::string type = type_of(object);
    if (object.is_null() || type == "ByteLevel") return {};
    if (type != "Sequence" || depth >= sequence_depth_max || !member(object, "decoders").is_array())
        return unsupported(text("decoder \"", type, "\""));
    for (const Json& part : object["decoders"]) MOEX_TRY(check_byte_level_decoder(part, depth + 1));
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
    fields.boolean("special", token.special);
    token.normalized = !token.special;
    fields.boolean("normalized", token.normalized);
    fields.boolean("lstrip", token.lstrip);
    fields.boolean("rstrip", token.rstrip);
    fields.boolean("single_word", token.single_word);
    if (fields.problem()) return *fields.problem();
    return token;
}

}  // namespace moex::tokenizer_json
