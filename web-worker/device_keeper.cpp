#include "web-worker/device_keeper.h"

#include <algorithm>
#include <cmath>

#include "web-worker/cpu/cpu_compute.h"
#include "web-worker/gpu_compute.h"

namespace moex {
namespace {
// The largest error of a good device: sums in f32 have errors below 1e-6. A device with larger
// errors computes wrongly; it is not just imprecise.
constexpr double self_test_nrmse_max = 1e-5;
Error wrong_results(double nrmse) {
    return {
        ErrorCode::unsupported,
        text("This GPU computes wrong results (error ", nrmse, ", at most ", self_test_nrmse_max,
             " is allowed). A driver update may mend that; until then it does not serve.")};
}

constexpr std::uint32_t faults_max = 6;
constexpr double fault_forgotten_ms = 60000;  // time of service
constexpr double reopen_ms_min = 500, reopen_ms_max = 30000;
}  // namespace

void DeviceKeeper::open() {
    reopening_ = tested_ = false;
    if (on_processor_) {
        platform_.set_timer(0, [this, at = ++generation_, life = life_.watch()] {
            if (!life.alive() || closed_ || at != generation_) return;
            opened(std::make_unique<CpuCompute>(platform_, options_));
        });
        return;
    }

    platform_.create_device([this, at = ++generation_,
                             life = life_.watch()](Result<std::unique_ptr<gpu::Device>> made) {
        if (!life.alive() || closed_ || at != generation_) return;
        if (!made.ok()) {
            // A browser offers no GPU adapter for a while after its GPU process has crashed.
            if (devices_opened_ > 0) return reopen(made.error().message);
            return give_up(made.error().message);
        }
        opened(std::make_unique<GpuCompute>(std::move(*made)));
    });
}

void DeviceKeeper::opened(std::unique_ptr<Compute> compute) {
    ++devices_opened_;
    compute_ = std::move(compute);

    report_.status.adapter = compute_->adapter();
    compute_->on_lost([this, at = generation_, life = life_.watch()](gpu::Loss loss) {
        if (life.alive() && at == generation_) lost(loss);
    });

    events_.opened();
    test();
}

// Gives up the GPU: falls back to the processor if the worker may choose its hardware; otherwise
// the worker fails.
void DeviceKeeper::give_up(std::string reason) {
    if (options_.backend != WorkerBackend::automatic || on_processor_)
        return events_.failed(std::move(reason));
    on_processor_ = true;
    faults_ = 0;
    report_.status.no_gpu = std::move(reason);
    report_.enter(WorkerPhase::starting);
    reopen_after(0);
}

void DeviceKeeper::test() {
    test_form(ExpertForm::plain, [this](Status tested) {
        if (tested.ok()) return measure();
        if (tested.error().code == ErrorCode::device_lost)
            return lost(gpu::loss_of(tested.error()));
        give_up(tested.error().message);
    });
}

void DeviceKeeper::test_form(ExpertForm form, std::function<void(Status)> done) {
    compute_->self_test(form, [this, done = std::move(done), at = generation_,
                               life = life_.watch()](Result<double> nrmse) {
        if (!life.alive() || closed_ || at != generation_ || reopening_) return;

        if (!nrmse.ok() && nrmse.error().code == ErrorCode::device_lost) return done(nrmse.error());
        if (!nrmse.ok())
            return done(
                Error{ErrorCode::unsupported,
                      text("This GPU cannot run the expert kernels: ", nrmse.error().message)});

        ++report_.status.self_test_rounds;
        report_.status.self_test_nrmse = *nrmse;
        if (!(*nrmse <= self_test_nrmse_max)) return done(wrong_results(*nrmse));
        done({});
    });
}

// Measures the GPU's speed. A speed that cannot be measured stays unknown: the known answers have
// already decided that this GPU may serve.
void DeviceKeeper::measure() {
    gpu::Device* gpu = compute_->gpu();
    if (gpu == nullptr || std::exchange(measured_, true)) return serve();
    const auto timing = options_.timing
                            ? options_.timing
                            : TimingOptions::at_start(gpu->adapter(), report_.status.budget_bytes);
    if (!timing) return serve();

    timing_ = std::make_unique<KernelTiming>(*gpu, *timing,
                                             [this] { return 1e3 * platform_.now_ms(); });
    timing_->start(nullptr, [this, at = generation_, life = life_.watch()](Status) {
        // A timer destroys the timing object, since it must not be destroyed inside its own
        // callback.
        platform_.set_timer(0, [this, at, life] {
            if (!life.alive() || closed_ || at != generation_ || reopening_) return;
            report_.status.speed = timing_->profile();
            timing_.reset();
            serve();
        });
    });
}

void DeviceKeeper::serve() {
    tested_ = true;
    ready_at_ms_ = platform_.now_ms();
    events_.ready();
}

void DeviceKeeper::lost(const gpu::Loss& loss) {
    if (closed_ || reopening_) return;
    if (tested_ && platform_.now_ms() - ready_at_ms_ >= fault_forgotten_ms) faults_ = 0;
    events_.lost(loss);
}

void DeviceKeeper::reopen(const std::string& reason) {
    const std::string shown = reason.substr(0, 200);
    if (++faults_ > faults_max)
        return give_up(text("This GPU fails again and again (", shown, "); it was opened anew ",
                            faults_max,
                            " times. A restart or a newer graphics driver may mend that."));

    report_.enter(WorkerPhase::gpu_lost,
                  text("The GPU was lost (", shown, "). Starting again",
                       faults_ > 1 ? text(", try ", faults_, " of ", faults_max) : "", "."));

    reopen_after(std::min(reopen_ms_max, reopen_ms_min * std::pow(2.0, faults_)) *
                 (0.5 + platform_.random() / 2));
}

void DeviceKeeper::reopen_smaller(const std::string& reason, std::uint64_t budget_bytes) {
    report_.enter(WorkerPhase::gpu_lost,
                  text("The GPU was lost (", reason.substr(0, 200),
                       "). Starting again with at most ", budget_bytes / 1'000'000, " MB."));
    reopen_after(reopen_ms_min * (1 + platform_.random()));
}

void DeviceKeeper::reopen_after(double delay_ms) {
    reopening_ = true;
    if (retry_timer_ != 0) platform_.clear_timer(retry_timer_);

    // A timer destroys the device, since it must not be destroyed inside its own callback.
    retry_timer_ = platform_.set_timer(delay_ms, [this] {
        retry_timer_ = 0;
        ++generation_;
        timing_.reset();
        compute_.reset();
        open();
    });
}

void DeviceKeeper::close() {
    closed_ = true;
    timing_.reset();
    if (retry_timer_ != 0) platform_.clear_timer(std::exchange(retry_timer_, 0));
}

}  // namespace moex
