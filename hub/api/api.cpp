#include "hub/api/api.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>

#include "hub/api/api_state.h"
#include "hub/api/dialects/anthropic.h"
#include "hub/api/dialects/infill.h"
#include "hub/api/dialects/ollama.h"
#include "hub/api/dialects/responses.h"
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

}  // namespace

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
