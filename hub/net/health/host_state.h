// What the operator must act on before requests fail: the end of the TLS certificate, and the disk
// of the state folder. The judgements are pure; the board holds the last state for any thread.
#pragma once

#include <cstdint>
#include <mutex>

namespace moex::net {

struct HostState {
    std::int64_t certificate_end_s = 0;  // Unix time; 0: the hub serves without a certificate
    std::uint64_t state_free_bytes = 0;  // free space on the disk of the state folder
    bool state_writes_fail = false;      // the last write of counts to the state folder failed
};

// The stages of a certificate's last 30 days, in the order in which it reaches them.
enum class CertificateStage { good, month, week, day, expired };
CertificateStage certificate_stage(const HostState& state, std::int64_t now_s);
// True if the state folder cannot be written, or soon cannot be.
bool is_disk_full(const HostState& state);

// Decides when the stage of the certificate is logged: when it changes, and once a day.
class CertificateReminder {
  public:
    bool is_due(CertificateStage stage, std::int64_t now_s);

  private:
    CertificateStage stage_ = CertificateStage::good;
    std::int64_t said_s_ = 0;
};

class HostBoard {
  public:
    void post(const HostState& state) {
        const std::lock_guard lock(mutex_);
        state_ = state;
    }
    HostState read() const {
        const std::lock_guard lock(mutex_);
        return state_;
    }

  private:
    mutable std::mutex mutex_;
    HostState state_;
};

}  // namespace moex::net
