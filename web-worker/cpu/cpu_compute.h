// Implements Compute on this machine's processor, with the hub's own kernels (hub/engine/kernels).
#pragma once

#include "web-worker/compute.h"
#include "web-worker/cpu/cpu_runner.h"

namespace moex {

class CpuCompute : public Compute {
  public:
    CpuCompute(Platform& platform, const WorkerOptions& options);

    const gpu::AdapterInfo& adapter() const override { return adapter_; }
    gpu::DeviceCounters counters() const override { return {}; }

    WorkerArithmetic arithmetic() const override { return arithmetic_; }
    bool computes(WorkerArithmetic) const override { return true; }
    const char* kernel_version() const override { return "cpu-1"; }

    void on_lost(std::function<void(gpu::Loss)>) override {}  // a processor is never lost
    // Computes a small expert in both arithmetics. The int8 answers must have the bits of a
    // reference in plain loops; the exact answers are compared with a reference in double.
    void self_test(ExpertForm form, std::function<void(Result<double>)> done) override;

    std::uint64_t weights_bytes_max() const override { return adapter_.max_buffer_bytes; }
    Parts make(const Welcome& welcome, std::uint64_t weights_bytes,
               std::uint64_t calls_bytes) override;

  private:
    Platform& platform_;
    WorkerArithmetic arithmetic_;
    ThreadPool threads_;
    gpu::AdapterInfo adapter_;
    LifeGuard life_;
};

}  // namespace moex
