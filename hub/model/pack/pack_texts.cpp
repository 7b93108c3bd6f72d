#include "hub/model/pack/pack_texts.h"

#include <optional>

#include "hub/base/files.h"
#include "hub/model/chat_template.h"
#include "hub/model/json_fields.h"
#include "hub/model/package/manifest.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/tokenizer_files.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Returns the name of one of the model's texts in errors: a file of the folder, or a part of a GGUF
// file.
std::string what_of(const PackInput& input, std::string_view name) {
    const auto& path = input.source.path;
    return path.extension() == ".gguf" ? text(path.string(), ": ", name) : (path / name).string();
}

// Returns tokenizer_config.json with the chat template. Newer checkpoints have the chat template in
// a separate file, which takes precedence over the template in tokenizer_config.json, as in
// transformers. A package always stores it in tokenizer_config.json.
Result<std::string> with_chat_template(std::string tokenizer_config,
                                       const std::string& chat_template, const std::string& what) {
    MOEX_ASSIGN(object, parse_strict_json<nlohmann::ordered_json>(
                            tokenizer_config.empty() ? "{}" : tokenizer_config, what));
    if (!object.is_object())
        return Error{ErrorCode::bad_field,
                     text(what, ": ", json_excerpt(object), ", wanted an object")};
    if (object.contains("chat_template") && object["chat_template"] == chat_template)
        return tokenizer_config;

    object["chat_template"] = chat_template;
    return object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

// Joins two chat templates, one for chats with tools and one for chats without, into one template.
// A final newline is not part of a template and is removed. A newline right after a block tag would
// be dropped when the template is rendered, so a template that begins with a newline gets a second.
std::string joined_templates(std::string with_tools, std::string without) {
    for (std::string* part : {&with_tools, &without}) {
        if (part->ends_with('\n')) part->pop_back();
        if (part->starts_with('\n')) part->insert(0, 1, '\n');
    }
    return text("{% if tools %}", with_tools, "{% else %}", without, "{% endif %}");
}

// The chat templates of a tokenizer_config.json.
struct NamedTemplates {
    std::optional<std::string> plain, with_tools;
    std::string left_out;  // names of others, with commas between them
};

NamedTemplates named_templates(const OrderedJson& found) {
    NamedTemplates out;
    if (found.is_string()) out.plain = found.get<std::string>();
    if (!found.is_array()) return out;
    for (const OrderedJson& named : found) {
        const OrderedJson &name = member(named, "name"), &source = member(named, "template");
        if (!source.is_string()) continue;
        if (name == "default")
            out.plain = source.get<std::string>();
        else if (name == "tool_use")
            out.with_tools = source.get<std::string>();
        else
            out.left_out += text(out.left_out.empty() ? "" : ", ", json_excerpt(name));
    }
    return out;
}

// Some checkpoints have a second chat template for chats with tools: the entry "tool_use" of a
// list, or a file in additional_chat_templates. Joins it with the default template. Other named
// templates are left out with a warning.
Status join_tool_template(PackInput& input) {
    const auto config_text = input.texts.find("tokenizer_config.json");
    if (config_text == input.texts.end()) return {};
    MOEX_ASSIGN(config, parse_strict_json<OrderedJson>(config_text->second,
                                                       what_of(input, "tokenizer_config.json")));
    NamedTemplates found = named_templates(member(config, "chat_template"));
    if (const auto file = input.source.texts.find("additional_chat_templates/tool_use.jinja");
        file != input.source.texts.end())
        found.with_tools = file->second;

    if (!found.left_out.empty())
        input.warnings.push_back(text("chat templates that were left out: ", found.left_out));
    if (!found.with_tools || !found.plain || *found.with_tools == *found.plain) return {};

    const std::string joined = joined_templates(*found.with_tools, *found.plain);
    if (const auto parsed = ChatTemplate::parse(joined); !parsed.ok()) {
        input.warnings.push_back(
            text("the chat template tool_use is left out, and tools are "
                 "written by the default template: ",
                 parsed.error().message));
        return {};
    }
    config["chat_template"] = joined;
    config_text->second = config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    return {};
}

// Chooses the tokenizer among the texts that were read and the other files of the folder. A GGUF
// file has no others.
Status choose_texts_tokenizer(PackInput& input, const std::string& tokenizer_config) {
    const fs::path& path = input.source.path;
    CheckpointTexts checkpoint{.names = {},
                               .read = [&](const std::string& name) -> Result<std::string> {
                                   const auto text = input.texts.find(name);
                                   if (text != input.texts.end()) return text->second;
                                   return read_text_file(path / name, text_file_bytes_max(name));
                               },
                               .where = what_of(input, "")};
    for (const auto& [name, content] : input.texts) checkpoint.names.push_back(name);
    std::error_code not_a_folder;
    for (const auto& entry : fs::directory_iterator(path, not_a_folder))
        if (std::string name = entry.path().filename().string(); !input.texts.contains(name))
            checkpoint.names.push_back(std::move(name));
    MOEX_ASSIGN(tokenizer, choose_tokenizer(checkpoint, tokenizer_config, input.config.vocab_size));
    for (std::string& warning : tokenizer.warnings) input.warnings.push_back(std::move(warning));
    if (tokenizer.tokenizer_json.empty())
        input.texts.erase("tokenizer.json");
    else
        input.texts["tokenizer.json"] = std::move(tokenizer.tokenizer_json);
    return {};
}

}  // namespace

Status read_pack_texts(PackInput& input) {
    for (const std::string_view name : package_text_files)
        if (const auto found = input.source.texts.find(std::string(name));
            found != input.source.texts.end())
            input.texts[std::string(name)] = std::move(found->second);

    const auto chat_template = input.source.texts.find("chat_template.jinja");
    const bool is_separate = chat_template != input.source.texts.end();
    if (is_separate) {
        MOEX_ASSIGN(merged,
                    with_chat_template(input.texts["tokenizer_config.json"], chat_template->second,
                                       what_of(input, "tokenizer_config.json")));
        input.texts["tokenizer_config.json"] = std::move(merged);
    }

    MOEX_TRY(join_tool_template(input));

    const auto generation = input.texts.find("generation_config.json");
    if (generation != input.texts.end())
        if (const auto keys = unread_generation_keys(generation->second); !keys.empty()) {
            std::string names;
            for (const std::string& key : keys)
                names += text(names.empty() ? "" : ", ", key.substr(0, 60));
            input.warnings.push_back(
                text("generation_config.json has settings that are not used: ", names));
        }
    MOEX_ASSIGN(defaults,
                parse_generation_config(generation == input.texts.end() ? "" : generation->second,
                                        input.source.config_json, input.config.vocab_size,
                                        what_of(input, "generation_config.json")));
    input.generation = std::move(defaults);

    const std::string tokenizer_config = input.texts.contains("tokenizer_config.json")
                                             ? input.texts["tokenizer_config.json"]
                                             : "";
    MOEX_TRY(choose_texts_tokenizer(input, tokenizer_config));
    if (!input.texts.contains("tokenizer.json")) return {};

    const auto parsed = ChatTemplate::from_tokenizer_config(
        tokenizer_config.empty() ? "{}" : tokenizer_config);
    if (parsed.ok()) return {};
    if (parsed.error().code != ErrorCode::not_found)
        return Error{
            parsed.error().code,
            text(what_of(input, is_separate ? "chat_template.jinja" : "tokenizer_config.json"),
                 ": ", parsed.error().message)};
    input.warnings.push_back("no chat template: completions work, chat does not");
    return {};
}

}  // namespace moex
