#include "web-worker/device_keeper.h"

#include "web-worker/expert_runner.h"

namespace moex {
namespace {
constexpr double self_test_nrmse_max = 1e-5;     // f32 sums come within 1e-6; a device beyond this is wrong, not imprecise
constexpr std::uint32_t reopen_failures_max = 6; // of a GPU that was there before
}  // namespace

void DeviceKeeper::open() {
    reopening_ = tested_ = false;
    platform_.create_device([this, at = ++generation_, guard = std::weak_ptr<int>(alive_)](Result<std::unique_ptr<gpu::Device>> made) {
        if (guard.expired() || closed_ || at != generation_) return;
        if (!made.ok()) {
            // A browser whose GPU process has just died has no adapter for a while.
            if (devices_opened_ > 0 && ++reopen_failures_ <= reopen_failures_max) return reopen_later(made.error().message);
            return events_.failed(made.error().message);
        }
        ++devices_opened_;
        device_ = std::move(*made);
        report_.status.adapter = device_->adapter();
        device_->on_lost([this, at, guard](std::string reason) {
            if (!guard.expired() && at == generation_) lost(reason);
        });
        events_.opened();
        test();
    });
}

void DeviceKeeper::test() {
    ExpertRunner::self_test(*device_, [this, at = generation_, guard = std::weak_ptr<int>(alive_)](Result<double> nrmse) {
        if (guard.expired() || closed_ || at != generation_ || reopening_) return;
        if (!nrmse.ok() && nrmse.error().code == ErrorCode::device_lost) return lost(nrmse.error().message);
        if (!nrmse.ok()) return events_.failed(text("This GPU cannot run the expert kernels: ", nrmse.error().message));
        ++report_.status.self_test_rounds;
        report_.status.self_test_nrmse = *nrmse;
        if (!(*nrmse <= self_test_nrmse_max))
            return events_.failed(text("This GPU computes wrong results (error ", *nrmse, ", at most ", self_test_nrmse_max,
                                       " is allowed). A driver update may mend that; until then it does not serve."));
        reopen_failures_ = 0;
        tested_ = true;
        events_.ready();
    });
}

void DeviceKeeper::lost(const std::string& reason) {
    if (!closed_ && !reopening_) events_.lost(reason);
}

void DeviceKeeper::reopen_later(const std::string& reason, const std::string& more) {
    reopening_ = true;
    report_.enter(WorkerPhase::gpu_lost, text("The GPU was lost (", reason.substr(0, 200), "). Starting again.", more));
    if (retry_timer_ != 0) platform_.clear_timer(retry_timer_);
    // Not from inside the device's own callback.
    retry_timer_ = platform_.set_timer((500 + 1000 * platform_.random()) * (1 + reopen_failures_), [this] {
        retry_timer_ = 0;
        ++generation_;
        device_.reset();
        open();
    });
}

void DeviceKeeper::close() {
    closed_ = true;
    if (retry_timer_ != 0) platform_.clear_timer(std::exchange(retry_timer_, 0));
}

}  // namespace moex
