// INT4 experts in integer arithmetic: weights in panels, packed when a layer first asks for an
// expert, and a round's products over them. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/matmul.h"
#include "hub/model/package/package.h"

namespace moex {

// The rows of one expert within a round: slots [first, first + count).
struct ExpertRows {
    std::uint32_t expert = 0, first = 0, count = 0;
};

class PackedExperts {
  public:
    // `package` has INT4 experts.
    PackedExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads);

    // y [slots, hidden_size] = expert(x[row_of_slot[slot]]), without gates. Slots
    // are numbered through all of `experts`. An error is the package's.
    Status run(std::uint32_t layer, std::span<const ExpertRows> experts, RowsIn x,
               std::span<const std::uint32_t> row_of_slot, float* y);

  private:
    struct Unpacked {
        std::uint32_t expert = 0;
        Int4Matrix up, down;
    };
    Status pack_missing(std::uint32_t layer, std::span<const ExpertRows> experts);
    void pack(std::uint32_t layer, std::span<const Unpacked> experts);
    std::byte* at(std::uint32_t layer, std::uint32_t expert) const;
    std::atomic<bool>& ready(std::uint32_t layer, std::uint32_t expert) const;

    std::shared_ptr<const ModelPackage> package_;
    ThreadPool& threads_;
    PackedMatrix up_, down_;  // shapes, without data; an expert is up and then down
    std::mutex packing_;
    std::vector<AlignedBuffer> layers_;
    std::unique_ptr<std::atomic<bool>[]> ready_;  // [num_layers, num_experts]
};

}  // namespace moex
