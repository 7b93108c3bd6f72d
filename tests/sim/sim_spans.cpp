#include "tests/sim/sim_spans.h"

#include <algorithm>
#include <cmath>

#include "tests/sim/sim_state.h"

namespace moex::sim {
namespace {

// The board of a simulation: wait() runs the swarm's events until the answer arrives.
class SimSpanBoard : public SpanBoard {
  public:
    std::optional<Answer> wait(std::uint32_t step, TimePoint deadline,
                               const std::stop_token&) override {
        while (true) {
            if (auto answer = poll(step)) return answer;
            if (!state_->step(deadline)) break;
        }
        state_->now = std::max(state_->now, deadline);
        return std::nullopt;
    }
    SimState* state_ = nullptr;
};

constexpr Duration span_load = 200ms;  // time until a worker has loaded a span

}  // namespace

bool SimState::reads_span_frame(SimWorker& worker, FrameType type, const Bytes& frame) {
    const WorkerId id = worker.id;
    const auto assign = type == FrameType::span_assign
                            ? std::optional(decode_span_assign(frame, limits))
                            : std::nullopt;
    if (assign) {
        if (!assign->ok()) return false;
        worker.spans.assign(**assign);
        at(now + span_load, [this, id, span = (*assign)->span] {
            if (workers.at(id).alive)
                to_hub(id, encode_span_ready({.span = span,
                                              .num_pages = 1024,
                                              .page_tokens = 128,
                                              .rows_max = span_rows_max}));
        });
        return true;
    }
    if (type == FrameType::span_release) {
        const auto span = decode_span_release(frame);
        if (span.ok()) worker.spans.release(*span);
        return span.ok();
    }
    if (type == FrameType::span_end) {
        const auto ended = decode_span_end(frame);
        if (ended.ok()) worker.spans.end(*ended);
        return ended.ok();
    }
    if (type == FrameType::span_kv) {
        const auto kv = decode_span_kv(frame, limits);
        if (kv.ok()) worker.spans.bring(*kv);
        return kv.ok();
    }
    const auto step = decode_span_step(frame, limits);
    if (!step.ok()) return false;
    if (worker.compute_stalled) return true;
    const bool lies = worker.spans.lie != SpanLie::none && strikes(worker.spans.lie_share);
    // Frames are read in order, so that the answer is computed here and sent later.
    const SpanAnswer answer = worker.spans.step(*step, limits.hidden_size, lies);
    if (answer.verdict == SpanVerdict::unknown_sequence && !network_reorders())
        violation(text("worker ", id, " is sent a step whose keys it lacks"));
    worker.free_at = std::max(now, worker.free_at) + stall_time(worker) +
                     worker.spans.num_layers(step->span) * worker.profile.layer_compute;
    at(worker.free_at, [this, id, bytes = encode_span_answer(answer, limits.hidden_size)] {
        const SimWorker& then = workers.at(id);
        if (then.alive && !then.stalled && !then.compute_stalled) to_hub(id, bytes);
    });
    return true;
}

void allow_spans(SimOptions& options) {
    const auto board = std::make_shared<SimSpanBoard>();
    options.swarm.spans.on = true;
    options.swarm.spans.board = board;
    options.swarm.spans.kv_size = sim_kv_size;
    options.swarm.spans.context_tokens = 4096;
    options.swarm.spans.seed = options.seed;
    options.swarm.spans.layer_of = [](std::uint32_t layer) -> std::optional<SpanAssign::Layer> {
        Sha256 hash{};
        hash[0] = static_cast<std::byte>(layer);
        hash[2] = std::byte{1};
        return SpanAssign::Layer{.blob = hash, .size_bytes = sim_layer_bytes};
    };
}

double SpanTokens::quantile_ms(double q) const {
    std::vector<double> sorted = token_ms;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) return 0;
    return sorted[static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size() - 1)))];
}

SimSpanEngine::SimSpanEngine(SimSwarm& swarm, std::uint32_t num_streams)
    : swarm_(swarm),
      num_streams_(num_streams) {
    SimState& state = swarm.state();
    const auto board = std::dynamic_pointer_cast<SimSpanBoard>(state.core->span_board());
    MOEX_CHECK(board != nullptr, "the swarm was made with allow_spans()");
    board->state_ = &state;
    SpanOptions options = state.core->options().spans;
    options.now = [&state] { return state.now; };
    const auto act = [&state](auto what) {
        std::vector<SwarmAction> actions;
        what(*state.core, actions);
        state.perform(actions);
    };
    client_ = std::make_unique<SpanClient>(
        options, state.limits.hidden_size, board,
        SpanClient::Link{.send =
                             [act, &state](std::uint32_t span, std::uint32_t step, Bytes frame) {
                                 act([&](SwarmCore& core, std::vector<SwarmAction>& actions) {
                                     core.on_span_frame(state.now, span, step, std::move(frame),
                                                        actions);
                                 });
                             },
                         .lied =
                             [act, &state](std::uint32_t span, std::string why) {
                                 act([&](SwarmCore& core, std::vector<SwarmAction>& actions) {
                                     core.on_span_lie(state.now, span, why, actions);
                                 });
                             },
                         .set_aside =
                             [act, &state](std::uint32_t span, std::string why) {
                                 act([&](SwarmCore& core, std::vector<SwarmAction>& actions) {
                                     core.on_span_set_aside(state.now, span, why, actions);
                                 });
                             },
                         .late =
                             [act, &state](std::uint32_t span, TimePoint sent_at) {
                                 act([&](SwarmCore& core, std::vector<SwarmAction>& actions) {
                                     core.on_span_late(state.now, span, sent_at, actions);
                                 });
                             }});
}
SimSpanEngine::~SimSpanEngine() = default;

// One token of each stream, at the position `position` of its sequence.
class SimSpanEngine::Token {
  public:
    Token(SimSwarm& swarm, SpanClient& client, std::uint32_t num_streams, std::uint32_t position)
        : swarm_(swarm),
          client_(client),
          position_(position),
          hidden_(swarm.state().limits.hidden_size),
          x_(std::size_t{num_streams} * hidden_) {
        for (std::uint32_t i = 0; i < num_streams; ++i) sequences_.push_back({i + 1, position, 1});
        for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<float>((i + position) % 8);
    }

    // Returns false if a layer could not be computed.
    bool run() {
        const std::vector<PlannedSpan> plan = client_.plan(batch());
        const std::uint32_t num_layers = swarm_.state().limits.num_layers;
        for (std::uint32_t layer = 0; layer < num_layers;) {
            const auto span = std::find_if(plan.begin(), plan.end(), [&](const PlannedSpan& one) {
                return one.first_layer == layer;
            });
            const bool ok = span == plan.end() ? here(layer, layer + 1) : whole(*span);
            if (!ok) return false;
            layer = span == plan.end() ? layer + 1 : span->end_layer;
        }
        return true;
    }
    bool is_changed() const { return is_changed_; }

  private:
    SpanBatch batch() {
        return {.sequences = sequences_,
                .num_rows = static_cast<std::uint32_t>(sequences_.size()),
                .may_leave = true,
                .read_kv = [this](std::size_t index, std::uint32_t first_layer,
                                  std::uint32_t end_layer, std::uint32_t first, std::uint32_t count,
                                  std::span<std::byte> out) -> Status {
                    Bytes rows;
                    for (std::uint32_t layer = first_layer; layer < end_layer; ++layer)
                        for (std::uint32_t i = 0; i < count; ++i)
                            append_span_kv(rows, span_key(sequences_[index].id, layer, first + i));
                    std::copy(rows.begin(), rows.end(), out.begin());
                    return {};
                }};
    }

    // Lets the hub compute layers: a round of experts each. The rows are right afterwards.
    bool here(std::uint32_t first_layer, std::uint32_t end_layer) {
        constexpr Duration between_layers = 300us;
        for (std::uint32_t layer = first_layer; layer < end_layer; ++layer) {
            const RoundId round = swarm_.submit(
                {.layer = layer, .num_tokens = static_cast<std::uint32_t>(sequences_.size())});
            const bool ok = swarm_.run_until_answered(round);
            is_changed_ = is_changed_ || swarm_.outcome(round).wrong;
            swarm_.forget(round);
            if (!ok) return false;
            swarm_.run_for(between_layers);
            for (std::size_t row = 0; row < sequences_.size(); ++row) add_layer(row, layer);
        }
        return true;
    }

    void add_layer(std::size_t row, std::uint32_t layer) {
        float more = static_cast<float>(layer + 1);
        for (std::uint32_t position = 0; position <= position_; ++position)
            more += span_key(sequences_[row].id, layer, position);
        for (std::uint32_t i = 0; i < hidden_; ++i) x_[row * hidden_ + i] += more;
    }

    Bytes keys_of(const PlannedSpan& span) const {
        Bytes kv;
        for (std::uint32_t layer = span.first_layer; layer < span.end_layer; ++layer)
            for (const SpanSequence& one : sequences_)
                append_span_kv(kv, span_key(one.id, layer, position_));
        return kv;
    }

    bool whole(const PlannedSpan& span) {
        const TimePoint start = swarm_.now();
        const auto num_rows = static_cast<std::uint32_t>(sequences_.size());
        if (span.use != SpanUse::away) {
            const std::vector<float> before = x_;
            std::unique_ptr<SpanRound> round;
            if (span.use == SpanUse::check) round = client_.submit(span, sequences_, x_);
            if (!here(span.first_layer, span.end_layer)) return false;
            if (round) round->compare(before, x_, keys_of(span));
            client_.record(span, num_rows, swarm_.now() - start);
            return true;
        }
        Result<SpanResult> answer = client_.submit(span, sequences_, x_)->wait({});
        if (!answer.ok())
            if (const auto again = client_.submit_again(span, batch(), x_))
                answer = again->wait({});
        if (!answer.ok()) return here(span.first_layer, span.end_layer);
        for (std::size_t row = 0; row < sequences_.size(); ++row)
            for (std::uint32_t layer = span.first_layer; layer < span.end_layer; ++layer)
                add_layer(row, layer);
        is_changed_ = is_changed_ || answer->x != x_ || answer->kv != keys_of(span);
        return true;
    }

    SimSwarm& swarm_;
    SpanClient& client_;
    const std::uint32_t position_, hidden_;
    std::vector<SpanSequence> sequences_;
    std::vector<float> x_;
    bool is_changed_ = false;
};

SpanTokens SimSpanEngine::run(std::uint32_t num_tokens,
                              const std::function<void(std::uint32_t)>& before) {
    // A text of this length ends, and another one begins.
    constexpr std::uint32_t text_tokens = 256;
    SpanTokens tokens;
    for (std::uint32_t i = 0; i < num_tokens; ++i) {
        if (before) before(i);
        const TimePoint start = swarm_.now();
        Token token(swarm_, *client_, num_streams_, num_tokens_);
        tokens.failed += !token.run();
        tokens.changed += token.is_changed();
        tokens.token_ms.push_back(to_ms(swarm_.now() - start));
        if (++num_tokens_ < text_tokens) continue;
        num_tokens_ = 0;
        for (std::uint32_t stream = 0; stream < num_streams_; ++stream) client_->ended(stream + 1);
    }
    tokens.counters = client_->counters();
    return tokens;
}

std::vector<WorkerId> SimSpanEngine::used() const {
    std::vector<WorkerId> used;
    for (const SpanView& view : client_->views())
        if (view.used) used.push_back(view.worker);
    return used;
}

std::uint32_t SimSpanEngine::layers_left() const {
    SimState& state = swarm_.state();
    const bool has_room = std::ranges::any_of(state.workers, [](const auto& one) {
        const SimState::SimWorker& worker = one.second;
        return worker.alive && !worker.stalled && worker.profile.span_layers > 0 &&
               !worker.spans.holds_any() && worker.spans.lie == SpanLie::none;
    });
    if (!has_room) return 0;
    const SpanOptions& options = state.core->options().spans;
    std::vector<bool> is_held(state.limits.num_layers);
    for (const ReadySpan& span : state.core->span_board()->ready())
        std::fill(is_held.begin() + span.first_layer, is_held.begin() + span.end_layer, true);
    return static_cast<std::uint32_t>(
        std::count(is_held.begin() + options.first_here, is_held.end() - options.last_here, false));
}

}  // namespace moex::sim
