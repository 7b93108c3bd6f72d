// Implements Compute over a gpu::Device: experts in arenas (expert_store.h), rounds by kernels
// (expert_runner.h).
#pragma once

#include "web-worker/compute.h"
#include "web-worker/expert_runner.h"

namespace moex {

class GpuCompute : public Compute {
  public:
    explicit GpuCompute(std::unique_ptr<gpu::Device> device) : device_(std::move(device)) {}

    const gpu::AdapterInfo& adapter() const override { return device_->adapter(); }
    gpu::DeviceCounters counters() const override { return device_->counters(); }
    gpu::Device* gpu() override { return device_.get(); }

    WorkerArithmetic arithmetic() const override { return WorkerArithmetic::exact; }
    bool computes(WorkerArithmetic arithmetic) const override {
        return arithmetic == WorkerArithmetic::exact;
    }
    const char* kernel_version() const override { return "int4-2"; }

    void on_lost(std::function<void(gpu::Loss)> handler) override {
        device_->on_lost(std::move(handler));
    }
    void self_test(ExpertForm form, std::function<void(Result<double>)> done) override {
        ExpertRunner::self_test(*device_, form, std::move(done));
    }

    std::uint64_t weights_bytes_max() const override {
        return ExpertStore::bytes_max(device_->adapter());
    }
    Parts make(const Welcome& welcome, std::uint64_t weights_bytes,
               std::uint64_t calls_bytes) override {
        auto store = std::make_unique<ExpertStore>(
            *device_, welcome.expert_blob_bytes, weights_bytes,
            ArenaOptions{.layer_units = welcome.limits.num_experts});
        auto runner = std::make_unique<ExpertRunner>(
            *device_, *store, ExpertRunner::options_for(welcome, calls_bytes, device_->adapter()));
        return {std::move(store), std::move(runner)};
    }

  private:
    std::unique_ptr<gpu::Device> device_;
};

}  // namespace moex
