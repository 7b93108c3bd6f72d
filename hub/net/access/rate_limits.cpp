#include "hub/net/access/rate_limits.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <unordered_map>

#include "hub/net/http/asio.h"

namespace moex::net {
namespace {

// A token bucket that had `level` tokens at time `at`. It refills at `per_minute` up to `burst`.
struct Bucket {
    double level = -1;  // -1: the bucket was not used yet and starts full
    TimePoint at{};

    void refill(TimePoint now, double per_minute, double burst) {
        const double minutes = std::chrono::duration<double>(now - at).count() / 60.0;
        level = level < 0 ? burst : std::min(burst, level + per_minute * minutes);
        at = now;
    }
    // Returns the time until the bucket has `cost` tokens. A cost above the burst size waits only
    // for a full bucket.
    Duration wait_for(double cost, double per_minute, double burst) const {
        const double lacking = std::min(cost, burst) - level;
        if (lacking <= 0) return Duration{0};
        const double wait_s = per_minute > 0 ? lacking * 60.0 / per_minute : 3600.0;
        return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(wait_s)) +
               Duration{1};
    }
    void pay(double cost) { level = std::max(0.0, level - cost); }

    // Takes `cost` tokens and returns zero, or returns the time until the bucket has enough tokens.
    Duration take(TimePoint now, double per_minute, double burst, double cost = 1) {
        refill(now, per_minute, burst);
        const Duration wait = wait_for(cost, per_minute, burst);
        if (wait == Duration{0}) pay(cost);
        return wait;
    }
};

struct Address {
    Bucket connects, failures, api, texts;
    TimePoint banned_until{};
    std::list<std::string>::iterator place;
};

}  // namespace

std::string rate_key(std::string_view address) {
    boost::system::error_code error;
    const auto parsed = asio::ip::make_address(std::string(address), error);
    if (error || parsed.is_v4()) return std::string(address);
    if (parsed.to_v6().is_v4_mapped())
        return asio::ip::make_address_v4(asio::ip::v4_mapped, parsed.to_v6()).to_string();

    auto bytes = parsed.to_v6().to_bytes();
    std::fill(bytes.begin() + 8, bytes.end(), 0);
    return asio::ip::address_v6(bytes).to_string() + "/64";
}

struct RateLimits::State {
    RateOptions options;
    std::mutex mutex;
    std::unordered_map<std::string, Address> addresses;
    std::list<std::string> recent;  // addresses in LRU order; the front is the most recent
    std::unordered_map<std::string, Bucket> keys, key_texts;

    Address& find(const std::string& address) {
        const std::string key = rate_key(address);
        const auto found = addresses.find(key);
        if (found != addresses.end()) {
            recent.splice(recent.begin(), recent, found->second.place);
            return found->second;
        }

        if (addresses.size() >= options.addresses_max) {
            addresses.erase(recent.back());
            recent.pop_back();
        }

        recent.push_front(key);
        Address& fresh = addresses[key];
        fresh.place = recent.begin();
        return fresh;
    }
    double factor(bool loopback) const { return loopback ? options.loopback_factor : 1.0; }
};

RateLimits::RateLimits(RateOptions options) : state_(std::make_unique<State>()) {
    state_->options = options;
}
RateLimits::~RateLimits() = default;

void RateLimits::change(const RateOptions& options) {
    const std::lock_guard lock(state_->mutex);
    state_->options = options;
}

Duration RateLimits::worker_connect(TimePoint now, const std::string& address, bool loopback) {
    const std::lock_guard lock(state_->mutex);
    Address& entry = state_->find(address);
    if (now < entry.banned_until) return entry.banned_until - now;
    const double factor = state_->factor(loopback);
    return entry.connects.take(now, state_->options.worker_connects_per_minute * factor,
                               state_->options.worker_connects_burst * factor);
}

Duration RateLimits::api_request(TimePoint now, const std::string& address, bool loopback) {
    const std::lock_guard lock(state_->mutex);
    const double factor = state_->factor(loopback);
    return state_->find(address).api.take(now, state_->options.api_requests_per_minute * factor,
                                          state_->options.api_requests_burst * factor);
}

Duration RateLimits::key_request(TimePoint now, const std::string& key, bool loopback) {
    const std::lock_guard lock(state_->mutex);
    const double factor = state_->factor(loopback);
    return state_->keys[key].take(now, state_->options.key_requests_per_minute * factor,
                                  state_->options.key_requests_burst * factor);
}

Duration RateLimits::text_bytes(TimePoint now, const std::string& address, const std::string& key,
                                bool loopback, std::uint64_t bytes) {
    const std::lock_guard lock(state_->mutex);
    const double factor = state_->factor(loopback), cost = static_cast<double>(bytes);
    const double per_minute = state_->options.text_bytes_per_minute * factor;
    const double burst = state_->options.text_bytes_burst * factor;
    Bucket& texts = state_->find(address).texts;
    if (key.empty()) return texts.take(now, per_minute, burst, cost);

    // Take tokens from the buckets of the address and of the key, or from neither: a refusal by one
    // bucket must not cost tokens of the other.
    const double more = state_->options.key_text_bytes_factor;
    Bucket& key_texts = state_->key_texts[key];
    texts.refill(now, per_minute, burst);
    key_texts.refill(now, per_minute * more, burst * more);
    const Duration wait = std::max(texts.wait_for(cost, per_minute, burst),
                                   key_texts.wait_for(cost, per_minute * more, burst * more));
    if (wait > Duration{0}) return wait;
    texts.pay(cost);
    key_texts.pay(cost);
    return wait;
}

void RateLimits::hello_failed(TimePoint now, const std::string& address, bool loopback) {
    const std::lock_guard lock(state_->mutex);
    Address& entry = state_->find(address);
    const double allowed = state_->options.hello_failures_per_minute * state_->factor(loopback);
    if (entry.failures.take(now, allowed, allowed) > Duration{0})
        entry.banned_until = now + state_->options.ban;
}

}  // namespace moex::net
