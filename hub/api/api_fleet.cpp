// Streams over several hubs: the journal of a stream that begins here, and the streams of other
// hubs that a client asks for here.
#include <array>
#include <charconv>
#include <chrono>

#include "hub/api/api_state.h"
#include "hub/api/dialects/anthropic.h"
#include "hub/api/dialects/infill.h"
#include "hub/api/dialects/responses.h"
#include "hub/api/openai/openai_reply.h"
#include "hub/base/log.h"

namespace moex {
namespace {

// A front resumes a stream at once, or its client is gone.
constexpr Duration kept_for_front = std::chrono::seconds(5);

struct NamedEndpoint {
    const char* name;
    const CompletionEndpoint* endpoint;
};
// The endpoints whose streams have numbered events.
const std::array<NamedEndpoint, 5> endpoints{{{"chat", &openai_chat_endpoint},
                                              {"text", &openai_text_endpoint},
                                              {"responses", &responses_endpoint},
                                              {"messages", &anthropic_endpoint},
                                              {"infill", &infill_endpoint}}};

std::string name_of_endpoint(const CompletionEndpoint& endpoint) {
    for (const NamedEndpoint& one : endpoints)
        if (one.endpoint == &endpoint) return one.name;
    return {};
}

const CompletionEndpoint* find_endpoint(std::string_view name) {
    for (const NamedEndpoint& one : endpoints)
        if (name == one.name) return one.endpoint;
    return nullptr;
}

std::int64_t now_unix_s() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

Refusal no_stream() {
    return {404,
            "There is no such stream: it was stopped, it was not resumed in time, or it belongs to "
            "another key.",
            "stream_not_found", ""};
}

}  // namespace

// A front that has lost a stream without a journal asks for the same answer again, after the events
// that it has.
StreamPlan ApiState::plan_of(const HttpRequest& request) const {
    StreamPlan plan;
    if (!options.fleet) return plan;
    const std::string_view asked = request.of_fleet ? request.header("x-moex-stream").value_or("")
                                                    : std::string_view();
    plan.id = make_stream_id(options.fleet->hub_id(), asked);
    plan.seed = seed_of_stream(plan.id);
    if (!request.of_fleet) return plan;
    const std::string_view given = request.header("last-event-id").value_or("0");
    std::from_chars(given.data(), given.data() + given.size(), plan.last_event);
    return plan;
}

StreamName ApiState::name_of(const HttpRequest& request, const StreamPlan& plan,
                             bool is_asked) const {
    return {.id = plan.id,
            .owner = request.owner,
            .kept_for = is_asked           ? streams->kept_for()
                        : request.of_fleet ? kept_for_front
                                           : Duration{},
            .is_counted = is_asked && !plan.is_taken,
            .is_taken = plan.is_taken || plan.last_event > 0,
            .last_event = plan.last_event};
}

// Makes the job of a stream with a journal, which begins here, or goes on as another hub began it.
Checked<ApiState::Prepared> ApiState::prepare_journaled(const HttpRequest& request,
                                                        const CompletionEndpoint& endpoint,
                                                        ApiJobInputs inputs, const StreamPlan& plan,
                                                        const Responder& responder,
                                                        bool is_asked) const {
    const Sha256 prompts = hash_prompts(inputs.prompts);
    if (plan.prompts && *plan.prompts != prompts)
        return Refusal{409, "This hub reads the prompt of the stream differently.",
                       "stream_differs", ""};
    MOEX_OR_REFUSE(stream, streams->open(name_of(request, plan, is_asked), responder));
    inputs.fleet = options.fleet;
    inputs.tokens = plan.tokens;
    if (!plan.same_arithmetic) inputs.params.notes["same_arithmetic"] = false;
    if (!plan.is_taken)
        options.fleet->begin(plan.id, encode_head({.package = package->manifest_sha256(),
                                                   .arithmetic = options.arithmetic,
                                                   .endpoint = name_of_endpoint(endpoint),
                                                   .owner = request.owner,
                                                   .client = request.client,
                                                   .body = request.body,
                                                   .seed = *plan.seed,
                                                   .created_s = now_unix_s(),
                                                   .of_front = request.of_fleet,
                                                   .is_resumable = is_asked,
                                                   .prompts = prompts}));
    return Prepared{std::make_shared<ApiJob>(std::move(inputs), stream),
                    is_asked ? stream : nullptr};
}

void ApiState::follow_stream(const HttpRequest& request, const Responder& responder,
                             std::uint64_t last_event, bool owner_is_gone) const {
    // The same client may have asked twice.
    const auto local = streams->find(request.owner, request.rest);
    if (local.ok()) return send_local(*local, responder, last_event);

    auto found = options.fleet->find(request.rest, owner_is_gone);
    if (!found.ok()) {
        const Error& error = found.error();
        if (error.code == ErrorCode::bad_file)
            log_error("fleet: the journal of a stream is refused", kv("stream", request.rest),
                      kv("error", error.message));
        if (error.code == ErrorCode::not_found || error.code == ErrorCode::bad_file)
            return responder->refuse(no_stream());
        return responder->refuse(
            {503, text("The stream cannot be taken now: ", error.message, "."), "unavailable", ""});
    }
    if (!found->is_ours) {
        if (request.header("x-moex-passed"))
            return responder->refuse(
                {503, "The stream was of this hub before it started again.", "unavailable", ""});
        const auto on_gone = [self = shared_from_this(), request, responder, last_event] {
            const bool is_queued = self->options.fleet->run_later(
                [=] { self->follow_stream(request, responder, last_event, true); });
            if (!is_queued) responder->refuse(no_stream());
        };
        return options.fleet->pass_on(found->address, request, responder, on_gone);
    }
    const auto gone_on = go_on(request, responder, last_event, *std::move(found));
    if (gone_on.ok()) return;
    options.fleet->leave(request.rest);
    responder->refuse(gone_on.refusal());
}

void ApiState::send_local(const std::shared_ptr<ResumableStream>& stream,
                          const Responder& responder, std::uint64_t last_event) const {
    if (const auto resumed = stream->resume(responder, last_event); !resumed.ok())
        responder->refuse(resumed.refusal());
}

// Goes on with a stream that this hub has taken over.
Checked<void> ApiState::go_on(const HttpRequest& request, const Responder& responder,
                              std::uint64_t last_event, StreamFleet::Found found) const {
    const auto head = decode_head(found.head);
    if (!head.ok()) return Refusal{503, head.error().message, "unavailable", ""};
    if (head->owner != request.owner) return no_stream();
    const CompletionEndpoint* const endpoint = find_endpoint(head->endpoint);
    if (!endpoint || head->package != package->manifest_sha256())
        return Refusal{503, "This hub has another model than the one that began the stream.",
                       "other_model", ""};

    StreamPlan plan{.id = request.rest,
                    .seed = head->seed,
                    .created_s = head->created_s,
                    .last_event = last_event,
                    .is_taken = true,
                    .same_arithmetic = head->arithmetic == options.arithmetic,
                    .prompts = head->prompts};
    for (const Bytes& bytes : found.tokens) {
        auto token = decode_token(bytes);
        if (!token.ok()) return Refusal{503, token.error().message, "unavailable", ""};
        plan.tokens.push_back(*std::move(token));
    }
    HttpRequest again = request;
    again.body = head->body;
    again.client = head->client;
    again.of_fleet = request.of_fleet || head->of_front;
    MOEX_OR_REFUSE(body, parse_api_body(again.body, options.body_bytes_max));
    const std::size_t num_tokens = plan.tokens.size();
    MOEX_OR_REFUSE(prepared, prepare(again, body, *endpoint, responder, std::move(plan)));
    log_info("fleet: goes on with a stream of another hub", kv("stream", request.rest),
             kv("of", found.hub_id), kv("tokens", num_tokens), kv("last_event", last_event));
    prepared.job->start();
    return {};
}

}  // namespace moex
