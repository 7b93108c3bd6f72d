// A free list of buffers for workers' answers. Answers take some megabytes per layer, and to get
// new pages from the system for each answer costs more than to process it. Any thread may call
// take() and give().
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace moex {

class AnswerMemory {
  public:
    // Returns the buffer that was given back most recently, because it is still in the CPU's cache.
    // Its size may be anything and its contents are undefined.
    std::vector<float> take() {
        const std::lock_guard lock(mutex_);
        if (kept_.empty()) return {};

        std::vector<float> memory = std::move(kept_.back());
        kept_.pop_back();
        bytes_ -= bytes_of(memory);
        return memory;
    }

    void give(std::vector<float> memory) {
        const std::size_t bytes = bytes_of(memory);
        const std::lock_guard lock(mutex_);
        if (bytes == 0 || bytes_ + bytes > bytes_max) return;

        bytes_ += bytes;
        kept_.push_back(std::move(memory));
    }

    std::size_t bytes() const {
        const std::lock_guard lock(mutex_);
        return bytes_;
    }
    static constexpr std::size_t bytes_max = 32 << 20;

  private:
    static std::size_t bytes_of(const std::vector<float>& memory) {
        return memory.capacity() * sizeof(float);
    }

    mutable std::mutex mutex_;
    std::vector<std::vector<float>> kept_;
    std::size_t bytes_ = 0;
};

}  // namespace moex
