// The interface between an expert worker and the environment that it runs in: a socket, blobs,
// time, and a place to show the worker's status. web-worker/browser (a tab's Dedicated Worker) and
// web-worker/native (a headless process) implement it. All calls are made on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/identity.h"
#include "protocol/messages.h"
#include "web-worker/held_blob.h"
#include "web-worker/timing_options.h"

namespace moex {

// The phases of a worker that are shown to people. Their names are the words on the page and in
// logs.
enum class WorkerPhase {
    starting,  // opens the device and compiles kernels
    connecting,
    downloading,  // downloads assigned blobs that are missing
    warming,      // creates pipelines, runs the self-test
    // Holds all its experts and answers calls; the page shows `idle` if no call arrived recently.
    serving,
    paused,   // the contributor has paused the worker
    offline,  // the connection is lost; the worker reconnects at retry_at_ms
    gpu_lost,
    refused,  // refused by the hub (token, version, removed); the worker does not retry by itself
    failed,   // this device cannot serve: no adapter, self-test failed
    stopped,
};
const char* worker_phase_name(WorkerPhase phase);

// Counters of a worker that holds more experts than it has slots. They count experts; `loads`
// counts groups.
struct SlotCounters {
    std::uint64_t asked = 0;       // experts requested by groups, counted when a group arrives
    std::uint64_t resident = 0;    // requested experts that had a slot (hits)
    std::uint64_t late = 0;        // requested experts whose copy for a hint was still in flight
    std::uint64_t loads = 0;       // groups that waited for experts
    double load_ms = 0;            // total time that these groups waited
    std::uint64_t prefetched = 0;  // experts brought to a slot for a hint
    std::uint64_t wasted = 0;      // experts brought for a hint and evicted without use
    std::uint64_t brought = 0;     // experts brought to a slot after the download
    std::uint64_t by_gpu = 0;      // experts that the GPU itself copied to a slot
    // Hits that one of the two newest hints had predicted, and the sum of the times between such a
    // hint and the group that requested its experts.
    std::uint64_t foreseen = 0;
    double lead_ms = 0;
    // Predicted experts that were dropped after the deadline of the hint.
    std::uint64_t expired = 0;
    std::uint64_t ignored = 0;  // experts predicted while hints did not pay (hint_trial.h)
};

struct WorkerStatus {
    WorkerPhase phase = WorkerPhase::starting;
    std::string detail;  // one sentence: the reason for the phase, and what the person can do
    std::uint64_t worker_id = 0;
    std::string model_name;
    // The hub's nonce to sign (the signature goes to WorkerCore::identify()); or empty.
    std::string nonce;
    std::uint32_t power_percent = power_percent_max;
    gpu::AdapterInfo adapter;
    std::string no_gpu;  // the reason why the worker fell back to the processor; or empty
    // Number of experts to hold (assigned now or later), and number of experts that the worker
    // holds.
    std::uint32_t units_assigned = 0, units_ready = 0;
    // Layers that the worker computes whole: from layers_first up to, and without, layers_end.
    std::uint32_t layers_first = 0, layers_end = 0;
    // The current download: bytes_fetched counts bytes from the network and from the cache.
    std::uint64_t bytes_to_fetch = 0, bytes_fetched = 0;
    // Bytes downloaded over the network since the worker started.
    std::uint64_t bytes_downloaded = 0;
    std::uint64_t weights_bytes = 0;
    // The limit for all memory on the GPU; device.buffer_bytes is the memory in use.
    std::uint64_t budget_bytes = 0;
    std::uint64_t groups_answered = 0, pairs_answered = 0, groups_cancelled = 0, errors = 0;
    std::uint64_t frames_received = 0, frames_sent = 0;
    std::uint64_t bytes_received = 0, bytes_sent = 0;  // WebSocket
    std::uint64_t self_test_rounds = 0;
    double self_test_nrmse = 0;
    double round_ms_p50 = 0, round_ms_p99 = 0;  // time of a round, from frame in to frame out
    double gpu_us_p50 = 0;  // GPU time of a round, by the GPU's own clock; 0: no clock
    SpeedProfile speed;     // the GPU's speed, as sent in HELLO
    double retry_at_ms = 0;
    std::uint32_t units_resident = 0;  // number of held experts that have a slot
    SlotCounters slots;
    gpu::DeviceCounters device;
    // The slot counters at the time when serving began.
    std::uint64_t rounds_at_warm = 0;
    gpu::DeviceCounters device_at_warm;
};

// Chooses the expert to evict when a worker holds more experts than it has slots: the least
// recently used (lru) or the least frequently used (lfu). `cacheless` evicts each expert after its
// use.
enum class EvictionPolicy { lru, lfu, cacheless };

// The kind of hardware that computes. `automatic`: the GPU, or the processor if there is no GPU
// that can serve.
enum class WorkerBackend { gpu, cpu, automatic };

class SpanHost;
struct SpanContext;

struct WorkerOptions {
    std::string token, nickname, client, worker_key;
    // Limit of memory for weights and for calls in flight.
    std::uint64_t budget_bytes = 512ull << 20;
    // Bytes of experts to hold, if that is more than the budget has slots for. The platform keeps
    // the experts without a slot, and they are brought when they are requested. 0: the worker holds
    // only experts that have a slot.
    std::uint64_t keep_bytes = 0;
    EvictionPolicy eviction = EvictionPolicy::lru;
    // Percent of the calls that the hub sends to this worker.
    std::uint32_t power_percent = power_percent_max;
    WorkerBackend backend = WorkerBackend::gpu;
    // Used on the processor only: its arithmetic, and its number of threads (0: one per core).
    WorkerArithmetic arithmetic = WorkerArithmetic::int8;
    std::uint32_t threads = 1;
    // The measurement of the GPU's speed, made once before the first HELLO, which reports the
    // result (SpeedProfile). nullopt: the measurement of TimingOptions::at_start().
    std::optional<TimingOptions> timing;
    // Makes the part that computes spans (web-worker/span_host.h). Empty: this worker computes
    // experts only.
    std::function<std::unique_ptr<SpanHost>(SpanContext context)> make_spans;
    // Limit of memory for spans beside the limit that follows from the budget.
    std::uint64_t spans_bytes_max = std::numeric_limits<std::uint64_t>::max();
};

class Platform {
  public:
    virtual ~Platform() = default;

    // Controls the socket. connect() first checks that the hub is the known one. After connect(),
    // exactly one of WorkerCore's on_open(), on_closed() and on_other_hub() is called. There is one
    // connection at a time.
    virtual void connect() = 0;
    // Reports the connected hub of a fleet (its address is empty), and the other hubs that the
    // worker may join when this one is gone. hub_choice.h orders them.
    virtual void knows_hubs(const HubPlace&, const std::vector<HubPlace>&) {}
    // Called once, when the worker has joined its first hub of a fleet. If another hub is clearly
    // better, the platform calls on_better_hub(), inside this call or later.
    virtual void choose_hub() {}
    // The next connect() goes to `hub`. Returns false if this platform cannot reach it.
    virtual bool move_to(const HubPlace&) { return false; }
    virtual void send(ByteView frame) = 0;  // `frame` is copied before send() returns
    virtual void close(std::uint16_t code, std::string_view reason) = 0;

    // Fetches the blob named by `hash` from the cache or the hub, and verifies it. A corrupted
    // cached blob is dropped and fetched again. A corrupted download is retried; after that `done`
    // gets an error. `progress(bytes, from_network)` reports that `bytes` more have arrived from
    // the network or the cache. The platform runs a few fetches at once, and queues the rest. An
    // urgent fetch, which a call waits for, is queued in front of other fetches.
    virtual void fetch_blob(const Sha256& hash, std::uint64_t size_bytes, bool urgent,
                            std::function<void(std::uint64_t bytes, bool from_network)> progress,
                            std::function<void(Result<Bytes>)> done) = 0;
    // Lets fetch_blob() take the blob of a layer (protocol/span_layer.h), which no manifest names.
    // `done` gets false if the hub did not sign it; it may be called inside this call.
    virtual void accept_layer(const Sha256&, const Signature&, std::function<void(bool)> done) {
        done(false);
    }
    virtual void cancel_fetches() = 0;  // cancels all fetches; their `done` is not called
    // Sets the model, by name or hash: blobs that are fetched from this call on belong to it. The
    // platform evicts the blobs of other models first.
    virtual void serves_model(std::string_view) {}
    // Returns the blob with this hash if it is in this machine's memory, already verified. Empty if
    // it is not in memory; always empty in a tab.
    virtual HeldBlob find_blob(const Sha256&) { return {}; }

    virtual double now_ms() = 0;  // monotonic
    virtual std::uint64_t set_timer(double delay_ms,
                                    std::function<void()> function) = 0;  // one shot
    virtual void clear_timer(std::uint64_t timer) = 0;
    virtual double random() = 0;  // random, in [0, 1), for the jitter of reconnects

    // Creates a GPU device when the worker starts or its device was lost.
    virtual void create_device(std::function<void(Result<std::unique_ptr<gpu::Device>>)> done) = 0;
    // Shows the status. The caller limits the rate: on change, at most 10 per second.
    virtual void report(const WorkerStatus& status) = 0;
};

}  // namespace moex
