// What an expert worker needs of the place it runs in: a
// socket, blobs, time, and somewhere to show its state.
// Implemented by web-worker/browser (a tab's Dedicated Worker)
// and web-worker/native (a headless process). One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/messages.h"
#include "web-worker/held_blob.h"
#include "web-worker/timing_options.h"

namespace moex {

// The states a person sees; names are the words on the page and in logs.
enum class WorkerPhase {
    starting,  // device and kernels
    connecting,
    downloading,  // assigned blobs are missing
    warming,      // pipelines, self-test
    serving,      // ready and answering; idle when no call came lately (the page decides)
    paused,       // by the contributor
    offline,      // lost the hub; reconnecting at retry_at_ms
    gpu_lost,
    refused,  // by the hub: token, version, removed; does not retry by itself
    failed,   // this device cannot serve: no adapter, self-test failed
    stopped,
};
const char* worker_phase_name(WorkerPhase phase);

// Of a worker that holds more experts than it has slots.
struct SlotCounters {
    std::uint64_t asked = 0;                   // experts of groups, counted as a group arrives
    std::uint64_t resident = 0;                // of these, in a slot
    std::uint64_t late = 0;                    // of these, on their way for a hint
    std::uint64_t loads = 0;                   // groups that waited
    double load_ms = 0;                        // for so long in all
    std::uint64_t prefetched = 0, wasted = 0;  // brought for a hint; gone again without use
    std::uint64_t brought = 0;                 // to a slot, since all was held
    std::uint64_t by_gpu = 0;                  // of these, by the GPU itself
    // In a slot, and one of the two newest hints had named it: so long before, in all.
    std::uint64_t foreseen = 0;
    double lead_ms = 0;
    std::uint64_t expired = 0;  // hints whose deadline had passed before their turn came
    std::uint64_t ignored = 0;  // experts named while hints did not pay
};

struct WorkerStatus {
    WorkerPhase phase = WorkerPhase::starting;
    std::string detail;  // one sentence: why, and what to do
    std::uint64_t worker_id = 0;
    std::string model_name;
    std::string nonce;  // what the hub gave to be signed, see WorkerCore::identify(); or empty
    std::uint32_t power_percent = power_percent_max;
    gpu::AdapterInfo adapter;
    std::string no_gpu;  // why it computes on the processor, where it would not have chosen to
    // that it shall hold, assigned yet or not; of them, those that it holds
    std::uint32_t units_assigned = 0, units_ready = 0;
    // of the current download: fetched counts network and cache
    std::uint64_t bytes_to_fetch = 0, bytes_fetched = 0;
    std::uint64_t bytes_downloaded = 0;  // over the network since start
    std::uint64_t weights_bytes = 0;
    // the limit for all that lies on the GPU; device.buffer_bytes is what does
    std::uint64_t budget_bytes = 0;
    std::uint64_t groups_answered = 0, pairs_answered = 0, groups_cancelled = 0, errors = 0;
    std::uint64_t frames_received = 0, frames_sent = 0;
    std::uint64_t bytes_received = 0, bytes_sent = 0;  // WebSocket
    std::uint64_t self_test_rounds = 0;
    double self_test_nrmse = 0;
    double round_ms_p50 = 0, round_ms_p99 = 0;  // frame in to frame out
    double gpu_us_p50 = 0;  // of a round, by the GPU's own clock; 0 where it does not tell
    SpeedProfile speed;     // what HELLO told
    double retry_at_ms = 0;
    std::uint32_t units_resident = 0;  // of those held, in slots
    SlotCounters slots;
    gpu::DeviceCounters device;
    // counters when serving began
    std::uint64_t rounds_at_warm = 0;
    gpu::DeviceCounters device_at_warm;
};

// Whose slot is taken when a worker holds more experts than it has slots: the one's that was not
// used for longest, or least often; `cacheless`: nobody keeps it beyond its use.
enum class EvictionPolicy { lru, lfu, cacheless };

// Where a worker computes. `automatic`: on the GPU, or on the processor where there is none that
// can serve.
enum class WorkerBackend { gpu, cpu, automatic };

struct WorkerOptions {
    std::string token, nickname, client, worker_key;
    std::uint64_t budget_bytes = 512ull << 20;  // of memory there: weights and calls in flight
    // Of experts held, where that is more than the budget has slots for: those beyond are kept by
    // the platform and brought when they are asked for. 0: none beyond.
    std::uint64_t keep_bytes = 0;
    EvictionPolicy eviction = EvictionPolicy::lru;
    std::uint32_t power_percent = power_percent_max;  // of its turns that the hub is to ask for
    WorkerBackend backend = WorkerBackend::gpu;
    // of the processor: how it answers, and on how many threads (0: one per core)
    WorkerArithmetic arithmetic = WorkerArithmetic::int8;
    std::uint32_t threads = 1;
    // What is measured of a GPU, once, before the first HELLO, which tells it (SpeedProfile); none:
    // TimingOptions::at_start().
    std::optional<TimingOptions> timing;
};

class Platform {
  public:
    virtual ~Platform() = default;

    // Socket. After connect(), exactly one of on_open/on_closed
    // of WorkerCore follows; one connection at a time.
    virtual void connect() = 0;
    virtual void send(ByteView frame) = 0;  // copied before it returns
    virtual void close(std::uint16_t code, std::string_view reason) = 0;

    // The blob named by `hash`: from the cache or the hub, verified; a corrupted cached
    // blob is dropped and fetched again, a corrupted download is tried again and then
    // an error. `progress(bytes)` reports bytes gained, `from_network` says where.
    // At most `fetches_max` run at once; the rest wait inside. An urgent one, for which a call
    // waits, stands behind none that is not.
    virtual void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                            std::function<void(std::uint64_t bytes, bool from_network)> progress,
                            std::function<void(Result<Bytes>)> done) = 0;
    virtual void cancel_fetches() = 0;  // their `done` is not called
    // Blobs that are fetched from here on are of the model of this name, or hash: where room is
    // wanted, what is kept of others goes first.
    virtual void serves_model(std::string_view) {}
    // The same blob where it lies in this machine's memory, verified before; none where it does
    // not, as in a tab.
    virtual HeldBlob find_blob(const Sha256&) { return {}; }

    virtual double now_ms() = 0;  // monotonic
    virtual std::uint64_t set_timer(double delay_ms,
                                    std::function<void()> function) = 0;  // one shot
    virtual void clear_timer(std::uint64_t timer) = 0;
    virtual double random() = 0;  // [0, 1), for reconnect jitter

    // A new device for a start or after a loss.
    virtual void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) = 0;
    // rate-limited by the caller: on change, at most 10 per second
    virtual void report(const WorkerStatus& status) = 0;
};

}  // namespace moex
