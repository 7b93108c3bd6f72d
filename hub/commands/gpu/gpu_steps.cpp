#include "hub/commands/gpu/gpu_steps.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <optional>

#include "hub/base/log.h"
#include "hub/base/trace.h"
#include "hub/commands/gpu/gpu_device.h"
#include "hub/commands/gpu/gpu_sizes.h"
#include "hub/commands/gpu/gpu_spans.h"
#include "hub/commands/gpu/load_decoder.h"
#include "hub/commands/gpu/micro_batch.h"
#include "hub/commands/gpu/planned_step.h"
#include "hub/commands/gpu/read_back.h"
#include "hub/engine/expert_foresight.h"

namespace moex {
namespace {

// Number of times that the GPU may be lost without a completed step in between. After that it is
// not opened again.
constexpr std::uint32_t losses_max = 2;

class VulkanSteps : public GpuSteps {
  public:
    VulkanSteps(std::shared_ptr<const ModelPackage> package, ThreadPool& threads)
        : package_(std::move(package)),
          config_(package_->config()),
          threads_(threads) {}

    Status open(GpuStepsOptions options) {
        options_ = std::move(options);
        kv_dtype_ = options_.kv_dtype;
        MOEX_TRY(open_device());
        num_pages_ = decoder_->num_pages();
        window_slots_ = decoder_->num_window_slots();
        kv_bytes_ = decoder_->kv_bytes();
        weight_bytes_ = decoder_->weight_bytes();
        options_.progress = {};
        return {};
    }

    std::string adapter() const override {
        const std::lock_guard lock(adapter_mutex_);
        return adapter_;
    }
    KvCacheOptions kv_pages() const override {
        return {.page_tokens = kv_page_tokens, .num_pages = num_pages_, .dtype = kv_dtype_};
    }
    std::uint64_t kv_bytes() const override { return kv_bytes_; }
    std::uint64_t weight_bytes() const override { return weight_bytes_; }
    void foresee_with(ExpertForesight* foresight) override { foresight_ = foresight; }
    void use_spans(SpanBackend* spans) override { spans_.use(spans); }

    const ModelConfig& config() const override { return config_; }
    ThreadPool& threads() const override { return threads_; }
    std::uint32_t micro_batches_max() const override { return num_lanes(); }
    bool gives_hidden() const override { return true; }
    std::uint32_t likeliest_max() const override {
        return cores_ != nullptr ? 0 : LikeliestList::kept;
    }
    StateSlotSizes state_slots() const override {
        return cores_ != nullptr ? StateSlotSizes{} : slots_;
    }
    KvPageMover page_mover() override {
        if (cores_ != nullptr) return {};
        using Part = KvPageMover::Part;
        return {
            .num_window_slots = window_slots_,
            .copy =
                [this](Part from, Part to) {
                    if (decoder_) decoder_->copy_page(from.number, to.number, from.is_window);
                },
            .read = [this](Part part, std::span<std::byte> rows) { return read_page(part, rows); },
            .write = [this](Part part, ByteView rows) -> Status {
                if (!decoder_) return Error{ErrorCode::device_lost, "no GPU came back"};
                return decoder_->write_page(part.number, rows, part.is_window);
            }};
    }
    void recycle(StepResult&& result) override {
        if (cores_ != nullptr) return cores_->recycle(std::move(result));
        if (result.logits.capacity() > spare_logits_.capacity())
            spare_logits_ = std::move(result.logits);
    }

    Result<StepResult> run(std::span<const StepRows> batch, ExpertBackend& experts,
                           std::uint32_t micro_batches, std::stop_token stop) override {
        if (cores_ != nullptr) return cores_->run(batch, experts, micro_batches, std::move(stop));
        Result<StepResult> result = run_here(batch, experts, micro_batches, stop);
        if (result.ok() && !(result->logits.empty() && result->likeliest.empty()))
            losses_ = 0;  // a step has completed: its results were read back
        else if (!result.ok() && result.error().code == ErrorCode::device_lost)
            lost_because_ = result.error().message;
        return result;
    }

    Status renew() override {
        spans_.set_gpu(nullptr, nullptr);
        decoder_.reset();
        device_.reset();
        Status opened = Error{ErrorCode::device_lost, text("lost ", losses_max, " times")};
        if (++losses_ <= losses_max) opened = open_device();
        if (opened.ok()) {
            log_warn("hub: the GPU was lost and opened again, answers continue",
                     kv("adapter", adapter()), kv("because", lost_because_));
            return {};
        }

        spans_.set_gpu(nullptr, nullptr);
        decoder_.reset();
        device_.reset();
        const auto fail = [&](const std::string& why) {
            return Error{ErrorCode::device_lost,
                         text("the GPU was lost (", lost_because_, "), none came back (",
                              opened.error().message, "), and ", why)};
        };
        if (!options_.cores) return fail("no other device computes");
        const auto cores = options_.cores();
        if (!cores.ok()) return fail(cores.error().message);
        cores_ = *cores;
        log_warn("hub: the GPU was lost and none came back, this machine's cores compute the steps",
                 kv("because", opened.error().message), kv("lost", lost_because_));
        return {};
    }

  private:
    // Returns the number of micro-batches in flight. If the GPU computes the experts, one lane
    // suffices, because a pass then never waits for another backend.
    std::uint32_t num_lanes() const {
        return options_.holds_experts ? 1 : std::max(1u, options_.micro_batches_max);
    }

    GpuSizes::Options sizes() const {
        return {.sequences_max = options_.sequences_max,
                .step_rows_max = options_.step_rows_max,
                .lanes = num_lanes(),
                .context_tokens = config_.context_tokens,
                .memory_bytes_max = options_.memory_bytes_max,
                .kv_bytes_max = options_.kv_bytes_max,
                .state_bytes_max = options_.state_bytes_max,
                .keeps_states = options_.keeps_states,
                .sends_layers = options_.uses_spans && !options_.holds_experts,
                .kv_dtype = kv_dtype_,
                .num_pages = num_pages_,
                .window_slots = window_slots_,
                .slots = slots_};
    }

    // Opens the GPU and loads the whole model. After a loss the KV cache gets the same number of
    // pages as before.
    Status open_device() {
        MOEX_ASSIGN(device,
                    options_.open_device
                        ? options_.open_device(options_.device, loop_.poster())
                        : open_gpu_device(options_.device, loop_.poster(), options_.stay_awake));
        device_ = std::move(device);
        MOEX_ASSIGN(model, decoder_model_of(*package_));
        model.experts_elsewhere = !options_.holds_experts;
        const gpu::AdapterInfo& adapter = device_->adapter();
        if (model.has_delta() && slots_.sequences_max == 0)
            slots_ = GpuSizes(adapter, model, sizes()).state_slots();
        MOEX_ASSIGN(chosen, GpuSizes(adapter, model, sizes()).decoder());
        MOEX_ASSIGN(decoder,
                    load_decoder(*device_, loop_, package_, model, chosen, options_.progress));
        decoder_ = std::move(decoder);
        spans_.set_gpu(device_.get(), decoder_.get());
        const std::lock_guard lock(adapter_mutex_);
        adapter_ = device_->adapter().description;
        return {};
    }

    Result<StepResult> run_here(std::span<const StepRows> batch, ExpertBackend& experts,
                                std::uint32_t micro_batches, const std::stop_token& stop) {
        if (!decoder_) return Error{ErrorCode::device_lost, "no GPU came back"};
        MOEX_TRY(reserve(batch));
        package_->require_unchanged();
        may_leave_ = std::ranges::none_of(batch,
                                          [](const StepRows& one) { return one.stays_here; });
        for (const StepRows& one : batch)
            one.kv->begin_step(static_cast<std::uint32_t>(one.tokens.size()));
        const PlannedStep step = plan_step(batch);

        StepResult result;
        result.rows.resize(step.rows.size());
        result.row_workers.resize(step.rows.size());
        result.logits = std::move(spare_logits_);
        result.logits.clear();
        result.logits.reserve(std::size_t{step.num_logits - step.num_likeliest} *
                              config_.vocab_size);

        result.hidden.resize(std::size_t{step.num_hidden} * config_.hidden_size);

        const auto num_rows = static_cast<std::uint32_t>(step.rows.size());
        for (std::uint32_t first = 0; first < num_rows;) {
            if (stop.stop_requested())
                return Error{ErrorCode::cancelled, text("the step was stopped at row ", first)};
            const std::uint32_t count = rows_of_pass(step, first);
            MOEX_TRY(pass(step, first, count, micro_batches, experts, stop, result));
            first += count;
        }

        for (const StepRows& one : batch)
            one.kv->commit(static_cast<std::uint32_t>(one.tokens.size()));
        return result;
    }

    // Reserves pages of the KV cache for every row of the batch.
    Status reserve(std::span<const StepRows> batch) const {
        for (const StepRows& one : batch) {
            const std::uint64_t end = one.kv->num_tokens() + one.tokens.size();
            if (end > config_.context_tokens)
                return Error{ErrorCode::invalid_argument,
                             text("the sequence would have ", end, " tokens, the context is ",
                                  config_.context_tokens)};
            if (!one.kv->reserve(static_cast<std::uint32_t>(end)))
                return Error{ErrorCode::overloaded,
                             text("no key/value pages left for ", end, " tokens")};
            for (const TokenId token : one.tokens)
                if (token >= config_.vocab_size)
                    return Error{
                        ErrorCode::invalid_argument,
                        text("token ", token, ", the vocabulary has ", config_.vocab_size)};
        }
        return {};
    }

    // Returns the number of rows, beginning at row `first`, that fit into one pass.
    std::uint32_t rows_of_pass(const PlannedStep& step, std::uint32_t first) const {
        const auto num_rows = static_cast<std::uint32_t>(step.rows.size());
        const std::uint32_t first_logit = num_rows - step.num_logits,
                            end_max = std::max(first, first_logit) + decoder_->logit_rows_max();
        std::uint32_t num_pages = 0, end = first;
        while (end < std::min(num_rows, end_max)) {
            num_pages = std::max(num_pages, step.num_pages[end]);
            if (end + 1 - first > decoder_->rows_max(num_pages)) break;
            ++end;
        }
        return end - first;
    }

    // Computes rows [first, first + count) of a step, cut into `num_parts` micro-batches. Within a
    // layer the keys and values of an earlier micro-batch are stored before a later micro-batch of
    // the same sequence reads them.
    Status pass(const PlannedStep& step, std::uint32_t first, std::uint32_t count,
                std::uint32_t num_parts, ExpertBackend& experts, const std::stop_token& stop,
                StepResult& result) {
        const TraceSpan span(Trace::Row::engine, "GPU pass", {"rows", count});
        num_parts = std::clamp(num_parts, 1u, std::min(count, decoder_->num_lanes()));
        parts_.resize(decoder_->num_lanes());
        const std::span<MicroBatch> parts = std::span(parts_).first(num_parts);
        for (std::uint32_t i = 0; i < num_parts; ++i) {
            const std::uint32_t begin = count * i / num_parts, end = count * (i + 1) / num_parts;
            decoder_->start(parts[i].fill(step, first + begin, end - begin, i,
                                          {.has_window_slots = window_slots_ > 0,
                                           .has_states = slots_.sequences_max > 0}),
                            i);
        }
        Status status = begin_spans(parts);
        while (status.ok() && parts.back().layer < config_.num_layers)
            for (MicroBatch& part : parts)
                if (status.ok()) status = compute_layer(part, experts, stop, result);
        // cancels expert rounds that are still in flight
        for (MicroBatch& part : parts) part.round.reset();
        if (!status.ok()) spans_.drop();
        return status;
    }

    Status begin_spans(std::span<const MicroBatch> parts) {
        std::vector<GpuSpans::Rows> rows;
        for (const MicroBatch& part : parts) rows.push_back({part.sequence_rows, part.runs});
        return spans_.begin(rows, may_leave_);
    }

    // Continues a micro-batch once the experts of its previous layer, or the worker of a span, have
    // answered. Returns when the round of its next layer or span was sent, or, behind the last
    // layer, when the results of its rows were read back.
    Status compute_layer(MicroBatch& part, ExpertBackend& experts, const std::stop_token& stop,
                         StepResult& result) {
        spans_.enter(decoder_->next_layer(part.lane));
        if (part.round) MOEX_TRY(finish_round(part, stop, result));
        if (spans_.is_away(part.lane)) MOEX_TRY(take_back(part, experts, stop, result));
        while (true) {
            const std::uint32_t border = spans_.border(part.lane);
            part.layer = advance_to(border, part);
            if (part.layer < border) return ask_experts(part, experts, stop);
            if (border == config_.num_layers) break;
            MOEX_ASSIGN(left, spans_.cross(part.lane, border, part.index, result, stop));
            if (left) return {};
        }

        if (!decoder_->model().experts_elsewhere) count_local_pairs(part.index, result);
        if (part.reads_rows) MOEX_TRY(read_rows(part, result));
        if (!part.asked.empty()) MOEX_TRY(read_likeliest(part.asked, result));
        return part.num_logits > part.asked.size() ? read_logits(result) : Status{};
    }

    // Takes the rows of a micro-batch back that are at a worker. If no worker answered, the layers
    // of the span are computed here, before the next micro-batch continues.
    Status take_back(MicroBatch& part, ExpertBackend& experts, const std::stop_token& stop,
                     StepResult& result) {
        MOEX_ASSIGN(missing, spans_.come_back(part.lane, part.index, result, stop));
        part.layer_began = now_steady();
        while (missing && (part.layer = advance_to(missing->end, part)) < missing->end) {
            MOEX_TRY(ask_experts(part, experts, stop));
            MOEX_TRY(finish_round(part, stop, result));
        }
        return {};
    }

    std::uint32_t advance_to(std::uint32_t end_layer, const MicroBatch& part) {
        const std::uint32_t layer = decoder_->advance_to(end_layer, part.lane);
        if (Trace::on() != nullptr) layer_issued_ = now_steady();
        return layer;
    }

    // Records a trace span for a layer. The span begins with the expert answers of the previous
    // layer and ends when the rows of this layer were read back.
    void trace_layer(const MicroBatch& part) {
        Trace* const trace = Trace::on();
        if (trace == nullptr) return;
        trace->span(Trace::Row::engine, "layer", part.layer_began, now_steady(),
                    {{"layer", part.layer},
                     {"micro_batch", part.lane},
                     {"issue_us", static_cast<std::uint64_t>((layer_issued_ - part.layer_began) /
                                                             std::chrono::microseconds(1))},
                     {"gpu_us", static_cast<std::uint64_t>(device_->gpu_us())}});
    }

    void count_local_pairs(std::span<const std::uint32_t> index, StepResult& result) const {
        const auto layers = std::count_if(config_.layers.begin(), config_.layers.end(),
                                          [](const LayerPlan& plan) { return plan.is_routed; });
        for (const std::uint32_t row : index)
            result.rows[row].pairs_local = static_cast<std::uint16_t>(layers * config_.top_k);
    }

    Status ask_experts(MicroBatch& part, ExpertBackend& experts, const std::stop_token& stop) {
        if (stop.stop_requested())
            return Error{ErrorCode::cancelled, text("the step was stopped at layer ", part.layer)};
        MOEX_TRY(spans_.computed(part.lane, part.layer));
        MOEX_TRY(read_routed(part));
        trace_layer(part);
        part.y.resize(part.x.size());
        part.round = experts.submit({.layer = part.layer,
                                     .num_tokens = static_cast<std::uint32_t>(part.rows.size()),
                                     .hidden_size = config_.hidden_size,
                                     .top_k = config_.top_k,
                                     .x = part.x,
                                     .expert_ids = part.expert_ids,
                                     .expert_weights = part.expert_weights,
                                     .y = part.y,
                                     .is_check = spans_.checks_with_weights(part.layer)});
        if (foresight_ != nullptr && experts.wants_hints())
            experts.hint(foresight_->foresee(view_of(part)));
        return {};
    }

    RouteView view_of(const MicroBatch& part) const {
        return {.layer = part.layer,
                .num_tokens = static_cast<std::uint32_t>(part.rows.size()),
                .top_k = config_.top_k,
                .num_experts = config_.num_experts,
                .hidden_size = config_.hidden_size,
                .rows = part.sequence_rows,
                .expert_ids = part.expert_ids,
                .expert_weights = part.expert_weights,
                .hidden = part.x};
    }

    Status finish_round(MicroBatch& part, const std::stop_token& stop, StepResult& result) {
        auto waited = [&] {
            const TraceSpan span(Trace::Row::engine, "wait for experts",
                                 {"micro_batch", part.lane});
            const TimePoint asked_at = now_steady();
            auto answer = part.round->wait(stop);
            result.wait_time += now_steady() - asked_at;
            return answer;
        }();
        part.round.reset();
        MOEX_ASSIGN(answer, std::move(waited));
        part.layer_began = now_steady();
        decoder_->answer(part.y, part.lane);
        add_answer(answer, part.index, result);
        return {};
    }

    Status read_routed(MicroBatch& part) {
        const auto take = [&](const RoutedRows& routed) {
            part.x.assign(routed.x.begin(), routed.x.end());
            part.expert_ids.resize(routed.routes.size() / 2);
            part.expert_weights.resize(part.expert_ids.size());
            for (std::size_t i = 0; i < part.expert_ids.size(); ++i) {
                // A row of NaNs has no valid expert ids, so the id is clamped. The logits of such a
                // row are refused on every device.
                part.expert_ids[i] = static_cast<std::uint16_t>(
                    std::min(routed.routes[2 * i], config_.num_experts - 1));
                part.expert_weights[i] = std::bit_cast<float>(routed.routes[2 * i + 1]);
            }
        };
        return read_back<RoutedRows>(
            loop_, device_.get(), [&](auto done) { decoder_->read_routed(done, part.lane); }, take);
    }

    // Adds the provenance that an expert round reports for its rows to the result of the step.
    static void add_answer(const ExpertAnswer& answer, std::span<const std::uint32_t> index,
                           StepResult& result) {
        for (std::size_t i = 0; i < std::min(index.size(), answer.rows.size()); ++i) {
            RowProvenance& sum = result.rows[index[i]];
            const RowProvenance& one = answer.rows[i];
            sum.pairs_remote += one.pairs_remote;
            sum.pairs_local += one.pairs_local;
            sum.pairs_hedged += one.pairs_hedged;
            sum.pairs_verified += one.pairs_verified;
            sum.pairs_proven += one.pairs_proven;
        }
        for (const RowWorker& from : answer.row_workers) {
            std::vector<std::uint64_t>& workers = result.row_workers[index[from.row]];
            const auto at = std::lower_bound(workers.begin(), workers.end(), from.worker);
            if (at == workers.end() || *at != from.worker) workers.insert(at, from.worker);
        }
        result.experts_waited += answer.waited;
    }

    // Copies a page of keys and values out of the GPU's memory, and waits for it.
    Status read_page(KvPageMover::Part part, std::span<std::byte> rows) {
        if (slots_.sequences_max > 0)
            return Error{ErrorCode::unsupported, "pages have no recurrent states"};
        if (!decoder_) return Error{ErrorCode::device_lost, "no GPU came back"};
        bool finished = false;
        Status was_read;
        const auto done = [&](Status status) {
            finished = true;
            was_read = std::move(status);
        };
        decoder_->read_page(part.number, rows, done, part.is_window);
        loop_.run_until(finished, device_.get());
        return was_read;
    }

    // Reads the likeliest tokens of the rows that request them, and appends them to those of
    // earlier passes.
    Status read_likeliest(std::span<const StepRows* const> asked, StepResult& result) {
        using Lists = std::span<const LikeliestList>;
        const auto take = [&](Lists lists) {
            for (std::size_t i = 0; i < asked.size(); ++i) {
                const LikeliestList& list = lists[i];
                LikeliestTokens& row = result.likeliest.emplace_back();
                row.log_sum_exp = list.peak + std::log(list.exp_sum);
                const std::uint32_t count = std::min(asked[i]->likeliest, config_.vocab_size);
                for (std::uint32_t k = 0; k < count; ++k)
                    row.tokens.push_back({list.candidates[k].token, list.candidates[k].logit});
            }
        };
        return read_back<Lists>(
            loop_, device_.get(), [&](auto done) { decoder_->read_likeliest(done); }, take);
    }

    // Reads the rows of a part after the final norm, for those sequences that ask for them.
    Status read_rows(const MicroBatch& part, StepResult& result) {
        const std::size_t size = config_.hidden_size;
        const auto take = [&](std::span<const float> rows) {
            for (std::size_t i = 0; i < part.index.size(); ++i) {
                const std::uint32_t to = part.hidden_row[part.index[i]];
                if (to == PlannedStep::no_row) continue;
                std::ranges::copy(rows.subspan(i * size, size), result.hidden.begin() + to * size);
            }
        };
        return read_back<std::span<const float>>(
            loop_, device_.get(), [&](auto done) { decoder_->read_rows(done, part.lane); }, take);
    }

    // Reads the logits of this pass, and appends them to the logits of earlier passes.
    Status read_logits(StepResult& result) {
        const auto take = [&](std::span<const float> logits) {
            result.logits.insert(result.logits.end(), logits.begin(), logits.end());
        };
        return read_back<std::span<const float>>(
            loop_, device_.get(), [&](auto done) { decoder_->read_logits(done); }, take);
    }

    std::shared_ptr<const ModelPackage> package_;
    ModelConfig config_;
    ThreadPool& threads_;
    GpuStepsOptions options_;
    ExpertForesight* foresight_ = nullptr;
    // KV pages of the first device, and of every later one; and slots of layers with a window
    std::uint32_t num_pages_ = 0, window_slots_ = 0;
    StateSlotSizes slots_;  // likewise
    std::uint64_t kv_bytes_ = 0, weight_bytes_ = 0;
    gpu::PostedLoop loop_;
    std::unique_ptr<gpu::Device> device_;
    std::unique_ptr<GpuDecoder> decoder_;
    GpuSpans spans_{config_, loop_};
    bool may_leave_ = false;  // the rows of this step may leave the hub in a span
    KvDtype kv_dtype_ = KvDtype::f32;
    StepDevice* cores_ = nullptr;  // the CPU cores, once no GPU can be opened; null before
    std::uint32_t losses_ = 0;     // losses of the GPU since the last completed step
    std::string lost_because_;
    mutable std::mutex adapter_mutex_;
    std::string adapter_;

    TimePoint layer_issued_{};       // for the trace
    std::vector<MicroBatch> parts_;  // one per lane
    std::vector<float> spare_logits_;
};

}  // namespace

Result<std::string> find_gpu(const std::string& name) {
    gpu::PostedLoop loop;
    MOEX_ASSIGN(device, open_gpu_device(name, loop.poster()));
    return text(device->adapter().description, ", ", megabytes(device->adapter().memory_bytes),
                " MB");
}

Result<std::unique_ptr<GpuSteps>> open_gpu_steps(std::shared_ptr<const ModelPackage> package,
                                                 ThreadPool& threads,
                                                 const GpuStepsOptions& options) {
    auto steps = std::make_unique<VulkanSteps>(std::move(package), threads);
    MOEX_TRY(steps->open(options));
    return std::unique_ptr<GpuSteps>(std::move(steps));
}

}  // namespace moex
