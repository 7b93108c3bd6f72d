// A shadow that is served: the same model with other experts goes through each token on threads of
// its own while the model waits for its workers, and what its routers say of the layers to come are
// hints. Through with a token, it takes its own likeliest for the next and goes on with that, so
// that the next token's first layer has its name before the model is there. It is one token ahead
// at most. It changes no bit of an answer.
//
// Aligned in tokens: when the model's token comes, the shadow stays where it is if it has drawn the
// same; if not, what it did since is dropped, and it begins with the model's. Aligned in keys: the
// model's rows of the positions before take the place of its own. Either has a period.
//
// A hint goes out when its layer is `lead` MoE layers ahead, not before: what is loaded too early
// takes the room of what is asked sooner. Steps of many rows are not followed, and of a text whose
// keys are still on their way none: hints are then another's, as they are where the shadow is late.
// Of steps with several rows of one text (drafts) nobody knows which will stay: it goes through
// these with the model and draws nothing.
//
// foresee() is the engine's thread's and waits for nothing: a pass that has lost its use is told to
// end, and whoever finds the shadow idle begins the next one. `tell` is called from the shadow's
// own thread and must not block. Source: "OD-MoE: On-Demand Expert Loading for Cacheless
// Edge-Distributed MoE Inference", 3.
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

#include "hub/base/clock.h"
#include "hub/engine/decoder.h"
#include "hub/engine/expert_foresight.h"
#include "hub/foresight/shadow/shadow_keys.h"

namespace moex {

struct ServedShadowOptions {
    std::uint32_t per_row = 1;       // experts that are named for a row and layer
    std::uint32_t lead = 2;          // MoE layers, at least 1
    bool draws_ahead = true;         // false: each token begins with the model's
    std::uint32_t token_period = 1;  // tokens; 0: never. Without draws_ahead every one
    std::uint32_t kv_period = 1;     // tokens; 0: never but for what the shadow has not read
    KvCacheOptions kv;               // as the engine's, but for the number of pages
    std::uint32_t copied_max = 512;  // positions of texts, while one layer is awaited
};

struct ServedShadowCounters {
    std::uint64_t steps = 0;                    // of the model, that the shadow went through
    std::uint64_t steps_ahead = 0;              // of these: it was there before, and stayed
    std::uint64_t passes_cut = 0;               // the model was through before, or went elsewhere
    std::uint64_t layers = 0, layers_late = 0;  // named; of them: the model had been there already
    std::uint64_t tokens_drawn = 0, tokens_right = 0;  // ahead of the model; of them: as it then
    std::uint64_t positions_copied = 0;                // keys and values
    // From a token's first MoE layer in the model to the shadow's beginning with that token, 0
    // where it was there before: the median of the last steps.
    double departure_us = 0;
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
    ServedShadowCounters counters() const;  // any thread
    // Until what it began has ended, by itself or cut. Any thread.
    void wait_until_idle() const;

  private:
    struct Row {
        ShadowKeys::Text text;
        TokenId token = 0;
    };
    // A walk through all layers with these rows.
    struct Pass {
        std::uint64_t step = 0;      // of the model, that it belongs to
        bool is_ahead = false;       // it began before that step did
        bool is_dropped = false;     // its tokens are not the model's, or the model is further
        bool is_whole = false;       // it went through
        std::uint32_t own_for = 0;   // tokens since the model's was taken
        std::vector<Row> rows;       // each of another text, where it can go on
        std::vector<TokenId> drawn;  // behind each row; empty: it cannot
    };
    struct Layer {  // that the shadow has named
        std::vector<ExpertHint> hints;
        bool is_new = false;  // not told yet
    };

    // Under the mutex.
    void enter_step(const RouteView& seen);
    bool stays_ahead();
    void take_window(std::vector<ExpertHint>& hints);
    void begin_pass();
    void note_departure(Duration late);
    // Of who has the shadow.
    bool plan(std::uint32_t* may_copy);
    bool plan_with_the_model(std::uint32_t* may_copy);
    bool plan_ahead(std::uint32_t* may_copy);

    bool is_of_the_step(const RouteView& seen) const;
    bool leaves_it_to_another(std::uint32_t index) const;
    std::size_t num_layers() const { return names_.size() / 2; }
    void run();
    void on_route(const RouteView& seen);

    std::unique_ptr<Decoder> decoder_;
    ExpertBackend& experts_;
    ExpertForesight* otherwise_;
    const ServedShadowOptions options_;
    const Tell tell_;
    std::vector<std::uint32_t> index_of_layer_;  // among the MoE layers

    // Of who has the shadow: its own thread while busy_, else the engine's, which hands it over
    // with busy_ under the mutex and gets it back so.
    ShadowKeys keys_;
    std::vector<TokenId> tokens_;
    std::vector<StepRows> batch_;
    std::vector<ExpertHint> hints_;  // the engine's thread's
    // The shadow's thread's.
    std::vector<ExpertHint> named_, told_;
    std::vector<std::uint16_t> order_;

    mutable std::mutex mutex_;  // of what follows; who has an idle shadow writes pass_ without it
    mutable std::condition_variable wake_, idle_;
    bool stopping_ = false, busy_ = false;
    // Where the model is: written by the engine's thread alone, which reads it without the mutex.
    std::uint64_t step_ = 0;  // counted
    std::uint32_t layer_ = 0;
    bool is_followed_ = false;
    std::vector<Row> rows_;
    TimePoint entered_at_{};
    std::map<const KvCache::Sequence*, std::uint32_t> lost_;  // texts that went on unfollowed
    Pass pass_;                                               // the last one
    std::stop_source stop_;                                   // of the pass
    std::vector<Layer> names_;  // [2, moe layers] of the model's step and the next
    ServedShadowCounters counters_;
    std::vector<float> departures_us_;  // of the last steps, a ring
    std::size_t num_departures_ = 0;
    std::thread thread_;  // last
};

}  // namespace moex
