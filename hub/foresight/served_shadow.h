// A shadow that is served: the same model with other experts goes through each token on threads of
// its own while the model waits for its workers, and what its routers say of the layers to come are
// hints. It begins with the model's token and the model's keys and values of all positions before,
// at every token: nothing of it outlives one. It changes no bit of an answer.
//
// A hint goes out when its layer is `lead` MoE layers ahead, not before: what is loaded too early
// takes the room of what is asked sooner. Steps of many rows are not followed, and of a text whose
// keys are still on their way none: hints are then another's, as they are where the shadow is late.
//
// foresee() is the engine's thread's; `tell` is called from the shadow's own and must not block.
// Source: "OD-MoE: On-Demand Expert Loading for Cacheless Edge-Distributed MoE Inference", 3.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/engine/expert_foresight.h"

namespace moex {

struct ServedShadowOptions {
    std::uint32_t per_row = 1;       // experts that are named for a row and layer
    std::uint32_t lead = 2;          // MoE layers, at least 1
    KvCacheOptions kv;               // as the engine's, but for the number of pages
    std::uint32_t copied_max = 512;  // positions of texts, while one layer is awaited
};

struct ServedShadowCounters {
    std::uint64_t steps = 0;                    // of the model, that the shadow began
    std::uint64_t steps_cut = 0;                // of these: the model was through before
    std::uint64_t layers = 0, layers_late = 0;  // named; of them: the model had been there already
};

class ServedShadow : public ExpertForesight {
  public:
    using Tell = std::function<void(std::span<const ExpertHint>)>;
    static constexpr std::uint32_t rows_max = 16;       // of a step that is followed
    static constexpr std::uint32_t sequences_max = 16;  // whose keys are kept

    // `decoder` is a twin of the one that asks, on threads of its own; `experts` are the shadow's,
    // `otherwise` names what the shadow does not, null: nobody. Both outlive it.
    ServedShadow(std::unique_ptr<Decoder> decoder, ExpertBackend& experts,
                 ExpertForesight* otherwise, ServedShadowOptions options, Tell tell);
    ~ServedShadow() override;  // its thread has ended

    std::span<const ExpertHint> foresee(const RouteView& seen) override;
    ServedShadowCounters counters() const;
    // Until what it began has ended, by itself or cut. Any thread.
    void wait_until_idle() const;

  private:
    struct Follower {
        KvCache::Sequence kv;
        std::uint32_t aligned = 0;     // so many positions are the model's
        std::uint32_t first_page = 0;  // of the model's text
        std::uint64_t seen_at = 0;     // step
    };
    struct Layer {  // that the shadow has named
        std::vector<ExpertHint> hints;
        bool is_new = false;  // not told yet
    };
    void take_window(std::vector<ExpertHint>& hints);
    bool enter_layer(const RouteView& seen, std::uint32_t index);
    bool is_behind(std::uint32_t index) const;
    void lose_alignment(const RouteView& seen);
    bool align(const RouteView& seen);
    bool align_one(Follower& follower, const KvCache::Sequence& from, std::uint32_t position,
                   std::uint32_t num_rows, std::uint32_t& may_copy);
    void drop_oldest();
    void run();
    void on_route(const RouteView& seen, std::uint64_t step);

    std::unique_ptr<Decoder> decoder_;
    ExpertBackend& experts_;
    ExpertForesight* otherwise_;
    const ServedShadowOptions options_;
    const Tell tell_;
    std::vector<std::uint32_t> index_of_layer_;  // among the MoE layers

    // The engine's thread's, and while busy_ the shadow's.
    KvCache cache_;
    std::map<const KvCache::Sequence*, Follower> followers_;
    std::vector<TokenId> tokens_;
    std::vector<StepRows> batch_;
    std::vector<ExpertHint> hints_;  // the engine's thread's
    // The shadow's thread's.
    std::vector<ExpertHint> named_, told_;
    std::vector<std::uint16_t> order_;

    mutable std::mutex mutex_;  // of what follows
    mutable std::condition_variable wake_, idle_;
    bool stopping_ = false, busy_ = false;
    std::uint64_t step_ = 0, begun_ = 0;  // of the model, counted; that the shadow was given
    std::uint32_t layer_ = 0;             // where the model is
    std::stop_source stop_;               // of the shadow's step
    std::vector<Layer> ahead_;            // [moe layers] of the model's step
    ServedShadowCounters counters_;
    std::thread thread_;  // last
};

}  // namespace moex
