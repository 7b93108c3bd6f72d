#include "web-worker/processor/processor_decoder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "hub/engine/kernels/expert_round.h"
#include "hub/model/package/hub_specs.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Clock = std::chrono::steady_clock;

// Rows of a step that reads a prompt. More rows share the weights that a step loads, but a cancel
// waits for the end of a step.
constexpr std::uint32_t step_rows = 32;
// Rows of a step with drafts, as on a GPU.
constexpr std::uint32_t drawn_rows = 8;
// Bytes of copies of recurrent states, and the number of them in any case.
constexpr std::uint64_t state_bytes_max = 128u << 20;
constexpr std::uint32_t states_min = 4, states_most = 32;
// Prompt rows that measure() computes.
constexpr std::uint32_t measured_rows = 16;

// What a hub computes with by default (hub/commands/load_model.cpp).
Arithmetic arithmetic_of(ExpertDtype experts) {
    return has_codes(experts) ? Arithmetic::int8 : Arithmetic::exact;
}
KvDtype kv_dtype_of(Arithmetic arithmetic) {
    return arithmetic == Arithmetic::exact ? KvDtype::f32 : KvDtype::f16;
}

// Bytes of a matrix in the largest form of 6 bits, that of the LM head.
std::uint64_t packed_bytes(std::uint64_t num_out, std::uint64_t num_in) {
    return PackedMatrix{.dtype = PackedDtype::int6,
                        .num_out = static_cast<std::uint32_t>(num_out),
                        .num_in = static_cast<std::uint32_t>(num_in),
                        .group_size = 32}
        .size_bytes();
}

std::uint64_t megabytes(std::uint64_t bytes) { return (bytes + 999'999) / 1'000'000; }

bool has_windows(const ModelConfig& config) {
    return std::any_of(config.layers.begin(), config.layers.end(),
                       [](const LayerPlan& plan) { return plan.window > 0; });
}

std::size_t snapshot_floats(const RecurrentShape& shape) {
    return shape.num_layers * shape.snapshot_floats_of_layer();
}
std::uint32_t snapshots_max(const RecurrentShape& shape) {
    const std::uint64_t bytes = sizeof(float) * snapshot_floats(shape);
    return static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(state_bytes_max / bytes, states_min, states_most));
}

KvCacheOptions cache_options(std::uint32_t num_pages, Arithmetic arithmetic) {
    return {
        .page_tokens = kv_page_tokens, .num_pages = num_pages, .dtype = kv_dtype_of(arithmetic)};
}

}  // namespace

ProcessorMemory processor_memory(const ModelConfig& config, const ExpertShape& experts,
                                 ExpertDtype expert_dtype) {
    const Arithmetic arithmetic = arithmetic_of(expert_dtype);
    ProcessorMemory memory;
    for (const HubTensorSpec& spec : hub_tensor_specs(config)) {
        std::uint64_t elements = 1;
        for (const std::uint64_t size : spec.shape) elements *= size;
        // Embeddings stay as they are, so that a head that shares them is stored twice.
        const bool is_embedding = spec.name == hub_tensor_name(HubPart::embeddings);
        const bool is_packed = arithmetic == Arithmetic::int8 && spec.shape.size() == 2;
        if (!is_packed || is_embedding) memory.weight_bytes += 2 * elements;
        if (is_packed && (!is_embedding || config.tied_embeddings))
            memory.weight_bytes += packed_bytes(spec.shape[0], spec.shape[1]);
    }

    std::uint64_t expert_bytes = expert_blob_layout(experts, expert_dtype).size_bytes;
    if (arithmetic == Arithmetic::int8) {
        const ExpertPanels panels = expert_panels(experts);
        expert_bytes = panels.gate_up.size_bytes() + panels.down.size_bytes();
    }
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        if (config.is_moe(layer)) memory.weight_bytes += config.num_experts * expert_bytes;
    memory.kv_page_bytes = KvCache(config, cache_options(0, arithmetic)).page_bytes();
    if (!config.has_delta_net()) return memory;
    // A step of many rows writes a second state.
    const RecurrentShape shape = RecurrentShape::of(config);
    memory.state_bytes = 2 * shape.size_bytes() +
                         snapshots_max(shape) * sizeof(float) * snapshot_floats(shape);
    return memory;
}

Result<std::uint32_t> context_that_fits(const ProcessorMemory& memory, std::uint64_t bytes_max,
                                        std::uint32_t context_tokens_min,
                                        std::uint32_t context_tokens_max) {
    const auto pages_of = [](std::uint32_t tokens) {
        return (std::uint64_t{tokens} + kv_page_tokens - 1) / kv_page_tokens;
    };
    const std::uint64_t fixed = memory.weight_bytes + memory.state_bytes,
                        left = bytes_max - std::min(bytes_max, fixed),
                        room = left / std::max<std::uint64_t>(1, memory.kv_page_bytes),
                        wanted = pages_of(context_tokens_max),
                        least = std::min(wanted, pages_of(context_tokens_min));
    if (room < least)
        return Error{
            ErrorCode::no_space,
            text("it takes ", megabytes(fixed + least * memory.kv_page_bytes),
                 " MB of this browser's memory, which has room for ", megabytes(bytes_max), " MB")};
    return static_cast<std::uint32_t>(std::min(room, wanted) * kv_page_tokens);
}

ProcessorDecoder::ProcessorDecoder(std::shared_ptr<const ModelPackage> package,
                                   std::uint32_t num_pages, std::size_t num_threads, Later later)
    : package_(std::move(package)),
      later_(std::move(later)),
      arithmetic_(arithmetic_of(package_->expert_dtype())),
      threads_(num_threads),
      num_pages_(num_pages),
      cache_(config(), cache_options(num_pages, arithmetic_)),
      sequence_(cache_) {}

Result<std::unique_ptr<ProcessorDecoder>> ProcessorDecoder::create(
    std::shared_ptr<const ModelPackage> package, std::uint32_t context_tokens,
    std::size_t num_threads, Later later) {
    const std::uint32_t num_pages = (context_tokens + kv_page_tokens - 1) / kv_page_tokens;
    std::unique_ptr<ProcessorDecoder> made(
        new ProcessorDecoder(std::move(package), num_pages, num_threads, std::move(later)));
    MOEX_ASSIGN(decoder,
                Decoder::create(made->package_, made->threads_, {.arithmetic = made->arithmetic_}));
    made->decoder_ = std::move(decoder);
    made->experts_ = std::make_unique<LocalExperts>(made->package_, made->threads_,
                                                    ExpertRounding{}, made->arithmetic_);
    return Result<std::unique_ptr<ProcessorDecoder>>(std::move(made));
}

// An expert is packed when a row first asks for it, and its blob is then released.
Status ProcessorDecoder::load_layer(std::uint32_t layer) {
    MOEX_CHECK(layer == num_loaded_, "layers are loaded in order");
    const std::uint32_t num_experts = config().is_moe(layer) ? config().num_experts : 0;
    const std::vector<float> x(config().hidden_size), gates(1);
    std::vector<float> y(config().hidden_size);
    for (std::uint32_t expert = 0; expert < num_experts; ++expert) {
        if (arithmetic_ == Arithmetic::int8) {
            MOEX_TRY(experts_->compute_int8(layer, expert, x, gates, y));
            continue;
        }
        MOEX_ASSIGN(blob, package_->blob(layer, expert));
        (void)blob;
    }
    ++num_loaded_;
    return {};
}

Result<ProcessorSpeed> ProcessorDecoder::measure() {
    MOEX_CHECK(is_whole() && num_tokens_ == 0, "a whole decoder without a text is measured");
    const std::uint32_t num_rows = std::min(measured_rows, context_tokens() - 1);
    const std::vector<TokenId> prompt(num_rows, 0);
    // The first step of a kind allocates its buffers, so that the second one is timed.
    const auto seconds_of = [this](const Step& step) -> Result<double> {
        MOEX_TRY(compute(step));
        sequence_.roll_back(0);
        const auto begun_at = Clock::now();
        MOEX_TRY(compute(step));
        sequence_.roll_back(0);
        return std::max(1e-9, std::chrono::duration<double>(Clock::now() - begun_at).count());
    };
    MOEX_ASSIGN(prompt_s, seconds_of({prompt, StepLogits::none}));
    MOEX_ASSIGN(token_s, seconds_of({{0}, StepLogits::last}));
    return ProcessorSpeed{num_rows / prompt_s, 1 / token_s};
}

KvSource ProcessorDecoder::kv_source() const {
    // The hash of the manifest covers the plans of all layers; the first layer's is written out.
    const LayerPlan& plan = config().layers.front();
    const bool is_exact = arithmetic_ == Arithmetic::exact;
    KvSource source;
    source.arithmetic = is_exact ? KvArithmetic::exact : KvArithmetic::integer;
    source.weights = is_exact                                  ? KvWeights::package
                     : package_->hub_dtype() == HubDtype::bf16 ? KvWeights::int6
                     : package_->hub_dtype() == HubDtype::int8 ? KvWeights::int8
                                                               : KvWeights::int4;
    source.row_type = is_exact ? KvRowType::f32 : KvRowType::f16;
    source.end_layer = static_cast<std::uint32_t>(
        std::count_if(config().layers.begin(), config().layers.end(),
                      [](const LayerPlan& one) { return one.mixer != Mixer::gated_delta_rule; }));
    source.num_kv_heads = config().num_kv_heads;
    source.head_dim = config().head_dim;
    source.rotary_size = plan.rope.rotary_size > 0 ? plan.rope.rotary_size : config().head_dim;
    source.window = plan.window;
    source.rope_base = plan.rope.theta;
    source.rope_scaling = plan.rope.scaling;
    source.norm_epsilon = config().rms_norm_eps;
    source.page_tokens = kv_page_tokens;
    return source;
}

std::uint32_t ProcessorDecoder::rows_max() const { return std::min(step_rows, context_tokens()); }
std::uint32_t ProcessorDecoder::logit_rows_max() const { return std::min(drawn_rows, rows_max()); }

// ---- steps

Status ProcessorDecoder::check(TokenIds tokens, StepLogits logits) const {
    MOEX_TRY(check_tokens(*this, tokens));
    const std::size_t num_rows = tokens.size();
    if (logits == StepLogits::likeliest || logits == StepLogits::every_likeliest)
        return Error{ErrorCode::invalid_argument, "this decoder returns whole rows of logits"};
    if (logits == StepLogits::every && num_rows > logit_rows_max())
        return Error{
            ErrorCode::invalid_argument,
            text("logits of ", num_rows, " rows, this decoder keeps those of ", logit_rows_max())};
    return {};
}

Status ProcessorDecoder::feed(TokenIds tokens, StepLogits logits) {
    MOEX_TRY(check(tokens, logits));
    failed_.reset();
    drop_written();
    waiting_.push_back({{tokens.begin(), tokens.end()}, logits});
    num_tokens_ += static_cast<std::uint32_t>(tokens.size());
    take_turn();
    return {};
}

// Returns how many of the next `num_left` rows are computed at once, so that the state at the end
// of each page can be copied. After more than delta_append_max rows, it can if one row is behind
// that end; before fewer rows, if the step begins there.
//   rows of positions 96 to 160 in one step: 33 rows up to 128, then 31
std::size_t ProcessorDecoder::rows_of_next(std::uint32_t first, std::size_t num_left) const {
    const std::uint32_t page_end = first / kv_page_tokens * kv_page_tokens;
    const bool lacks_state = page_end > 0 && first - page_end < delta_chunk &&
                             !states_.contains(page_end);
    if (lacks_state) return 1;
    const std::size_t to_end = page_end + kv_page_tokens - first;
    if (num_left <= to_end + 1) return num_left;
    return to_end + 1 > delta_append_max ? to_end + 1 : to_end;
}

Status ProcessorDecoder::compute(const Step& step) {
    if (!has_states() || step.logits == StepLogits::every || step.tokens.size() == 1)
        return compute_rows(step);
    std::span<const TokenId> left(step.tokens);
    while (!left.empty()) {
        const auto rows = left.first(rows_of_next(sequence_.num_tokens(), left.size()));
        left = left.subspan(rows.size());
        MOEX_TRY(compute_rows(
            {{rows.begin(), rows.end()}, left.empty() ? step.logits : StepLogits::none}));
    }
    return {};
}

Status ProcessorDecoder::compute_rows(const Step& step) {
    const std::uint32_t end = sequence_.num_tokens() +
                              static_cast<std::uint32_t>(step.tokens.size());
    if (!sequence_.reserve(end)) return Error{ErrorCode::overloaded, "no room for keys and values"};
    const StepRows rows{.kv = &sequence_,
                        .tokens = step.tokens,
                        .all_logits = step.logits == StepLogits::every,
                        .no_logits = step.logits == StepLogits::none};
    MOEX_ASSIGN(computed, decoder_->run({&rows, 1}, *experts_, 1, {}));
    decoder_->recycle(std::exchange(result_, std::move(computed)));
    if (has_states()) keep_state();
    return {};
}

// Asks for a turn of the event loop, unless one is asked for already.
void ProcessorDecoder::take_turn() {
    if (std::exchange(has_turn_, true)) return;
    later_([this, life = life_.watch()] {
        if (life.alive()) on_turn();
    });
}

// Computes one step, and gives the logits of the last one.
void ProcessorDecoder::on_turn() {
    has_turn_ = false;
    if (!waiting_.empty()) {
        const Step step = std::move(waiting_.front());
        waiting_.pop_front();
        if (const Status computed = compute(step); !computed.ok()) give_up(computed.error());
    }
    if (!waiting_.empty()) return take_turn();
    const LogitsRead done = std::exchange(reading_, {});
    if (!done) return;
    if (failed_) return done(*failed_);
    done(std::span<const float>(result_.logits));
}

// Drops the steps that wait; a read of their logits ends with `error`.
void ProcessorDecoder::give_up(Error error) {
    waiting_.clear();
    num_tokens_ = sequence_.num_tokens();
    failed_ = std::move(error);
}

void ProcessorDecoder::read_logits(LogitsRead done) {
    reading_ = std::move(done);
    take_turn();
}

void ProcessorDecoder::read_likeliest(
    std::function<void(Result<std::span<const LikeliestList>>)> done) {
    later_([done = std::move(done)] {
        done(Error{ErrorCode::invalid_argument, "this decoder returns whole rows of logits"});
    });
}

void ProcessorDecoder::drop_steps() {
    if (!waiting_.empty()) give_up({ErrorCode::cancelled, "the steps were dropped"});
}

// ---- the sequence

void ProcessorDecoder::rewind(std::uint32_t num_tokens) {
    MOEX_CHECK(waiting_.empty(), "steps of this sequence have not begun");
    drop_written();
    states_.erase(states_.upper_bound(num_tokens), states_.end());
    if (num_tokens < sequence_.num_tokens()) go_back_to_state(num_tokens);
    num_tokens_ = sequence_.num_tokens();
}

// Drops the pages that were written without a state behind them.
void ProcessorDecoder::drop_written() {
    if (std::exchange(written_end_, 0) > 0) sequence_.roll_back(sequence_.num_tokens());
}

Status ProcessorDecoder::check_page(std::uint32_t page, std::size_t size_bytes) const {
    if (has_windows(config()))
        return Error{ErrorCode::unsupported, "pages of this model do not leave the processor"};
    if (page >= num_pages_)
        return Error{ErrorCode::invalid_argument,
                     text("page ", page, ", the context has ", num_pages_)};
    if (size_bytes != cache_.page_bytes())
        return Error{ErrorCode::payload_size,
                     text("a page has ", cache_.page_bytes(), " bytes, got ", size_bytes)};
    return {};
}

// Copies the rows of a page that may not be full; rows that are not written are zeros.
void ProcessorDecoder::copy_rows(std::uint32_t page, std::span<std::byte> rows) const {
    std::fill(rows.begin(), rows.end(), std::byte{0});
    const std::uint32_t first = page * kv_page_tokens,
                        num_rows = std::min(kv_page_tokens, sequence_.num_tokens() - first);
    std::byte* to = rows.data();
    for (std::uint32_t layer = 0; layer < num_layers(); ++layer) {
        if (config().layers[layer].mixer == Mixer::gated_delta_rule) continue;
        for (const bool is_v : {false, true})
            for (std::uint32_t head = 0; head < config().num_kv_heads; ++head) {
                const KvRows from = is_v ? sequence_.v_rows(layer, head, first)
                                         : sequence_.k_rows(layer, head, first);
                std::memcpy(to, from.data, num_rows * from.stride_bytes);
                to += kv_page_tokens * from.stride_bytes;
            }
    }
}

void ProcessorDecoder::read_page(std::uint32_t page, std::span<std::byte> rows,
                                 std::function<void(Status)> done) {
    Status read = check_page(page, rows.size());
    if (read.ok() && page * kv_page_tokens >= sequence_.num_tokens())
        read = Error{ErrorCode::not_found, text("the text has no page ", page, " here")};
    if (read.ok()) copy_rows(page, rows);
    later_([read, done = std::move(done), life = life_.watch()] {
        if (life.alive()) done(read);
    });
}

Status ProcessorDecoder::write_page(std::uint32_t page, ByteView rows) {
    MOEX_TRY(check_page(page, rows.size()));
    const std::uint32_t first = page * kv_page_tokens;
    const bool follows = written_end_ > 0 && page == written_end_;
    if (!follows && sequence_.num_tokens() < first)
        return Error{ErrorCode::invalid_argument, "pages are written in order"};
    if (has_states()) {
        MOEX_CHECK(waiting_.empty(), "steps of this sequence have not begun");
        if (!follows) drop_written();
        if (first + kv_page_tokens <= sequence_.num_tokens())
            return Error{ErrorCode::invalid_argument, "the sequence has this page"};
        MOEX_TRY(sequence_.write_ahead(page, rows));
        written_end_ = page + 1;
        return {};
    }
    rewind(first);
    MOEX_TRY(sequence_.append_page(rows));
    num_tokens_ = sequence_.num_tokens();
    return {};
}

// ---- recurrent states

std::size_t ProcessorDecoder::state_floats() const {
    return has_states() ? snapshot_floats(RecurrentShape::of(config())) : 0;
}
std::uint32_t ProcessorDecoder::states_max() const {
    return snapshots_max(RecurrentShape::of(config()));
}

// Keeps a copy of the state if it is at the end of a page.
void ProcessorDecoder::keep_state() {
    const RecurrentState& state = sequence_.recurrent();
    const std::uint32_t border = state.border();
    if (border % kv_page_tokens != 0 || !state.can_copy() || states_.contains(border)) return;
    std::vector<float> copy(state_floats());
    state.copy_to(copy);
    add_state(border, std::move(copy));
}

// Adds a copy; where there is no room, the one leaves whose neighbours are closest, beside their
// distance from the end of the text. The latest one and the held one stay.
void ProcessorDecoder::add_state(std::uint32_t num_tokens, std::vector<float> state) {
    states_[num_tokens] = std::move(state);
    if (states_.size() <= states_max()) return;
    auto cheapest = states_.end();
    double cost_min = 0;
    for (auto at = states_.begin(); std::next(at) != states_.end(); ++at) {
        const double before = at == states_.begin() ? 0 : std::prev(at)->first,
                     cost = (std::next(at)->first - before) / (states_.rbegin()->first - before);
        const bool is_first = cheapest == states_.end();
        if (at->first == held_state_ || (!is_first && cost >= cost_min)) continue;
        cheapest = at;
        cost_min = cost;
    }
    if (cheapest != states_.end()) states_.erase(cheapest);
}

// Shortens the sequence to `num_tokens` tokens, or to the last state before them.
void ProcessorDecoder::go_back_to_state(std::uint32_t num_tokens) {
    const bool is_behind = has_states() && num_tokens > 0 &&
                           num_tokens < sequence_.recurrent().kept_from();
    if (!is_behind || states_.empty()) return sequence_.roll_back(is_behind ? 0 : num_tokens);
    const auto& [end, state] = *states_.rbegin();
    sequence_.recurrent().restore(state.data(), end);
    sequence_.roll_back(end);
}

void ProcessorDecoder::read_state(std::uint32_t num_tokens, std::span<std::byte> state,
                                  std::function<void(Status)> done) {
    const auto found = states_.find(num_tokens);
    Status read;
    if (found == states_.end())
        read = Error{ErrorCode::not_found, text("no state is kept after ", num_tokens, " tokens")};
    else if (state.size() != state_bytes())
        read = Error{ErrorCode::payload_size, text("a state has ", state_bytes(), " bytes")};
    else
        std::memcpy(state.data(), found->second.data(), state.size());
    later_([read, done = std::move(done), life = life_.watch()] {
        if (life.alive()) done(read);
    });
}

// The pages that were written enter the sequence now, because they are of no use without the state.
Status ProcessorDecoder::write_state(std::uint32_t num_tokens, ByteView state) {
    const std::uint32_t begin = sequence_.num_tokens(), end = written_end_ * kv_page_tokens;
    if (!has_states() || state.size() != state_bytes())
        return Error{ErrorCode::payload_size, text("a state has ", state_bytes(), " bytes")};
    const bool is_border = num_tokens % kv_page_tokens == 0;
    if (!is_border || num_tokens <= begin || num_tokens > end)
        return Error{ErrorCode::invalid_argument, "a state follows the pages before it"};

    std::vector<float> copy(state_floats());
    std::memcpy(copy.data(), state.data(), state.size());
    sequence_.begin_step(1);  // makes a state if the sequence has none yet
    sequence_.abandon_step();
    sequence_.commit(num_tokens - begin);
    sequence_.recurrent().restore(copy.data(), num_tokens);
    drop_written();
    num_tokens_ = num_tokens;
    add_state(num_tokens, std::move(copy));
    return {};
}

}  // namespace moex
