// A shadow that is served: a copy of the model with cheaper experts, which runs ahead of the model
// and predicts its routes. The shadow has its own threads. It steps through each token while the
// model waits for its workers, and the choices of the shadow's routers become hints for the layers
// that the model has not reached. The shadow changes no bit of an answer.
//
//   time ->        step n                                  step n+1
//   model          | layer 0 | layer 1 | ... | layer L |   | layer 0 | layer 1 | ...
//                  waits for workers in each layer         token t(n+1) is known here
//   shadow pass n     | 0 1 2 3 ... L |
//     known         token t(n), keys before it             (aligned with the model)
//   shadow pass n+1                   | 0 1 2 3 ... L |
//     known                           the shadow's own guess of t(n+1)
//   hints          layers 1 ... L of step n, each `lead` layers before the model is there;
//                  layers 0 ... L of step n+1, the first ones before the model begins it
//
//   The model enters step n+1 with       the shadow
//     the token that the shadow drew     keeps pass n+1, and its hints stay valid
//     another token                      drops pass n+1 and its hints, and begins anew with it
//     another token, period not due      keeps pass n+1 and its own token for now
//   The model reaches a layer before the shadow does: that hint is late and is dropped.
//   The model ends step n before pass n ends: pass n is cut.
//
// The shadow is at most one token ahead: at the end of pass n it draws its likeliest token, and
// continues with that token. It aligns with the model in two ways, each with a period. Aligned in
// tokens: when the period is due and the model's token is not the one that the shadow drew, the
// shadow begins again with the model's token. Aligned in keys: the model's rows of keys and values
// replace the shadow's own.
//
// A hint is sent when its layer is `lead` MoE layers ahead of the model and not before: an expert
// that is loaded too early takes the slot of an expert that is needed sooner. Limits: a step of
// many rows is not followed, and neither is a text whose keys are not copied yet. The fallback
// predictor gives the hints then, as it does when the shadow is late. If a step has several rows of
// a single text (drafts), it is unknown which of them the model will keep; the shadow follows these
// rows and draws no token after them.
//
// Threads: foresee() runs on the engine's thread and never waits. A pass that is no longer useful
// is asked to stop. The thread that finds the shadow idle begins the next pass. `send` is called on
// the shadow's own thread and must not block.
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

#include "hub/base/clock.h"
#include "hub/engine/decoder.h"
#include "hub/engine/expert_foresight.h"
#include "hub/foresight/shadow/shadow_keys.h"

namespace moex {

struct ServedShadowOptions {
    std::uint32_t per_row = 1;  // number of predicted experts per row and layer
    std::uint32_t lead = 2;     // a hint is sent this many MoE layers before the model; at least 1
    // false: the shadow draws no tokens, and each pass begins with the model's token
    bool draws_ahead = true;
    // tokens between alignments of tokens; 0: never aligned. Without draws_ahead it is 1
    std::uint32_t token_period = 1;
    // tokens between copies of keys; 0: only rows that the shadow has not read are copied
    std::uint32_t kv_period = 1;
    KvCacheOptions kv;  // options of the shadow's cache: the engine's, with another number of pages
    std::uint32_t copied_max = 512;  // most positions that are copied during one layer of the model
};

struct ServedShadowCounters {
    std::uint64_t steps = 0;  // steps of the model that the shadow followed
    // steps that the shadow had predicted before they began, with a pass that was kept
    std::uint64_t steps_ahead = 0;
    std::uint64_t passes_cut = 0;   // passes that were stopped before their last layer
    std::uint64_t layers = 0;       // number of layers that the shadow predicted
    std::uint64_t layers_late = 0;  // predicted layers that the model had already reached
    // tokens that the shadow drew ahead of the model and that were compared
    std::uint64_t tokens_drawn = 0;
    std::uint64_t tokens_right = 0;      // drawn tokens that were the same as the model's
    std::uint64_t positions_copied = 0;  // copied rows of keys and values
    // Delay in microseconds from the model's first MoE layer of a token to the start of the
    // shadow's pass with that token: the median over recent steps. A step that had its pass before
    // it began counts as 0.
    double departure_us = 0;
};

// Follows the steps of a decoder and sends hints for the decoder's next layers.
class ServedShadow : public ExpertForesight {
  public:
    using SendHints = std::function<void(std::span<const ExpertHint>)>;
    static constexpr std::uint32_t rows_max = 16;  // most rows of a step that the shadow follows
    // most texts that have keys in the shadow's cache
    static constexpr std::uint32_t sequences_max = 16;

    // `decoder` is a twin() of the decoder that calls foresee(), and has its own threads; `experts`
    // computes the shadow's experts. `fallback` gives hints when the shadow gives none; it may be
    // null. `experts` and `fallback` must outlive the shadow.
    ServedShadow(std::unique_ptr<Decoder> decoder, ExpertBackend& experts,
                 ExpertForesight* fallback, ServedShadowOptions options, SendHints send);
    ~ServedShadow() override;  // joins the shadow's thread

    std::span<const ExpertHint> foresee(const RouteView& seen) override;
    ServedShadowCounters counters() const;  // any thread
    // Waits until no pass of the shadow is running. May be called from any thread.
    void wait_until_idle() const;

  private:
    struct Row {
        ShadowKeys::Text text;
        TokenId token = 0;
    };
    // One pass of the shadow through all layers, which predicts one step of the model.
    struct Pass {
        std::uint64_t step = 0;   // the model's step that the pass predicts
        bool is_ahead = false;    // true if the pass began before the predicted step began
        bool is_dropped = false;  // the model drew a token that the pass did not, or was faster
        bool is_whole = false;    // true if the pass reached the last layer
        // number of tokens drawn since the pass had the model's token
        std::uint32_t tokens_unaligned = 0;
        // one row per text; empty if no tokens can be drawn after these rows
        std::vector<Row> rows;
        std::vector<TokenId> drawn;  // the token drawn after each row; empty: no token can be drawn
    };
    // The hints for one layer, as the shadow predicted them.
    struct PredictedLayer {
        std::vector<ExpertHint> hints;
        bool is_new = false;  // not sent yet
    };

    // The caller of the next five functions holds mutex_.
    void enter_step(const RouteView& seen);
    bool can_keep_pass();
    void take_window(std::vector<ExpertHint>& hints);
    void begin_pass();
    void note_departure(Duration late);
    // The caller of the next three functions must be the owner of the shadow: the shadow's thread
    // while it holds mutex_, or the engine's thread while no pass runs.
    bool plan(std::uint32_t* may_copy);
    bool plan_with_the_model(std::uint32_t* may_copy);
    bool plan_ahead(std::uint32_t* may_copy);

    bool is_followed_step(const RouteView& seen) const;
    bool needs_fallback(std::uint32_t index) const;
    std::size_t num_layers() const { return predictions_.size() / 2; }
    void run();
    void on_route(const RouteView& seen);

    std::unique_ptr<Decoder> decoder_;
    ExpertBackend& experts_;
    ExpertForesight* fallback_;
    const ServedShadowOptions options_;
    const SendHints send_;
    std::vector<std::uint32_t> index_of_layer_;  // index of each layer among the MoE layers

    // The members below belong to the shadow's thread while busy_ is true, and otherwise to the
    // engine's thread. busy_ changes only under mutex_, and ownership changes with it.
    ShadowKeys keys_;
    std::vector<TokenId> tokens_;
    std::vector<StepRows> batch_;
    // Only the engine's thread uses hints_.
    std::vector<ExpertHint> hints_;
    // Only the shadow's thread uses the members below.
    std::vector<ExpertHint> layer_hints_, outgoing_;
    std::vector<std::uint16_t> order_;  // scratch buffer of append_hints()

    // Guards the members below. Exception: the owner of an idle shadow writes pass_ without the
    // mutex.
    mutable std::mutex mutex_;
    mutable std::condition_variable wake_, idle_;
    bool stopping_ = false, busy_ = false;
    // The step and layer that the model has reached. Only the engine's thread writes step_ and
    // layer_, so it reads them without the mutex.
    std::uint64_t step_ = 0;   // number of the model's step, counted from 1
    std::uint32_t layer_ = 0;  // index of the model's layer among the MoE layers
    bool is_followed_ = false;
    std::vector<Row> rows_;
    TimePoint entered_at_{};
    // Texts that advanced in steps that the shadow did not follow, with the first position from
    // which the shadow must drop its keys.
    std::map<const KvCache::Sequence*, std::uint32_t> unfollowed_;
    Pass pass_;              // the running pass, or the previous pass if none runs
    std::stop_source stop_;  // stops pass_
    std::vector<PredictedLayer>
        predictions_;  // [2 · num_moe_layers]: layers of the model's step, then of its next step
    ServedShadowCounters counters_;
    std::vector<float> departures_us_;  // ring buffer of the delays of recent steps
    std::size_t num_departures_ = 0;
    std::thread thread_;  // declared last, so that the thread starts after all other members exist
};

}  // namespace moex
