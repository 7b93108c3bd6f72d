// The opened hardware that a worker computes on: a GPU (gpu_compute.h) or the processor
// (cpu/cpu_compute.h). A Compute makes the store and the runner of a model; store and runner must
// be destroyed before the Compute.
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
    // The GPU device; null if the worker computes on the processor.
    virtual gpu::Device* gpu() { return nullptr; }

    // The arithmetic of this hardware's answers, unless WELCOME asks for another one.
    virtual WorkerArithmetic arithmetic() const = 0;
    virtual bool computes(WorkerArithmetic arithmetic) const = 0;
    virtual const char* kernel_version() const = 0;

    // `handler` is called at most once, when the contents of the GPU's memory are lost.
    virtual void on_lost(std::function<void(gpu::Loss)> handler) = 0;
    // Computes the known answers of experts of this form (known_answers.h). `done` gets the largest
    // normalised RMS error.
    virtual void self_test(ExpertForm form, std::function<void(Result<double>)> done) = 0;

    // The most bytes of weights that any store on this hardware holds.
    virtual std::uint64_t weights_bytes_max() const = 0;
    struct Parts {
        std::unique_ptr<UnitStore> store;
        std::unique_ptr<GroupRunner> runner;  // over the store
    };
    // Makes the parts for the model that `welcome` describes, with at most `weights_bytes` of
    // experts and `calls_bytes` of buffers for calls.
    virtual Parts make(const Welcome& welcome, std::uint64_t weights_bytes,
                       std::uint64_t calls_bytes) = 0;
};

// Returns the arithmetic of the answers on a connection: WELCOME's choice, else that of `compute`.
inline WorkerArithmetic arithmetic_of(const Welcome& welcome, const Compute& compute) {
    return welcome.arithmetic.value_or(compute.arithmetic());
}

}  // namespace moex
