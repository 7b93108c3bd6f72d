#include "web-worker/spans/span_worker.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <variant>

#include "protocol/life_guard.h"
#include "web-worker/spans/span_decoder.h"
#include "web-worker/spans/span_weights.h"

namespace moex {
namespace {

// The row limit of a step, and the limit of frames that wait for the GPU.
constexpr std::uint32_t step_rows = 64;
constexpr std::size_t waiting_max = 4096;
// The most sequences with recurrent states. A step has a run for each.
constexpr std::uint32_t states_max = step_rows;
// A span for fewer texts, or shorter ones, is of no use. The hub plans with no less.
constexpr std::uint32_t pages_min = 4, states_min = 2;

// Frames of the hub that are handled in order.
struct WaitingStep {
    SpanStep step;
    double arrived_ms = 0;
};
using EndedSequences = std::vector<std::uint64_t>;
using Waiting = std::variant<WaitingStep, SpanKv, SpanState, EndedSequences>;

class SpanWorker : public SpanHost {
  public:
    explicit SpanWorker(SpanContext context) : context_(std::move(context)) {}

    void on_frame(const FrameHeader& header, ByteView frame) override {
        const WireLimits& limits = context_.welcome.limits;
        switch (header.type) {
            case FrameType::span_assign:
                return take(decode_span_assign(frame, limits),
                            [&](SpanAssign&& message) { assign(std::move(message)); });
            case FrameType::span_release:
                return take(decode_span_release(frame), [&](std::uint32_t span) {
                    if (wanted_ && wanted_->span == span) drop();
                });
            case FrameType::span_step:
                return take(decode_span_step(frame, limits), [&](SpanStep&& step) {
                    wait({WaitingStep{std::move(step), context_.platform.now_ms()}});
                });
            case FrameType::span_kv:
                return take(decode_span_kv(frame, limits),
                            [&](SpanKv&& kv) { wait({std::move(kv)}); });
            case FrameType::span_state:
                return take(decode_span_state(frame, limits),
                            [&](SpanState&& state) { wait({std::move(state)}); });
            case FrameType::span_end:
                return take(decode_span_end(frame),
                            [&](EndedSequences&& ended) { wait({std::move(ended)}); });
            default:
                return context_.hub.protocol_error(
                    Error{ErrorCode::unknown_type,
                          text(frame_type_name(header.type), " is not for a worker")});
        }
    }

    void begin_connection() override {
        waiting_.clear();
        is_assigned_ = is_reported_ = false;
        context_.changed();
        if (decoder_ && !is_computing_) decoder_->end_all();
        clears_all_ = is_computing_;
    }

    HeldLayers layers() const override {
        if (!is_reported_) return {};
        return {wanted_->first_layer,
                wanted_->first_layer + static_cast<std::uint32_t>(wanted_->layers.size())};
    }

    void set_bytes_max(std::uint64_t bytes_max) override {
        context_.bytes_max = bytes_max;
        if (wanted_ && needed_bytes_ > bytes_max) refuse();
    }

  private:
    template <class Message, class Then>
    void take(Result<Message> message, Then then) {
        if (!message.ok()) return context_.hub.protocol_error(message.error());
        then(std::move(*message));
    }

    void wait(Waiting frame) {
        if (waiting_.size() >= waiting_max)
            return context_.hub.protocol_error(
                Error{ErrorCode::overloaded, text("more than ", waiting_max, " steps wait")});
        waiting_.push_back(std::move(frame));
        proceed();
    }

    // ---- loading

    void assign(SpanAssign message) {
        const bool is_held = decoder_ && wanted_->layers == message.layers &&
                             wanted_->first_layer == message.first_layer &&
                             wanted_->context_tokens == message.context_tokens &&
                             wanted_->kv_bytes_max == message.kv_bytes_max;
        const auto alive = life_.watch();
        if (!is_held) drop();
        if (!alive.alive()) return;
        wanted_ = std::move(message);
        is_assigned_ = true;
        if (is_held) return report_ready();
        fetch_layers();
    }

    void drop() {
        const std::uint64_t load = load_++;
        waiting_.clear();
        wanted_.reset();
        is_assigned_ = false;
        layer_blobs_.clear();
        const bool had_memory = std::exchange(needed_bytes_, 0) > 0;
        is_reported_ = false;
        context_.changed();
        // The callback of the step in flight belongs to the decoder, which lives until then.
        if (std::exchange(is_computing_, false))
            dropped_.push_back({std::move(decoder_), decoder_load_});
        const auto alive = life_.watch();
        if (weights_ && weights_->waits()) context_.end_lending(load, true);
        if (!alive.alive()) return;
        weights_.reset();
        if (decoder_) context_.end_lending(decoder_load_, true);
        if (!alive.alive()) return;
        decoder_.reset();
        if (had_memory && dropped_.empty()) context_.reserve(0);
    }

    // Gives the span up: it cannot be held.
    void refuse() {
        context_.hub.send(encode_span_ready({.span = wanted_->span}));
        drop();
    }

    void fetch_layers() {
        layer_blobs_.assign(wanted_->layers.size(), {});
        missing_ = wanted_->layers.size();
        // A layer that is refused ends this load, also in the midst of the loop.
        const std::vector<SpanAssign::Layer> layers = wanted_->layers;
        const std::uint64_t load = load_;
        for (std::size_t i = 0; i < layers.size() && load == load_; ++i)
            context_.platform.accept_layer(
                layers[i].blob, layers[i].signature,
                [this, life = life_.watch(), load, i, layer = layers[i]](bool accepted) {
                    if (!life.alive() || load != load_) return;
                    if (!accepted) return refuse();
                    fetch(
                        layer.blob, layer.size_bytes,
                        [this, i](Bytes blob) { layer_blobs_[i] = std::move(blob); },
                        [this] { begin_load(); });
                });
    }

    // Fetches a blob. `all_here` is called after the last one of `missing_`.
    void fetch(const Sha256& hash, std::uint64_t size_bytes, std::function<void(Bytes)> store,
               std::function<void()> all_here) {
        context_.platform.fetch_blob(
            hash, size_bytes, false, [](std::uint64_t, bool) {},
            [this, life = life_.watch(), load = load_, store = std::move(store),
             all_here = std::move(all_here)](Result<Bytes> blob) {
                if (!life.alive() || load != load_) return;
                if (!blob.ok()) return refuse();
                store(std::move(*blob));
                if (--missing_ == 0) all_here();
            });
    }

    // Fetches the experts of a layer, counted from the span's first, and lets the decoder load
    // them.
    void fetch_experts(std::uint32_t index) {
        missing_ = context_.welcome.limits.num_experts;
        // An expert that cannot be had ends this load, also in the midst of the loop.
        const std::vector<Sha256> experts = weights_->layers()[index].experts;
        const std::uint64_t load = load_;
        for (std::uint32_t expert = 0; expert < experts.size() && load == load_; ++expert)
            fetch(
                experts[expert], context_.welcome.expert_blob_bytes,
                [this, index, expert](Bytes blob) {
                    weights_->add_expert(index, expert, std::move(blob));
                },
                [this, index] { place_layer(index); });
    }

    // Lets the decoder load a layer. Its weights are here.
    void place_layer(std::uint32_t index) {
        const std::uint64_t load = load_;
        if (reserve_beside_held(index) && load == load_) weights_->prepared();
    }

    bool is_of_model(const SpanLayer& layer) const {
        const Welcome& welcome = context_.welcome;
        return layer.hidden_size == welcome.limits.hidden_size &&
               layer.num_experts == welcome.limits.num_experts &&
               layer.moe_intermediate_size == welcome.expert_shape.moe_intermediate_size &&
               layer.expert_clamp == welcome.expert_shape.clamp &&
               layer.mxfp4_experts == welcome.expert_shape.is_mxfp4() &&
               layer.group_size == welcome.expert_shape.group_size;
    }

    // Chooses the number of pages, and begins to load the weights.
    void begin_load() {
        auto weights = SpanWeights::of_layers(std::move(layer_blobs_), wanted_->first_layer);
        layer_blobs_.clear();
        if (!weights.ok() || !is_of_model(weights->layers().front())) return refuse();
        weights_ = std::make_unique<SpanWeights>(std::move(*weights));

        const DecoderModel model = weights_->model(wanted_->context_tokens);
        GpuDecoderOptions options{.rows_max = step_rows, .kv_kind = KvKind::f16};
        if (SpanDecoder::rows_of_a_frame(model) == 0) return refuse();
        const std::uint64_t needed = choose_sizes(model, options);
        if (needed == 0 || needed > context_.bytes_max) return refuse();

        needed_bytes_ = needed;
        const std::uint64_t load_before = load_;
        if (!reserve_beside_held(0) || load_before != load_) return;
        weights_->on_prepare([this](std::uint32_t index) { fetch_experts(index); });
        weights_->on_placed([this](const ExpertArena& arena) {
            return context_.lend(
                {.owner = load_,
                 .first = {.layer = static_cast<std::uint16_t>(wanted_->first_layer + arena.layer),
                           .expert = static_cast<std::uint16_t>(arena.first_expert)},
                 .num_units = arena.num_experts,
                 .buffer = arena.buffer,
                 .give_up = arena.give_up});
        });
        GpuDecoder::create(
            context_.device, model, options, *weights_,
            [this, life = life_.watch(), load = load_](Result<std::unique_ptr<GpuDecoder>> made) {
                if (!life.alive()) return;
                if (!made.ok() || load != load_) context_.end_lending(load, made.ok());
                if (!life.alive() || load != load_) return;
                weights_.reset();
                if (!made.ok()) return failed(made.error());
                loaded(std::move(*made));
            });
    }

    // Reserves the memory of the span without that of the experts of its layers from `index` on
    // which the worker holds: these move from their slots to the span while it is loaded. Returns
    // false if this object is destroyed.
    bool reserve_beside_held(std::uint32_t index) {
        const std::uint64_t load = load_, needed = needed_bytes_;
        const std::uint32_t first = wanted_->first_layer + index,
                            end = wanted_->first_layer +
                                  static_cast<std::uint32_t>(wanted_->layers.size());
        const auto alive = life_.watch();
        // A reservation may make the worker release some of these experts.
        for (std::uint64_t held = context_.held(first, end), before = held + 1; held < before;) {
            context_.reserve(needed - held * context_.welcome.expert_blob_bytes);
            if (!alive.alive()) return false;
            if (load != load_) return true;
            before = std::exchange(held, context_.held(first, end));
        }
        return true;
    }

    // Chooses the sizes of the span: with the most memory for keys and values with which no expert
    // of another layer has to give way; and with what the hub allows, if each such size is too
    // small to be of use.
    // Returns the memory that the span needs; 0: it has no room for keys and values, or states.
    std::uint64_t choose_sizes(const DecoderModel& model, GpuDecoderOptions& options) {
        const std::uint64_t room = context_.room(wanted_->first_layer,
                                                 wanted_->first_layer + model.num_layers);
        const auto needs = [&](std::uint64_t kv_bytes) -> std::uint64_t {
            if (!choose_room(model, kv_bytes, options)) return 0;
            const auto sizes = decoder_sizes_of(context_.device.adapter(), model, options);
            return DecoderMemory::needs_of(model, sizes).all();
        };
        std::uint64_t kv_bytes = wanted_->kv_bytes_max, needed = needs(kv_bytes);
        while (needed > room) {
            needed = needs(kv_bytes = kv_bytes / 8 * 7);
            const bool is_of_use = options.pages >= pages_min &&
                                   (sequences_max_ == 0 || sequences_max_ >= states_min);
            if (!is_of_use) needed = 0;
        }
        return needed > 0 ? needed : needs(wanted_->kv_bytes_max);
    }

    // Chooses the number of pages, and of places for recurrent states. Returns false if there is no
    // room for either.
    bool choose_room(const DecoderModel& model, std::uint64_t kv_bytes,
                     GpuDecoderOptions& options) {
        std::uint64_t num_recurrent = 0;
        for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
            num_recurrent += model.is_delta(layer) ? 1 : 0;
        const std::uint64_t binding_bytes = context_.device.adapter().max_binding_bytes;
        sequences_max_ = 0;
        if (num_recurrent > 0) {
            const std::uint64_t state_bytes = DecoderMemory::state_bytes(model),
                                bytes_of_one = 2 * state_bytes +
                                               DecoderMemory::journal_bytes(model),
                                fit = std::min(kv_bytes / 2 / (num_recurrent * bytes_of_one),
                                               binding_bytes / (2 * state_bytes));
            sequences_max_ = static_cast<std::uint32_t>(std::min<std::uint64_t>(fit, states_max));
            if (sequences_max_ == 0) return false;
            kv_bytes -= sequences_max_ * num_recurrent * bytes_of_one;
            options.state_slots = SpanStates::num_slots(sequences_max_);
            options.journals = sequences_max_;
        }
        const std::uint64_t layer_bytes = DecoderMemory::kv_page_bytes(model, KvKind::f16),
                            num_attending = std::max<std::uint64_t>(
                                model.num_layers - num_recurrent, 1);
        options.pages = static_cast<std::uint32_t>(
            std::min(kv_bytes / (layer_bytes * num_attending), binding_bytes / layer_bytes));
        return options.pages > 0;
    }

    void failed(const Error& error) {
        if (error.code == ErrorCode::device_lost) return context_.lost(gpu::loss_of(error));
        const auto alive = life_.watch();
        refuse();
        if (alive.alive()) context_.reserve(0);
    }

    void loaded(std::unique_ptr<GpuDecoder> made) {
        decoder_ = std::make_unique<SpanDecoder>(std::move(made), wanted_->context_tokens,
                                                 sequences_max_);
        decoder_load_ = load_;
        const auto alive = life_.watch();
        context_.reserve(needed_bytes_);
        if (!alive.alive()) return;
        is_computing_ = true;
        decoder_->measure([this] { return context_.platform.now_ms(); },
                          [this, life = life_.watch(), owner = decoder_.get()](auto measured) {
                              if (!life.alive() || !computed(owner)) return;
                              if (!measured.ok()) return failed(measured.error());
                              layer_us_ = *measured;
                              if (is_assigned_) report_ready();
                              proceed();
                          });
    }

    void report_ready() {
        is_reported_ = true;
        context_.changed();
        context_.hub.send(encode_span_ready({.span = wanted_->span,
                                             .num_pages = decoder_->num_pages(),
                                             .page_tokens = kv_page_tokens,
                                             .rows_max = decoder_->rows_max(),
                                             .sequences_max = decoder_->sequences_max(),
                                             .layer_us = layer_us_}));
    }

    // ---- steps

    // Ends a computation of `owner`. Returns false if its span was dropped meanwhile.
    bool computed(const SpanDecoder* owner) {
        const auto dropped = std::find_if(
            dropped_.begin(), dropped_.end(),
            [&](const Dropped& one) { return one.decoder.get() == owner; });
        if (dropped != dropped_.end()) {
            const Dropped last = std::move(*dropped);
            dropped_.erase(dropped);
            const auto alive = life_.watch();
            context_.end_lending(last.load, true);
            if (!alive.alive()) return false;
            if (needed_bytes_ == 0 && dropped_.empty()) context_.reserve(0);
            return false;
        }
        is_computing_ = false;
        if (std::exchange(clears_all_, false)) decoder_->end_all();
        return true;
    }

    void proceed() {
        while (!waiting_.empty() && !is_computing_) {
            Waiting next = std::move(waiting_.front());
            waiting_.pop_front();
            std::visit([this](auto&& frame) { handle(std::move(frame)); }, std::move(next));
        }
    }

    bool serves(std::uint32_t span) const {
        return decoder_ && is_assigned_ && wanted_->span == span;
    }

    void handle(SpanKv&& kv) {
        // Rows that cannot be stored end the sequence, so that its next step is refused.
        if (serves(kv.span)) decoder_->take_kv(kv);
    }
    void handle(SpanState&& state) {
        if (serves(state.span)) decoder_->take_state(state);
    }
    void handle(EndedSequences&& ended) {
        if (decoder_) decoder_->end(ended);
    }
    void handle(WaitingStep&& waiting) {
        if (!serves(waiting.step.span))
            return context_.hub.send(encode_span_answer({.step = waiting.step.step,
                                                         .span = waiting.step.span,
                                                         .verdict = SpanVerdict::no_span},
                                                        context_.welcome.limits.hidden_size));
        is_computing_ = true;
        decoder_->step(waiting.step, [this, life = life_.watch(), owner = decoder_.get(),
                                      connection = context_.hub.number(),
                                      arrived_ms = waiting.arrived_ms](Result<SpanAnswer> answer) {
            if (!life.alive() || !computed(owner)) return;
            if (!answer.ok()) return failed(answer.error());
            answer->worker_us = static_cast<std::uint32_t>(
                1e3 * (context_.platform.now_ms() - arrived_ms));
            if (connection == context_.hub.number())
                context_.hub.send(encode_span_answer(*answer, context_.welcome.limits.hidden_size));
            proceed();
        });
    }

    // A span that computes its last step.
    struct Dropped {
        std::unique_ptr<SpanDecoder> decoder;
        std::uint64_t load = 0;
    };

    SpanContext context_;
    std::optional<SpanAssign> wanted_;  // the newest SPAN_ASSIGN
    bool is_assigned_ = false;          // `wanted_` was assigned on this connection
    bool is_reported_ = false;          // `wanted_` was reported ready
    std::uint64_t load_ = 0;            // number of spans dropped so far; older loads are ignored
    std::size_t missing_ = 0;           // blobs that are being fetched
    std::vector<Bytes> layer_blobs_;
    std::unique_ptr<SpanWeights> weights_;
    std::unique_ptr<SpanDecoder> decoder_;
    std::uint64_t decoder_load_ = 0;  // the load that made it
    std::vector<Dropped> dropped_;
    std::uint64_t needed_bytes_ = 0;   // memory that is reserved for the span
    std::uint32_t sequences_max_ = 0;  // with recurrent states; 0: the span has none
    std::array<std::uint32_t, 3> layer_us_{};
    bool is_computing_ = false;  // the GPU computes a step
    bool clears_all_ = false;    // all sequences end after that step
    std::deque<Waiting> waiting_;
    LifeGuard life_;
};

}  // namespace

std::unique_ptr<SpanHost> make_span_worker(SpanContext context) {
    return std::make_unique<SpanWorker>(std::move(context));
}

}  // namespace moex
