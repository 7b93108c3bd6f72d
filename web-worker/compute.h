// What a worker computes on, opened: a GPU (gpu_compute.h) or the processor (cpu/cpu_compute.h).
// Makes a model's store and runner, which must be gone before it is.
#pragma once

#include <functional>
#include <memory>

#include "web-worker/gpu/device.h"
#include "web-worker/group_runner.h"
#include "web-worker/unit_store.h"

namespace moex {

class Compute {
  public:
    virtual ~Compute() = default;

    virtual const gpu::AdapterInfo& adapter() const = 0;
    virtual gpu::DeviceCounters counters() const = 0;
    // null on the processor
    virtual gpu::Device* gpu() { return nullptr; }

    // how it answers unless WELCOME asks otherwise
    virtual WorkerArithmetic arithmetic() const = 0;
    virtual bool computes(WorkerArithmetic arithmetic) const = 0;
    virtual const char* kernel_version() const = 0;

    // Called at most once, when what lies on it is gone.
    virtual void on_lost(std::function<void(gpu::Loss)> handler) = 0;
    // Known answers. The value is the largest normalised RMS error.
    virtual void self_test(std::function<void(Result<double>)> done) = 0;

    // What any store holds at most.
    virtual std::uint64_t weights_bytes_max() const = 0;
    struct Parts {
        std::unique_ptr<UnitStore> store;
        std::unique_ptr<GroupRunner> runner;  // over the store
    };
    // For what `welcome` tells: at most `weights_bytes` of experts, `calls_bytes` for calls.
    virtual Parts make(const Welcome& welcome, std::uint64_t weights_bytes,
                       std::uint64_t calls_bytes) = 0;
};

// In what answers on a connection are computed.
inline WorkerArithmetic arithmetic_of(const Welcome& welcome, const Compute& compute) {
    return welcome.arithmetic.value_or(compute.arithmetic());
}

}  // namespace moex
