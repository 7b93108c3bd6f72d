#include "hub/api/api.h"

#include <chrono>
#include <random>

#include "hub/api/completion_job.h"
#include "hub/api/openai_request.h"

namespace moex {

using Json = nlohmann::ordered_json;

struct Api::State {
    std::shared_ptr<const ModelPackage> package;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::shared_ptr<const ChatTemplate> chat_template;
    Engine* engine = nullptr;
    ApiOptions options;
    std::shared_ptr<const ApiObserver> observer;
    std::uint32_t context_tokens = 0;
    std::vector<TokenId> stop_ids;
    std::int64_t started_s = 0;

    ParamLimits limits() const;
    HttpResponse models(std::string_view id) const;
    HttpResponse tokenize(const HttpRequest& request) const;
    HttpResponse detokenize(const HttpRequest& request) const;
    void complete(const HttpRequest& request, bool is_chat,
                  std::shared_ptr<HttpResponder> responder) const;
    std::variant<std::vector<std::vector<TokenId>>, ApiProblem> encode(
        CompletionParams& params, std::vector<std::string>& echoes) const;
};

namespace {

HttpResponse problem_response(const ApiProblem& problem) {
    return api_error(problem.status, problem.message, problem.code, problem.param);
}

std::uint64_t random_seed() {
    std::random_device device;
    // within int64, so that a client can send it back
    return (std::uint64_t{device()} << 31) ^ device();
}

}  // namespace

ParamLimits Api::State::limits() const {
    return {.n_max = options.n_max,
            .body_bytes_max = options.body_bytes_max,
            .vocab_size = package->config().vocab_size,
            .defaults = package->generation_defaults(),
            .prefer_greedy = options.prefer_greedy,
            .seed = random_seed()};
}

HttpResponse Api::State::models(std::string_view id) const {
    const Json model{
        {"id", package->name()},
        {"object", "model"},
        {"created", started_s},
        {"owned_by", "moex"},
        {"meta", {{"n_ctx", context_tokens}, {"vocab_size", package->config().vocab_size}}}};
    HttpResponse response;
    if (id.empty()) {
        response.body = dump_json({{"object", "list"}, {"data", Json::array({model})}});
        return response;
    }
    if (id != package->name())
        return api_error(
            404,
            text("The model '", id, "' does not exist; this server has '", package->name(), "'."),
            "model_not_found", "model");
    response.body = dump_json(model);
    return response;
}

HttpResponse Api::State::tokenize(const HttpRequest& request) const {
    if (!tokenizer) return api_error(400, "The package has no tokenizer.", "no_tokenizer");
    auto parsed = parse_api_body(request.body, options.body_bytes_max);
    if (const auto* problem = std::get_if<ApiProblem>(&parsed)) return problem_response(*problem);
    const Json& body = std::get<Json>(parsed);
    const auto content = body.find("content");
    if (content == body.end() || !content->is_string())
        return api_error(400, "'content' has to be a string.", "invalid_value", "content");
    const auto flag = [&](const char* name, bool otherwise) {
        const auto found = body.find(name);
        return found != body.end() && found->is_boolean() ? found->get<bool>() : otherwise;
    };
    const auto ids = tokenizer->encode(
        content->get_ref<const std::string&>(),
        flag("parse_special", true) ? SpecialTokens::parse : SpecialTokens::as_text);
    Json tokens = Json::array();
    const bool with_pieces = flag("with_pieces", false);
    for (const TokenId id : ids) {
        if (with_pieces)
            tokens.push_back({{"id", id}, {"piece", tokenizer->decode(std::span(&id, 1), false)}});
        else
            tokens.push_back(id);
    }
    HttpResponse response;
    response.body = dump_json({{"tokens", std::move(tokens)}});
    return response;
}

HttpResponse Api::State::detokenize(const HttpRequest& request) const {
    if (!tokenizer) return api_error(400, "The package has no tokenizer.", "no_tokenizer");
    auto parsed = parse_api_body(request.body, options.body_bytes_max);
    if (const auto* problem = std::get_if<ApiProblem>(&parsed)) return problem_response(*problem);
    const Json& body = std::get<Json>(parsed);
    const auto tokens = body.find("tokens");
    if (tokens == body.end() || !tokens->is_array())
        return api_error(400, "'tokens' has to be an array of token ids.", "invalid_value",
                         "tokens");
    std::vector<TokenId> ids;
    for (const Json& one : *tokens) {
        if (!one.is_number_unsigned() || one.get<std::uint64_t>() >= tokenizer->vocab_size())
            return api_error(400,
                             text("'tokens' has to hold ids below ", tokenizer->vocab_size(), "."),
                             "invalid_value", "tokens");
        ids.push_back(one.get<TokenId>());
    }
    HttpResponse response;
    response.body = dump_json({{"content", tokenizer->decode(ids, false)}});
    return response;
}

// The prompts as ids; texts of completions may name special tokens, contents of messages may not.
std::variant<std::vector<std::vector<TokenId>>, ApiProblem> Api::State::encode(
    CompletionParams& params, std::vector<std::string>& echoes) const {
    std::vector<std::vector<TokenId>> prompts;
    if (params.is_chat) {
        if (!tokenizer || !chat_template)
            return ApiProblem{400, "The package has no chat template; use /v1/completions.",
                              "no_chat_template", "messages"};
        params.template_variables["add_generation_prompt"] = true;
        auto ids = chat_template->render_ids(params.messages, params.template_variables,
                                             *tokenizer);
        if (!ids.ok())
            return ApiProblem{
                400,
                text("The model's chat template refuses these messages: ", ids.error().message),
                "chat_template", "messages"};
        prompts.push_back(*std::move(ids));
        return prompts;
    }
    for (auto& prompt : params.prompts) {
        if (auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {
            if (params.echo && tokenizer) echoes.push_back(tokenizer->decode(*ids, true));
            prompts.push_back(std::move(*ids));
        } else if (tokenizer) {
            auto& words = std::get<std::string>(prompt);
            prompts.push_back(tokenizer->encode_prompt(words));
            if (params.echo) echoes.push_back(std::move(words));
        } else {
            return ApiProblem{400, "The package has no tokenizer; send token ids.", "no_tokenizer",
                              "prompt"};
        }
    }
    if (params.echo && echoes.size() != prompts.size())
        return ApiProblem{400, "'echo' needs a tokenizer.", "no_tokenizer", "echo"};
    return prompts;
}

void Api::State::complete(const HttpRequest& request, bool is_chat,
                          std::shared_ptr<HttpResponder> responder) const {
    auto parsed = is_chat ? parse_chat_params(request.body, limits())
                          : parse_completion_params(request.body, limits());
    if (const auto* problem = std::get_if<ApiProblem>(&parsed))
        return responder->respond(problem_response(*problem));
    CompletionParams params = std::get<CompletionParams>(std::move(parsed));
    if (!params.model.empty() && params.model != package->name()) {
        return responder->respond(
            api_error(404,
                      text("The model '", params.model, "' does not exist; this server has '",
                           package->name(), "'."),
                      "model_not_found", "model"));
    }
    ApiJobInputs inputs;
    auto prompts = encode(params, inputs.echoes);
    if (const auto* problem = std::get_if<ApiProblem>(&prompts))
        return responder->respond(problem_response(*problem));
    inputs.prompts = std::get<std::vector<std::vector<TokenId>>>(std::move(prompts));
    const char* source = is_chat ? "messages" : "prompt";
    for (const auto& prompt : inputs.prompts) {
        if (prompt.empty())
            return responder->respond(
                api_error(400, "The prompt is empty.", "invalid_value", source));
        if (prompt.size() < context_tokens) continue;
        HttpResponse response = api_error(
            400,
            text("The prompt has ", prompt.size(), " tokens, the context of this model holds ",
                 context_tokens, ", the answer included; shorten the ", source, "."),
            "context_length_exceeded", source);
        Json body = Json::parse(response.body);
        body["error"]["n_prompt"] = prompt.size();
        body["error"]["n_ctx"] = context_tokens;
        response.body = dump_json(body);
        return responder->respond(std::move(response));
    }
    if (params.max_tokens == 0) params.max_tokens = options.default_max_tokens;
    inputs.engine = engine;
    inputs.tokenizer = tokenizer;
    inputs.observer = observer;
    inputs.header = make_answer_header(is_chat, package->name(), package->manifest_sha256());
    inputs.params = std::move(params);
    inputs.stop_ids = stop_ids;
    inputs.context_tokens = context_tokens;
    inputs.received_at = request.received_at == TimePoint{} ? now_steady() : request.received_at;
    std::make_shared<ApiJob>(std::move(inputs), std::move(responder))->start();
}

Api::Api(std::shared_ptr<const ModelPackage> package, std::shared_ptr<const Tokenizer> tokenizer,
         std::shared_ptr<const ChatTemplate> chat_template, Engine& engine, ApiOptions options,
         ApiObserver observer)
    : state_(std::make_shared<State>()) {
    state_->package = std::move(package);
    state_->tokenizer = std::move(tokenizer);
    state_->chat_template = std::move(chat_template);
    state_->engine = &engine;
    state_->options = options;
    state_->observer = std::make_shared<const ApiObserver>(std::move(observer));
    state_->context_tokens = state_->package->config().context_tokens;
    if (options.context_tokens > 0)
        state_->context_tokens = std::min(state_->context_tokens, options.context_tokens);
    for (const std::uint32_t id : state_->package->generation_defaults().eos_token_ids)
        state_->stop_ids.push_back(id);
    state_->started_s = std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
}

Api::~Api() = default;

void Api::handle(const HttpRequest& request, std::shared_ptr<HttpResponder> responder) {
    std::string_view path = request.path;
    if (path.starts_with("/v1/")) path.remove_prefix(3);
    const bool is_models = path == "/models" || path.starts_with("/models/");
    const bool is_post_route = path == "/chat/completions" || path == "/completions" ||
                               path == "/tokenize" || path == "/detokenize";
    if (!is_models && !is_post_route)
        return responder->respond(
            api_error(404, text("There is no route ", request.path, "."), "unknown_url"));
    const bool method_fits = is_models ? request.method == "GET" || request.method == "HEAD"
                                       : request.method == "POST";
    if (!method_fits) {
        HttpResponse response = api_error(
            405, text(request.path, " takes ", is_models ? "GET" : "POST", "."),
            "method_not_allowed");
        response.headers.emplace_back("Allow", is_models ? "GET, HEAD" : "POST");
        return responder->respond(std::move(response));
    }
    if (is_models)
        return responder->respond(
            state_->models(path.size() > 8 ? path.substr(8) : std::string_view()));
    if (path == "/tokenize") return responder->respond(state_->tokenize(request));
    if (path == "/detokenize") return responder->respond(state_->detokenize(request));
    state_->complete(request, path == "/chat/completions", std::move(responder));
}

}  // namespace moex
