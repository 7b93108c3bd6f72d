#include "hub/api/api.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <random>

#include "hub/api/api_state.h"
#include "hub/api/body_fields.h"
#include "hub/api/dialects/anthropic.h"
#include "hub/api/dialects/infill.h"
#include "hub/api/dialects/ollama.h"
#include "hub/api/dialects/responses.h"
#include "hub/api/jobs/answer_form.h"
#include "hub/api/jobs/embedding_job.h"
#include "hub/api/jobs/prefill_job.h"
#include "hub/api/jobs/taken_pages.h"
#include "hub/api/openai/openai_reply.h"
#include "hub/base/log.h"

namespace moex {

namespace {

// Returns the most bytes that a text of at most `context_tokens` tokens can have: composing
// characters (NFC) makes a text at most three times shorter, and no token has more bytes than the
// longest token.
std::uint64_t bytes_within(std::uint32_t context_tokens, const Tokenizer& tokenizer) {
    constexpr std::uint64_t composing_max = 3;
    std::uint64_t longest = 1;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id)
        longest = std::max<std::uint64_t>(longest, tokenizer.token_bytes(id).size());
    return context_tokens * longest * composing_max;
}

bool knows_reasoning(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
    return (tokenizer.token_id(think_open) && tokenizer.token_id(think_close)) ||
           chat_template.mentions(think_close);
}

std::uint64_t random_seed() {
    std::random_device device;
    // Keep the random seed within the range of int64, so that a client can send the seed back.
    return (std::uint64_t{device()} << 31) ^ device();
}

}  // namespace

ParamLimits ApiState::limits(std::optional<std::uint64_t> seed) const {
    return {.n_max = options.n_max,
            .body_bytes_max = options.body_bytes_max,
            .vocab_size = package->config().vocab_size,
            .tokenizer = tokenizer.get(),
            .defaults = package->generation_defaults(),
            .prefer_greedy = options.prefer_greedy,
            .seed = seed ? *seed : random_seed()};
}

Checked<void> ApiState::check_model(const std::string& name) const {
    if (name.empty() || name == package->name() || options.any_model_name) return {};
    return Refusal{
        404,
        text("The model '", name, "' does not exist; this server has '", package->name(), "'."),
        "model_not_found", "model"};
}

// Makes one mask for each choice; the grammar state of a mask begins where the prompt ends.
Checked<void> ApiState::make_masks(ApiJobInputs& inputs) const {
    const CompletionParams& params = inputs.params;
    if (!tokenizer)
        return Refusal{400, "The package has no tokenizer.", "no_tokenizer", params.form.param};
    std::call_once(masks_made, [&] {
        masks = std::make_shared<MaskMaker>(
            Vocabulary(*tokenizer, package->config().vocab_size, stop_ids));
    });

    ReasoningTags tags{.possible = params.is_chat && reasons && !params.continues,
                       .begun = inputs.begins_in_reasoning};
    if (tags.possible || tags.begun) tags.find(*tokenizer);
    const AnswerWish wish{params.form, params.calls, call_syntax, inputs.channels};
    MOEX_OR_REFUSE(rules, rules_of_answer(wish, tags, *masks));
    inputs.rules = std::move(rules);

    for (std::size_t i = 0; i < inputs.prompts.size() * params.n; ++i) {
        GrammarState state(inputs.rules->grammar);
        const bool in_words = !tags.begun && inputs.channels != ChannelBegin::thoughts;
        if (params.continues && in_words &&
            !state.take(params.messages.back()["content"].get_ref<const std::string&>()))
            return Refusal{400,
                           text("The begun answer does not fit '", wish.param(),
                                "': members in the schema's order, a blank behind ':' and ','."),
                           "invalid_value", params.source};

        const std::size_t prompt_tokens = inputs.prompts[i / params.n].size();
        const auto room = std::min<std::uint64_t>(*params.max_tokens,
                                                  context_tokens - prompt_tokens);
        if (state.least() > room)
            return too_short(wish, params.max_tokens_param, state.least(), room);
        inputs.masks.push_back(std::make_shared<AnswerMask>(masks, std::move(state)));
        // No model step is running here.
        inputs.masks.back()->allowed({}, static_cast<std::uint32_t>(room));
    }
    return {};
}

namespace {

// The hub's own `moex` object in a request's body, which is allowed in every dialect.
struct MoexFields {
    bool resumable = false, stores_pages = true, opens_objects = false, stays_here = false;
    ExpertMode experts{.name = "exact", .perplexity_excess = 0.0};
    LateWish late;
    std::optional<std::uint32_t> draft_tokens;  // empty: the hub's choice
    std::string pages;                          // name of a text of /v1/pages; empty: none
};

// Reads moex.experts, the expert mode of a request, or takes the operator's default: "exact", or a
// lossy mode that the hub offers.
void read_experts(BodyFields& fields, const OrderedJson& asked, const ApiOptions& options,
                  ExpertMode& experts) {
    constexpr const char* field = "moex.experts";
    constexpr const char* wanted =
        "\"exact\", \"speculative\" or another mode that /v1/models lists";
    if (!asked.is_null() && !asked.is_string()) return fields.wrong(field, wanted, asked);
    const std::string name = asked.is_null() ? options.experts : asked.get<std::string>();
    if (name == "exact") return;

    if (!options.find_mode) return fields.unsupported(field, options.no_modes);
    auto way = options.find_mode(name);
    if (way.ok())
        experts = *std::move(way);
    else if (way.error().code == ErrorCode::invalid_argument)
        fields.wrong(field, wanted, asked);
    else
        fields.unsupported(field, way.error().message + ".");
}

// Reads moex.late_ms, the longest time to wait for an expert call, and moex.late_max, the number of
// expert calls of the answer that may be cut short at that time.
LateWish read_late_wish(const OrderedJson& ours, const ApiOptions& options, bool speculative,
                        BodyFields& fields) {
    constexpr std::uint32_t late_ms_max = 60'000;
    const OrderedJson &ms = member(ours, "late_ms"), &most = member(ours, "late_max");
    const auto whole = [&](const OrderedJson& value, std::uint64_t up_to) {
        return value.is_number_unsigned() && value.get<std::uint64_t>() >= 1 &&
               value.get<std::uint64_t>() <= up_to;
    };
    if (ms.is_null()) {
        if (!most.is_null())
            fields.refuse("'moex.late_max' needs 'moex.late_ms'.", "invalid_value",
                          "moex.late_max");
        return {};
    }
    if (!whole(ms, late_ms_max))
        fields.wrong("moex.late_ms", text("a whole number from 1 to ", late_ms_max), ms);
    else if (options.late_calls_max == 0)
        fields.unsupported("moex.late_ms",
                           "this hub waits for every expert's answer (serve --late-calls-max).");
    else if (speculative)
        fields.refuse("'moex.late_ms' needs 'moex.experts' to be \"exact\".", "invalid_value",
                      "moex.late_ms");
    else if (!most.is_null() && !whole(most, options.late_calls_max))
        fields.wrong(
            "moex.late_max",
            text("a whole number from 1 to ", options.late_calls_max, " (serve --late-calls-max)"),
            most);
    if (fields.problem()) return {};
    return {.wait = std::chrono::milliseconds(ms.get<std::uint32_t>()),
            .calls_max = most.is_null() ? options.late_calls_max : most.get<std::uint32_t>()};
}

// Reads moex.speculative, the number of tokens to draft in each step.
std::optional<std::uint32_t> read_draft_tokens(const OrderedJson& asked, const ApiOptions& options,
                                               bool is_lossy, BodyFields& fields) {
    constexpr const char* field = "moex.speculative";
    if (asked.is_null() || asked == "auto") return std::nullopt;
    if (asked == "off") return 0;
    if (!asked.is_number_unsigned() || asked.get<std::uint64_t>() < 1 ||
        asked.get<std::uint64_t>() > draft_tokens_max)
        fields.wrong(
            field, text("\"off\", \"auto\" or a whole number from 1 to ", draft_tokens_max), asked);
    else if (!options.drafts)
        fields.unsupported(field, "this hub drafts no tokens (serve --speculative off).");
    else if (is_lossy)
        fields.refuse(
            "'moex.speculative' drafts no tokens of a lossy answer ('moex.experts', "
            "'moex.late_ms').",
            "invalid_value", field);
    if (fields.problem()) return std::nullopt;
    return asked.get<std::uint32_t>();
}

Checked<MoexFields> read_moex_fields(const OrderedJson& body, const ApiOptions& options,
                                     bool is_stream, Dialect dialect) {
    BodyFields fields(body);
    MoexFields moex_fields;
    static const OrderedJson nothing;
    const OrderedJson* const found = fields.find("moex");
    const OrderedJson& ours = found ? *found : nothing;
    if (found && !ours.is_object()) fields.wrong("moex", "an object", ours);

    read_experts(fields, member(ours, "experts"), options, moex_fields.experts);

    moex_fields.late = read_late_wish(ours, options, moex_fields.experts.name != "exact", fields);

    moex_fields.draft_tokens = read_draft_tokens(
        member(ours, "speculative"), options,
        moex_fields.experts.name != "exact" || moex_fields.late.calls_max > 0, fields);

    const auto read_flag = [&](const char* name, bool& out) {
        const OrderedJson& given = member(ours, name);
        if (given.is_boolean())
            out = given.get<bool>();
        else if (!given.is_null())
            fields.wrong(text("moex.", name), "true or false", given);
    };
    read_flag("store", moex_fields.stores_pages);
    read_flag("open_objects", moex_fields.opens_objects);
    if (const OrderedJson& spans = member(ours, "spans"); spans == "off" || spans == "auto")
        moex_fields.stays_here = spans == "off";
    else if (!spans.is_null())
        fields.wrong("moex.spans", "\"off\" or \"auto\"", spans);
    if (const OrderedJson& pages = member(ours, "pages"); pages.is_string())
        moex_fields.pages = pages.get<std::string>();
    else if (!pages.is_null())
        fields.wrong("moex.pages", "a name that /v1/pages returned", pages);
    bool& wanted = moex_fields.resumable;
    read_flag("resumable", wanted);
    if (wanted && !is_stream)
        fields.refuse("'moex.resumable' needs 'stream' to be true.", "invalid_value",
                      "moex.resumable");
    if (wanted && streams_lines(dialect))
        fields.unsupported("moex.resumable", "lines of JSON have no numbers, which events have.");
    if (fields.problem()) return *fields.problem();
    return moex_fields;
}

// Pages of a client stay in memory, and its rows go to no worker.
void use_moex_fields(MoexFields fields, ApiJobInputs& inputs) {
    const bool has_pages = !inputs.scope.empty();
    inputs.experts = std::move(fields.experts);
    inputs.late = fields.late;
    inputs.draft_tokens = fields.draft_tokens;
    inputs.stores_pages = fields.stores_pages && !has_pages;
    inputs.stays_here = fields.stays_here || has_pages;
}

}  // namespace

Checked<ApiState::Prepared> ApiState::prepare(const HttpRequest& request, const OrderedJson& body,
                                              const CompletionEndpoint& endpoint,
                                              const Responder& responder, StreamPlan plan) const {
    MOEX_OR_REFUSE(params, endpoint.read(body, limits(plan.seed)));
    MOEX_ADMIT(check_model(params.model));
    MOEX_OR_REFUSE(moex_fields,
                   read_moex_fields(body, options, params.stream, responder->dialect()));

    ApiJobInputs inputs;
    const bool is_chat = params.is_chat;
    params.form.opens_objects = params.calls.opens_objects = moex_fields.opens_objects;
    if (is_chat && !has_effort_setting(params.reasoning_effort)) {
        params.notes["dropped"].push_back(params.effort_param);
        params.reasoning_effort.clear();
    }
    if (!moex_fields.pages.empty()) {
        inputs.scope = scope_of_pages(request, moex_fields.pages);
        if (inputs.scope.empty()) params.notes["dropped"].push_back("moex.pages");
    }
    MOEX_OR_REFUSE(prompts, is_chat ? encode_chat(params) : encode_texts(params, inputs.echoes));
    for (const auto& prompt : prompts) MOEX_ADMIT(check_fits(prompt, params.source.c_str()));
    if (!params.max_tokens)
        params.max_tokens = options.default_max_tokens > 0 ? options.default_max_tokens
                                                           : context_tokens;

    if (is_chat && call_syntax.has_channels) {
        inputs.channels = begins_in_channel(params, prompts[0]);
    } else if (is_chat && reasons) {
        inputs.splits_reasoning = params.splits_reasoning;
        inputs.begins_in_reasoning = begins_in_reasoning(params, prompts[0]);
    }
    inputs.prompts = std::move(prompts);
    inputs.engine = engine;
    inputs.tokenizer = tokenizer;
    inputs.observer = observer;
    inputs.params = std::move(params);
    AnswerHeader header = make_answer_header(endpoint.id_prefix, package->name(),
                                             package->manifest_sha256(), plan.id);
    if (plan.created_s != 0) header.created_s = plan.created_s;
    inputs.writer = endpoint.write({.header = std::move(header),
                                    .params = inputs.params,
                                    .body = body,
                                    .tokenizer = tokenizer,
                                    .num_choices = inputs.prompts.size() * inputs.params.n});
    inputs.stop_ids = stop_ids;
    for (const TokenId id : inputs.params.stop_ids) inputs.stop_ids.push_back(id);
    if (inputs.params.middle)
        for (const TokenId id : fill_middle->stops) inputs.stop_ids.push_back(id);
    use_moex_fields(std::move(moex_fields), inputs);
    inputs.client = request.client;
    inputs.account = request.account;
    inputs.context_tokens = context_tokens;
    inputs.vocab_size = package->config().vocab_size;
    if (inputs.params.calls.mode != ToolChoice::Mode::none) inputs.call_syntax = call_syntax;
    if (!AnswerWish{inputs.params.form, inputs.params.calls, call_syntax}.is_free())
        MOEX_ADMIT(make_masks(inputs));
    inputs.received_at = request.received_at == TimePoint{} ? now_steady() : request.received_at;

    const bool is_stream = inputs.params.stream && !streams_lines(responder->dialect());
    inputs.stream_id = plan.id;

    // Reserve tokens of the request's account. The job gives back what it does not use; without a
    // job the whole reservation is given back. The hub that began the answer has reserved them.
    if (request.account && !plan.is_taken)
        MOEX_ADMIT(request.account->reserve(
            tokens_max(inputs.prompts, inputs.params.n, *inputs.params.max_tokens)));
    if (options.fleet && is_stream)
        return prepare_journaled(request, endpoint, std::move(inputs), plan, responder,
                                 moex_fields.resumable);
    if (!moex_fields.resumable)
        return Prepared{std::make_shared<ApiJob>(std::move(inputs), responder), nullptr};
    MOEX_OR_REFUSE(stream, streams->open(request.owner, responder));
    return Prepared{std::make_shared<ApiJob>(std::move(inputs), stream), stream};
}

Checked<std::shared_ptr<EmbeddingJob>> ApiState::prepare_embedding(
    const HttpRequest& request, const EmbeddingEndpoint& endpoint,
    const Responder& responder) const {
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));
    MOEX_OR_REFUSE(params, endpoint.read(body, package->config().vocab_size));
    MOEX_ADMIT(check_model(params.model));

    EmbeddingJobInputs inputs;
    std::uint64_t tokens = 0;
    for (TextInput& input : params.inputs) {
        MOEX_OR_REFUSE(ids, encode_input(std::move(input), "input", params.truncates));
        if (params.truncates && ids.size() >= context_tokens) ids.resize(context_tokens - 1);
        MOEX_ADMIT(check_fits(ids, "input"));
        tokens += ids.size();
        inputs.prompts.push_back(std::move(ids));
    }
    inputs.engine = engine;
    inputs.observer = observer;
    inputs.endpoint = &endpoint;
    inputs.model = package->name();
    inputs.client = request.client;
    inputs.form = package->embedding_form();
    inputs.base64 = params.base64;
    inputs.account = request.account;
    inputs.received_at = request.received_at == TimePoint{} ? now_steady() : request.received_at;

    // Reserve tokens of the request's account after all checks: the job gives back the tokens that
    // it does not use.
    if (request.account) MOEX_ADMIT(request.account->reserve(tokens));
    return std::make_shared<EmbeddingJob>(std::move(inputs), responder);
}

Checked<std::shared_ptr<PrefillJob>> ApiState::prepare_prefill(
    const HttpRequest& request, std::function<bool(std::function<void()>)> run_later,
    std::shared_ptr<ByteResponder> responder) const {
    MOEX_OR_REFUSE(body, parse_api_body(request.body, options.body_bytes_max));
    MOEX_OR_REFUSE(params, read_prefill(body, package->config().vocab_size));
    if (!options.kv_source)
        return Refusal{501, "This hub hands off no keys and values.", "not_supported", ""};
    MOEX_ADMIT(check_model(params.model));
    MOEX_ADMIT(check_fits(params.prompt, "prompt"));

    PrefillJobInputs inputs;
    const std::size_t tokens = params.prompt.size();
    inputs.engine = engine;
    inputs.observer = observer;
    inputs.params = std::move(params);
    inputs.source = *options.kv_source;
    inputs.run_later = std::move(run_later);
    inputs.client = request.client;
    inputs.account = request.account;
    MOEX_OR_REFUSE(place, prefills->take(request.owner));
    inputs.place = std::move(place);
    if (request.account) MOEX_ADMIT(request.account->reserve(tokens));
    return std::make_shared<PrefillJob>(std::move(inputs), std::move(responder));
}

Api::Api(std::shared_ptr<const ModelPackage> package, std::shared_ptr<const Tokenizer> tokenizer,
         std::shared_ptr<const ChatTemplate> chat_template, Engine& engine, ApiOptions options,
         ApiObserver observer)
    : state_(std::make_shared<ApiState>()),
      texts_(std::make_shared<TextPool>(options.texts)) {
    state_->package = std::move(package);
    state_->tokenizer = std::move(tokenizer);
    state_->chat_template = std::move(chat_template);
    state_->engine = &engine;
    state_->options = options;
    state_->streams = std::make_unique<ResumableStreams>(options.resumable);
    state_->observer = std::make_shared<const ApiObserver>(std::move(observer));
    state_->context_tokens = state_->package->config().context_tokens;
    if (options.context_tokens > 0)
        state_->context_tokens = std::min(state_->context_tokens, options.context_tokens);
    if (state_->tokenizer) {
        state_->fill_middle = find_fill_middle(*state_->tokenizer);
        state_->context_bytes_max = bytes_within(state_->context_tokens, *state_->tokenizer);
        state_->reasons = state_->chat_template &&
                          knows_reasoning(*state_->tokenizer, *state_->chat_template);
        if (state_->chat_template) {
            state_->takes_late_system = state_->finds_late_system();
            state_->call_syntax = call_syntax(*state_->chat_template, *state_->tokenizer);
            if (state_->call_syntax.is_known)
                log_info("api: tool calls are written as the chat template has them",
                         kv("syntax", state_->call_syntax.name));
            else
                log_info("api: the chat template has no tool calls: they are written as a default",
                         kv("syntax", state_->call_syntax.name));
        }
    }
    for (const std::uint32_t id : state_->package->generation_defaults().eos_token_ids)
        state_->stop_ids.push_back(id);
    if (state_->call_syntax.has_channels)
        for (const TokenId id : channel_stops(*state_->tokenizer))
            if (std::ranges::find(state_->stop_ids, id) == state_->stop_ids.end())
                state_->stop_ids.push_back(id);
    state_->started_s = std::chrono::duration_cast<std::chrono::seconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
}

// The threads end here, and not with the last reference: that may be on one of them, in a job that
// translates pages.
Api::~Api() { texts_->stop(); }

void ApiState::run_completion(const HttpRequest& request, const CompletionEndpoint& endpoint,
                              const Responder& responder) const {
    const auto body = parse_api_body(request.body, options.body_bytes_max);
    if (!body.ok()) return responder->refuse(body.refusal());
    if (endpoint.answer_empty)
        if (const auto answer = endpoint.answer_empty(*body))
            return responder->respond(json_response(*answer));

    const StreamPlan plan = plan_of(request);
    // A front asks again for a stream that still runs here. A second job would mix its tokens with
    // those of the first one in the journal.
    if (request.of_fleet && options.fleet)
        if (const auto local = streams->find(request.owner, plan.id); local.ok())
            return send_local(*local, responder, plan.last_event);

    const auto prepared = prepare(request, *body, endpoint, responder, plan);
    if (!prepared.ok()) return responder->refuse(prepared.refusal());
    prepared->job->start();
    if (prepared->stream) prepared->stream->announce();
}

void ApiState::run_embedding(const HttpRequest& request, const EmbeddingEndpoint& endpoint,
                             const Responder& responder) const {
    auto job = prepare_embedding(request, endpoint, responder);
    if (!job.ok()) return responder->refuse(job.refusal());
    (*job)->start();
}

void Api::queue(HttpRequest request, Responder responder,
                std::function<void(const ApiState&, const HttpRequest&, const Responder&)> work) {
    const auto has_left = std::make_shared<std::atomic<bool>>(false);
    responder->on_disconnect([has_left] { *has_left = true; });

    const std::string client = request.client;
    const std::uint64_t bytes = request.body.size();
    const Checked<void> queued = texts_->submit(client, bytes,
                                                [state = state_, request = std::move(request),
                                                 responder, has_left, work = std::move(work)] {
                                                    if (!*has_left)
                                                        work(*state, request, responder);
                                                });
    if (!queued.ok()) responder->refuse(queued.refusal());
}

void Api::queue_completion(HttpRequest request, const CompletionEndpoint& endpoint,
                           Responder responder) {
    queue(std::move(request), std::move(responder),
          [&endpoint](const ApiState& state, const HttpRequest& asked, const Responder& answers) {
              state.run_completion(asked, endpoint, answers);
          });
}

void Api::queue_embedding(HttpRequest request, const EmbeddingEndpoint& endpoint,
                          Responder responder) {
    queue(std::move(request), std::move(responder),
          [&endpoint](const ApiState& state, const HttpRequest& asked, const Responder& answers) {
              state.run_embedding(asked, endpoint, answers);
          });
}

void Api::queue_answer(HttpRequest request, Responder responder, Answer answer) {
    const std::string client = request.client;
    const std::uint64_t bytes = request.body.size();
    const Checked<void> queued = texts_->submit(
        client, bytes, [state = state_, request = std::move(request), responder, answer] {
            auto response = (*state.*answer)(request);
            if (!response.ok()) return responder->refuse(response.refusal());
            responder->respond(*std::move(response));
        });
    if (!queued.ok()) responder->refuse(queued.refusal());
}

void Api::chat(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), openai_chat_endpoint, std::move(responder));
}

void Api::complete(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), openai_text_endpoint, std::move(responder));
}

void Api::infill(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), infill_endpoint, std::move(responder));
}

void Api::respond(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), responses_endpoint, std::move(responder));
}

void Api::anthropic_message(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), anthropic_endpoint, std::move(responder));
}

void Api::anthropic_count(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::count_anthropic);
}

void Api::chat_count(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::count_chat);
}

void Api::respond_count(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::count_responses);
}

void Api::ollama_chat(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), ollama_chat_endpoint, std::move(responder));
}

void Api::ollama_generate(HttpRequest request, Responder responder) {
    queue_completion(std::move(request), ollama_generate_endpoint, std::move(responder));
}

void Api::ollama_show(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::ollama_show);
}

void Api::ollama_tags(HttpRequest, Responder responder) {
    responder->respond(json_response({{"models", OrderedJson::array({state_->ollama_tag()})}}));
}

void Api::ollama_ps(HttpRequest, Responder responder) {
    responder->respond(json_response({{"models", OrderedJson::array({state_->ollama_loaded()})}}));
}

void Api::resume_stream(HttpRequest request, Responder responder) {
    const auto stream = state_->streams->find(request.owner, request.rest);
    StreamFleet* const fleet = state_->options.fleet;
    if (!stream.ok() && !(fleet && is_stream_id(request.rest)))
        return responder->refuse(stream.refusal());

    const std::string_view given = request.header("last-event-id").value_or("0");
    std::uint64_t last_event = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(),
                                              last_event);
    if (error != std::errc() || end != given.data() + given.size())
        return responder->refuse({400, "Last-Event-ID has to be the number of an event.",
                                  "invalid_value", "Last-Event-ID"});
    if (stream.ok()) return state_->send_local(*stream, responder, last_event);
    const bool is_queued = fleet->run_later(
        [state = state_, request = std::move(request), responder, last_event] {
            state->follow_stream(request, responder, last_event, false);
        });
    if (!is_queued)
        responder->refuse(
            {503, "The hub looks for many streams of other hubs; try again.", "unavailable", ""});
}

void ApiState::send_local(const std::shared_ptr<ResumableStream>& stream,
                          const Responder& responder, std::uint64_t last_event) const {
    if (const auto resumed = stream->resume(responder, last_event); !resumed.ok())
        responder->refuse(resumed.refusal());
}

void Api::stop_stream(HttpRequest request, Responder responder) {
    const auto stream = state_->streams->find(request.owner, request.rest);
    if (!stream.ok()) return responder->refuse(stream.refusal());
    (*stream)->give_up();
    state_->streams->remove((*stream)->id());
    responder->respond(json_response({{"id", (*stream)->id()}, {"stopped", true}}));
}

void Api::drop_stream(const std::string& stream_id) { state_->streams->drop(stream_id); }

bool Api::has_reasoning_effort() const {
    return state_->chat_template && state_->chat_template->mentions("reasoning_effort");
}

void Api::sweep_streams() {
    state_->streams->sweep();
    if (state_->options.taken) state_->options.taken->sweep();
}

void Api::ollama_embed(HttpRequest request, Responder responder) {
    queue_embedding(std::move(request), ollama_embedding_endpoint, std::move(responder));
}

void Api::ollama_embeddings(HttpRequest request, Responder responder) {
    queue_embedding(std::move(request), ollama_one_embedding_endpoint, std::move(responder));
}

void Api::embed(HttpRequest request, Responder responder) {
    queue_embedding(std::move(request), openai_embedding_endpoint, std::move(responder));
}

void Api::prefill(HttpRequest request, std::shared_ptr<ByteResponder> responder) {
    // Pages are translated in the lane of long texts. They have a turn of their own, so that the
    // client's other requests do not fill their queue.
    constexpr std::uint64_t translated_bytes = 1u << 20;
    const auto run_later = [pool = std::weak_ptr(texts_),
                            client = request.client + " (pages)"](std::function<void()> work) {
        const auto texts = pool.lock();
        return texts && texts->submit(client, translated_bytes, std::move(work)).ok();
    };
    queue(
        std::move(request), responder,
        [responder, run_later](const ApiState& state, const HttpRequest& asked, const Responder&) {
            const auto job = state.prepare_prefill(asked, run_later, responder);
            if (!job.ok()) return responder->refuse(job.refusal());
            (*job)->start();
        });
}

void Api::open_pages(HttpRequest request, Responder responder) {
    queue(std::move(request), std::move(responder),
          [](const ApiState& state, const HttpRequest& asked, const Responder& answers) {
              state.open_pages(asked, answers);
          });
}

void Api::take_pages(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::take_pages);
}

void Api::forget_pages(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::forget_pages);
}

void Api::tokenize(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::tokenize);
}

void Api::detokenize(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::detokenize);
}

void Api::apply_template(HttpRequest request, Responder responder) {
    queue_answer(std::move(request), std::move(responder), &ApiState::apply_template);
}

void Api::props(HttpRequest, Responder responder) {
    responder->respond(json_response(state_->props_json()));
}

void Api::models(HttpRequest request, Responder responder) {
    if (request.header("anthropic-version"))
        return responder->respond(json_response(state_->anthropic_models()));
    responder->respond(
        json_response({{"object", "list"}, {"data", OrderedJson::array({state_->model_json()})}}));
}

void Api::model(HttpRequest request, Responder responder) {
    if (const auto known = state_->check_model(request.rest); !known.ok())
        return responder->refuse(known.refusal());
    if (request.header("anthropic-version"))
        return responder->respond(json_response(state_->anthropic_models()["data"][0]));
    responder->respond(json_response(state_->model_json()));
}

}  // namespace moex
