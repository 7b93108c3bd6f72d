// Spans on the dispatch strand: placement, frames and answers.
#include <algorithm>
#include <cmath>
#include <utility>

#include "hub/dispatch/core/swarm_state.h"

namespace moex {
namespace {

// The share of the memory that a worker reports for spans which the hub plans with. The rest is for
// the buffers of a step, which take 128 MiB at most.
constexpr double planned_share = 0.8;
constexpr std::uint64_t step_bytes_max = 128 << 20;
// The keys and values of a span: the tokens that it has room for in each layer. A text that finds
// no room takes a round trip a layer, so that `tokens_wanted`, 16 texts of 512 tokens, come before
// a further layer. More than `tokens_max` would only take the room of experts that the hub has not.
constexpr std::uint64_t tokens_min = 512, tokens_wanted = 8192, tokens_max = 32768;
// The same for recurrent layers: the number of texts. In each layer a text takes the room of three
// states: it has two, and rows that may be rolled back.
constexpr std::uint64_t texts_min = 2, texts_wanted = 8, texts_max = 32, states_of_a_text = 3;
// The most steps in flight to one worker. A worker that leaves this number unanswered is stuck.
constexpr std::size_t steps_max = 512;
constexpr std::uint32_t no_span = 0;
// How often a span may grow, and by how many layers at least.
constexpr Duration grow_every = 30s;
constexpr std::uint32_t grow_layers_min = 2;

}  // namespace

SwarmSpans::SwarmSpans(SwarmState& swarm)
    : SwarmPart(swarm),
      board_(options_.spans.board ? options_.spans.board : std::make_shared<SpanBoard>()) {}

void SwarmSpans::on_hello(Worker& worker, const Hello& hello) {
    const auto lists = [&](const char* cap) {
        return std::find(hello.caps.begin(), hello.caps.end(), cap) != hello.caps.end();
    };
    if (!options_.spans.on || hello.span_bytes == 0 || !lists(span_cap) ||
        (options_.spans.layer_version > 1 && !lists(span2_cap)) ||
        (options_.spans.layer_version > 2 && !lists(span3_cap)) ||
        without_spans_.contains(worker.worker_key))
        return;
    const auto bytes = static_cast<std::uint64_t>(planned_share *
                                                  static_cast<double>(hello.span_bytes));
    const std::uint64_t rest = hello.span_bytes - bytes;
    rooms_[worker.id] = {.bytes = bytes,
                         .kv_bytes = hello.span_kv_bytes,
                         .step_bytes = options_.local_fallback ? 0 : std::min(rest, step_bytes_max),
                         .layers_max = span_layers_max,
                         .takes_once = lists(span_once_cap)};
}

bool SwarmSpans::is_spannable(std::uint32_t layer) const {
    return layer >= options_.spans.first_here &&
           layer + options_.spans.last_here < options_.limits.num_layers &&
           options_.layer_is_moe[layer] != 0 && options_.spans.layer_of(layer).has_value();
}

std::uint64_t SwarmSpans::layer_bytes(std::uint32_t layer) const {
    const auto blob = options_.spans.layer_of(layer);
    return options_.limits.num_experts * options_.expert_blob_bytes + (blob ? blob->size_bytes : 0);
}

void SwarmSpans::add_layer(Sizes& sizes, const Room& room, std::uint32_t layer) const {
    const std::uint64_t bytes = layer_bytes(layer),
                        kept = room.kept.empty() ? 0
                                                 : room.kept[layer] * options_.expert_blob_bytes,
                        state_bytes = sizeof(float) * options_.spans.state_floats;
    sizes.weights += bytes;
    sizes.beside += bytes - kept;
    const bool is_delta = options_.spans.is_delta(layer);
    const std::uint64_t one = is_delta ? states_of_a_text * state_bytes
                                       : span_kv_bytes(1, 1, options_.spans.kv_size);
    if (is_delta) sizes.states += state_bytes;
    sizes.kv_min += one * (is_delta ? texts_min : tokens_min);
    sizes.kv_wanted += one * (is_delta ? texts_wanted : tokens_wanted);
    sizes.kv_max += one * (is_delta ? texts_max : tokens_max);
}

// Returns how many consecutive layers from `first` on fit into the memory of a worker.
std::uint32_t SwarmSpans::layers_that_fit(const Room& room, std::uint32_t first) const {
    Sizes sizes;
    std::uint32_t count = 0;
    while (count < room.layers_max && is_spannable(first + count)) {
        add_layer(sizes, room, first + count);
        const std::uint64_t kv_bytes = room.with_few_tokens
                                           ? sizes.kv_min
                                           : std::min(sizes.kv_wanted, room.kv_bytes);
        if (sizes.weights > room.bytes || sizes.kv_min > room.kv_bytes || kv_bytes > room.left ||
            sizes.beside > room.left - kv_bytes ||
            sizes.states > options_.spans.state_bytes_at_once)
            break;
        ++count;
    }
    return count;
}

// Returns the memory for keys and values of a span that fits. Where the hub computes no experts,
// the workers' experts need the rest.
std::uint64_t SwarmSpans::kv_bytes_of(const Room& room, const Sizes& sizes) const {
    const std::uint64_t left = room.left - sizes.beside,
                        most = options_.local_fallback ? left : std::min(left, sizes.kv_max);
    return std::min(room.kv_bytes, most);
}

// Counts the holders of each layer, without the span `but`.
std::vector<std::uint32_t> SwarmSpans::holders_of_layers(std::uint32_t but) const {
    std::vector<std::uint32_t> holders(options_.limits.num_layers);
    for (const auto& [id, held] : held_)
        for (std::uint32_t layer = held.first_layer; id != but && layer < held.end_layer; ++layer)
            ++holders[layer];
    return holders;
}

bool SwarmSpans::any_layer_is_free() const {
    const std::vector<std::uint32_t> holders = holders_of_layers(no_span);
    for (std::uint32_t layer = 0; layer < holders.size(); ++layer)
        if (holders[layer] == 0 && is_spannable(layer)) return true;
    return false;
}

// Returns the number of layers of the span that has the layer; 0 if the layer is in none.
std::uint32_t SwarmSpans::length_of_span_at(std::uint32_t layer, std::uint32_t but) const {
    for (const auto& [id, held] : held_)
        if (id != but && layer >= held.first_layer && layer < held.end_layer)
            return held.end_layer - held.first_layer;
    return 0;
}

// Returns the longest range of layers without a holder that a worker has room for. `but`: a span
// that the worker would give up. A range that is up to a quarter shorter is chosen if it is at an
// end of its gap, so that a gap is not cut into two. Of both ends it is not the one beside a
// shorter span, so that that one can grow.
SwarmSpans::Range SwarmSpans::layers_without_holder(const Room& room, std::uint32_t but) const {
    const std::vector<std::uint32_t> holders = holders_of_layers(but);
    const auto is_free = [&](std::uint32_t layer) {
        return layer < holders.size() && is_spannable(layer) && holders[layer] == 0;
    };
    // Layers of the hub do not grow: they count as a span of the same length.
    const auto beside = [&](std::uint32_t layer, std::uint32_t length) {
        const std::uint32_t other = length_of_span_at(layer, but);
        return other == 0 ? length : std::min(length, other);
    };
    struct Choice {
        std::uint32_t first = 0, length = 0, beside = 0;
    };
    std::vector<Choice> choices;
    std::uint32_t most = 0;
    for (std::uint32_t first = 0; first < holders.size(); ++first) {
        const std::uint32_t fit = layers_that_fit(room, first);
        Choice one{.first = first};
        while (one.length < fit && is_free(first + one.length)) ++one.length;
        if (one.length == 0) continue;
        if (first == 0 || !is_free(first - 1)) one.beside = beside(first - 1, one.length);
        const std::uint32_t end = first + one.length;
        if (!is_free(end)) one.beside = std::max(one.beside, beside(end, one.length));
        choices.push_back(one);
        most = std::max(most, one.length);
    }
    Choice best;
    for (const Choice& one : choices)
        if (one.length >= most - most / 4 &&
            std::pair(one.beside, one.length) > std::pair(best.beside, best.length))
            best = one;
    return {best.first, best.first + best.length};
}

// Returns the layers for a worker: those without a holder, or else those of a span with the fewest
// holders.
SwarmSpans::Range SwarmSpans::choose(const Room& room) const {
    Range best = layers_without_holder(room, no_span);
    if (best.first < best.second) return best;

    const std::vector<std::uint32_t> holders = holders_of_layers(no_span);
    std::uint32_t fewest = 0;
    for (const auto& [id, held] : held_) {
        const bool fits = held.first_layer + layers_that_fit(room, held.first_layer) >=
                          held.end_layer;
        if (!fits || (fewest > 0 && holders[held.first_layer] >= fewest)) continue;
        fewest = holders[held.first_layer];
        best = {held.first_layer, held.end_layer};
    }
    return best;
}

// Takes the span of a worker back if it is a standby with room for layers without a holder, or if
// it now has room for a better span. Returns true if the worker holds no span now. The former
// layers of a standby still have a holder that is ready.
bool SwarmSpans::gives_way(EventContext& context, Worker& worker) {
    const auto mine = std::find_if(held_.begin(), held_.end(),
                                   [&](const auto& one) { return one.second.worker == worker.id; });
    if (mine == held_.end()) return true;
    const auto& [id, held] = *mine;
    const bool has_other = std::any_of(held_.begin(), held_.end(), [&](const auto& one) {
        return one.first != id && one.second.ready && one.second.first_layer <= held.first_layer &&
               one.second.end_layer >= held.end_layer;
    });
    if (!held.ready) return false;
    if (has_other) {
        if (board_->is_used(id)) return false;
        const Range free = layers_without_holder(room_of(worker), no_span);
        if (free.first == free.second) return false;
    } else {
        if (!may_grow(context, worker, id)) return false;
        grows_from_ = context.now + grow_every;
    }
    context.send(worker, encode_span_release(id));
    if (held.is_in_budget) rooms_.at(worker.id).freed_bytes = held.bytes;
    drop(id);
    return true;
}

// Returns true if the worker, the only holder of a span, has room for a better one: for a quarter
// more layers, or for keys and values that the span lacks. A worker that has joined early gets such
// room when others take over its experts. Until it has loaded the new span, its layers are computed
// as if they had no holder. So one span at a time grows, while nothing else is moved or loaded, and
// not while a holder that left may return.
bool SwarmSpans::may_grow(const EventContext& context, const Worker& worker,
                          std::uint32_t span) const {
    const Held& held = held_.at(span);
    if (context.now < grows_from_ || swarm_.placement.directory().is_unsettled() ||
        std::ranges::any_of(held_, [](const auto& one) { return !one.second.ready; }))
        return false;
    const Room& offered = rooms_.at(worker.id);
    Sizes sizes;
    for (std::uint32_t layer = held.first_layer; layer < held.end_layer; ++layer)
        add_layer(sizes, offered, layer);
    const bool lacks_kv = 2 * held.kv_bytes < std::min(sizes.kv_wanted, offered.kv_bytes);
    if (!lacks_kv && !any_layer_is_free()) return false;
    const auto [first, end] = layers_without_holder(room_of(worker), span);
    const std::uint32_t num_now = held.end_layer - held.first_layer, num_then = end - first;
    if (lacks_kv) return num_then >= num_now;
    return num_then >= num_now + std::max(grow_layers_min, num_now / 4);
}

// Returns true if the workers' memory holds every expert once beside spans of `bytes` more.
bool SwarmSpans::leaves_room_for_experts(std::uint64_t bytes) const {
    if (options_.local_fallback) return true;
    std::uint64_t room = 0, spans = bytes;
    for (const auto& [id, worker] : pool_.all())
        if (worker->welcomed()) room += worker->device.budget_bytes;
    for (const auto& [id, one] : rooms_) room += one.freed_bytes;
    for (const auto& [id, held] : held_)
        if (!held.is_in_budget) spans += held.bytes;
    return room >= spans + swarm_.placement.directory().num_units() * options_.expert_blob_bytes;
}

// Returns the room for a span. Where the hub computes no experts itself, that is what the worker's
// experts leave that no other worker has ready: they would have no holder for a while. Of these
// experts, those of the span's own layers take no memory beside it.
SwarmSpans::Room SwarmSpans::room_of(const Worker& worker) const {
    Room room = rooms_.at(worker.id);
    if (options_.local_fallback) return room;
    const std::vector<std::uint32_t> spare = swarm_.placement.directory().held_elsewhere(worker);
    add_kept(room, worker, spare);
    const std::uint64_t num_kept = worker.num_planned() -
                                   std::min<std::uint64_t>(worker.num_planned(), spare.size()),
                        taken = num_kept * options_.expert_blob_bytes;
    std::uint64_t budget = worker.device.budget_bytes + room.freed_bytes;
    for (const auto& [id, held] : held_)
        if (held.worker == worker.id && held.is_in_budget) budget += held.bytes;
    room.left = budget - std::min(budget, taken + room.step_bytes);
    return room;
}

// Counts the experts of each layer that the worker holds and that are not `spare`.
void SwarmSpans::add_kept(Room& room, const Worker& worker, Units spare) const {
    if (!room.takes_once) return;
    room.kept.resize(options_.limits.num_layers);
    for (std::uint32_t unit = 0; unit < worker.units.size(); ++unit)
        if (worker.has(unit, UnitHolder::ready) &&
            !std::binary_search(spare.begin(), spare.end(), unit))
            ++room.kept[swarm_.placement.wire_unit(unit).layer];
}

bool SwarmSpans::computes_layers(WorkerId worker) const {
    return std::any_of(held_.begin(), held_.end(), [&](const auto& one) {
        return one.second.worker == worker && one.second.ready;
    });
}

// Returns true if another worker, for which `stays` returns true, could answer the next step of the
// span.
bool SwarmSpans::can_be_taken_over(std::uint32_t span,
                                   const std::function<bool(WorkerId)>& stays) const {
    const Held& mine = held_.at(span);
    return std::ranges::any_of(held_, [&](const auto& one) {
        const auto& [id, other] = one;
        return id != span && other.first_layer <= mine.first_layer &&
               other.end_layer >= mine.end_layer && stays(other.worker) &&
               board_->can_take_over(id);
    });
}

void SwarmSpans::retire(WorkerId worker) {
    const auto stays = [&](WorkerId id) {
        const Worker* const other = pool_.find(id);
        return id != worker && other != nullptr && !other->leaving() && !other->hands_over;
    };
    for (const auto& [id, held] : held_)
        if (held.worker == worker && (!board_->was_used(id) || can_be_taken_over(id, stays)))
            board_->retire(id);
}

bool SwarmSpans::has_steps(WorkerId worker) const {
    return std::ranges::any_of(held_, [&](const auto& one) {
        return one.second.worker == worker && !one.second.steps.empty();
    });
}

void SwarmSpans::count(UnitCopies& copies) const {
    const auto stays = [&](WorkerId worker) { return copies.shares.contains(worker); };
    for (const auto& [id, held] : held_) {
        const auto found = copies.shares.find(held.worker);
        if (found == copies.shares.end()) continue;
        UnitCopies::Share& share = found->second;
        if (!held.ready) {
            share.is_loading = true;
            continue;
        }
        const std::uint32_t num_layers = held.end_layer - held.first_layer;
        share.layers += num_layers;
        if (!board_->was_used(id)) continue;
        share.layers_used += num_layers;
        if (!can_be_taken_over(id, stays)) share.layers_alone += num_layers;
    }
}

void SwarmSpans::append_holders(std::uint32_t layer, UnitCopies& copies,
                                std::vector<UnitCopies::Share*>& shares) const {
    for (const auto& [id, held] : held_) {
        const auto found = copies.shares.find(held.worker);
        if (!held.ready || layer < held.first_layer || layer >= held.end_layer ||
            found == copies.shares.end())
            continue;
        if (std::ranges::find(shares, &found->second) == shares.end())
            shares.push_back(&found->second);
    }
}

void SwarmSpans::on_budget(WorkerId worker) {
    // The first report after a release is taken for that of what the worker has freed. It frees a
    // span before it takes the memory of the next one.
    const auto room = rooms_.find(worker);
    if (room != rooms_.end() && std::exchange(room->second.freed_bytes, 0) > 0) return;
    for (auto& [id, held] : held_)
        if (held.worker == worker) held.is_in_budget = true;
}

std::uint64_t SwarmSpans::bytes_to_come(WorkerId worker) const {
    std::uint64_t bytes = 0;
    for (const auto& [id, held] : held_)
        if (held.worker == worker && !held.is_in_budget) bytes += held.bytes;
    return bytes;
}

// Returns true if each expert has a worker that has loaded it.
bool SwarmSpans::workers_have_all_experts() const {
    const UnitDirectory& directory = swarm_.placement.directory();
    for (std::uint32_t unit = 0; unit < directory.num_units(); ++unit)
        if (directory.ready(unit).empty()) return false;
    return true;
}

void SwarmSpans::consider(EventContext& context, Worker& worker) {
    board_->note_time(context.now);
    if (!rooms_.contains(worker.id) || worker.leaving() || worker.hands_over ||
        worker.num_ready < worker.num_planned())
        return;
    // Where others have every expert, a newcomer has none for a while and may begin with a span.
    const bool is_newcomer = worker.health.state() == Health::loading && worker.num_planned() == 0,
               needs_experts = is_newcomer || !options_.local_fallback;
    if ((!worker.health.serves() && !is_newcomer) ||
        (needs_experts && !workers_have_all_experts()) || !gives_way(context, worker))
        return;

    Room room = room_of(worker);
    auto [first, end] = choose(room);
    if (first == end) {
        // Little memory is left: few keys and values are better than none of the layers.
        room.with_few_tokens = true;
        std::tie(first, end) = choose(room);
    }
    if (first == end) return;
    if (options_.local_fallback) add_kept(room, worker, {});
    Sizes sizes;
    for (std::uint32_t layer = first; layer < end; ++layer) add_layer(sizes, room, layer);
    const std::uint64_t kv_bytes = kv_bytes_of(room, sizes);
    SpanAssign assign{.span = ++last_span_,
                      .first_layer = first,
                      .end_layer = end,
                      .context_tokens = options_.spans.context_tokens,
                      .kv_bytes_max = kv_bytes};
    for (std::uint32_t layer = first; layer < end; ++layer)
        assign.layers.push_back(*options_.spans.layer_of(layer));
    Held held{.worker = worker.id,
              .first_layer = first,
              .end_layer = end,
              .bytes = sizes.beside + kv_bytes + room.step_bytes,
              .kv_bytes = kv_bytes};
    if (!leaves_room_for_experts(held.bytes)) return;
    held_[assign.span] = std::move(held);
    // The worker releases the experts that others hold before it loads the span.
    swarm_.placement.on_capacity(context, worker, {});
    context.send(worker, encode_span_assign(assign));
}

void SwarmSpans::drop(std::uint32_t span) {
    board_->remove(span);
    held_.erase(span);
}

void SwarmSpans::on_leave(WorkerId worker, TimePoint now) {
    rooms_.erase(worker);
    for (auto held = held_.begin(); held != held_.end();) {
        const auto next = std::next(held);
        if (held->second.worker == worker) {
            grows_from_ = std::max(grows_from_, now + options_.return_within);
            drop(held->first);
        }
        held = next;
    }
}

void SwarmSpans::send(EventContext& context, std::uint32_t span, std::uint32_t step, Bytes frame) {
    const auto held = held_.find(span);
    Worker* const worker = held == held_.end() ? nullptr : pool_.find(held->second.worker);
    const bool is_stuck = worker != nullptr && held->second.steps.size() >= steps_max;
    if (worker == nullptr || (step != 0 && is_stuck)) {
        if (step != 0)
            board_->answer(step, context.now,
                           Error{ErrorCode::unavailable, "no worker holds the span any more"});
        return;
    }
    if (step != 0) held->second.steps.insert(step);
    context.send(*worker, std::move(frame));
}

// Takes the span back for good: its holder gets no other one, nor does a later connection with its
// key. Returns the worker; null if it has left.
Worker* SwarmSpans::end_spans_of_holder(EventContext& context, std::uint32_t span) {
    const auto held = held_.find(span);
    if (held == held_.end()) return nullptr;
    Worker* const worker = pool_.find(held->second.worker);
    if (worker != nullptr && !worker->worker_key.empty()) without_spans_.insert(worker->worker_key);
    const WorkerId holder = held->second.worker;
    drop(span);
    if (worker == nullptr) return nullptr;
    rooms_.erase(holder);
    context.send(*worker, encode_span_release(span));
    return worker;
}

void SwarmSpans::on_lie(EventContext& context, std::uint32_t span, const std::string& why) {
    if (Worker* const worker = end_spans_of_holder(context, span))
        swarm_.checks.on_lying_span(context, *worker, why);
}

void SwarmSpans::on_set_aside(EventContext& context, std::uint32_t span, const std::string& why) {
    if (Worker* const worker = end_spans_of_holder(context, span))
        context.event(*worker, WorkerEvent::Kind::set_aside,
                      text("two answers differ too much, the last: ", why,
                           ". It computes no layers whole any more, and experts as before; it is "
                           "not banned"));
}

void SwarmSpans::on_late(EventContext& context, std::uint32_t span, TimePoint sent_at) {
    const auto held = held_.find(span);
    Worker* const worker = held == held_.end() ? nullptr : pool_.find(held->second.worker);
    if (worker != nullptr && worker->heard_at < sent_at)
        swarm_.sessions.ask_for_sign(context, *worker);
}

Status SwarmSpans::on_ready(EventContext& context, Worker& worker, ByteView frame) {
    MOEX_ASSIGN(ready, decode_span_ready(frame));
    const auto found = held_.find(ready.span);
    // The hub may have taken the span back meanwhile.
    if (found == held_.end() || found->second.worker != worker.id) return {};
    Held& held = found->second;
    if (ready.num_pages == 0) {
        // The worker has no room for these layers. It is asked for half as many, or for as many as
        // it had before.
        Room& room = rooms_[worker.id];
        const std::uint32_t num_layers = held.end_layer - held.first_layer;
        room.layers_max = std::max(num_layers / 2, std::min(room.layers_held, num_layers - 1));
        context.event(
            worker, WorkerEvent::Kind::ready,
            text("cannot hold layers ", held.first_layer, " to ", held.end_layer - 1, " whole"));
        drop(ready.span);
        swarm_.placement.on_capacity(context, worker, {});
        if (room.layers_max == 0) rooms_.erase(worker.id);
        consider(context, worker);
        return {};
    }
    if (held.ready) return Error{ErrorCode::bad_field, "SPAN_READY: the span is ready already"};
    held.ready = held.is_in_budget = true;
    std::uint32_t& layers_held = rooms_[worker.id].layers_held;
    layers_held = std::max(layers_held, held.end_layer - held.first_layer);
    board_->add({.id = ready.span,
                 .worker = worker.id,
                 .worker_key = worker.worker_key,
                 .first_layer = held.first_layer,
                 .end_layer = held.end_layer,
                 .num_pages = ready.num_pages,
                 .page_tokens = ready.page_tokens,
                 .rows_max = ready.rows_max,
                 .sequences_max = ready.sequences_max});
    context.event(worker, WorkerEvent::Kind::ready,
                  text("computes layers ", held.first_layer, " to ", held.end_layer - 1,
                       " whole, a layer in ", ready.layer_us[0],
                       " us; if a hundredth of its answers were "
                       "wrong, ",
                       std::lround(expected_wrong_answers(options_.spans.check, 0.01)),
                       " of them would be used before its layers are not used any more"));
    return {};
}

Status SwarmSpans::on_answer(EventContext& context, Worker& worker, ByteView frame) {
    MOEX_ASSIGN(header, decode_frame_header(frame));
    // A step belongs to one span; an answer to a span that was dropped is late.
    const auto held = std::find_if(held_.begin(), held_.end(), [&](const auto& one) {
        return one.second.worker == worker.id && one.second.steps.contains(header.sequence_id);
    });
    auto answer = decode_span_answer(frame, options_.limits);
    if (!answer.ok() && answer.error().code != ErrorCode::non_finite) return answer.error();
    if (held == held_.end()) {
        ++counts_.late;
        ++worker.late;
        return {};
    }
    if (answer.ok() && answer->span != held->first)
        return Error{ErrorCode::bad_field, text("SPAN_ANSWER: step ", header.sequence_id,
                                                " belongs to span ", held->first)};
    held->second.steps.erase(header.sequence_id);
    board_->answer(header.sequence_id, context.now, std::move(answer), frame.size());
    return {};
}

std::uint64_t SwarmSpans::answer_bytes_max(const Worker& worker) const {
    std::uint64_t bytes = 0;
    for (const auto& [id, held] : held_) {
        if (held.worker != worker.id) continue;
        std::uint64_t row_values = 0;
        for (std::uint32_t layer = held.first_layer; layer < held.end_layer; ++layer)
            row_values += options_.spans.row_values(layer);
        bytes = std::max(bytes,
                         span_answer_bytes(options_.limits.hidden_size, span_rows_max, row_values));
    }
    return std::min<std::uint64_t>(bytes, frame_bytes_max);
}

}  // namespace moex
