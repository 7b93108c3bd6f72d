// Makes the answers that need no step of the model: token ids and texts, descriptions of the model.
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "hub/api/api_state.h"
#include "hub/api/dialects/anthropic.h"
#include "hub/api/dialects/ollama.h"
#include "hub/api/dialects/responses.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

// Returns the boolean member `name` of a JSON object, or `otherwise` if the member is missing or is
// not a boolean.
bool flag_of(const OrderedJson& body, const char* name, bool otherwise) {
    const auto found = body.find(name);
    return found != body.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

// Counts the parameters of the whole checkpoint, without biases and norms.
std::uint64_t num_parameters(const ModelConfig& config) {
    const std::uint64_t hidden = config.hidden_size;
    std::uint64_t count = config.vocab_size * hidden * (config.tied_embeddings ? 1 : 2);
    const std::uint64_t heads = 2 * config.num_heads + 2 * config.num_kv_heads;
    const std::uint64_t experts = config.num_experts *
                                  (3 * hidden * config.moe_intermediate_size + hidden);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        count += heads * config.head_dim * hidden +
                 (config.is_moe(layer) ? experts : 3 * hidden * config.intermediate_size);
    return count;
}

// Formats a number of parameters, e.g. "30.5B" or "13.4M".
std::string parameter_size(std::uint64_t count) {
    char words[32];
    const bool is_billions = count >= 1'000'000'000;
    std::snprintf(words, sizeof words, "%.1f%c",
                  static_cast<double>(count) / (is_billions ? 1e9 : 1e6), is_billions ? 'B' : 'M');
    return words;
}

}  // namespace

HttpResponse json_response(const OrderedJson& body) {
    HttpResponse response;
    response.body = dump_json(body);
    return response;
}

OrderedJson ApiState::model_json() const {
    OrderedJson experts = OrderedJson::array({"exact"});
    if (!options.modes.empty()) experts.push_back("speculative");
    for (const std::string& way : options.modes) experts.push_back(way);
    std::stable_partition(experts.begin(), experts.end(),
                          [&](const OrderedJson& way) { return way == options.experts; });
    OrderedJson perplexity;
    for (const auto& [way, measured] : options.perplexity) perplexity[way] = measured;

    return {{"id", package->name()},
            {"object", "model"},
            {"created", started_s},
            {"owned_by", "moex"},
            {"meta",
             {{"n_ctx", context_tokens},
              {"vocab_size", package->config().vocab_size},
              {"experts", std::move(experts)},
              {"experts_perplexity", std::move(perplexity)}}}};
}

Checked<HttpResponse> ApiState::tokenize(const HttpRequest& request) const {
    if (!tokenizer) return Refusal{400, "The package has no tokenizer.", "no_tokenizer", ""};
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));

    const auto content = body.find("content");
    if (content == body.end() || !content->is_string())
        return Refusal{400, "'content' has to be a string.", "invalid_value", "content"};

    const auto special = flag_of(body, "parse_special", true) ? SpecialTokens::parse
                                                              : SpecialTokens::as_text;
    const auto ids = tokenizer->encode(content->get_ref<const std::string&>(), special);

    OrderedJson tokens = OrderedJson::array();
    const bool with_pieces = flag_of(body, "with_pieces", false);
    for (const TokenId id : ids) {
        if (with_pieces)
            tokens.push_back({{"id", id}, {"piece", tokenizer->decode(std::span(&id, 1), false)}});
        else
            tokens.push_back(id);
    }
    return json_response({{"tokens", std::move(tokens)}});
}

Checked<HttpResponse> ApiState::detokenize(const HttpRequest& request) const {
    if (!tokenizer) return Refusal{400, "The package has no tokenizer.", "no_tokenizer", ""};
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));

    const auto tokens = body.find("tokens");
    if (tokens == body.end() || !tokens->is_array())
        return Refusal{400, "'tokens' has to be an array of token ids.", "invalid_value", "tokens"};

    std::vector<TokenId> ids;
    for (const OrderedJson& one : *tokens) {
        if (!one.is_number_unsigned() || one.get<std::uint64_t>() >= tokenizer->vocab_size())
            return Refusal{400,
                           text("'tokens' has to hold ids below ", tokenizer->vocab_size(), "."),
                           "invalid_value", "tokens"};
        ids.push_back(one.get<TokenId>());
    }
    return json_response({{"content", tokenizer->decode(ids, false)}});
}

// Returns the prompt of a chat as the text that the model reads.
Checked<HttpResponse> ApiState::apply_template(const HttpRequest& request) const {
    MOEX_OR_REFUSE(params, parse_chat_params(request.body, limits()));
    MOEX_OR_REFUSE(prompts, encode_chat(params));
    return json_response({{"prompt", tokenizer->decode(prompts[0], false)}});
}

Checked<std::size_t> ApiState::count_prompt(CompletionParams params) const {
    MOEX_ADMIT(check_model(params.model));
    MOEX_OR_REFUSE(prompts, encode_chat(params));
    return prompts[0].size();
}

Checked<HttpResponse> ApiState::count_anthropic(const HttpRequest& request) const {
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));
    MOEX_OR_REFUSE(params, read_anthropic_prompt(body, limits()));
    MOEX_OR_REFUSE(count, count_prompt(std::move(params)));
    return json_response({{"input_tokens", count}});
}

Checked<HttpResponse> ApiState::count_chat(const HttpRequest& request) const {
    MOEX_OR_REFUSE(params, parse_chat_params(request.body, limits()));
    MOEX_OR_REFUSE(count, count_prompt(std::move(params)));
    return json_response({{"object", "response.input_tokens"}, {"input_tokens", count}});
}

Checked<HttpResponse> ApiState::count_responses(const HttpRequest& request) const {
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));
    MOEX_OR_REFUSE(params, read_responses(body, limits()));
    MOEX_OR_REFUSE(count, count_prompt(std::move(params)));
    return json_response({{"object", "response.input_tokens"}, {"input_tokens", count}});
}

// Returns the source of the chat template as the checkpoint has it; empty if it has none.
std::string ApiState::template_source() const {
    const auto file = package->tokenizer_file("tokenizer_config.json");
    if (!file) return {};
    const auto config = nlohmann::json::parse(*file, nullptr, false);
    const nlohmann::json& source = member(config, "chat_template");
    if (source.is_string()) return source.get<std::string>();
    if (source.is_array())
        for (const nlohmann::json& one : source)
            if (member(one, "name") == "default" && member(one, "template").is_string())
                return one["template"].get<std::string>();
    return {};
}

// Returns those members of llama.cpp's /props that apply to this hub.
OrderedJson ApiState::props_json() const {
    const GenerationDefaults& defaults = package->generation_defaults();
    const bool samples = defaults.do_sample && !options.prefer_greedy;
    return {{"default_generation_settings",
             {{"n_ctx", context_tokens},
              {"params",
               {{"temperature", samples ? defaults.temperature : 0.0},
                {"top_p", defaults.top_p},
                {"top_k", defaults.sample_top_k},
                {"min_p", defaults.min_p},
                {"repeat_penalty", defaults.repetition_penalty},
                {"presence_penalty", defaults.presence_penalty},
                {"frequency_penalty", defaults.frequency_penalty}}}}},
            {"model_alias", package->name()},
            {"chat_template", template_source()},
            {"modalities", {{"vision", false}, {"audio", false}}}};
}

OrderedJson ApiState::ollama_details() const {
    const ModelConfig& config = package->config();
    return {{"parent_model", ""},
            {"format", "moex"},
            {"family", config.architecture},
            {"families", OrderedJson::array({config.architecture})},
            {"parameter_size", parameter_size(num_parameters(config))},
            {"quantization_level", expert_dtype_name(package->expert_dtype())}};
}

OrderedJson ApiState::ollama_tag() const {
    std::error_code error;
    const auto hub_bytes = std::filesystem::file_size(package->directory() / "hub.safetensors",
                                                      error);
    const std::uint64_t experts_bytes = package->num_blobs() * package->expert_blob_bytes();
    const std::string name = package->name() + ":latest";
    return {{"name", name},
            {"model", name},
            {"modified_at", ollama_time(std::chrono::seconds(started_s))},
            {"size", experts_bytes + (error ? 0 : hub_bytes)},
            {"digest", package->manifest_sha256()},
            {"details", ollama_details()}};
}

// Returns the model as Ollama lists it among the loaded ones. The hub never unloads its model.
OrderedJson ApiState::ollama_loaded() const {
    OrderedJson out = ollama_tag();
    out.erase("modified_at");
    constexpr std::int64_t century_s = 100ll * 365 * 24 * 3600;
    out["expires_at"] = ollama_time(std::chrono::seconds(started_s + century_s));
    out["size_vram"] = 0;
    out["context_length"] = context_tokens;
    return out;
}

// Returns the list of models in Anthropic's form.
OrderedJson ApiState::anthropic_models() const {
    const std::string& name = package->name();
    std::string created = ollama_time(std::chrono::seconds(started_s));
    created.replace(created.find('.'), std::string::npos, "Z");
    return {
        {"data",
         OrderedJson::array(
             {{{"type", "model"}, {"id", name}, {"display_name", name}, {"created_at", created}}})},
        {"has_more", false},
        {"first_id", name},
        {"last_id", name}};
}

Checked<HttpResponse> ApiState::ollama_show(const HttpRequest& request) const {
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));
    MOEX_OR_REFUSE(name, read_ollama_model(body));
    MOEX_ADMIT(check_model(name));

    const ModelConfig& config = package->config();
    const std::string& family = config.architecture;
    OrderedJson capabilities = OrderedJson::array({"completion"});
    if (fill_middle) capabilities.push_back("insert");
    if (chat_template) capabilities.push_back("tools");
    if (reasons) capabilities.push_back("thinking");
    return json_response({{"modelfile", ""},
                          {"parameters", ""},
                          {"template", template_source()},
                          {"details", ollama_details()},
                          {"model_info",
                           {{"general.architecture", family},
                            {"general.basename", package->name()},
                            {"general.parameter_count", num_parameters(config)},
                            {family + ".block_count", config.num_layers},
                            {family + ".context_length", context_tokens},
                            {family + ".embedding_length", config.hidden_size},
                            {family + ".expert_count", config.num_experts},
                            {family + ".expert_used_count", config.top_k},
                            {family + ".attention.head_count", config.num_heads},
                            {family + ".attention.head_count_kv", config.num_kv_heads}}},
                          {"capabilities", std::move(capabilities)},
                          {"modified_at", ollama_time(std::chrono::seconds(started_s))}});
}

}  // namespace moex
