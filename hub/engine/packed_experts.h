// Experts of 4 bits (INT4 or MXFP4) in integer arithmetic: weights in panels, and the products of a
// round over them. An expert is packed when a layer first requests it, or earlier on a background
// thread. Once an expert is packed, its mapped file pages are released. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "hub/base/thread_pool.h"
#include "hub/engine/kernels/expert_round.h"
#include "hub/model/package/package.h"

namespace moex {

// The rows of one expert within a round: they have the slots [first, first + count).
struct ExpertRows {
    std::uint32_t expert = 0, first = 0, count = 0;
};

class PackedExperts {
  public:
    // The experts of `package` must have codes (has_codes()).
    PackedExperts(std::shared_ptr<const ModelPackage> package, ThreadPool& threads);
    ~PackedExperts();

    // Packs all experts that no round has requested yet, on all compute threads while no round
    // runs. A round that needs unpacked experts packs them itself. Must be called only once. `done`
    // is called on a thread of this object when all experts are packed; it is not called if packing
    // was stopped or a blob could not be read. `layers` has a value for each layer, 0 for those
    // that are left out; empty: none is.
    void pack_in_background(std::function<void()> done, std::vector<std::uint8_t> layers = {});
    // Computes y[slot] = expert(x[row_of_slot[slot]]) without gate weights; y is [num_slots,
    // hidden_size]. Slots are numbered across all `experts`. An error means that the package could
    // not be read.
    Status run(std::uint32_t layer, std::span<const ExpertRows> experts, RowsIn x,
               std::span<const std::uint32_t> row_of_slot, float* y);

  private:
    struct RunningRound;
    struct Unpacked {
        std::uint32_t expert = 0;
        Int4Matrix up, down;
    };
    Result<Unpacked> find(std::uint32_t layer, std::uint32_t expert) const;
    Status pack_missing(std::uint32_t layer, std::span<const ExpertRows> experts);
    void pack(std::uint32_t layer, std::span<const Unpacked> experts);
    bool pack_ahead(std::uint32_t layer, std::uint32_t expert);
    Status add_extras(std::uint32_t layer, std::uint32_t expert, PackedExpert& out) const;
    void pack_all(const std::function<void()>& done, const std::vector<std::uint8_t>& layers);
    std::byte* at(std::uint32_t layer, std::uint32_t expert) const;
    std::atomic<bool>& ready(std::uint32_t layer, std::uint32_t expert) const;

    std::shared_ptr<const ModelPackage> package_;
    ThreadPool& threads_;
    // shapes of an expert's matrices, without data; memory holds up, then down
    PackedMatrix up_, down_;
    std::mutex packing_;
    std::vector<AlignedBuffer> layers_;
    std::unique_ptr<std::atomic<bool>[]> ready_;  // [num_layers, num_experts]

    std::atomic<std::uint32_t> rounds_running_{0};
    std::atomic<std::uint64_t> rounds_{0};  // rounds that began
    std::uint64_t rounds_seen_ = 0;  // value of rounds_ when the background thread last checked it
    bool stopping_ = false;          // guarded by packing_
    std::condition_variable stop_;
    std::thread background_;
};

}  // namespace moex
