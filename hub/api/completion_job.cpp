#include "hub/api/completion_job.h"

#include <algorithm>

namespace moex {

using Json = nlohmann::ordered_json;

HttpResponse engine_error_response(const Error& error) {
    switch (error.code) {
        case ErrorCode::invalid_argument: return api_error(400, error.message, "invalid_value", "");
        case ErrorCode::overloaded: return api_error(429, error.message, "queue_full", "");
        case ErrorCode::unavailable:
        case ErrorCode::timeout:
        case ErrorCode::cancelled:
            return api_error(503, error.message, error_code_name(error.code), "");
        default: return api_error(500, error.message, error_code_name(error.code), "");
    }
}

ApiJob::ApiJob(ApiJobInputs inputs, std::shared_ptr<HttpResponder> responder)
    : inputs_(std::move(inputs)),
      responder_(std::move(responder)) {
    const CompletionParams& params = inputs_.params;
    for (std::size_t i = 0; i < inputs_.prompts.size() * params.n; ++i)
        choices_.push_back(
            {.text = AnswerText(inputs_.tokenizer.get(), params.stop, params.logprobs)});
    if (params.echo)
        for (std::size_t i = 0; i < choices_.size(); ++i)
            choices_[i].content = inputs_.echoes[i / params.n];
}

void ApiJob::start() {
    responder_->on_disconnect([weak = weak_from_this()] {
        if (const auto job = weak.lock()) job->give_up();
    });
    if (inputs_.params.stream) responder_->expect_stream();
    const auto self = shared_from_this();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        GenerationRequest request;
        request.prompt = inputs_.prompts[i / inputs_.params.n];
        request.max_tokens = std::min<std::uint32_t>(
            inputs_.params.max_tokens,
            inputs_.context_tokens - static_cast<std::uint32_t>(request.prompt.size()));
        request.sampling = inputs_.params.sampling;
        request.sampling.seed += i % inputs_.params.n;
        request.logprobs = inputs_.params.logprobs;
        request.top_logprobs = inputs_.params.top_logprobs;
        request.stop_ids = inputs_.stop_ids;
        GenerationSink sink;
        sink.on_token = [self, i](const TokenEvent& event) {
            self->deliver([self, i, token = event.token] { self->on_token(i, token); });
        };
        sink.on_end = [self, i](const GenerationEnd& end) {
            self->deliver([self, i, end] { self->on_end(i, end); });
        };
        auto id = inputs_.engine->submit(std::move(request), std::move(sink));
        if (!id.ok()) {
            answered_ = true;
            responder_->respond(engine_error_response(id.error()));
            responder_.reset();
            give_up();
            break;
        }
        const std::lock_guard lock(mutex_);
        ids_.push_back(*id);
    }
    arm();
}

template <class Event>
void ApiJob::deliver(Event event) {
    {
        const std::lock_guard lock(mutex_);
        if (!armed_) {
            early_.emplace_back(std::move(event));
            return;
        }
    }
    event();
}

void ApiJob::arm() {
    for (;;) {
        std::vector<std::function<void()>> events;
        {
            const std::lock_guard lock(mutex_);
            if (early_.empty()) {
                armed_ = true;
                break;
            }
            events.swap(early_);
        }
        for (const auto& event : events) event();
    }
    bool abandoned;
    {
        const std::lock_guard lock(mutex_);
        abandoned = abandoned_;
    }
    if (abandoned) give_up();  // the client left while sequences were being submitted
}

void ApiJob::give_up() {
    std::vector<GenerationId> ids;
    {
        const std::lock_guard lock(mutex_);
        abandoned_ = true;
        ids = ids_;
    }
    for (const GenerationId id : ids) inputs_.engine->cancel(id);
}

void ApiJob::cancel_choice(std::size_t index) {
    GenerationId id;
    {
        const std::lock_guard lock(mutex_);
        id = ids_[index];  // events run after all ids are known
    }
    inputs_.engine->cancel(id);
}

void ApiJob::on_token(std::size_t index, const SampledToken& token) {
    Choice& choice = choices_[index];
    if (answered_ || choice.ended || choice.cancelling) return;
    // not part of the text
    if (std::find(inputs_.stop_ids.begin(), inputs_.stop_ids.end(), token.id) !=
        inputs_.stop_ids.end())
        return;
    const TimePoint now = now_steady();
    if (choice.text.num_tokens() == 0) choice.first_token_at = now;
    choice.last_token_at = now;
    show(index, choice.text.push(token));
    if (choice.text.stopped()) {
        choice.cancelling = true;
        cancel_choice(index);
    }
}

void ApiJob::on_end(std::size_t index, const GenerationEnd& end) {
    Choice& choice = choices_[index];
    if (answered_ || choice.ended) return;
    if (end.reason == FinishReason::error) return on_error(end.error);
    if (end.reason == FinishReason::cancelled && !choice.cancelling) {
        bool abandoned;
        {
            const std::lock_guard lock(mutex_);
            abandoned = abandoned_;
        }
        if (!abandoned) return on_error({ErrorCode::cancelled, "The server is stopping."});
        choice.ended = true;
        if (++num_ended_ == choices_.size()) {
            answered_ = true;
            responder_.reset();  // nobody listens
            if (inputs_.observer->on_finished) inputs_.observer->on_finished("abort");
        }
        return;
    }
    choice.ended = true;
    choice.finish_reason = end.reason == FinishReason::length && !choice.cancelling ? "length"
                                                                                    : "stop";
    totals_.queued = std::max(totals_.queued, end.stats.queued);
    totals_.prefill = std::max(totals_.prefill, end.stats.prefill);
    totals_.decode = std::max(totals_.decode, end.stats.decode);
    totals_.pairs_remote += end.stats.pairs_remote;
    totals_.pairs_local += end.stats.pairs_local;
    totals_.pairs_hedged += end.stats.pairs_hedged;
    totals_.pairs_verified += end.stats.pairs_verified;
    totals_.workers.insert(totals_.workers.end(), end.stats.workers.begin(),
                           end.stats.workers.end());
    std::sort(totals_.workers.begin(), totals_.workers.end());
    totals_.workers.erase(std::unique(totals_.workers.begin(), totals_.workers.end()),
                          totals_.workers.end());
    show(index, choice.text.finish());
    const bool is_last = ++num_ended_ == choices_.size();
    if (inputs_.params.stream) {
        begin_stream();
        Json last = chunk(index, inputs_.params.is_chat ? Json::object() : Json(""), nullptr,
                          choice.finish_reason.c_str());
        if (is_last && !inputs_.params.include_usage) {
            last["timings"] = timings_json(totals_, usage());
            last["moex"] = provenance_json(totals_);
        }
        responder_->send_event(dump_json(last));
    }
    if (inputs_.observer->on_finished) inputs_.observer->on_finished(choice.finish_reason.c_str());
    if (is_last) on_all_ended();
}

void ApiJob::on_error(const Error& error) {
    answered_ = true;
    const HttpResponse response = engine_error_response(error);
    if (stream_begun_) {
        responder_->send_event(response.body);
        responder_->end_stream();
    } else {
        responder_->respond(response);
    }
    responder_.reset();
    give_up();
    if (inputs_.observer->on_finished) inputs_.observer->on_finished("error");
}

void ApiJob::on_all_ended() {
    answered_ = true;
    const CompletionParams& params = inputs_.params;
    if (params.stream) {
        if (params.include_usage) {
            Json last = answer_object(inputs_.header, true);
            last["usage"] = usage_json(usage());
            last["timings"] = timings_json(totals_, usage());
            last["moex"] = provenance_json(totals_);
            responder_->send_event(dump_json(last));
        }
        responder_->send_event("[DONE]");
        responder_->end_stream();
    } else {
        Json body = answer_object(inputs_.header, false);
        for (std::size_t i = 0; i < choices_.size(); ++i) {
            Choice& choice = choices_[i];
            const Json logprobs = params.logprobs ? logprobs_json(choice.tokens) : Json();
            if (params.is_chat) {
                body["choices"].push_back(
                    {{"index", i},
                     {"message",
                      {{"role", "assistant"}, {"content", choice.content}, {"refusal", nullptr}}},
                     {"logprobs", logprobs},
                     {"finish_reason", choice.finish_reason}});
            } else {
                body["choices"].push_back({{"index", i},
                                           {"text", choice.content},
                                           {"logprobs", logprobs},
                                           {"finish_reason", choice.finish_reason}});
            }
        }
        body["usage"] = usage_json(usage());
        body["timings"] = timings_json(totals_, usage());
        body["moex"] = provenance_json(totals_);
        HttpResponse response;
        response.body = dump_json(body);
        responder_->respond(std::move(response));
    }
    responder_.reset();

    if (!inputs_.observer->on_latency) return;
    TimePoint first = TimePoint::max(), last{};
    std::uint64_t gaps = 0;
    for (const Choice& choice : choices_) {
        if (choice.text.num_tokens() == 0) continue;
        first = std::min(first, choice.first_token_at);
        last = std::max(last, choice.last_token_at);
        gaps = std::max<std::uint64_t>(gaps, choice.text.num_tokens() - 1);
    }
    if (first == TimePoint::max()) return;
    const auto seconds = [](Duration duration) { return to_ms(duration) / 1e3; };
    inputs_.observer->on_latency(seconds(first - inputs_.received_at),
                                 seconds(now_steady() - inputs_.received_at),
                                 gaps > 0 ? seconds(last - first) / static_cast<double>(gaps) : 0.0,
                                 seconds(totals_.queued));
}

void ApiJob::show(std::size_t index, AnswerText::Shown shown) {
    Choice& choice = choices_[index];
    const CompletionParams& params = inputs_.params;
    if (!params.stream) {
        choice.content += shown.text;
        std::move(shown.tokens.begin(), shown.tokens.end(), std::back_inserter(choice.tokens));
        return;
    }
    begin_stream();
    // the echo
    if (!choice.content.empty()) shown.text = std::exchange(choice.content, {}) + shown.text;
    if (shown.text.empty() && shown.tokens.empty()) return;
    const Json payload = params.is_chat ? Json{{"content", shown.text}} : Json(shown.text);
    responder_->send_event(dump_json(
        chunk(index, payload, params.logprobs ? logprobs_json(shown.tokens) : Json(), nullptr)));
}

void ApiJob::begin_stream() {
    if (stream_begun_) return;
    stream_begun_ = true;
    responder_->begin_stream();
    if (!inputs_.params.is_chat) return;
    for (std::size_t i = 0; i < choices_.size(); ++i)
        responder_->send_event(
            dump_json(chunk(i, {{"role", "assistant"}, {"content", nullptr}}, nullptr, nullptr)));
}

Json ApiJob::chunk(std::size_t index, Json payload, Json logprobs,
                   const char* finish_reason) const {
    Json out = answer_object(inputs_.header, true);
    out["choices"].push_back({{"index", index},
                              {inputs_.params.is_chat ? "delta" : "text", std::move(payload)},
                              {"logprobs", std::move(logprobs)},
                              {"finish_reason", finish_reason ? Json(finish_reason) : Json()}});
    if (inputs_.params.include_usage) out["usage"] = nullptr;
    return out;
}

Json ApiJob::logprobs_json(std::span<const TokenText> tokens) const {
    return inputs_.params.is_chat ? chat_logprobs_json(tokens, inputs_.tokenizer.get())
                                  : legacy_logprobs_json(tokens, inputs_.tokenizer.get());
}

Usage ApiJob::usage() const {
    Usage usage;
    for (const auto& prompt : inputs_.prompts) usage.prompt_tokens += prompt.size();
    for (const Choice& choice : choices_) usage.completion_tokens += choice.text.num_tokens();
    return usage;
}

}  // namespace moex
