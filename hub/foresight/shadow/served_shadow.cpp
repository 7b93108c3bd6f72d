#include "hub/foresight/shadow/served_shadow.h"

#include <algorithm>
#include <utility>

#include "hub/foresight/predict/hints.h"
#include "protocol/check.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

constexpr std::size_t departures_max = 512;

// Returns the likeliest token of each row; among equally likely tokens the lowest id.
std::vector<TokenId> draw(std::span<const float> logits, std::size_t vocab_size) {
    std::vector<TokenId> drawn;
    for (; !logits.empty(); logits = logits.subspan(vocab_size))
        drawn.push_back(static_cast<TokenId>(std::ranges::max_element(logits.first(vocab_size)) -
                                             logits.begin()));
    return drawn;
}

}  // namespace

ServedShadow::ServedShadow(std::unique_ptr<Decoder> decoder, ExpertBackend& experts,
                           ExpertForesight* fallback, ServedShadowOptions options, SendHints send)
    : decoder_(std::move(decoder)),
      experts_(experts),
      fallback_(fallback),
      options_(std::move(options)),
      send_(std::move(send)),
      keys_(decoder_->config(), options_.kv, options_.kv_period, sequences_max) {
    MOEX_CHECK(options_.draws_ahead || options_.token_period == 1,
               "a shadow that draws no token reads each of the model's");
    const ModelConfig& config = decoder_->config();
    std::uint32_t num_moe_layers = 0;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        index_of_layer_.push_back(num_moe_layers);
        num_moe_layers += config.is_moe(layer);
    }
    predictions_.resize(2 * std::size_t{num_moe_layers});
    thread_ = std::thread([this] { run(); });
}

ServedShadow::~ServedShadow() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        stop_.request_stop();
    }
    wake_.notify_one();
    thread_.join();
}

ServedShadowCounters ServedShadow::counters() const {
    std::unique_lock lock(mutex_);
    ServedShadowCounters counters = counters_;
    std::vector<float> late = departures_us_;
    lock.unlock();
    if (!late.empty()) {
        const auto middle = late.begin() + static_cast<std::ptrdiff_t>(late.size() / 2);
        std::nth_element(late.begin(), middle, late.end());
        counters.departure_us = *middle;
    }
    return counters;
}

void ServedShadow::note_departure(Duration late) {
    const auto us = static_cast<float>(1e3 * to_ms(late));
    if (departures_us_.size() < departures_max)
        departures_us_.push_back(us);
    else
        departures_us_[num_departures_ % departures_max] = us;
    ++num_departures_;
}

// Appends the hints of all layers within the lead, the nearest first, if one of these layers has
// new hints. A worker keeps only its newest frame of hints and forgets units of older frames that
// it has not begun to load. So each frame repeats the hints that are still valid.
void ServedShadow::take_window(std::vector<ExpertHint>& hints) {
    const auto end = std::min<std::size_t>(predictions_.size(), layer_ + options_.lead + 1);
    const auto window = std::span(predictions_).subspan(layer_ + 1, end - layer_ - 1);
    if (std::ranges::none_of(window, &PredictedLayer::is_new)) return;
    for (PredictedLayer& layer : window) {
        hints.insert(hints.end(), layer.hints.begin(), layer.hints.end());
        layer.is_new = false;
    }
}

// Called when the model reaches the first MoE layer of a step. Stops the running pass of the shadow
// if its tokens are not the model's, or if the model overtook the pass.
void ServedShadow::enter_step(const RouteView& seen) {
    ++step_;
    entered_at_ = now_steady();
    is_followed_ = seen.num_tokens <= rows_max;
    rows_.clear();
    const KvCache::Sequence* last = nullptr;
    for (const SequenceRow& row : seen.rows) {
        if (is_followed_)
            rows_.push_back({{row.kv, row.position, row.kv->pages().front()}, row.token});
        else if (std::exchange(last, row.kv) != row.kv) {
            const auto [at, is_new] = unfollowed_.try_emplace(row.kv, row.position);
            at->second = std::min(at->second, row.position);
        }
    }

    const bool was_ahead = pass_.step == step_ && !pass_.is_dropped && (busy_ || pass_.is_whole);
    const auto next = predictions_.begin() + static_cast<std::ptrdiff_t>(num_layers());
    std::move(next, predictions_.end(), predictions_.begin());
    std::fill(next, predictions_.end(), PredictedLayer{});
    if (!was_ahead || !is_followed_) {
        std::ranges::fill(predictions_, PredictedLayer{});
    } else if (can_keep_pass()) {
        ++counters_.steps;
        ++counters_.steps_ahead;
        return note_departure({});
    }
    pass_.is_dropped = true;
    if (busy_) stop_.request_stop();
}

// Returns true if the pass that predicts the model's new step may go on: its tokens are the
// model's, or the period of alignment is not due. If only some of its tokens are right, the hints
// so far stay valid until new hints replace them.
bool ServedShadow::can_keep_pass() {
    std::size_t num_drawn = 0, num_right = 0;
    for (const Row& row : rows_) {
        const auto own = std::ranges::find_if(pass_.rows, [&](const Row& one) {
            return one.text.kv == row.text.kv && one.text.position == row.text.position &&
                   one.text.first_page == row.text.first_page;
        });
        if (own == pass_.rows.end()) continue;
        ++num_drawn;
        num_right += own->token == row.token;
    }
    counters_.tokens_drawn += num_drawn;
    counters_.tokens_right += num_right;

    const bool is_due = options_.token_period > 0 &&
                        pass_.tokens_unaligned >= options_.token_period;
    const bool all_right = num_right == rows_.size();
    if (num_drawn == rows_.size() && (all_right || !is_due)) {
        if (all_right && is_due) pass_.tokens_unaligned = 0;
        return true;
    }
    if (num_right == 0) std::ranges::fill(predictions_, PredictedLayer{});
    return false;
}

std::span<const ExpertHint> ServedShadow::foresee(const RouteView& seen) {
    hints_.clear();
    if (seen.first_row != 0)  // `seen` is not the first micro-batch of its step
        return fallback_ != nullptr ? fallback_->foresee(seen) : hints_;

    const std::uint32_t index = index_of_layer_[seen.layer];
    bool is_idle = false;
    {
        const std::lock_guard lock(mutex_);
        if (index == 0) enter_step(seen);
        layer_ = index;
        take_window(hints_);
        is_idle = !busy_;
    }
    if (seen.num_tokens > rows_max) return hints_;
    // the shadow does not follow this step, or foresee() was not called at its first layer
    if (!is_followed_step(seen)) return fallback_ != nullptr ? fallback_->foresee(seen) : hints_;

    std::uint32_t may_copy = options_.copied_max;
    if (is_idle && plan(&may_copy)) {
        const std::lock_guard lock(mutex_);
        begin_pass();
        wake_.notify_one();
    }
    if (fallback_ != nullptr && needs_fallback(index)) return fallback_->foresee(seen);
    return hints_;
}

bool ServedShadow::is_followed_step(const RouteView& seen) const {
    if (!is_followed_ || rows_.size() != seen.num_tokens || rows_.empty()) return false;
    const ShadowKeys::Text& first = rows_.front().text;
    return first.kv == seen.rows[0].kv && first.position == seen.rows[0].position;
}

// Returns true if the fallback predictor must give the hints: if no pass predicts this step, or if
// the next layer has no prediction although the shadow had time for it.
bool ServedShadow::needs_fallback(std::uint32_t index) const {
    const std::lock_guard lock(mutex_);
    if (pass_.step < step_ || pass_.is_dropped) return true;
    return index > 0 && index + 1 < num_layers() && predictions_[index + 1].hints.empty();
}

void ServedShadow::begin_pass() {
    busy_ = true;
    stop_ = std::stop_source();
    counters_.positions_copied = keys_.copied();
    if (pass_.is_ahead) return;
    ++counters_.steps;
    note_departure(now_steady() - entered_at_);
}

// Plans the next pass of an idle shadow into pass_ and batch_. Returns false if there is no work,
// or if keys are missing and `may_copy` is null, because only the engine's thread can copy keys.
bool ServedShadow::plan(std::uint32_t* may_copy) {
    for (const auto& [text, position] : unfollowed_) keys_.invalidate(text, position);
    unfollowed_.clear();
    if (!is_followed_) return false;

    const bool is_there = pass_.step >= step_ && !pass_.is_dropped;
    if (!is_there) return layer_ + 1 < num_layers() && plan_with_the_model(may_copy);
    return pass_.step == step_ && pass_.is_whole && plan_ahead(may_copy);
}

// Plans a pass that predicts the step that the model has already begun, with the model's tokens.
// Rows of the same text are adjacent.
bool ServedShadow::plan_with_the_model(std::uint32_t* may_copy) {
    tokens_.clear();
    for (const Row& row : rows_) tokens_.push_back(row.token);
    batch_.clear();

    for (std::size_t first = 0, count = 0; first < rows_.size(); first += count) {
        const ShadowKeys::Text& text = rows_[first].text;
        for (count = 1; first + count < rows_.size() && rows_[first + count].text.kv == text.kv;)
            ++count;
        KvCache::Sequence* const kv = keys_.prepare(
            text, text.position, static_cast<std::uint32_t>(count), step_, may_copy);
        if (kv == nullptr) return false;
        batch_.push_back({.kv = kv, .tokens = std::span(tokens_).subspan(first, count)});
    }

    const bool draws = options_.draws_ahead && batch_.size() == rows_.size();
    for (StepRows& rows : batch_) rows.no_logits = !draws;
    pass_ = {.step = step_, .rows = rows_};
    return true;
}

// Plans a pass that predicts the model's next step: the same texts, one token further, with the
// tokens that the shadow drew.
bool ServedShadow::plan_ahead(std::uint32_t* may_copy) {
    if (pass_.drawn.empty()) return false;
    tokens_.clear();
    for (const Row& row : rows_) {
        const auto own = std::ranges::find(pass_.rows, row.text.kv,
                                           [](const Row& one) { return one.text.kv; });
        tokens_.push_back(pass_.drawn[static_cast<std::size_t>(own - pass_.rows.begin())]);
    }
    batch_.clear();

    Pass next{.step = step_ + 1,
              .is_ahead = true,
              .tokens_unaligned = pass_.tokens_unaligned + 1,
              .rows = rows_};
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const std::uint32_t position = rows_[i].text.position + 1;
        if (position >= decoder_->config().context_tokens) return false;
        KvCache::Sequence* const kv = keys_.prepare(rows_[i].text, position, 1, step_, may_copy);
        if (kv == nullptr) return false;
        batch_.push_back({.kv = kv, .tokens = std::span(tokens_).subspan(i, 1)});
        next.rows[i].text.position = position;
        next.rows[i].token = tokens_[i];
    }
    pass_ = std::move(next);
    return true;
}

void ServedShadow::run() {
    name_thread("shadow");
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || busy_; });
        if (stopping_) return;
        const std::stop_token stop = stop_.get_token();
        lock.unlock();

        auto result = decoder_->step(
            batch_, experts_, [this](const RouteView& seen) { on_route(seen); }, stop);
        const bool is_whole = result.ok();
        std::vector<TokenId> drawn;
        if (is_whole) {
            drawn = draw(result->logits, decoder_->config().vocab_size);
            decoder_->recycle(*std::move(result));
        }

        lock.lock();
        counters_.passes_cut += !is_whole;
        pass_.is_whole = is_whole;
        pass_.drawn = std::move(drawn);
        if (plan(nullptr)) {
            begin_pass();
            continue;
        }
        busy_ = false;
        idle_.notify_all();
    }
}

void ServedShadow::wait_until_idle() const {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !busy_; });
}

void ServedShadow::on_route(const RouteView& seen) {
    layer_hints_.clear();
    append_hints(layer_hints_, seen.layer, seen.router_logits, seen.num_experts, options_.per_row,
                 order_);
    outgoing_.clear();
    {
        const std::lock_guard lock(mutex_);
        if (pass_.is_dropped) return;
        // A pass that is not ahead began after the model had reached its first MoE layer, so a
        // prediction of this layer comes too late.
        const std::uint32_t index = index_of_layer_[seen.layer];
        if (index == 0 && !pass_.is_ahead) return;
        ++counters_.layers;
        const bool is_of_next = pass_.step > step_;
        if (!is_of_next && index <= layer_) {
            ++counters_.layers_late;
            return;
        }
        predictions_[index + (is_of_next ? num_layers() : 0)] = {layer_hints_, true};
        take_window(outgoing_);
    }
    if (!outgoing_.empty()) send_(outgoing_);
}

}  // namespace moex
