// A bound on the bytes that all connections of a process hold together.
#pragma once

#include <atomic>
#include <cstdint>

namespace moex::net {

// Limits the bytes that all connections together may hold of one resource. Thread-safe.
class ByteBudget {
  public:
    explicit ByteBudget(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}
    // Reserves `bytes` bytes. Returns false, and reserves nothing, if the limit would be exceeded.
    bool take(std::uint64_t bytes) {
        if (held_.fetch_add(bytes) + bytes <= bytes_max_) return true;
        held_ -= bytes;
        return false;
    }
    void give(std::uint64_t bytes) { held_ -= bytes; }
    std::uint64_t held() const { return held_; }

  private:
    const std::uint64_t bytes_max_;
    std::atomic<std::uint64_t> held_{0};
};

}  // namespace moex::net
