#include "hub/engine/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "hub/base/trace.h"
#include "hub/engine/decoder_attention.h"
#include "hub/engine/decoder_delta_net.h"
#include "hub/engine/decoder_weights.h"
#include "hub/engine/expert_foresight.h"
#include "hub/engine/expert_speculator.h"
#include "hub/engine/kernels/matmul.h"
#include "hub/engine/router.h"
#include "hub/engine/row_buffer.h"
#include "hub/engine/span_steps.h"

namespace moex {
namespace {

// Costs of loop iterations for loop_grain(). Adding a row costs as much as 2 passes over its
// floats, and choosing a row's experts as much as 16 passes over its router logits.
constexpr std::size_t add_walks = 2, route_walks = 16;

// The experts' round of one layer for one micro-batch, with the buffers that the round reads and
// writes while it is in flight.
struct ExpertCall {
    std::vector<float> x, weights, y;
    std::vector<std::uint16_t> ids;
    std::vector<RowPatience> patience;
    // added to the rows as a substitute for y until y arrives, if stands_in
    std::vector<float> stand_in;
    bool stands_in = false;
    std::unique_ptr<ExpertRound> round;
    std::uint32_t layer = 0;
    TimePoint sent{};
    bool is_elsewhere = false;  // true if the workers, not this machine, compute the round
};

// A micro-batch: rows of a step that pass through the layers together, with their buffers.
struct MicroBatch : AttendingRows {
    std::uint32_t first_row = 0;  // in the step
    // null: the micro-batch's rows are exact, without a speculator
    ExpertSpeculator* speculator = nullptr;
    std::vector<float> router_logits;
    std::vector<float> gate, up, shared_gate;  // dense layers and shared experts
    std::vector<float> joined;                 // [2 · hidden_size], input of a draft head
    // The expert call of the latest layer, and that of the layer before while a substitute is used
    // for its answer.
    ExpertCall calls[2];
    unsigned last_call = 0;
};

}  // namespace

struct Decoder::State {
    std::shared_ptr<const ModelPackage> package;
    ThreadPool& threads;
    DecoderOptions options;
    ModelConfig config;
    std::shared_ptr<const DecoderWeights> shared_weights;
    const DecoderWeights& weights;
    LayerRopes ropes;
    std::vector<MicroBatch> micro_batches = {};
    std::vector<float> spare_logits = {};  // memory of an earlier result's logits, for reuse
    // of a draft head: package and weights of its model, which own embeddings and LM head
    std::shared_ptr<const ModelPackage> model = {};
    std::shared_ptr<const DecoderWeights> model_weights = {};
    // latency budgets of the step's rows; `pairs_max` is the limit over all layers
    std::vector<RowPatience> patience = {};
    ExpertForesight* foresight = nullptr;
    Trace::Row trace_row = Trace::Row::engine;
    // mean duration of remote rounds, from sending to the end of the wait
    Duration usual_round{};
    const DecoderAttention attention{config, weights, ropes, threads, trace_row};
    DecoderDeltaNet delta_net{config, weights, threads, trace_row};
    SpanSteps spans{config, nullptr, &delta_net};

    Result<std::vector<SequenceRow>> rows_of(std::span<const StepRows> batch) const;
    void embed(MicroBatch& batch);
    void join_drafted(MicroBatch& batch);
    void add_mlp(MicroBatch& batch, std::uint32_t layer, std::vector<float>& normed);
    void ask_router(MicroBatch& batch, std::uint32_t layer, ExpertCall& call);
    void start_experts(MicroBatch& batch, std::uint32_t layer, ExpertBackend& experts,
                       const RouteWatch& watch, const StepResult& result);
    void be_patient(const MicroBatch& batch, ExpertCall& call, const StepResult& result) const;
    void look_ahead(MicroBatch& batch, const RouteView& view, ExpertBackend& experts);
    void expect_layer(const ExpertCall& call);
    Status finish_experts(MicroBatch& batch, ExpertCall& call, StepResult& result,
                          const std::stop_token& stop);
    Status any_layer(MicroBatch& batch, std::uint32_t layer, ExpertBackend& experts,
                     const RouteWatch& watch, StepResult& result, const std::stop_token& stop);
    Status end_span(std::size_t part, std::uint32_t layer, ExpertBackend& experts,
                    const RouteWatch& watch, StepResult& result, const std::stop_token& stop);
    Status moe_layer(MicroBatch& batch, std::uint32_t layer, ExpertBackend& experts,
                     const RouteWatch& watch, StepResult& result, const std::stop_token& stop);
    void cut_into_parts(std::span<const SequenceRow> rows, std::span<const StepRows> batch,
                        std::uint32_t num_parts);
    std::vector<float> final_rows(std::span<const std::uint32_t> asked) const;
    void head(std::span<const StepRows> batch, StepResult& result);
};

Decoder::Decoder() = default;
Decoder::~Decoder() = default;
const ModelConfig& Decoder::config() const { return state_->config; }
void Decoder::use_spans(SpanBackend* spans) { state_->spans.use(spans); }
void Decoder::foresee_with(ExpertForesight* foresight) { state_->foresight = foresight; }

Result<std::unique_ptr<Decoder>> Decoder::create(std::shared_ptr<const ModelPackage> package,
                                                 ThreadPool& threads, DecoderOptions options) {
    MOEX_ASSIGN(weights,
                load_decoder_weights(*package, options.arithmetic, options.hub_dtype, threads));

    const ModelConfig config = package->config();
    const auto shared = std::make_shared<const DecoderWeights>(std::move(weights));
    std::unique_ptr<Decoder> decoder(new Decoder);
    decoder->state_.reset(new State{std::move(package), threads, options, config, shared, *shared,
                                    LayerRopes(config)});

    return decoder;
}

Result<std::unique_ptr<Decoder>> Decoder::draft_head(std::shared_ptr<const ModelPackage> head,
                                                     ThreadPool& threads) const {
    const State& own = *state_;
    return draft_head_with(own.package, own.shared_weights, std::move(head), threads, own.options);
}

Result<std::unique_ptr<Decoder>> Decoder::draft_head_of(std::shared_ptr<const ModelPackage> model,
                                                        std::shared_ptr<const ModelPackage> head,
                                                        ThreadPool& threads,
                                                        DecoderOptions options) {
    MOEX_ASSIGN(tables,
                load_decoder_tables(*model, options.arithmetic, options.hub_dtype, threads));
    return draft_head_with(std::move(model),
                           std::make_shared<const DecoderWeights>(std::move(tables)),
                           std::move(head), threads, options);
}

Result<std::unique_ptr<Decoder>> Decoder::draft_head_with(
    std::shared_ptr<const ModelPackage> model, std::shared_ptr<const DecoderWeights> model_weights,
    std::shared_ptr<const ModelPackage> head, ThreadPool& threads, DecoderOptions options) {
    MOEX_ASSIGN(weights, load_decoder_weights(*head, options.arithmetic, options.hub_dtype, threads,
                                              model_weights.get()));
    const ModelConfig config = head->config();
    const auto shared = std::make_shared<const DecoderWeights>(std::move(weights));
    std::unique_ptr<Decoder> decoder(new Decoder);
    decoder->state_.reset(
        new State{std::move(head), threads, options, config, shared, *shared, LayerRopes(config)});
    decoder->state_->model = std::move(model);
    decoder->state_->model_weights = std::move(model_weights);
    return decoder;
}

std::unique_ptr<Decoder> Decoder::twin(ThreadPool& threads) const {
    const State& own = *state_;
    std::unique_ptr<Decoder> decoder(new Decoder);
    decoder->state_.reset(new State{own.package, threads, own.options, own.config,
                                    own.shared_weights, *own.shared_weights,
                                    LayerRopes(own.config)});
    decoder->state_->trace_row = Trace::Row::shadow;
    return decoder;
}

void Decoder::State::embed(MicroBatch& batch) {
    rows_out(batch.x, config.hidden_size, batch.rows.size());
    rows_out(batch.cos_sin, ropes.row_size(), batch.rows.size());

    for (std::size_t r = 0; r < batch.rows.size(); ++r) {
        const auto x = row_of(batch.x, r, config.hidden_size);
        tensor_to_float(weights.embeddings, std::uint64_t{batch.rows[r].token} * config.hidden_size,
                        x);
        if (config.embedding_multiplier != 1.0)
            scale_by(x, static_cast<float>(config.embedding_multiplier));
        ropes.angles(batch.rows[r].position, row_of(batch.cos_sin, r, ropes.row_size()));
    }
    if (config.is_draft_head) join_drafted(batch);
}

// Replaces the embeddings of a draft head's tokens by the input of its layer (draft_head.h).
void Decoder::State::join_drafted(MicroBatch& batch) {
    const std::size_t hidden = config.hidden_size, num_rows = batch.rows.size();
    if (num_rows == 0) return;
    rows_out(batch.joined, 2 * config.hidden_size, num_rows);
    const auto eps = static_cast<float>(config.rms_norm_eps);
    for (std::size_t r = 0; r < num_rows; ++r) {
        const auto joined = row_of(batch.joined, r, 2 * hidden);
        rms_norm(joined.first(hidden), row_of(batch.x, r, hidden), weights.draft_embedding_norm,
                 eps);
        rms_norm(joined.subspan(hidden), {batch.rows[r].follows, hidden}, weights.draft_hidden_norm,
                 eps);
    }
    const HubProduct join[] = {
        {rows_out(batch.x, config.hidden_size, num_rows), &weights.draft_join}};
    multiply(join, rows_in(batch.joined, 2 * config.hidden_size, num_rows), batch.codes, threads);
}

// Adds to the rows the answer of the FFN that every row takes: a dense layer's, or the shared
// expert of a routed layer.
void Decoder::State::add_mlp(MicroBatch& batch, std::uint32_t layer_index,
                             std::vector<float>& input) {
    const DecoderLayer& layer = weights.layers[layer_index];
    const LayerPlan& plan = config.layers[layer_index];
    const std::size_t num_rows = batch.rows.size(), hidden = config.hidden_size,
                      inner = plan.is_routed ? plan.shared_size : config.intermediate_size;

    const RowsIn normed = rows_in(input, hidden, num_rows);
    const HubProduct gate_up[] = {{rows_out(batch.gate, inner, num_rows), &layer.gate},
                                  {rows_out(batch.up, inner, num_rows), &layer.up}};
    multiply(gate_up, normed, batch.codes, threads);

    for (std::size_t r = 0; r < num_rows; ++r)
        silu_mul(row_of(batch.gate, r, inner), row_of(batch.gate, r, inner),
                 row_of(batch.up, r, inner));

    const HubProduct down[] = {{rows_out(batch.projected, hidden, num_rows), &layer.down}};
    multiply(down, rows_in(batch.gate, inner, num_rows), batch.codes, threads);

    if (plan.has_shared_gate) {
        const MatmulJob gate[] = {
            {rows_out(batch.shared_gate, 1, num_rows), layer.shared_expert_gate, normed}};
        matmul(gate, threads);
        for (std::size_t r = 0; r < num_rows; ++r)
            scale_by(row_of(batch.projected, r, hidden),
                     1.0f / (1.0f + std::exp(-batch.shared_gate[r])));
    }
    for (std::size_t r = 0; r < num_rows; ++r)
        add_branch(row_of(batch.x, r, hidden), row_of(batch.projected, r, hidden), plan);
}

// Computes how many experts' answers each row may do without in this layer. `result` has the number
// of answers that were missing in earlier layers.
void Decoder::State::be_patient(const MicroBatch& batch, ExpertCall& call,
                                const StepResult& result) const {
    call.patience.clear();
    for (RowPatience one : patience) {
        if (one.row < batch.first_row || one.row - batch.first_row >= batch.rows.size()) continue;
        const std::uint32_t lacked = result.rows[one.row].pairs_late;
        if (lacked >= one.pairs_max) continue;
        one.pairs_max -= lacked;
        one.row -= batch.first_row;
        call.patience.push_back(one);
    }
}

// Computes the router's logits of the normalised rows, and chooses each row's experts by these
// logits.
void Decoder::State::ask_router(MicroBatch& batch, std::uint32_t layer_index, ExpertCall& call) {
    const TraceSpan span(trace_row, "router");
    const DecoderLayer& layer = weights.layers[layer_index];
    const RouterOptions options{config.top_k, config.layers[layer_index].router,
                                layer.correction_bias};
    const auto num_rows = static_cast<std::uint32_t>(batch.rows.size());
    const MatmulJob router[] = {{rows_out(batch.router_logits, config.num_experts, num_rows),
                                 layer.router,
                                 rows_in(batch.normed, config.hidden_size, num_rows)}};
    matmul(router, threads);

    const std::size_t route_floats = route_walks * config.num_experts;
    parallel_each(threads, num_rows, route_floats, walk_floats, [&](std::size_t r) {
        const auto logits = row_of(batch.router_logits, r, config.num_experts);
        if (!layer.router_bias.empty()) add_to(logits, layer.router_bias);
        route(logits, options, std::span(call.ids).subspan(r * config.top_k, config.top_k),
              row_of(call.weights, r, config.top_k));
    });
}

void Decoder::State::start_experts(MicroBatch& batch, std::uint32_t layer_index,
                                   ExpertBackend& experts, const RouteWatch& watch,
                                   const StepResult& result) {
    const auto num_rows = static_cast<std::uint32_t>(batch.rows.size());
    const std::size_t num_pairs = std::size_t{num_rows} * config.top_k,
                      floats = std::size_t{num_rows} * config.hidden_size;

    ExpertCall& call = batch.calls[batch.last_call ^= 1];
    call.ids.resize(num_pairs);
    call.weights.resize(num_pairs);
    rows_out(call.y, config.hidden_size, num_rows);

    const bool is_routed = !batch.speculator || !batch.speculator->replaces_router(layer_index);
    if (is_routed) ask_router(batch, layer_index, call);

    const RouteView view{
        .layer = layer_index,
        .num_tokens = num_rows,
        .top_k = config.top_k,
        .num_experts = config.num_experts,
        .hidden_size = config.hidden_size,
        .first_row = batch.first_row,
        .rows = batch.rows,
        .expert_ids = call.ids,
        .expert_weights = call.weights,
        .router_logits = std::span(batch.router_logits)
                             .first(is_routed ? std::size_t{num_rows} * config.num_experts : 0),
        .residual = std::span(batch.x).first(floats),
        .hidden = std::span(batch.normed).first(floats)};

    if (batch.speculator) batch.speculator->choose(view, call.ids, call.weights);
    if (watch) watch(view);
    be_patient(batch, call, result);

    // Swap the rows into the call: the round reads x until it is complete, and the next layer's
    // norm may overwrite `normed` before that. The spans of `view` stay valid, because a swap keeps
    // the memory.
    std::swap(call.x, batch.normed);
    call.layer = layer_index;
    call.sent = now_steady();
    call.is_elsewhere = experts.works_elsewhere();
    {
        const TraceSpan span(trace_row, "submit");
        call.round = experts.submit({.layer = layer_index,
                                     .num_tokens = num_rows,
                                     .hidden_size = config.hidden_size,
                                     .top_k = config.top_k,
                                     .x = std::span(call.x).first(floats),
                                     .expert_ids = call.ids,
                                     .expert_weights = call.weights,
                                     .y = std::span(call.y).first(floats),
                                     .patience = call.patience,
                                     .is_check = spans.checks_with_weights(layer_index)});
    }

    call.stands_in = false;
    if (batch.speculator) {
        rows_out(call.stand_in, config.hidden_size, num_rows);
        call.stands_in = batch.speculator->stand_in(view, std::span(call.stand_in).first(floats));
    }
    look_ahead(batch, view, experts);
    // The shared expert is computed while the round is in flight.
    if (config.layers[layer_index].shared_size > 0) add_mlp(batch, layer_index, call.x);
}

// Predicts the next layer's experts while this layer's round is in flight. The thread would only
// wait now, so a prediction delays nothing. A speculator decides which experts its rows request, so
// its hints are certain and replace those of `foresight`.
void Decoder::State::look_ahead(MicroBatch& batch, const RouteView& view, ExpertBackend& experts) {
    if (batch.speculator) batch.speculator->look_ahead(view);
    if (!experts.wants_hints()) return;

    std::span<const ExpertHint> hints;
    if (foresight != nullptr) hints = foresight->foresee(view);
    if (batch.speculator)
        if (const auto sure = batch.speculator->hints(); !sure.empty()) hints = sure;
    if (foresight != nullptr || !hints.empty()) experts.hint(hints);
}

// Runs one MoE layer after its attention. The answers of the layer before may still be pending if a
// substitute is used for these answers. They are collected after this layer's call was sent, so
// that two rounds are in flight at once.
Status Decoder::State::moe_layer(MicroBatch& batch, std::uint32_t layer, ExpertBackend& experts,
                                 const RouteWatch& watch, StepResult& result,
                                 const std::stop_token& stop) {
    ExpertCall& before = batch.calls[batch.last_call];
    start_experts(batch, layer, experts, watch, result);
    MOEX_TRY(finish_experts(batch, before, result, stop));

    const ExpertCall& call = batch.calls[batch.last_call];
    for (std::size_t r = 0; call.stands_in && r < batch.rows.size(); ++r)
        add_branch(row_of(batch.x, r, config.hidden_size),
                   std::span(call.stand_in).subspan(r * config.hidden_size, config.hidden_size),
                   config.layers[layer]);
    return {};
}

// Runs one layer for a micro-batch. The earlier layers were submitted.
Status Decoder::State::any_layer(MicroBatch& batch, std::uint32_t layer, ExpertBackend& experts,
                                 const RouteWatch& watch, StepResult& result,
                                 const std::stop_token& stop) {
    const bool is_moe = config.is_moe(layer);
    ExpertCall& before = batch.calls[batch.last_call];
    if (!before.stands_in || !is_moe) MOEX_TRY(finish_experts(batch, before, result, stop));

    const TraceSpan span(trace_row, "layer", {"layer", layer});
    if (config.has_keys(layer)) {
        attention.compute(batch, layer);
    } else {
        delta_net.compute(batch, layer);
        spans.computed_delta_rule(static_cast<std::size_t>(&batch - micro_batches.data()), layer);
    }
    if (is_moe) return moe_layer(batch, layer, experts, watch, result, stop);
    add_mlp(batch, layer, batch.normed);
    return {};
}

// Takes the rows of a micro-batch back at the layer behind a span. Where no worker answered, the
// layers of the span are computed here.
Status Decoder::State::end_span(std::size_t part, std::uint32_t layer, ExpertBackend& experts,
                                const RouteWatch& watch, StepResult& result,
                                const std::stop_token& stop) {
    MicroBatch& batch = micro_batches[part];
    const std::size_t floats = batch.rows.size() * config.hidden_size;
    // A check compares the rows behind the span, with the answers of its last layer's experts.
    if (spans.ends(part, layer))
        MOEX_TRY(finish_experts(batch, batch.calls[batch.last_call], result, stop));
    MOEX_ASSIGN(missing, spans.come_back(part, layer, batch.rows, std::span(batch.x).first(floats),
                                         result, batch.first_row, stop));
    for (std::uint32_t l = missing ? missing->first : layer; l < layer; ++l)
        MOEX_TRY(any_layer(batch, l, experts, watch, result, stop));
    return {};
}

// Announces the next layer's matrices to the compute threads for prefetching. The threads need
// these matrices when the answers of `call` have arrived.
void Decoder::State::expect_layer(const ExpertCall& call) {
    std::array<ThreadPool::Reads, 2> reads;
    if (call.layer + 1 < config.num_layers && options.arithmetic == Arithmetic::int8) {
        const DecoderLayer& next = weights.layers[call.layer + 1];
        const auto bytes_of = [](const HubMatrix& matrix) {
            return std::span(matrix.packed.data, matrix.packed.size_bytes());
        };
        if (config.has_keys(call.layer + 1)) {
            reads[0] = {{bytes_of(next.q), bytes_of(next.k), bytes_of(next.v)}};
            reads[1] = {{bytes_of(next.o)}};
        } else {
            reads[0] = {{bytes_of(next.delta_net.qkv), bytes_of(next.delta_net.z)}};
            reads[1] = {{bytes_of(next.delta_net.out)}};
        }
    }
    threads.expect_job(call.sent + usual_round, reads);
}

Status Decoder::State::finish_experts(MicroBatch& batch, ExpertCall& call, StepResult& result,
                                      const std::stop_token& stop) {
    if (!call.round) return {};

    const TraceSpan span(trace_row, "wait for experts");
    if (call.is_elsewhere) expect_layer(call);
    const TimePoint asked_at = now_steady();
    auto waited = call.round->wait(stop);
    result.wait_time += now_steady() - asked_at;
    call.round.reset();
    if (!waited.ok()) return waited.error();
    if (call.is_elsewhere) usual_round += (now_steady() - call.sent - usual_round) / 8;

    const LayerPlan& plan = config.layers[call.layer];
    const std::size_t add_floats = add_walks * config.hidden_size;
    parallel_each(threads, batch.rows.size(), add_floats, walk_floats, [&](std::size_t r) {
        const auto x = row_of(batch.x, r, config.hidden_size);
        if (call.stands_in)
            add_scaled_to(x, row_of(call.stand_in, r, config.hidden_size),
                          -static_cast<float>(plan.residual_multiplier));
        add_branch(x, row_of(call.y, r, config.hidden_size), plan);
    });

    for (std::size_t r = 0; r < std::min(batch.rows.size(), waited->rows.size()); ++r) {
        RowProvenance& sum = result.rows[batch.first_row + r];
        const RowProvenance& one = waited->rows[r];
        sum.pairs_remote += one.pairs_remote;
        sum.pairs_local += one.pairs_local;
        sum.pairs_hedged += one.pairs_hedged;
        sum.pairs_verified += one.pairs_verified;
        sum.pairs_proven += one.pairs_proven;
        sum.pairs_late += one.pairs_late;
    }

    for (const RowWorker& from : waited->row_workers) {
        std::vector<std::uint64_t>& workers = result.row_workers[batch.first_row + from.row];
        const auto at = std::lower_bound(workers.begin(), workers.end(), from.worker);
        if (at == workers.end() || *at != from.worker) workers.insert(at, from.worker);
    }

    result.experts_waited += waited->waited;
    return {};
}

// Returns the rows `asked` of the step after the final norm. `asked` is in ascending order.
std::vector<float> Decoder::State::final_rows(std::span<const std::uint32_t> asked) const {
    std::vector<float> normed(asked.size() * config.hidden_size);
    std::size_t part = 0;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        while (asked[i] >= micro_batches[part].first_row + micro_batches[part].rows.size()) ++part;
        const std::size_t row = asked[i] - micro_batches[part].first_row;
        rms_norm(
            row_of(normed, i, config.hidden_size),
            std::span(micro_batches[part].x).subspan(row * config.hidden_size, config.hidden_size),
            weights.final_norm, static_cast<float>(config.rms_norm_eps));
    }
    return normed;
}

// Computes the logits of the rows for which the batch requests logits. Only these rows are
// multiplied by the LM head.
void Decoder::State::head(std::span<const StepRows> batch, StepResult& result) {
    std::vector<std::uint32_t> asked, hidden;
    std::uint32_t first = 0;
    for (const StepRows& rows : batch) {
        const auto count = static_cast<std::uint32_t>(rows.tokens.size());
        for (std::uint32_t i = 0; i < count; ++i)
            if (!rows.no_logits && (rows.all_logits || i + 1 == count)) asked.push_back(first + i);
        for (std::uint32_t i = 0; rows.hidden && i < count; ++i) hidden.push_back(first + i);
        first += count;
    }

    if (!hidden.empty()) result.hidden = final_rows(hidden);
    if (asked.empty()) return;

    const TraceSpan span(trace_row, "head", {"rows", asked.size()});
    const TimePoint started = now_steady();
    const std::vector<float> normed = final_rows(asked);
    result.logits = std::move(spare_logits);
    result.logits.resize(asked.size() * config.vocab_size);
    const HubProduct product[] = {{{result.logits.data(), config.vocab_size}, &weights.head}};
    multiply(product, rows_in(normed, config.hidden_size, asked.size()),
             micro_batches.front().codes, threads);
    if (config.logits_divisor != 1.0)
        for (float& logit : result.logits) logit /= static_cast<float>(config.logits_divisor);
    result.head_time = now_steady() - started;
}

void Decoder::recycle(StepResult&& result) {
    std::vector<float>& spare = state_->spare_logits;
    if (result.logits.capacity() > spare.capacity()) spare = std::move(result.logits);
}
ThreadPool& Decoder::threads() const { return state_->threads; }

// Reserves room in the cache for every row of the batch, and returns the position of each row.
Result<std::vector<SequenceRow>> Decoder::State::rows_of(std::span<const StepRows> batch) const {
    std::vector<SequenceRow> rows;
    for (const StepRows& one : batch) {
        const std::size_t follows = config.is_draft_head ? one.tokens.size() : 0;
        MOEX_CHECK(one.follows.size() == follows * config.hidden_size,
                   "a draft head's tokens, and no others, follow rows of the model");
        const std::uint64_t end = one.kv->num_tokens() + one.tokens.size();
        if (end > config.context_tokens)
            return Error{ErrorCode::invalid_argument,
                         text("the sequence would have ", end, " tokens, the context is ",
                              config.context_tokens)};

        if (!one.kv->reserve(static_cast<std::uint32_t>(end)))
            return Error{ErrorCode::overloaded,
                         text("no key/value pages left for ", end, " tokens")};

        one.kv->begin_step(static_cast<std::uint32_t>(one.tokens.size()));
        for (std::size_t i = 0; i < one.tokens.size(); ++i) {
            if (one.tokens[i] >= config.vocab_size)
                return Error{
                    ErrorCode::invalid_argument,
                    text("token ", one.tokens[i], ", the vocabulary has ", config.vocab_size)};
            rows.push_back({one.kv, one.kv->num_tokens() + static_cast<std::uint32_t>(i),
                            one.tokens[i],
                            one.follows.empty() ? nullptr : &one.follows[i * config.hidden_size]});
        }
    }

    return rows;
}

// Cuts the rows of a step into micro-batches (parts), in the order of the batch. Within a layer the
// keys of a part are written before a later part of the same sequence reads them.
void Decoder::State::cut_into_parts(std::span<const SequenceRow> rows,
                                    std::span<const StepRows> batch, std::uint32_t num_parts) {
    MOEX_CHECK(num_parts > 0, "a step has at least one part");
    std::size_t num_exact = 0;
    std::vector<ExpertSpeculator*> speculators;  // one per part
    std::vector<std::size_t> ends;               // end of the row range of each speculator's part
    for (const StepRows& one : batch) {
        ExpertSpeculator* const asked = one.speculator;
        MOEX_CHECK(asked || speculators.empty(), "exact rows come before speculative ones");
        if (!asked) {
            num_exact += one.tokens.size();
            continue;
        }

        if (speculators.empty() || speculators.back() != asked) {
            const auto at = std::find(speculators.begin(), speculators.end(), asked);
            MOEX_CHECK(at == speculators.end(), "the rows of a speculator must be adjacent");
            speculators.push_back(asked);
            ends.push_back(ends.empty() ? num_exact : ends.back());
        }
        ends.back() += one.tokens.size();
    }

    // Micro-batches beyond `num_used` remain from an earlier step with more parts. They keep their
    // buffers and get no rows.
    const std::size_t num_used = num_parts + speculators.size();
    if (micro_batches.size() < num_used) micro_batches.resize(num_used);
    const auto begin_of = [&](std::size_t i) {
        if (i <= num_parts) return num_exact * i / num_parts;
        return ends.empty() ? num_exact : ends[std::min(i - num_parts, ends.size()) - 1];
    };
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
        MicroBatch& part = micro_batches[i];
        const std::size_t begin = begin_of(i), end = begin_of(i + 1);
        part.rows = rows.subspan(begin, end - begin);
        part.first_row = static_cast<std::uint32_t>(begin);
        const bool is_lossy = i >= num_parts && i < num_used;
        part.speculator = is_lossy ? speculators[i - num_parts] : nullptr;
        for (ExpertCall& call : part.calls) call.stands_in = false;
    }
}

Result<StepResult> Decoder::step(std::span<const StepRows> batch, ExpertBackend& experts,
                                 const RouteWatch& watch, std::stop_token stop,
                                 std::uint32_t micro_batches) {
    State& state = *state_;
    MOEX_ASSIGN(rows, state.rows_of(batch));

    StepResult result;
    result.rows.resize(rows.size());
    result.row_workers.resize(rows.size());
    if (rows.empty()) return result;
    state.package->require_unchanged();

    state.cut_into_parts(rows, batch, micro_batches);
    const bool may_leave = !watch &&
                           std::none_of(batch.begin(), batch.end(), [](const StepRows& one) {
                               return one.speculator != nullptr || one.stays_here;
                           });
    MOEX_TRY(state.spans.begin(rows, state.micro_batches.size(), may_leave));
    state.patience.clear();
    std::uint32_t first = 0;
    for (const StepRows& one : batch) {
        MOEX_CHECK(one.late_pairs_max == 0 || (one.tokens.size() == 1 && !one.speculator),
                   "only a single exact row may lack answers");
        if (one.late_pairs_max > 0)
            state.patience.push_back(
                {.row = first, .wait = one.late_wait, .pairs_max = one.late_pairs_max});
        first += static_cast<std::uint32_t>(one.tokens.size());
    }

    const auto run = [&]() -> Status {
        for (MicroBatch& part : state.micro_batches) state.embed(part);

        for (std::uint32_t layer = 0; layer < state.config.num_layers; ++layer) {
            state.spans.enter_layer(layer);
            for (std::size_t i = 0; i < state.micro_batches.size(); ++i) {
                MicroBatch& part = state.micro_batches[i];
                if (part.rows.empty() || state.spans.is_away(i, layer)) continue;
                if (stop.stop_requested())
                    return Error{ErrorCode::cancelled,
                                 text("the step was stopped at layer ", layer)};

                MOEX_TRY(state.end_span(i, layer, experts, watch, result, stop));
                if (state.spans.starts(layer)) {
                    // The rows leave with the answers of the layer before.
                    MOEX_TRY(state.finish_experts(part, part.calls[part.last_call], result, stop));
                    const std::size_t floats = part.rows.size() * state.config.hidden_size;
                    if (state.spans.leave(i, layer, part.rows, std::span(part.x).first(floats)))
                        continue;
                }
                MOEX_TRY(state.any_layer(part, layer, experts, watch, result, stop));
            }
        }

        for (MicroBatch& part : state.micro_batches)
            MOEX_TRY(state.finish_experts(part, part.calls[part.last_call], result, stop));
        return {};
    };

    const Status status = run();
    if (!status.ok()) {
        // After a failed step, cancel the rounds that are still in flight.
        for (MicroBatch& part : state.micro_batches)
            for (ExpertCall& call : part.calls) call.round.reset();
        state.spans.drop();
        return status.error();
    }

    state.head(batch, result);
    for (const StepRows& one : batch) one.kv->commit(static_cast<std::uint32_t>(one.tokens.size()));
    return result;
}

}  // namespace moex
