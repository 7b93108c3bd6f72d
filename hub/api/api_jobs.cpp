// Makes the jobs of requests that the model answers: reads a request in its dialect, checks what it
// asks against the model and the options, and gives the job its prompts, masks and writer. A job is
// made after all checks, so that a request that is refused costs no step of the model.
#include <algorithm>
#include <random>

#include "hub/api/api_state.h"
#include "hub/api/dialects/moex_fields.h"
#include "hub/api/jobs/answer_form.h"
#include "hub/api/openai/openai_reply.h"

namespace moex {
namespace {

std::uint64_t random_seed() {
    std::random_device device;
    // Keep the random seed within the range of int64, so that a client can send the seed back.
    return (std::uint64_t{device()} << 31) ^ device();
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

}  // namespace moex
