// The interface between an expert worker and the environment that it runs in: a socket, blobs,
// time, and a place to show the worker's status. web-worker/browser (a tab's Dedicated Worker) and
// web-worker/native (a headless process) implement it. One thread.
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

// The phases that a person sees. The names are the words on the page and in logs.
enum class WorkerPhase {
    starting,  // device and kernels
    connecting,
    downloading,  // assigned blobs are missing
    warming,      // pipelines, self-test
    serving,      // ready and answering; the page shows `idle` if no call arrived recently
    paused,       // by the contributor
    offline,      // lost the hub; reconnects at retry_at_ms
    gpu_lost,
    refused,  // by the hub: token, version, removed; the worker does not retry by itself
    failed,   // this device cannot serve: no adapter, self-test failed
    stopped,
};
const char* worker_phase_name(WorkerPhase phase);

// Counters of a worker that holds more experts than it has slots. They count experts; `loads`
// counts groups.
struct SlotCounters {
    std::uint64_t asked = 0;       // requested by groups, counted when a group arrives
    std::uint64_t resident = 0;    // requested experts in a slot (hits)
    std::uint64_t late = 0;        // requested experts that were still in flight for a hint
    std::uint64_t loads = 0;       // groups that waited for experts
    double load_ms = 0;            // total time that these groups waited
    std::uint64_t prefetched = 0;  // brought for a hint
    std::uint64_t wasted = 0;      // brought for a hint and evicted without use
    std::uint64_t brought = 0;     // brought to a slot after the download
    std::uint64_t by_gpu = 0;      // brought by a copy of the GPU itself
    // Hits that one of the two newest hints had predicted, and the total time from hint to group.
    std::uint64_t foreseen = 0;
    double lead_ms = 0;
    std::uint64_t expired = 0;  // predicted, and dropped after the deadline of the hint
    std::uint64_t ignored = 0;  // predicted while hints did not pay (hint_trial.h)
};

struct WorkerStatus {
    WorkerPhase phase = WorkerPhase::starting;
    std::string detail;  // one sentence: why, and what to do
    std::uint64_t worker_id = 0;
    std::string model_name;
    std::string nonce;  // the hub's nonce to sign, see WorkerCore::identify(); or empty
    std::uint32_t power_percent = power_percent_max;
    gpu::AdapterInfo adapter;
    std::string no_gpu;  // why the worker fell back to the processor; or empty
    // Experts to hold, assigned or to be assigned later; and those that the worker holds.
    std::uint32_t units_assigned = 0, units_ready = 0;
    // The current download: bytes_fetched counts network and cache.
    std::uint64_t bytes_to_fetch = 0, bytes_fetched = 0;
    std::uint64_t bytes_downloaded = 0;  // over the network since start
    std::uint64_t weights_bytes = 0;
    // The limit for all memory on the GPU; device.buffer_bytes is the memory in use.
    std::uint64_t budget_bytes = 0;
    std::uint64_t groups_answered = 0, pairs_answered = 0, groups_cancelled = 0, errors = 0;
    std::uint64_t frames_received = 0, frames_sent = 0;
    std::uint64_t bytes_received = 0, bytes_sent = 0;  // WebSocket
    std::uint64_t self_test_rounds = 0;
    double self_test_nrmse = 0;
    double round_ms_p50 = 0, round_ms_p99 = 0;  // frame in to frame out
    double gpu_us_p50 = 0;  // of a round, by the GPU's own clock; 0: the GPU has no clock
    SpeedProfile speed;     // as sent in HELLO
    double retry_at_ms = 0;
    std::uint32_t units_resident = 0;  // held experts with a slot
    SlotCounters slots;
    gpu::DeviceCounters device;
    // The counters when serving began.
    std::uint64_t rounds_at_warm = 0;
    gpu::DeviceCounters device_at_warm;
};

// Chooses the expert to evict when a worker holds more experts than it has slots: the least
// recently used (lru) or the least frequently used (lfu). `cacheless` evicts each expert after its
// use.
enum class EvictionPolicy { lru, lfu, cacheless };

// The hardware that computes. `automatic`: the GPU, or the processor if there is no GPU that can
// serve.
enum class WorkerBackend { gpu, cpu, automatic };

struct WorkerOptions {
    std::string token, nickname, client, worker_key;
    std::uint64_t budget_bytes = 512ull << 20;  // limit of memory: weights and calls in flight
    // Bytes of experts to hold, if that is more than the budget has slots for. The platform keeps
    // the experts without a slot, and they are brought when they are requested. 0: none beyond.
    std::uint64_t keep_bytes = 0;
    EvictionPolicy eviction = EvictionPolicy::lru;
    std::uint32_t power_percent = power_percent_max;  // share of calls that the hub sends
    WorkerBackend backend = WorkerBackend::gpu;
    // Of the processor: its arithmetic, and its number of threads (0: one per core).
    WorkerArithmetic arithmetic = WorkerArithmetic::int8;
    std::uint32_t threads = 1;
    // The measurement of the GPU's speed, made once before the first HELLO, which reports the
    // result (SpeedProfile). nullopt: TimingOptions::at_start().
    std::optional<TimingOptions> timing;
};

class Platform {
  public:
    virtual ~Platform() = default;

    // The socket. After connect(), exactly one of WorkerCore's on_open() and on_closed() follows.
    // One connection at a time.
    virtual void connect() = 0;
    virtual void send(ByteView frame) = 0;  // copied before it returns
    virtual void close(std::uint16_t code, std::string_view reason) = 0;

    // Fetches the blob named by `hash` from the cache or the hub, and verifies it. A corrupted
    // cached blob is dropped and fetched again. A corrupted download is retried; after that `done`
    // gets an error. `progress(bytes, from_network)` reports `bytes` more from the network or the
    // cache. At most `fetches_max` fetches run at once, and the platform queues the rest. An urgent
    // fetch, which a call waits for, is queued in front of other fetches.
    virtual void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                            std::function<void(std::uint64_t bytes, bool from_network)> progress,
                            std::function<void(Result<Bytes>)> done) = 0;
    virtual void cancel_fetches() = 0;  // no `done` is called
    // Blobs that are fetched from this call on belong to the model of this name or hash. The
    // platform evicts the blobs of other models first.
    virtual void serves_model(std::string_view) {}
    // The same blob in this machine's memory, already verified. Empty if it is not in memory, and
    // always in a tab.
    virtual HeldBlob find_blob(const Sha256&) { return {}; }

    virtual double now_ms() = 0;  // monotonic
    virtual std::uint64_t set_timer(double delay_ms,
                                    std::function<void()> function) = 0;  // one shot
    virtual void clear_timer(std::uint64_t timer) = 0;
    virtual double random() = 0;  // [0, 1), for reconnect jitter

    // Creates a device at the start or after a loss.
    virtual void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) = 0;
    // Shows the status. The caller limits the rate: on change, at most 10 per second.
    virtual void report(const WorkerStatus& status) = 0;
};

}  // namespace moex
