// Spans: assigns ranges of whole layers to workers that can hold them, passes frames of steps on,
// and takes the answers. Which steps go through a span is decided on the engine's thread
// (hub/dispatch/span/span_client.h).
//
// A worker with room gets a range of layers that no other worker holds, as long as its memory
// permits. If every range has a holder, it gets the layers of the one with the fewest holders, as a
// standby. A standby moves to layers that have lost their only holder. A worker gets a longer span
// once it has more room, for example because others have taken over experts that it held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "hub/dispatch/core/event_context.h"
#include "hub/dispatch/span/span_board.h"

namespace moex {

class SwarmSpans : public SwarmPart {
  public:
    explicit SwarmSpans(SwarmState& swarm);

    const std::shared_ptr<SpanBoard>& board() const { return board_; }
    // Takes what the worker can hold as spans from its HELLO.
    void on_hello(Worker& worker, const Hello& hello);
    // Assigns a span to the worker if it has none, and if it has loaded its experts.
    void consider(EventContext& context, Worker& worker);
    void on_leave(WorkerId worker, TimePoint now);
    // The worker will leave. Layers of it that no recent step used, or that another worker can take
    // over, are not used from now on; its other layers are used until it leaves.
    void retire(WorkerId worker);
    // Returns true if the worker has not answered a step yet.
    bool has_steps(WorkerId worker) const;
    // Sends a frame to the holder of a span. `step` is not 0 if an answer follows.
    void send(EventContext& context, std::uint32_t span, std::uint32_t step, Bytes frame);
    // The holder of the span gave wrong answers: it computes no spans any more, and is banned.
    void on_lie(EventContext& context, std::uint32_t span, const std::string& why);
    // The holder's answers differ too often, as honest ones may: it computes no spans any more, and
    // experts as before.
    void on_set_aside(EventContext& context, std::uint32_t span, const std::string& why);
    // The holder of the span did not answer a step in time. If it has sent nothing since the step
    // was sent, it is sent no calls of experts either until it sends a frame: the hub computes the
    // layers of the step by such calls, and would wait for the same worker again.
    void on_late(EventContext& context, std::uint32_t span, TimePoint sent_at);

    // Handle frames of workers. An error ends the connection.
    Status on_ready(EventContext& context, Worker& worker, ByteView frame);
    Status on_answer(EventContext& context, Worker& worker, ByteView frame);
    // Returns the size of the largest answer that the worker may send.
    std::uint64_t answer_bytes_max(const Worker& worker) const;
    // Returns true if the worker has loaded a span.
    bool computes_layers(WorkerId worker) const;
    // Adds to the shares the layers that their workers compute whole. Workers without a share do
    // not stay.
    void count(UnitCopies& copies) const;
    // Appends to `shares` those of the workers that compute the layer whole.
    void append_holders(std::uint32_t layer, UnitCopies& copies,
                        std::vector<UnitCopies::Share*>& shares) const;
    // The worker has reported its budget. It does so when it takes the memory of a span.
    void on_budget(WorkerId worker);
    // Returns the memory for spans that the worker has not subtracted from its budget yet.
    std::uint64_t bytes_to_come(WorkerId worker) const;

  private:
    struct Held {
        WorkerId worker = 0;
        std::uint32_t first_layer = 0, end_layer = 0;
        bool ready = false;
        std::uint64_t bytes = 0;        // memory of the worker that the span takes
        std::uint64_t kv_bytes = 0;     // of these for keys and values
        bool is_in_budget = false;      // the budget that the worker reports is without that memory
        std::set<std::uint32_t> steps;  // in flight
    };
    struct Room {
        std::uint64_t bytes = 0, kv_bytes = 0;
        std::uint64_t step_bytes = 0;   // for the buffers of a step, where experts need the rest
        std::uint32_t layers_max = 0;   // halved when the worker cannot hold what it was assigned
        std::uint32_t layers_held = 0;  // the most layers that it had ready
        bool takes_once = false;        // experts of the span that it holds take memory once
        // Memory of a span that was taken back, until the worker reports its budget.
        std::uint64_t freed_bytes = 0;
        // room_of() sets the following: the memory that the worker's experts leave, and for each
        // layer the number of experts that the worker keeps beside the span.
        std::uint64_t left = ~std::uint64_t{0};
        std::vector<std::uint32_t> kept;
        bool with_few_tokens = false;  // a span with few keys and values is better than none
    };
    // What a span of some layers takes of a worker's memory, beside experts that it keeps.
    struct Sizes {
        std::uint64_t weights = 0, beside = 0, kv_min = 0, kv_wanted = 0, kv_max = 0, states = 0;
    };
    void add_layer(Sizes& sizes, const Room& room, std::uint32_t layer) const;
    std::uint64_t kv_bytes_of(const Room& room, const Sizes& sizes) const;
    std::uint64_t layer_bytes(std::uint32_t layer) const;
    bool is_spannable(std::uint32_t layer) const;
    std::uint32_t layers_that_fit(const Room& room, std::uint32_t first) const;
    using Range = std::pair<std::uint32_t, std::uint32_t>;  // first layer and end; equal: no layer
    std::vector<std::uint32_t> holders_of_layers(std::uint32_t but) const;
    bool any_layer_is_free() const;
    std::uint32_t length_of_span_at(std::uint32_t layer, std::uint32_t but) const;
    Range layers_without_holder(const Room& room, std::uint32_t but) const;
    Range choose(const Room& room) const;
    using Units = std::span<const std::uint32_t>;
    Room room_of(const Worker& worker) const;
    void add_kept(Room& room, const Worker& worker, Units spare) const;
    bool gives_way(EventContext& context, Worker& worker);
    bool may_grow(const EventContext& context, const Worker& worker, std::uint32_t span) const;
    bool leaves_room_for_experts(std::uint64_t bytes) const;
    bool workers_have_all_experts() const;
    bool can_be_taken_over(std::uint32_t span, const std::function<bool(WorkerId)>& stays) const;
    void drop(std::uint32_t span);
    Worker* end_spans_of_holder(EventContext& context, std::uint32_t span);

    const std::shared_ptr<SpanBoard> board_;
    std::map<std::uint32_t, Held> held_;  // by span
    std::map<WorkerId, Room> rooms_;
    std::set<std::string> without_spans_;  // keys of liars, and of workers that were set aside
    std::uint32_t last_span_ = 0;
    TimePoint grows_from_{};  // the earliest time at which a span may grow
};

}  // namespace moex
