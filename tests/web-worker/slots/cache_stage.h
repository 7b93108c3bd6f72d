// A test stage with a worker that holds more experts than it has slots.
#pragma once

#include "tests/web-worker/stage.h"

namespace moex {

inline constexpr std::uint64_t limit_bytes = 400'000;
inline constexpr std::uint16_t num_held = 100;

struct CacheStage : Stage {
    explicit CacheStage(EvictionPolicy policy = EvictionPolicy::lru,
                        std::vector<std::string> caps = {})
        : CacheStage(limit_bytes, num_held, wide_limits, policy, caps) {}
    CacheStage(std::uint64_t limit, std::uint16_t held, const WireLimits& wire,
               EvictionPolicy policy, const std::vector<std::string>& caps = {},
               const ExpertShape& expert_shape = stage_shape)
        : Stage(limit, {.keep_bytes = held * expert_blob_layout(expert_shape).size_bytes,
                        .eviction = policy}) {
        shape = expert_shape;
        hub_caps.insert(hub_caps.end(), caps.begin(), caps.end());
        limits = wire;
        core->start();
        reported_bytes = welcome();
        assign(first_experts(held));
        run_until_phase(WorkerPhase::serving);
        run_until_shown();
        slots = status().units_resident;
    }
    void ask(std::uint16_t expert) { expect_answer(++asked, expert); }
    void hint(const std::vector<std::uint16_t>& experts, std::uint16_t deadline_ms = 0) {
        std::vector<PrefetchHint> hints;
        for (const std::uint16_t expert : experts)
            hints.push_back({.unit = {0, expert}, .deadline_ms = deadline_ms, .confidence = 200});
        give(encode_prefetch(1000, hints));
    }
    // Puts all blobs into memory that the GPU can read.
    void share_memory() {
        remembers = shares_memory = true;
        for (const ByteView piece : memory.pieces()) shared = device->share_memory(piece);
    }
    // Returns the number of slot hits since the counters `before`.
    std::uint64_t resident_since(const SlotCounters& before) const {
        return status().slots.resident - before.resident;
    }
    std::uint64_t reported_bytes = 0;
    std::uint32_t slots = 0, asked = 0;
};

inline constexpr EvictionPolicy policies[] = {EvictionPolicy::lru, EvictionPolicy::lfu,
                                              EvictionPolicy::cacheless};

}  // namespace moex
