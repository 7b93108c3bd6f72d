#include "hub/net/host_watch.h"

#include <sys/statvfs.h>

#include <ctime>

#include "hub/base/heap.h"
#include "hub/base/log.h"

namespace moex::net {
namespace {

constexpr Duration look_at_host_every = 5s;
constexpr std::uint32_t return_memory_every_looks = 12;  // once a minute

std::uint64_t free_bytes(const std::filesystem::path& folder) {
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0) return 0;
    return std::uint64_t{disk.f_bavail} * disk.f_frsize;
}

void log_certificate(CertificateStage stage, std::int64_t left_s) {
    constexpr std::string_view renew = "renew it, then send SIGHUP";
    const auto hours = left_s / 3600;
    if (stage == CertificateStage::expired)
        log_error("http: the TLS certificate has expired, so that clients refuse this hub; ",
                  renew);
    else if (stage == CertificateStage::month)
        log_warn("http: the TLS certificate expires within 30 days; ", renew, kv("hours", hours));
    else
        log_error("http: the TLS certificate expires soon; ", renew, kv("hours", hours));
}

}  // namespace

void HostWatch::start() {
    asio::post(hub_.swarm_strand, [this] { tick(); });
}

void HostWatch::stop() {
    asio::post(hub_.swarm_strand, [this] {
        stopped_ = true;
        timer_.cancel();
    });
}

void HostWatch::look() {
    const HostState state{.certificate_end_s = certificate_end_s_,
                          .state_free_bytes = free_bytes(hub_.registry.directory()),
                          .state_writes_fail = hub_.registry.writes_fail()};
    hub_.host.post(state);

    const auto now_s = static_cast<std::int64_t>(std::time(nullptr));
    const CertificateStage stage = certificate_stage(state, now_s);
    if (reminder_.is_due(stage, now_s)) log_certificate(stage, state.certificate_end_s - now_s);
    if (is_disk_full(state))
        log_rarely(LogLevel::error, "hub: the disk of the state folder is full or nearly full",
                   kv("state", hub_.registry.directory().string()));
}

void HostWatch::tick() {
    if (stopped_) return;
    const bool is_minute = ++looks_ % return_memory_every_looks == 0;
    asio::post(hub_.disk_thread, [this, is_minute] {
        look();
        if (is_minute) return_free_memory();
    });
    timer_.expires_after(look_at_host_every);
    timer_.async_wait([this](NetError error) {
        if (!error) tick();
    });
}

}  // namespace moex::net
