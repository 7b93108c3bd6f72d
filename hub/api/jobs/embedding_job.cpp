#include "hub/api/jobs/embedding_job.h"

#include <algorithm>
#include <cmath>

#include "hub/api/hub_stops.h"

namespace moex {
namespace {

// The most inputs of one request in the engine at a time, so that other requests find room in the
// engine's queue.
constexpr std::size_t running_max = 8;

// Scales a vector to length 1 if `scales` is true; returns false if the vector is zero or not
// finite.
bool normalise(std::vector<float>& row, bool scales) {
    double squares = 0;
    for (const float value : row) squares += double{value} * value;
    if (!std::isfinite(squares) || squares == 0) return false;
    if (!scales) return true;
    const double length = std::sqrt(squares);
    for (float& value : row) value = static_cast<float>(value / length);
    return true;
}

}  // namespace

EmbeddingJob::EmbeddingJob(EmbeddingJobInputs inputs, std::shared_ptr<HttpResponder> responder)
    : inputs_(std::move(inputs)),
      responder_(std::move(responder)) {
    out_.rows.resize(inputs_.prompts.size());
    out_.model = inputs_.model;
    out_.base64 = inputs_.base64;
    for (std::size_t i = 0; i < inputs_.prompts.size(); ++i) {
        todo_.push_back(i);
        out_.prompt_tokens += inputs_.prompts[i].size();
    }
}

// Settles the account. A client that disconnected is charged for the tokens that were computed.
EmbeddingJob::~EmbeddingJob() {
    if (inputs_.account) inputs_.account->settle(computed_tokens_);
}

void EmbeddingJob::start() {
    responder_->on_disconnect([weak = weak_from_this()] {
        if (const auto job = weak.lock()) job->give_up();
    });
    if (inputs_.account)
        inputs_.account->on_key_ended([weak = weak_from_this()] {
            if (const auto job = weak.lock())
                job->fail({401, "The API key was revoked or has expired.", "invalid_api_key", ""});
        });
    submit_more();
}

void EmbeddingJob::submit_more() {
    for (;;) {
        std::size_t index;
        {
            const std::lock_guard lock(mutex_);
            if (!responder_ || todo_.empty() || num_running_ >= running_max) return;
            index = todo_.front();
            todo_.pop_front();
            ++num_running_;
        }
        if (!submit(index)) return;
    }
}

// Submits one input to the engine; returns false if no further input of the request can be
// submitted now.
bool EmbeddingJob::submit(std::size_t index) {
    GenerationRequest request;
    request.prompt = inputs_.prompts[index];
    request.client = inputs_.client;
    request.hidden_mean = true;
    request.pooling = inputs_.form.pooling;

    GenerationSink sink;
    sink.on_end = [self = shared_from_this(), index](const GenerationEnd& end) {
        self->on_end(index, end);
    };

    const auto id = inputs_.engine->submit(std::move(request), std::move(sink));
    bool has_left;
    {
        const std::lock_guard lock(mutex_);
        has_left = !responder_;
        if (id.ok())
            ids_.push_back(*id);
        else
            --num_running_;

        // Put the input back if the engine's queue is full: it is submitted again when another
        // input has ended.
        if (!id.ok() && id.error().code == ErrorCode::overloaded && num_running_ > 0) {
            todo_.push_front(index);
            return false;
        }
    }
    if (!id.ok()) fail(refusal_of(id.error()));
    if (id.ok() && has_left) inputs_.engine->cancel(*id);
    return id.ok() && !has_left;
}

void EmbeddingJob::on_end(std::size_t index, const GenerationEnd& end) {
    if (end.reason == FinishReason::error) fail(refusal_of(end.error));
    if (end.reason == FinishReason::cancelled) fail(refuse_since_hub_stops());

    const bool is_whole = end.reason == FinishReason::length;
    std::vector<float> row = end.hidden_mean;
    if (is_whole && !normalise(row, inputs_.form.normalize))
        fail(refusal_of({ErrorCode::non_finite,
                         "the model's rows are not finite: a weight or an expert's answer is out "
                         "of range"}));

    std::shared_ptr<HttpResponder> answers;
    {
        const std::lock_guard lock(mutex_);
        --num_running_;
        if (is_whole) computed_tokens_ += inputs_.prompts[index].size();
        if (!responder_) return;
        out_.rows[index] = std::move(row);
        out_.queued = std::max(out_.queued, end.stats.queued);
        if (++num_done_ == inputs_.prompts.size()) answers = std::move(responder_);
    }
    if (answers) return finish(std::move(answers));
    submit_more();
}

// Sends the answer. Called once, by one thread.
void EmbeddingJob::finish(std::shared_ptr<HttpResponder> responder) {
    out_.took = now_steady() - inputs_.received_at;
    HttpResponse response;
    response.body = dump_json(inputs_.endpoint->write(out_));
    if (inputs_.account)
        response.on_sent = [account = inputs_.account, tokens = out_.prompt_tokens] {
            account->count(tokens, 0);
        };
    responder->respond(std::move(response));
    if (inputs_.observer->on_finished) inputs_.observer->on_finished("stop");
}

void EmbeddingJob::fail(const Refusal& refusal) {
    std::shared_ptr<HttpResponder> responder;
    {
        const std::lock_guard lock(mutex_);
        responder = std::move(responder_);
    }
    if (!responder) return;
    responder->refuse(refusal);
    give_up();
    if (inputs_.observer->on_finished) inputs_.observer->on_finished("error");
}

void EmbeddingJob::give_up() {
    std::vector<GenerationId> ids;
    {
        const std::lock_guard lock(mutex_);
        responder_.reset();
        ids.swap(ids_);
    }
    for (const GenerationId id : ids) inputs_.engine->cancel(id);
}

}  // namespace moex
