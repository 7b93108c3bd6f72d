#include "hub/api/jobs/completion_job.h"

#include <algorithm>

#include "hub/api/hub_stops.h"
#include "hub/api/jobs/bounded_mask.h"

namespace moex {
namespace {

// Cuts a token's list of likeliest tokens to `count` entries. The engine makes lists of one length
// for prompt and answer: the longer one that the request asks for.
SampledToken with_top(SampledToken token, std::uint32_t count) {
    if (token.top.size() > count) token.top.resize(count);
    return token;
}

}  // namespace

ApiJob::ApiJob(ApiJobInputs inputs, std::shared_ptr<HttpResponder> responder)
    : inputs_(std::move(inputs)),
      responder_(std::move(responder)) {
    const CompletionParams& params = inputs_.params;
    // Ignore stop strings in an answer that must have a form, since a string inside the form may
    // contain any text.
    const bool calls = inputs_.call_syntax.has_value(), channels = inputs_.channels.has_value();
    const bool stops_anywhere = inputs_.masks.empty() && !channels;
    const auto& stops = stops_anywhere ? params.stop : std::vector<std::string>();
    const bool continues = !params.is_chat || params.continues;
    const TextBegin begin = continues ? TextBegin::earlier : TextBegin::here;
    AnswerParts::Options parts{.channels = inputs_.channels,
                               .call_syntax = inputs_.call_syntax,
                               .calls_at_once = params.calls.mode == ToolChoice::Mode::required,
                               .tools = params.calls.tools,
                               .splits_reasoning = inputs_.splits_reasoning,
                               .begins_in_reasoning = inputs_.begins_in_reasoning,
                               .stops = {},
                               .min_tokens = params.bounds.min_tokens};
    if ((calls || channels) && params.form.kind == AnswerForm::Kind::free)
        parts.stops = params.stop;
    // Keep special tokens, since the opening of a tool call may be a special token.
    for (std::size_t i = 0; i < inputs_.prompts.size() * params.n; ++i)
        choices_.push_back({.text = AnswerText(inputs_.tokenizer.get(), stops, params.logprobs,
                                               calls || channels, begin, params.bounds.min_tokens),
                            .parts = AnswerParts(parts)});

    if (params.echo)
        for (std::size_t i = 0; i < choices_.size(); ++i)
            choices_[i].answer.content = inputs_.echoes[i / params.n];
}

// Settles the account. A client that disconnected is charged for the tokens that were computed.
ApiJob::~ApiJob() {
    if (inputs_.fleet && !is_stopping_) inputs_.fleet->end(inputs_.stream_id);
    if (!inputs_.account) return;
    std::uint64_t answer_tokens = 0;
    for (const Choice& choice : choices_) answer_tokens += choice.text.num_tokens();
    const bool was_read = !failed_ || answer_tokens > 0;
    inputs_.account->settle((was_read ? prompt_tokens() : 0) + answer_tokens);
}

void ApiJob::start() {
    responder_->on_disconnect([weak = weak_from_this()] {
        if (const auto job = weak.lock()) job->give_up();
    });

    if (inputs_.params.stream) responder_->expect_stream();
    replay();
    const auto self = shared_from_this();
    for (std::size_t i = 0; i < choices_.size(); ++i) {
        GenerationRequest request;
        request.prompt = inputs_.prompts[i / inputs_.params.n];
        for (const AnswerToken& one : inputs_.tokens)
            if (one.choice == i) request.answer.push_back(one.token.id);
        request.client = inputs_.client;
        request.max_tokens = std::min<std::uint32_t>(
            *inputs_.params.max_tokens,
            inputs_.context_tokens - static_cast<std::uint32_t>(request.prompt.size()));

        request.sampling = inputs_.params.sampling;
        request.sampling.choice = static_cast<std::uint32_t>(i % inputs_.params.n);
        request.sampling.mask = mask_of(i);
        const std::optional<std::uint32_t>& prompt_top = inputs_.params.prompt_logprobs;
        request.logprobs = inputs_.params.logprobs || prompt_top;
        request.prompt_logprobs = echoes_scores() || prompt_top;
        request.top_logprobs = std::max(inputs_.params.top_logprobs, prompt_top.value_or(0));
        request.stop_ids = inputs_.stop_ids;
        request.speculator = inputs_.experts.speculator;
        request.draft_tokens = inputs_.draft_tokens;
        request.scope = inputs_.scope;
        request.stores_pages = inputs_.stores_pages;
        request.stays_here = inputs_.stays_here;
        request.late_wait = inputs_.late.wait;
        request.late_pairs_max = inputs_.late.calls_max /
                                 static_cast<std::uint32_t>(choices_.size());

        GenerationSink sink;
        if (inputs_.params.stream &&
            (inputs_.params.return_progress || inputs_.params.timings_per_token))
            sink.on_prompt = [self, i](const PromptProgress& progress) {
                self->gate_.deliver([self, i, progress] { self->on_prompt(i, progress); });
            };
        sink.on_token = [self, i](const TokenEvent& event) {
            self->gate_.deliver([self, i, event] { self->on_token(i, event); });
        };
        sink.on_end = [self, i](const GenerationEnd& end) {
            self->gate_.deliver([self, i, end] { self->on_end(i, end); });
        };

        auto id = inputs_.engine->submit(std::move(request), std::move(sink));
        if (!id.ok()) {
            answered_ = failed_ = true;
            responder_->refuse(refusal_of(id.error()));
            responder_.reset();
            give_up();
            break;
        }

        const std::lock_guard lock(mutex_);
        ids_.push_back(*id);
    }
    if (inputs_.account)
        inputs_.account->on_key_ended([weak = weak_from_this()] {
            if (const auto job = weak.lock()) job->end_key();
        });
    open_gate();
}

// Returns the mask of a choice: its form, and the bounds on its tokens; null: any token.
std::shared_ptr<TokenMask> ApiJob::mask_of(std::size_t index) const {
    std::shared_ptr<TokenMask> form;
    if (!inputs_.masks.empty()) form = inputs_.masks[index];
    const TokenBounds& bounds = inputs_.params.bounds;
    if (!bounds.any()) return form;
    const std::vector<TokenId>& asked_ends = inputs_.params.stop_ids;
    std::vector<TokenId> own_ends = inputs_.stop_ids;
    std::erase_if(own_ends, [&](TokenId id) {
        return std::find(asked_ends.begin(), asked_ends.end(), id) != asked_ends.end();
    });
    return std::make_shared<BoundedMask>(bounds, std::move(own_ends), asked_ends,
                                         inputs_.vocab_size, form);
}

// Queues the tokens of the hub that began the answer before all others, so that they become the
// same events again.
void ApiJob::replay() {
    const auto self = shared_from_this();
    std::vector<std::uint32_t> num_tokens(choices_.size(), 0);
    for (const AnswerToken& one : inputs_.tokens) {
        if (one.choice >= choices_.size()) continue;
        const TokenEvent event{one.token, num_tokens[one.choice]++};
        gate_.deliver([self, index = std::size_t{one.choice}, event] {
            self->is_replaying_ = true;
            self->on_token(index, event);
            self->is_replaying_ = false;
        });
    }
}

// Lets the events run that waited until all sequences were submitted.
void ApiJob::open_gate() {
    gate_.open();
    bool abandoned;
    {
        const std::lock_guard lock(mutex_);
        abandoned = abandoned_;
    }
    if (abandoned) give_up();  // the client disconnected while start() submitted sequences
}

void ApiJob::give_up() {
    {
        const std::lock_guard lock(mutex_);
        abandoned_ = true;
    }
    for (const GenerationId id : submitted()) inputs_.engine->cancel(id);
}

void ApiJob::end_key() {
    {
        const std::lock_guard lock(mutex_);
        key_ended_ = true;
    }
    for (const GenerationId id : submitted()) inputs_.engine->cancel(id);
}

std::vector<GenerationId> ApiJob::submitted() {
    const std::lock_guard lock(mutex_);
    return ids_;
}

void ApiJob::cancel_choice(std::size_t index) {
    GenerationId id;
    {
        const std::lock_guard lock(mutex_);
        id = ids_[index];  // ids of all choices are set before any event runs
    }
    inputs_.engine->cancel(id);
}

// Reports the progress of a prompt. The first report has the cached tokens alone.
void ApiJob::on_prompt(std::size_t index, PromptProgress progress) {
    Choice& choice = choices_[index];
    if (answered_ || choice.ended || choice.cancelling) return;
    choice.cached_tokens = progress.cached_tokens;
    choice.prompt_took = progress.elapsed;
    if (!inputs_.params.return_progress) return;
    begin_stream();
    if (!std::exchange(choice.has_progress, true) &&
        progress.ready_tokens > progress.cached_tokens) {
        PromptProgress first = progress;
        first.ready_tokens = first.cached_tokens;
        first.elapsed = {};
        send_progress(index, first);
    }
    send_progress(index, progress);
}

// Where another hub may go on, the events of progress have no numbers: it would send other ones.
void ApiJob::send_progress(std::size_t index, const PromptProgress& progress) {
    ReplyWriter::Events events = inputs_.writer->progress(index, progress);
    for (StreamEvent& event : events) event.is_passing = inputs_.fleet != nullptr;
    send(index, std::move(events));
}

void ApiJob::on_token(std::size_t index, const TokenEvent& event) {
    const SampledToken& token = event.token;
    if (!inputs_.masks.empty()) inputs_.masks[index]->expect(event.index, token.id);
    Choice& choice = choices_[index];
    if (answered_ || choice.ended || choice.cancelling) return;
    // Skip stop tokens, which are not part of the text.
    if (std::find(inputs_.stop_ids.begin(), inputs_.stop_ids.end(), token.id) !=
        inputs_.stop_ids.end())
        return;

    const TimePoint now = now_steady();
    if (choice.text.num_tokens() == 0) choice.first_token_at = now;
    choice.last_token_at = now;
    if (inputs_.fleet && !is_replaying_)
        inputs_.fleet->add(inputs_.stream_id,
                           encode_token({static_cast<std::uint32_t>(index), token}));
    show(index, choice.text.push(with_top(token, inputs_.params.top_logprobs)));

    if (choice.text.stopped() || choice.parts.stopped()) {
        choice.cancelling = true;
        cancel_choice(index);
    }
}

void ApiJob::on_end(std::size_t index, const GenerationEnd& end) {
    Choice& choice = choices_[index];
    if (answered_ || choice.ended) return;
    if (end.reason == FinishReason::error) return fail(refusal_of(end.error));

    if (end.reason == FinishReason::cancelled && !choice.cancelling) {
        bool abandoned, key_ended;
        {
            const std::lock_guard lock(mutex_);
            abandoned = abandoned_;
            key_ended = key_ended_;
        }
        if (!abandoned && key_ended)
            return fail({401, "The API key was revoked or has expired.", "invalid_api_key", ""});
        if (!abandoned) {
            is_stopping_ = true;
            return fail(refuse_since_hub_stops());
        }
        choice.ended = true;
        if (++num_ended_ == choices_.size()) {
            answered_ = true;
            responder_.reset();  // the client has disconnected
            if (inputs_.observer->on_finished) inputs_.observer->on_finished("abort");
        }
        return;
    }

    choice.ended = true;
    AnswerChoice& answer = choice.answer;
    const std::string* const stop = choice.parts.stop();
    answer.stop = stop ? *stop : choice.text.stop();
    choice.cached_tokens = end.stats.cached_tokens;
    choice.cached_tokens_disk = end.stats.cached_tokens_disk;
    if (echoes_scores()) answer.prompt_tokens = prompt_texts(index, end.prompt_logprobs);
    if (const auto& count = inputs_.params.prompt_logprobs)
        for (const SampledToken& scored : end.prompt_logprobs)
            answer.prompt_scores.push_back(with_top(scored, *count));
    add_totals(end.stats);
    show(index, choice.text.finish(), true);
    answer.finish_reason = finish_reason(index, end);

    const bool is_last = ++num_ended_ == choices_.size();
    if (inputs_.params.stream) {
        begin_stream();
        const AnswerTotals sums = totals();
        send(index, inputs_.writer->end_choice(index, answer, is_last ? &sums : nullptr));
    }

    if (inputs_.observer->on_finished) inputs_.observer->on_finished(answer.finish_reason.c_str());
    if (is_last) on_all_ended();
}

// Returns why an answer ended. The token budget may have closed it early. A JSON value or a call
// that is complete nevertheless is a whole answer; a text or a grammar's text is not.
std::string ApiJob::finish_reason(std::size_t index, const GenerationEnd& end) const {
    const Choice& choice = choices_[index];
    if (choice.cancelling) return "stop";
    const std::uint32_t num_calls = choice.parts.num_calls();
    const AnswerMask* const mask = inputs_.masks.empty() ? nullptr : inputs_.masks[index].get();
    const bool is_limited = end.reason == FinishReason::length || (mask && mask->cut_short());
    const bool is_whole = mask && (num_calls > 0 || inputs_.params.form.is_json()) &&
                          mask->is_complete();
    if (is_limited && !is_whole) return "length";
    return num_calls > 0 ? "tool_calls" : "stop";
}

// Returns what the answer does without. The arguments of calls to weakened tools are judged by the
// whole schema.
OrderedJson ApiJob::notes() const {
    OrderedJson out = inputs_.params.notes;
    if (!inputs_.rules || inputs_.rules->weakened.list.empty()) return out;
    for (const OrderedJson& one : inputs_.rules->weakened.list) out["weakened"].push_back(one);

    OrderedJson valid = true;
    bool has_calls = false;
    for (const Choice& choice : choices_)
        for (const CalledFunction& call : choice.judged_calls) {
            has_calls = true;
            const OrderedJson arguments = OrderedJson::parse(call.arguments, nullptr, false);
            const auto& judge = inputs_.rules->weakened.judges.at(call.name);
            const auto fits = judge->admits(arguments);
            if (fits.ok() && !*fits) valid = false;
            if (!fits.ok() && valid != false) valid = nullptr;
        }
    if (has_calls) out["arguments_valid"] = valid;
    return out;
}

void ApiJob::fail(const Refusal& refusal) {
    answered_ = failed_ = true;
    if (stream_begun_) {
        for (StreamEvent& event : inputs_.writer->fail(refusal))
            responder_->send_event(std::move(event));
        responder_->end_stream();
    } else {
        responder_->refuse(refusal);
    }
    responder_.reset();
    give_up();
    if (inputs_.observer->on_finished) inputs_.observer->on_finished("error");
}

// Adds the statistics of a sequence. Times of parallel sequences overlap, so their maximum
// counts; the amounts of computed work are summed.
void ApiJob::add_totals(const GenerationStats& stats) {
    totals_.queued = std::max(totals_.queued, stats.queued);
    totals_.prefill = std::max(totals_.prefill, stats.prefill);
    totals_.decode = std::max(totals_.decode, stats.decode);
    totals_.speculative = totals_.speculative || stats.speculative;
    totals_.pairs_remote += stats.pairs_remote;
    totals_.pairs_local += stats.pairs_local;
    totals_.pairs_hedged += stats.pairs_hedged;
    totals_.pairs_verified += stats.pairs_verified;
    totals_.pairs_proven += stats.pairs_proven;
    totals_.pairs_late += stats.pairs_late;
    totals_.drafts.add(stats.drafts);

    std::vector<std::uint64_t>& workers = totals_.workers;
    workers.insert(workers.end(), stats.workers.begin(), stats.workers.end());
    std::sort(workers.begin(), workers.end());
    workers.erase(std::unique(workers.begin(), workers.end()), workers.end());
}

void ApiJob::on_all_ended() {
    answered_ = true;
    if (inputs_.params.stream) {
        send(0, inputs_.writer->end(totals()));
        responder_->end_stream();
    } else {
        send_whole();
    }
    responder_.reset();
    if (inputs_.observer->on_latency) observe_latency();
}

AnswerTotals ApiJob::totals() const {
    AnswerTotals out{.usage = usage(), .stats = totals_};
    out.notes = notes();
    out.took = now_steady() - inputs_.received_at;
    out.experts = inputs_.experts.name;
    out.perplexity_excess = inputs_.experts.perplexity_excess;
    if (totals_.pairs_late > 0) out.perplexity_excess.reset();  // not measured
    // Count workers that were caught with a false answer: earlier results of these workers may be
    // in this answer.
    if (const auto& has_lied = inputs_.observer->has_lied)
        out.doubted = static_cast<std::uint64_t>(
            std::count_if(totals_.workers.begin(), totals_.workers.end(), has_lied));
    return out;
}

// Sends `events`. Once the last one is sent, the account is charged for the tokens of choice
// `index` that were not sent to the client before.
void ApiJob::send(std::size_t index, ReplyWriter::Events events) {
    for (std::size_t i = 0; i < events.size(); ++i) {
        const bool is_last = i + 1 == events.size();
        responder_->send_event(std::move(events[i]),
                               is_last ? counts_on_sent(index) : std::function<void()>());
    }
}

void ApiJob::send_whole() {
    std::vector<AnswerChoice> answers;
    for (Choice& choice : choices_) answers.push_back(std::move(choice.answer));

    HttpResponse response;
    response.body = dump_json(inputs_.writer->whole(answers, totals()));
    if (inputs_.account)
        response.on_sent = [account = inputs_.account, sent = usage()] {
            account->count(sent.prompt_tokens, sent.completion_tokens);
        };
    responder_->respond(std::move(response));
}

void ApiJob::observe_latency() const {
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

// Keeps a piece of a call to a weakened tool, whose arguments are judged at the end.
void ApiJob::keep_judged(Choice& choice, const CallPiece& piece) const {
    const bool is_new = !piece.name.empty();
    if (is_new)
        choice.is_judged = inputs_.rules && inputs_.rules->weakened.judges.contains(piece.name);
    if (!choice.is_judged) return;
    if (is_new) choice.judged_calls.push_back({.id = {}, .name = piece.name, .arguments = {}});
    choice.judged_calls.back().arguments += piece.arguments;
}

// Returns the id of a choice's next call, which does not depend on the hub that computes it.
std::string ApiJob::make_call_id(std::size_t index) {
    if (inputs_.stream_id.empty()) return new_call_id();
    return call_id_of(inputs_.stream_id, index, choices_[index].num_call_ids++);
}

// Adds pieces of calls to the whole answer, or sends each as an event.
void ApiJob::show_calls(std::size_t index, std::vector<CallPiece> pieces) {
    std::vector<CalledFunction>& calls = choices_[index].answer.calls;
    for (CallPiece& piece : pieces) {
        keep_judged(choices_[index], piece);
        const std::string id = piece.name.empty() ? std::string() : make_call_id(index);
        if (inputs_.params.stream)
            send(index, inputs_.writer->call(index, piece, id));
        else if (!id.empty())
            calls.push_back({id, std::move(piece.name), std::move(piece.arguments)});
        else
            calls.back().arguments += piece.arguments;
    }
}

void ApiJob::show(std::size_t index, AnswerText::Shown shown, bool is_last) {
    Choice& choice = choices_[index];
    AnswerChoice& answer = choice.answer;
    auto [parts, calls] = choice.parts.push(std::move(shown.text), choice.text.num_tokens(),
                                            is_last);

    if (!inputs_.params.stream) {
        show_calls(index, std::move(calls));
        answer.content += parts.content;
        answer.reasoning += parts.reasoning;
        std::move(shown.tokens.begin(), shown.tokens.end(), std::back_inserter(answer.tokens));
        return;
    }

    begin_stream();
    // Send the echo of the prompt before the first text.
    if (!answer.content.empty()) parts.content = std::exchange(answer.content, {}) + parts.content;
    if (inputs_.params.timings_per_token) show_times(index);
    if (!parts.empty() || !shown.tokens.empty())
        send(index, inputs_.writer->say(index, std::move(parts), shown.tokens));
    show_calls(index, std::move(calls));
}

// Gives the writer the times of a choice so far.
void ApiJob::show_times(std::size_t index) {
    const Choice& choice = choices_[index];
    GenerationStats stats;
    stats.prefill = choice.prompt_took;
    stats.decode = choice.last_token_at - choice.first_token_at;
    inputs_.writer->time(stats, {.prompt_tokens = inputs_.prompts[index / inputs_.params.n].size(),
                                 .completion_tokens = choice.text.num_tokens(),
                                 .cached_tokens = choice.cached_tokens,
                                 .reasoning_tokens = {}});
}

std::function<void()> ApiJob::counts_on_sent(std::size_t index) {
    if (!inputs_.account) return {};
    Choice& choice = choices_[index];
    const std::uint64_t prompts = std::exchange(prompt_counted_, true) ? 0 : prompt_tokens();
    const std::uint64_t answer = choice.text.num_tokens() - choice.counted_tokens;
    choice.counted_tokens = choice.text.num_tokens();
    if (prompts + answer == 0) return {};
    return [account = inputs_.account, prompts, answer] { account->count(prompts, answer); };
}

std::uint64_t ApiJob::prompt_tokens() const {
    std::uint64_t tokens = 0;
    for (const auto& prompt : inputs_.prompts) tokens += prompt.size();
    return tokens;
}

void ApiJob::begin_stream() {
    if (stream_begun_) return;
    stream_begun_ = true;
    responder_->begin_stream({});
    for (StreamEvent& event : inputs_.writer->begin(prompt_tokens()))
        responder_->send_event(std::move(event));
}

// Returns the tokens of the prompt with their scores. The first token has no score, since no token
// precedes it.
std::vector<TokenText> ApiJob::prompt_texts(std::size_t index,
                                            const std::vector<SampledToken>& scores) const {
    AnswerText texts(inputs_.tokenizer.get(), {}, true, true);
    std::vector<TokenText> tokens;
    const auto take = [&](AnswerText::Shown shown) {
        std::move(shown.tokens.begin(), shown.tokens.end(), std::back_inserter(tokens));
    };

    take(texts.push({.id = inputs_.prompts[index / inputs_.params.n].front(), .top = {}}));
    for (const SampledToken& scored : scores)
        take(texts.push(with_top(scored, inputs_.params.top_logprobs)));
    take(texts.finish());
    return tokens;
}

Usage ApiJob::usage() const {
    Usage usage;
    for (std::size_t i = 0; i < inputs_.prompts.size(); ++i) {
        usage.prompt_tokens += inputs_.prompts[i].size();
        // For each prompt the smallest number of cached tokens over all its choices counts: the
        // first choice computes what the other choices find cached.
        const std::size_t n = inputs_.params.n;
        const auto first = choices_.begin() + i * n;
        const auto least = std::min_element(first, first + n, [](const Choice& a, const Choice& b) {
            return a.cached_tokens < b.cached_tokens;
        });
        usage.cached_tokens += least->cached_tokens;
        usage.cached_tokens_disk += least->cached_tokens_disk;
    }
    for (const Choice& choice : choices_) {
        usage.completion_tokens += choice.text.num_tokens();
        if (const auto thoughts = choice.parts.reasoning_tokens())
            usage.reasoning_tokens = usage.reasoning_tokens.value_or(0) + *thoughts;
    }
    return usage;
}

}  // namespace moex
