#include "hub/net/health/host_state.h"

namespace moex::net {
namespace {

constexpr std::int64_t day_s = 86'400;
constexpr std::uint64_t free_bytes_min = 64u << 20;

}  // namespace

CertificateStage certificate_stage(const HostState& state, std::int64_t now_s) {
    if (state.certificate_end_s == 0) return CertificateStage::good;
    const std::int64_t left_s = state.certificate_end_s - now_s;
    if (left_s <= 0) return CertificateStage::expired;
    if (left_s <= day_s) return CertificateStage::day;
    if (left_s <= 7 * day_s) return CertificateStage::week;
    return left_s <= 30 * day_s ? CertificateStage::month : CertificateStage::good;
}

bool is_disk_full(const HostState& state) {
    return state.state_writes_fail || state.state_free_bytes < free_bytes_min;
}

bool CertificateReminder::is_due(CertificateStage stage, std::int64_t now_s) {
    const bool is_new = stage != stage_;
    stage_ = stage;
    if (stage == CertificateStage::good) return false;
    if (!is_new && now_s - said_s_ < day_s) return false;
    said_s_ = now_s;
    return true;
}

}  // namespace moex::net
