#include "hub/foresight/served_shadow.h"

#include <algorithm>
#include <utility>

#include "hub/foresight/hints.h"
#include "protocol/check.h"

namespace moex {
namespace {
// For a shadow that was slower than the model to end between two of its layers.
constexpr Duration cut_within = std::chrono::microseconds(500);
}  // namespace

ServedShadow::ServedShadow(std::unique_ptr<Decoder> decoder, ExpertBackend& experts,
                           ExpertForesight* otherwise, ServedShadowOptions options, Tell tell)
    : decoder_(std::move(decoder)),
      experts_(experts),
      otherwise_(otherwise),
      options_(std::move(options)),
      tell_(std::move(tell)),
      cache_(decoder_->config(), options_.kv) {
    const ModelConfig& config = decoder_->config();
    std::uint32_t num_moe_layers = 0;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        index_of_layer_.push_back(num_moe_layers);
        num_moe_layers += config.is_moe(layer);
    }
    ahead_.resize(num_moe_layers);
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
    const std::lock_guard lock(mutex_);
    return counters_;
}

// All that is named of the layers that are near enough, the nearest first, where something of it is
// new: to a worker the newest word counts, and what it has not begun of an older one is forgotten.
void ServedShadow::take_window(std::vector<ExpertHint>& hints) {
    const auto end = std::min<std::size_t>(ahead_.size(), layer_ + options_.lead + 1);
    const auto window = std::span(ahead_).subspan(layer_ + 1, end - layer_ - 1);
    if (std::ranges::none_of(window, &Layer::is_new)) return;
    for (Layer& layer : window) {
        hints.insert(hints.end(), layer.hints.begin(), layer.hints.end());
        layer.is_new = false;
    }
}

// Whether the shadow is idle. What it has named of layers that are near enough now becomes hints.
bool ServedShadow::enter_layer(const RouteView& seen, std::uint32_t index) {
    std::unique_lock lock(mutex_);
    if (index == 0) {
        ++step_;
        for (Layer& layer : ahead_) layer = {};
        if (busy_) {
            stop_.request_stop();
            idle_.wait_for(lock, cut_within, [this] { return !busy_; });
        }
    }
    layer_ = index;
    take_window(hints_);
    return !busy_ && index + 1 < ahead_.size() && seen.num_tokens <= rows_max;
}

// A step that is not followed: what it adds to a text is copied when the next one is.
void ServedShadow::lose_alignment(const RouteView& seen) {
    for (const SequenceRow& row : seen.rows)
        if (const auto found = followers_.find(row.kv); found != followers_.end())
            found->second.aligned = std::min(found->second.aligned, row.position);
}

std::span<const ExpertHint> ServedShadow::foresee(const RouteView& seen) {
    hints_.clear();
    if (seen.first_row != 0)  // of a micro-batch that is not the first
        return otherwise_ != nullptr ? otherwise_->foresee(seen) : hints_;

    const std::uint32_t index = index_of_layer_[seen.layer];
    const bool may_begin = enter_layer(seen, index);
    if (seen.num_tokens > rows_max) {
        const std::lock_guard lock(mutex_);
        if (!busy_) lose_alignment(seen);
        return hints_;
    }

    // Both numbers of steps are changed by this thread alone.
    if (may_begin && begun_ != step_ && align(seen)) {
        const std::lock_guard lock(mutex_);
        begun_ = step_;
        stop_ = std::stop_source();
        busy_ = true;
        ++counters_.steps;
        wake_.notify_one();
    }
    if (otherwise_ != nullptr && (begun_ != step_ || is_behind(index)))
        return otherwise_->foresee(seen);
    return hints_;
}

// Whether the next layer has no name yet, though it had time for it.
bool ServedShadow::is_behind(std::uint32_t index) const {
    const std::lock_guard lock(mutex_);
    return index > 0 && index + 1 < ahead_.size() && ahead_[index + 1].hints.empty();
}

// The rows of a text stand one behind the other. False: another time, or never.
bool ServedShadow::align(const RouteView& seen) {
    tokens_.clear();
    for (const SequenceRow& row : seen.rows) tokens_.push_back(row.token);
    batch_.clear();

    std::uint32_t may_copy = options_.copied_max;
    for (std::uint32_t first = 0, count = 0; first < seen.num_tokens; first += count) {
        const SequenceRow& row = seen.rows[first];
        for (count = 1; first + count < seen.num_tokens && seen.rows[first + count].kv == row.kv;)
            ++count;
        const auto [at, is_new] = followers_.try_emplace(row.kv,
                                                         Follower{.kv = KvCache::Sequence(cache_)});
        Follower& follower = at->second;
        follower.seen_at = step_;
        if (followers_.size() > sequences_max) drop_oldest();
        if (!align_one(follower, *row.kv, row.position, count, may_copy)) return false;
        batch_.push_back({.kv = &follower.kv,
                          .tokens = std::span(tokens_).subspan(first, count),
                          .no_logits = true});
    }
    return true;
}

bool ServedShadow::align_one(Follower& follower, const KvCache::Sequence& from,
                             std::uint32_t position, std::uint32_t num_rows,
                             std::uint32_t& may_copy) {
    // A text that came to the address of one that has ended.
    const std::uint32_t first_page = from.pages().front();
    if (std::exchange(follower.first_page, first_page) != first_page) follower.aligned = 0;
    follower.aligned = std::min(follower.aligned, position);

    follower.kv.roll_back(follower.aligned);
    if (!follower.kv.reserve(position + num_rows)) {
        drop_oldest();
        if (!follower.kv.reserve(position + num_rows)) return false;
    }
    const std::uint32_t end = std::min(position, follower.aligned + may_copy);
    follower.kv.copy_rows(from, follower.aligned, end);
    follower.kv.commit(end - follower.aligned);
    may_copy -= end - follower.aligned;
    follower.aligned = end;
    return end == position;
}

// Of those that the step at hand has no rows of.
void ServedShadow::drop_oldest() {
    const auto oldest = std::ranges::min_element(
        followers_, {}, [](const auto& one) { return one.second.seen_at; });
    if (oldest != followers_.end() && oldest->second.seen_at != step_) followers_.erase(oldest);
}

void ServedShadow::run() {
    std::unique_lock lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return stopping_ || busy_; });
        if (stopping_) return;
        const std::uint64_t step = begun_;
        const std::stop_token stop = stop_.get_token();
        lock.unlock();

        auto result = decoder_->step(
            batch_, experts_, [&](const RouteView& seen) { on_route(seen, step); }, stop);
        const bool is_whole = result.ok();
        if (is_whole) decoder_->recycle(*std::move(result));

        lock.lock();
        counters_.steps_cut += !is_whole;
        busy_ = false;
        idle_.notify_all();
    }
}

void ServedShadow::wait_until_idle() const {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return !busy_; });
}

void ServedShadow::on_route(const RouteView& seen, std::uint64_t step) {
    const std::uint32_t index = index_of_layer_[seen.layer];
    if (index == 0) return;  // the model was here before
    named_.clear();
    append_hints(named_, seen.layer, seen.router_logits, seen.num_experts, options_.per_row,
                 order_);
    told_.clear();
    {
        const std::lock_guard lock(mutex_);
        if (step != step_) return;  // it is the next token's turn
        ++counters_.layers;
        if (index <= layer_) {
            ++counters_.layers_late;
            return;
        }
        ahead_[index] = {named_, true};
        take_window(told_);
    }
    if (!told_.empty()) tell_(told_);
}

}  // namespace moex
