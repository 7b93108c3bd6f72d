#include "web-worker/decoder/decoder_timing.h"

#include <algorithm>
#include <map>

#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t fetches = 50, preparations = 24, issued_at_once = 16;

double median(std::vector<double> values) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Returns `commands` with empty dispatches, so that only the time to prepare the commands remains.
std::vector<gpu::Command> without_work(std::vector<gpu::Command> commands) {
    for (gpu::Command& command : commands) command.workgroups = {0, 0, 0};
    return commands;
}

}  // namespace

void DecoderTimingOptions::shorten() {
    tokens = std::min(tokens, 8u);
    turns = 1;
    prompt = std::min(prompt, 16u);
    behind = std::min(behind, 32u);
    context = 128;
}

DecoderTiming::DecoderTiming(gpu::Device& device, DecoderTimingOptions options,
                             std::function<double()> now_us)
    : device_(device),
      options_(std::move(options)),
      now_us_(std::move(now_us)) {}

DecoderTiming::~DecoderTiming() {
    device_.creates = false;
    loop_.reset();
    decoder_.reset();
    for (const gpu::BufferId buffer : {readback_, word_})
        if (buffer.value != 0) device_.destroy_buffer(buffer);
}

void DecoderTiming::start(std::function<void(const DecoderTimingRow&)> row,
                          std::function<void(Status)> done) {
    row_ = std::move(row);
    done_ = std::move(done);
    auto model = bench_model(options_.shape, options_.weights, options_.context);
    if (!model.ok()) return fail(model.error());
    model_ = *std::move(model);

    auto readback = device_.create_buffer(16, gpu::BufferUsage::readback, "timing");
    if (!readback.ok()) return fail(readback.error());
    readback_ = *readback;
    auto word = device_.create_buffer(16, gpu::BufferUsage::storage, "timing word");
    if (!word.ok()) return fail(word.error());
    word_ = *word;

    options_.behind = std::min(options_.behind, options_.context / 2);
    prompt_.resize(std::clamp(options_.prompt, 1u, (options_.context - options_.behind) / 2));
    for (std::uint32_t i = 0; i < prompt_.size(); ++i) prompt_[i] = 1 + i % 1000;
    plan();
    next();
}

void DecoderTiming::plan() {
    add("filling the memory", [this] { load(); });
    add("reading a prompt", [this] { prefill(false); });
    add("reading a prompt", [this] { prefill(true); });
    add("a step on the GPU", [this] { capture_step(); });
    add("reading what is there", [this] { measure_fetch(); });
    add("preparing a step", [this] { measure_prep(false); });
    if (options_.ablation) {
        add("preparing a step, everything anew", [this] { measure_prep(true); });
        conditions_.push_back({"none", true, false, 1});
    }
    conditions_.push_back({"reuse", false, false, 1});
    if (options_.ablation) conditions_.push_back({"pipeline", true, true, options_.fetch.front()});
    for (const std::uint32_t fetch : options_.fetch)
        conditions_.push_back({"both", false, true, fetch});

    for (std::uint32_t turn = 0; turn < options_.turns; ++turn)
        for (Condition& condition : conditions_)
            add(text("turn ", turn + 1, " of ", options_.turns, ", ", condition.what),
                [this, &condition] {
                    device_.creates = condition.creates;
                    created_before_ = created();
                    condition.ahead ? ahead(condition) : one_by_one(condition);
                });
    steps_.push_back([this] {
        for (const Condition& condition : conditions_) give(condition);
        next();
    });
    if (!options_.kernels) return;
    add("each kernel", [this] {
        plan_kernels("kernel ", 0);
        add("each kernel of a prompt", [this] { capture_prompt(); });
        next();
    });
}

void DecoderTiming::add(std::string stage, Then step) {
    steps_.push_back([this, stage = std::move(stage), step = std::move(step)] {
        on_stage(stage);
        step();
    });
}

std::uint64_t DecoderTiming::created() const {
    const gpu::DeviceCounters counters = device_.counters();
    return counters.buffers_created + counters.bind_groups_created;
}

void DecoderTiming::next() {
    device_.creates = false;
    if (steps_.empty()) {
        if (auto done = std::exchange(done_, nullptr)) done({});
        return;
    }
    const Then step = std::move(steps_.front());
    steps_.pop_front();
    step();
}

void DecoderTiming::fail(const Error& error) {
    steps_.clear();
    device_.creates = false;
    if (auto done = std::exchange(done_, nullptr)) done(error);
}

bool DecoderTiming::held(const Status& status) {
    if (!status.ok()) fail(status.error());
    return status.ok();
}

void DecoderTiming::load() {
    PatternWeights weights(model_);
    if (!held(device_.set_patterns(weights.patterns()))) return;
    GpuDecoder::create(device_, model_,
                       {.context_tokens = options_.context,
                        .kv_kind = options_.kv_kind,
                        .spread = options_.spread},
                       weights,
                       [this, life = life_.watch()](Result<std::unique_ptr<GpuDecoder>> made) {
                           if (!life.alive()) return;
                           if (!made.ok()) return fail(made.error());
                           decoder_ = *std::move(made);
                           next();
                       });
    held(device_.set_patterns({}));
}

// Starts the sequence again, behind the tokens that are not computed.
void DecoderTiming::begin_sequence() {
    decoder_->rewind(0);
    if (options_.behind > 0) decoder_->resume(options_.behind);
}

// Starts the sequence again with `tokens` tokens, repeating the prompt, and chooses the first token
// of the answer.
bool DecoderTiming::feed(std::uint32_t tokens) {
    begin_sequence();
    while (tokens > 0) {
        const auto count = std::min(
            {tokens, decoder_->rows_max(), static_cast<std::uint32_t>(prompt_.size())});
        tokens -= count;
        const Status fed = decoder_->feed(std::span(prompt_).first(count),
                                          tokens == 0 ? StepLogits::last : StepLogits::none);
        if (!held(fed)) return false;
    }
    decoder_->choose();
    return true;
}

void DecoderTiming::read_one(Then then) {
    decoder_->read_chosen(
        1, [this, then = std::move(then), life = life_.watch()](Result<GpuDecoder::TokenIds> ids) {
            if (!life.alive()) return;
            if (!ids.ok()) return fail(ids.error());
            then();
        });
}

// ---- stages

void DecoderTiming::prefill(bool printed) {
    started_ms_ = now_ms();
    const auto tokens = static_cast<std::uint32_t>(prompt_.size());
    if (!feed(tokens)) return;
    read_one([this, printed, tokens] {
        const double ms_token = (now_ms() - started_ms_) / tokens;
        if (printed)
            row_({.what = "prefill",
                  .tokens = tokens,
                  .ms_token = ms_token,
                  .ms_least = ms_token,
                  .ms_most = ms_token});
        next();
    });
}

// Captures the commands of a greedy step at about the mean context length of the measured steps.
// When the commands run again, they write the next positions of the cache.
void DecoderTiming::capture_step() {
    const std::uint32_t ahead = options_.tokens / options_.turns / 2;
    if (!feed(static_cast<std::uint32_t>(prompt_.size()) + ahead) || !held(decoder_->step()))
        return;
    step_ = device_.step;
    slope(step_, [this](double ms) {
        exec_ms_ = ms;
        next();
    });
}

void DecoderTiming::measure_fetch() {
    times_.clear();
    for (std::uint32_t i = 0; i < fetches; ++i)
        steps_.push_front([this] {
            submitted({}, 0, [this](double ms) {
                times_.push_back(ms);
                fetch_ms_ = median(times_);
                next();
            });
        });
    next();
}

// Measures two times of a step whose dispatches are empty: from issuing the step until the GPU can
// begin it, and to issue it as one of many.
void DecoderTiming::measure_prep(bool creates) {
    const auto empty = without_work(step_);
    const auto once = std::make_shared<std::vector<double>>();
    const auto many = std::make_shared<std::vector<double>>();
    const auto with = [this, empty, creates](std::uint32_t times,
                                             const std::shared_ptr<std::vector<double>>& to) {
        device_.creates = creates;
        submitted(empty, times, [this, to](double ms) {
            to->push_back(ms);
            next();
        });
    };
    steps_.push_front([this, once, many, creates] {
        prep_ms_[creates] = std::max(0.0, median(*once) - fetch_ms_);
        issue_ms_[creates] = std::max(0.0, median(*many) - median(*once)) / (issued_at_once - 1);
        next();
    });
    for (std::uint32_t i = 0; i < preparations; ++i) {
        steps_.push_front([with, once] { with(1, once); });
        steps_.push_front([with, many] { with(issued_at_once, many); });
    }
    next();
}

// Captures the commands of a prompt's first step. When the commands run again, they write the same
// positions of the cache.
void DecoderTiming::capture_prompt() {
    begin_sequence();
    const auto rows = std::min(decoder_->rows_max(), static_cast<std::uint32_t>(prompt_.size()));
    if (!held(decoder_->feed(std::span(prompt_).first(rows), StepLogits::none))) return;
    step_ = device_.step;
    plan_kernels("prompt kernel ", rows);
    next();
}

void DecoderTiming::plan_kernels(const std::string& what, std::uint32_t tokens) {
    std::map<std::string, std::vector<gpu::Command>> by_kernel;
    for (const gpu::Command& command : step_) {
        const std::string name = device_.name_of(command);
        // Skip argmax_take: each repetition would advance the sequence, beyond the context.
        if (name != "argmax_take") by_kernel[name].push_back(command);
    }
    for (const auto& [name, commands] : by_kernel)
        steps_.push_back([this, what = what + name, tokens, commands = commands] {
            kernel(what, tokens, commands);
        });
}

void DecoderTiming::kernel(const std::string& what, std::uint32_t tokens,
                           std::vector<gpu::Command> commands) {
    const auto dispatches = static_cast<std::uint32_t>(commands.size());
    slope(std::move(commands), [this, what, tokens, dispatches](double ms) {
        row_({.what = what, .tokens = tokens, .exec_ms = ms, .dispatches = dispatches});
        next();
    });
}

// ---- conditions

void DecoderTiming::one_by_one(Condition& condition) {
    if (!feed(static_cast<std::uint32_t>(prompt_.size()))) return;
    read_one([this, &condition] {
        started_ms_ = now_ms();
        step_one_by_one(condition, options_.tokens / options_.turns);
    });
}

void DecoderTiming::step_one_by_one(Condition& condition, std::uint32_t left) {
    if (left == 0) {
        const std::uint32_t tokens = options_.tokens / options_.turns;
        return took(condition, now_ms() - started_ms_, tokens);
    }
    if (!held(decoder_->step())) return;
    read_one([this, &condition, left] { step_one_by_one(condition, left - 1); });
}

// Measures an answer whose steps are issued ahead, from the first received token to the last.
void DecoderTiming::ahead(Condition& condition) {
    begin_sequence();
    heard_ = 0;
    // Keep the previous loop alive: this function may run inside its callback on_end.
    loop_before_ = std::move(loop_);
    loop_ = std::make_unique<GreedyLoop>(
        *decoder_,
        GreedyOptions{.max_tokens = options_.tokens / options_.turns + 1,
                      .fetch_tokens = condition.fetch,
                      .reading_max = std::chrono::seconds(10)},
        AnswerLoop::Events{.on_tokens =
                               [this](std::span<const std::uint32_t> ids) {
                                   heard_ms_ = now_ms();
                                   if (heard_ == 0) started_ms_ = heard_ms_;
                                   heard_ += static_cast<std::uint32_t>(ids.size());
                               },
                           .on_end =
                               [this, &condition](Result<AnswerEnd> how) {
                                   if (!how.ok()) return fail(how.error());
                                   took(condition, heard_ms_ - started_ms_, heard_ - 1);
                               }});
    loop_->start(prompt_);
}

void DecoderTiming::took(Condition& condition, double ms, std::uint32_t tokens) {
    condition.ms_token.push_back(ms / std::max(1u, tokens));
    condition.tokens += tokens;
    condition.created += created() - created_before_;
    next();
}

void DecoderTiming::give(const Condition& condition) {
    const auto [least, most] = std::minmax_element(condition.ms_token.begin(),
                                                   condition.ms_token.end());
    const double prep_ms = prep_ms_[condition.creates];
    row_({.what = condition.what,
          .fetch = condition.fetch,
          .tokens = condition.tokens,
          .ms_token = median(condition.ms_token),
          .ms_least = *least,
          .ms_most = *most,
          .prep_ms = prep_ms,
          .issue_ms = issue_ms_[condition.creates],
          .exec_ms = exec_ms_,
          .fetch_ms = fetch_ms_,
          .model_ms = exec_ms_ + (prep_ms + fetch_ms_) / condition.fetch,
          .dispatches = static_cast<std::uint32_t>(step_.size()),
          .created = static_cast<std::uint32_t>(condition.created / std::max(1u, condition.tokens)),
          .mb = static_cast<double>(weight_bytes_of_a_token(model_)) / 1e6});
}

// ---- measurement

// Submits `commands` the given number of times, and measures the time until a readback after the
// submissions ends.
void DecoderTiming::submitted(const std::vector<gpu::Command>& commands, std::uint32_t times,
                              Ms then) {
    const double started_ms = now_ms();
    if (!commands.empty())
        for (std::uint32_t i = 0; i < times; ++i) device_.submit(commands);
    // A browser waits only for submissions that use the buffer that is read, so copy into that
    // buffer last.
    const gpu::Command copy{
        .kind = gpu::Command::Kind::copy, .source = word_, .target = readback_, .size_bytes = 4};
    device_.submit(std::span(&copy, 1));
    device_.read_buffer(
        readback_, 4,
        [this, started_ms, then = std::move(then), life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return fail(bytes.error());
            then(now_ms() - started_ms);
        });
}

// Measures the GPU time of `commands` as the slope between one and several repetitions in one
// submission.
void DecoderTiming::slope(std::vector<gpu::Command> commands, Ms then) {
    const bool software = device_.adapter().software;
    slope_ = {.once = std::move(commands),
              .repeats = software ? 1u : 8u,
              .turns_left = software ? 1u : 5u,
              .once_ms = 1e18,
              .many_ms = 1e18,
              .then = std::move(then)};
    for (std::uint32_t i = 0; i <= slope_.repeats; ++i)
        slope_.many.insert(slope_.many.end(), slope_.once.begin(), slope_.once.end());
    take_turn();
}

void DecoderTiming::take_turn() {
    submitted(slope_.once, 1, [this](double once_ms) {
        slope_.once_ms = std::min(slope_.once_ms, once_ms);
        submitted(slope_.many, 1, [this](double many_ms) {
            slope_.many_ms = std::min(slope_.many_ms, many_ms);
            if (--slope_.turns_left > 0) return take_turn();
            // If noise makes the repeated run no slower than the single run, use the mean time of
            // a repetition as an upper bound.
            const double ms = slope_.many_ms > slope_.once_ms
                                  ? (slope_.many_ms - slope_.once_ms) / slope_.repeats
                                  : slope_.many_ms / (slope_.repeats + 1);
            const Ms then = std::move(slope_.then);
            then(ms);
        });
    });
}

}  // namespace moex
