// The WASM side of a tab: one WorkerCore over a Platform that calls JavaScript, and the exported
// functions through which JavaScript answers.
#include <emscripten.h>

#include <algorithm>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "web-worker/browser/bridge.h"
#include "web-worker/browser/status_json.h"
#include "web-worker/browser/tab_hubs.h"
#include "web-worker/gpu/webgpu/webgpu_device.h"
#include "web-worker/spans/span_worker.h"
#include "web-worker/worker_core.h"

namespace moex {
namespace {

constexpr int going_away = 1001;

// Implements the worker core's platform with calls to JavaScript.
class TabPlatform : public Platform {
  public:
    void connect() override { mx_connect(); }
    void knows_hubs(const HubPlace& here, const std::vector<HubPlace>& others) override {
        hubs_.arrived(here, others);
        mx_next_hub(here.id.c_str());
    }
    void choose_hub() override {
        if (const auto hub = hubs_.better(draw_)) core_->on_better_hub(*hub);
    }
    void set_core(WorkerCore* core) { core_ = core; }
    // The hub has ended the connection, since it stops or the tab moves.
    void hub_stopped() {
        if (const auto hub = hubs_.after_stop(draw_)) mx_next_hub(hub->id.c_str());
    }
    bool move_to(const HubPlace& hub) override {
        if (!hubs_.move_to(hub.id)) return false;
        mx_next_hub(hub.id.c_str());
        return true;
    }
    void send(ByteView frame) override { mx_send(frame.data(), static_cast<double>(frame.size())); }
    void close(std::uint16_t code, std::string_view reason) override {
        mx_close(code, reason.data(), static_cast<int>(reason.size()));
    }

    void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                    std::function<void(std::uint64_t bytes, bool from_network)> progress,
                    std::function<void(Result<Bytes>)> done) override {
        const std::uint32_t ticket = next_ticket_++;
        fetches_[ticket] = Fetch{std::move(progress), std::move(done)};
        mx_fetch_blob(to_hex(hash).c_str(), static_cast<double>(size_bytes), urgent ? 1 : 0,
                      ticket);
    }
    void accept_layer(const Sha256& blob, const Signature& signature,
                      std::function<void(bool)> done) override {
        const std::uint32_t ticket = next_ticket_++;
        accepting_[ticket] = std::move(done);
        mx_accept_layer(to_hex(blob).c_str(), to_hex(signature).c_str(), ticket);
    }
    void on_accepted(std::uint32_t ticket, bool accepted) {
        const auto found = accepting_.find(ticket);
        if (found == accepting_.end()) return;
        auto done = std::move(found->second);
        accepting_.erase(found);
        done(accepted);
    }
    void cancel_fetches() override {
        fetches_.clear();
        accepting_.clear();
        mx_cancel_fetches();
    }
    void serves_model(std::string_view model) override {
        mx_serves_model(model.data(), static_cast<int>(model.size()));
    }
    void on_fetch_progress(std::uint32_t ticket, double bytes, bool from_network) {
        const auto found = fetches_.find(ticket);
        // A broken download reports its lost bytes as a negative count. As an unsigned value the
        // count wraps around, so that the receiver's sum is still right.
        if (found != fetches_.end() && found->second.progress)
            found->second.progress(static_cast<std::uint64_t>(static_cast<std::int64_t>(bytes)),
                                   from_network);
    }
    void on_fetched(std::uint32_t ticket, Result<Bytes> answer) {
        const auto found = fetches_.find(ticket);
        if (found == fetches_.end()) return;
        auto done = std::move(found->second.done);
        fetches_.erase(found);
        done(std::move(answer));
    }

    double now_ms() override { return mx_now_ms(); }
    double random() override { return mx_random(); }
    std::uint64_t set_timer(double delay_ms, std::function<void()> function) override {
        const std::uint32_t ticket = next_ticket_++;
        timers_[ticket] = std::move(function);
        mx_set_timer(delay_ms, ticket);
        return ticket;
    }
    void clear_timer(std::uint64_t timer) override {
        if (timers_.erase(static_cast<std::uint32_t>(timer)) > 0)
            mx_clear_timer(static_cast<std::uint32_t>(timer));
    }
    void on_timer(std::uint32_t ticket) {
        const auto found = timers_.find(ticket);
        if (found == timers_.end()) return;
        auto function = std::move(found->second);
        timers_.erase(found);
        function();
    }

    void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) override {
        gpu::open_webgpu_device(std::move(done));
    }
    void report(const WorkerStatus& status) override {
        const std::string json = status_json(status).dump(-1, ' ', false,
                                                          nlohmann::json::error_handler_t::replace);
        mx_report(json.data(), static_cast<int>(json.size()));
    }

  private:
    struct Fetch {
        std::function<void(std::uint64_t, bool)> progress;
        std::function<void(Result<Bytes>)> done;
    };
    TabHubs hubs_;
    const std::function<double()> draw_ = [] { return mx_random(); };
    WorkerCore* core_ = nullptr;
    std::uint32_t next_ticket_ = 1;
    std::unordered_map<std::uint32_t, Fetch> fetches_;
    std::unordered_map<std::uint32_t, std::function<void(bool)>> accepting_;
    std::unordered_map<std::uint32_t, std::function<void()>> timers_;
};

// Space before a frame for the tables of a round with up to 4,096 pairs. In a larger round, the
// activations x have to be moved to make space.
constexpr std::size_t frame_headroom_bytes = 256 << 10;

// While a span is loaded, its layers without their experts and the experts of one layer are in the
// WASM heap, which has 4 GiB. These are at most a quarter of the weights of the models known.
constexpr std::uint64_t spans_bytes_max = 12ull << 30;

struct Tab {
    Bytes frame_memory;
    TabPlatform platform;
    std::unique_ptr<WorkerCore> core;
};
Tab& tab() {
    static Tab instance;
    return instance;
}

}  // namespace

extern "C" {

void mx_bind_heap();  // defined in bridge_library.js; gives it access to the WASM heap

EMSCRIPTEN_KEEPALIVE void mx_init() { mx_bind_heap(); }

// Starts the worker core. `json`: {"token", "nickname", "worker_key", "client", "budget_bytes",
// "keep_bytes", "eviction" (lru, lfu, cacheless), "power_percent"}
EMSCRIPTEN_KEEPALIVE void mx_start(const char* json, std::uint32_t size_bytes) {
    const nlohmann::json options = nlohmann::json::parse(std::string_view(json, size_bytes),
                                                         nullptr, false);
    if (!options.is_object() || tab().core) return;

    WorkerOptions worker;
    worker.token = options.value("token", "");
    worker.nickname = options.value("nickname", "");
    worker.worker_key = options.value("worker_key", "");
    worker.client = options.value("client", "tab");
    worker.budget_bytes = static_cast<std::uint64_t>(
        options.value("budget_bytes", 512.0 * 1024 * 1024));
    worker.keep_bytes = static_cast<std::uint64_t>(std::max(0.0, options.value("keep_bytes", 0.0)));
    const std::string eviction = options.value("eviction", "lru");
    worker.eviction = eviction == "lfu"         ? EvictionPolicy::lfu
                      : eviction == "cacheless" ? EvictionPolicy::cacheless
                                                : EvictionPolicy::lru;
    worker.power_percent = std::clamp(options.value("power_percent", power_percent_max),
                                      power_percent_min, power_percent_max);
    worker.backend = WorkerBackend::automatic;
    worker.make_spans = make_span_worker;
    worker.spans_bytes_max = spans_bytes_max;

    tab().core = std::make_unique<WorkerCore>(tab().platform, std::move(worker));
    tab().platform.set_core(tab().core.get());
    tab().core->start();
}
EMSCRIPTEN_KEEPALIVE void mx_pause() {
    if (tab().core) tab().core->pause();
}
EMSCRIPTEN_KEEPALIVE void mx_resume() {
    if (tab().core) tab().core->resume();
}
EMSCRIPTEN_KEEPALIVE void mx_on_network_back() {
    if (tab().core) tab().core->on_network_back();
}
EMSCRIPTEN_KEEPALIVE void mx_leave() {
    if (tab().core) tab().core->leave();
}
EMSCRIPTEN_KEEPALIVE void mx_stop() {
    if (tab().core) tab().core->stop();
}
EMSCRIPTEN_KEEPALIVE void mx_set_budget(double bytes) {
    if (tab().core) tab().core->set_budget(static_cast<std::uint64_t>(bytes));
}

EMSCRIPTEN_KEEPALIVE void mx_set_keep(double bytes) {
    if (tab().core) tab().core->set_keep(static_cast<std::uint64_t>(bytes));
}
EMSCRIPTEN_KEEPALIVE void mx_set_power(std::uint32_t percent) {
    if (tab().core) tab().core->set_power(percent);
}
// `signed_by`: the public key and the signature, one after the other in hexadecimal digits. The
// call is ignored if the key or the signature does not parse.
EMSCRIPTEN_KEEPALIVE void mx_identify(const char* signed_by, std::uint32_t size_bytes,
                                      double worker_id, int shows_nickname) {
    constexpr std::size_t key_digits = 2 * std::tuple_size_v<PublicKey>;
    const std::string_view digits(signed_by, size_bytes);
    const auto key = parse_public_key(digits.substr(0, key_digits));
    const auto signature = parse_signature(digits.substr(std::min(key_digits, digits.size())));
    if (!tab().core || !key.ok() || !signature.ok()) return;
    tab().core->identify(static_cast<std::uint64_t>(worker_id),
                         {*key, *signature, shows_nickname != 0});
}

EMSCRIPTEN_KEEPALIVE void mx_on_open() {
    if (tab().core) tab().core->on_open();
}
// Returns the address to which JavaScript copies the next frame, for mx_on_frame(). It follows the
// headroom for a round's tables.
EMSCRIPTEN_KEEPALIVE std::byte* mx_frame_room(std::uint32_t size_bytes) {
    Bytes& memory = tab().frame_memory;
    if (memory.size() < frame_headroom_bytes + size_bytes)
        memory.resize(frame_headroom_bytes + size_bytes);
    return memory.data() + frame_headroom_bytes;
}
EMSCRIPTEN_KEEPALIVE void mx_on_frame(std::uint32_t size_bytes) {
    if (tab().core)
        tab().core->on_frame_in_place(
            std::span(tab().frame_memory).first(frame_headroom_bytes + size_bytes), size_bytes);
}
EMSCRIPTEN_KEEPALIVE void mx_on_text() {
    if (tab().core) tab().core->on_text();
}
EMSCRIPTEN_KEEPALIVE void mx_on_closed(int code, const char* reason, std::uint32_t size_bytes) {
    if (code == going_away) tab().platform.hub_stopped();
    if (tab().core)
        tab().core->on_closed(static_cast<std::uint16_t>(code),
                              std::string_view(reason, size_bytes));
}
EMSCRIPTEN_KEEPALIVE void mx_on_other_hub(const char* reason, std::uint32_t size_bytes) {
    if (tab().core) tab().core->on_other_hub(std::string(reason, size_bytes));
}
EMSCRIPTEN_KEEPALIVE void mx_on_timer(std::uint32_t ticket) { tab().platform.on_timer(ticket); }
EMSCRIPTEN_KEEPALIVE void mx_on_fetch_progress(std::uint32_t ticket, double bytes,
                                               int from_network) {
    tab().platform.on_fetch_progress(ticket, bytes, from_network != 0);
}
EMSCRIPTEN_KEEPALIVE void mx_on_accepted(std::uint32_t ticket, int accepted) {
    tab().platform.on_accepted(ticket, accepted != 0);
}
EMSCRIPTEN_KEEPALIVE void mx_on_fetched(std::uint32_t ticket, const std::byte* bytes,
                                        std::uint32_t size_bytes, const char* reason,
                                        std::uint32_t reason_bytes) {
    if (bytes)
        tab().platform.on_fetched(ticket, Bytes(bytes, bytes + size_bytes));
    else
        tab().platform.on_fetched(ticket,
                                  Error{ErrorCode::io_error, std::string(reason, reason_bytes)});
}

}  // extern "C"

}  // namespace moex
