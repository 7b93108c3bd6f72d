#include "web-worker/kernel_timing.h"

#include <algorithm>
#include <cstring>

namespace moex {
namespace {

// Bytes that a workgroup of read_words.wgsl reads.
constexpr std::uint64_t read_block_bytes = 64 << 10;
constexpr std::uint32_t repeats_max = 100;

// Returns a word of the test data. The sequence is cheap to compute and the same on every machine.
// The values do not matter.
std::uint32_t word_of(std::uint64_t index) {
    return static_cast<std::uint32_t>((index + 1) * 2654435761u);
}

double quantile(std::vector<double> values, double share) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const auto at = static_cast<std::size_t>(share * static_cast<double>(values.size()));
    return values[std::min(values.size() - 1, at)];
}

std::string without_family(const std::string& kernel) {
    const std::size_t underscore = kernel.rfind('_');
    const std::string last = kernel.substr(underscore + 1);
    return last == "1" || last == "8" ? kernel.substr(0, underscore) : kernel;
}

}  // namespace

Result<ExpertShape> timing_shape(std::string_view name) {
    if (name == "qwen3-30b-a3b") return ExpertShape{2048, 768, 128};
    if (name == "gpt-oss-20b") return ExpertShape{2880, 2880, 64, true, 7.0f};
    if (name == "gpt-oss-20b-mxfp4") {
        ExpertShape shape{2880, 2880, mxfp4_block, true, 7.0f};
        shape.codes = ExpertDtype::mxfp4;
        return shape;
    }
    if (name == "paper") return ExpertShape{4096, 2048, 128};
    if (name == "demo") return ExpertShape{384, 256, 128};
    return Error{ErrorCode::unsupported, text("no shape is called ", name)};
}

std::optional<TimingOptions> TimingOptions::at_start(const gpu::AdapterInfo& adapter,
                                                     std::uint64_t budget_bytes) {
    if (adapter.software) return {};
    TimingOptions options{.rounds = 0, .turns = 2, .published = false, .last_rows_us = 2e5};
    options.read_bytes = std::min(options.read_bytes, budget_bytes / 2);
    const std::uint64_t units = budget_bytes / 2 / expert_blob_layout(options.shape).size_bytes;
    options.experts = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(units, 1, 8));
    options.layers = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(units / options.experts, 1, 4));
    return options;
}

TimingOptions TimingOptions::bench(const std::string& shape_name, const gpu::AdapterInfo& adapter) {
    TimingOptions options{.shape_name = shape_name};
    if (const auto shape = timing_shape(shape_name); shape.ok()) options.shape = *shape;
    if (!adapter.software) return options;
    options.rows = {1};
    options.experts = options.layers = 1;
    options.read_bytes = 4 << 20;
    options.rounds = 10;
    options.submission_us = 2e4;
    options.turns = 1;
    return options;
}

KernelTiming::KernelTiming(gpu::Device& device, TimingOptions options,
                           std::function<double()> now_us)
    : device_(device),
      options_(std::move(options)),
      now_us_(std::move(now_us)) {
    profile_.hidden_size = options_.shape.hidden_size;
    profile_.moe_intermediate_size = options_.shape.moe_intermediate_size;
}

KernelTiming::~KernelTiming() {
    runner_.reset();
    store_.reset();
    device_.destroy_bind_group(read_.bind_group);
    for (const gpu::BufferId buffer : {words_, sums_, word_, readback_})
        if (buffer.value != 0) device_.destroy_buffer(buffer);
}

void KernelTiming::start(std::function<void(const TimingRow&)> row,
                         std::function<void(Status)> done) {
    row_ = std::move(row);
    done_ = std::move(done);
    started_us_ = now_us_();

    auto readback = device_.create_buffer(4096, gpu::BufferUsage::readback, "timing");
    if (!readback.ok()) return fail(readback.error());
    readback_ = *readback;
    auto word = device_.create_buffer(4, gpu::BufferUsage::storage, "timing word");
    if (!word.ok()) return fail(word.error());
    word_ = *word;

    if (options_.read_bytes > 0) steps_.push_back([this] { make_reader(); });
    steps_.push_back([this] { make_runner(); });
    for (const std::uint32_t rows : options_.rows)
        steps_.push_back([this, rows] { plan_rows(rows); });
    next();
}

// Plans the next steps: the measurements in which each expert gets `rows` rows.
void KernelTiming::plan_rows(std::uint32_t rows) {
    if (options_.last_rows_us > 0 && now_us_() - started_us_ > options_.last_rows_us) return next();

    std::deque<Step> steps;
    if (options_.published) {
        steps.push_back([this, rows] { hold_single(rows); });
        steps.push_back([this, rows] { time_held(rows, true); });
    }
    if (options_.rounds > 0)
        steps.push_back([this, rows] { times_of_rounds(rows, [this] { next(); }); });
    steps.push_back([this, rows] { hold_rounds(rows); });
    steps.push_back([this, rows] { time_held(rows, false); });
    steps_.insert(steps_.begin(), steps.begin(), steps.end());
    next();
}

void KernelTiming::next() {
    if (steps_.empty()) {
        if (auto done = std::exchange(done_, nullptr)) done({});
        return;
    }
    const Step step = std::move(steps_.front());
    steps_.pop_front();
    step();
}

void KernelTiming::fail(const Error& error) {
    steps_.clear();
    if (auto done = std::exchange(done_, nullptr)) done(error);
}

void KernelTiming::give(TimingRow row) {
    row.shape = row.what == "read" || row.what == "empty_round" ? "" : options_.shape_name;
    if (row.what == "read") profile_.read_mb_s = static_cast<std::uint64_t>(row.gb_s() * 1e3);
    if (row.what == "round")
        for (std::size_t i = 0; i < profile_.expert_ns.size(); ++i)
            if (row.rows == (i == 0 ? 1u : i == 1 ? 8u : 64u))
                profile_.expert_ns[i] = static_cast<std::uint64_t>(1e3 * row.gpu_us /
                                                                   options_.experts);
    if (row_) row_(row);
}

// ---- the work that is timed

void KernelTiming::make_reader() {
    const gpu::AdapterInfo& adapter = device_.adapter();
    const std::uint64_t wanted_bytes = std::min(
        {options_.read_bytes, adapter.max_binding_bytes, adapter.max_buffer_bytes});
    const auto blocks = static_cast<std::uint32_t>(
        std::max<std::uint64_t>(1, wanted_bytes / read_block_bytes));

    auto words = device_.create_buffer(blocks * read_block_bytes, gpu::BufferUsage::storage,
                                       "timing words");
    if (!words.ok()) return fail(words.error());
    words_ = *words;
    auto sums = device_.create_buffer(4 * std::uint64_t{blocks}, gpu::BufferUsage::storage,
                                      "timing sums");
    if (!sums.ok()) return fail(sums.error());
    sums_ = *sums;

    device_.create_pipeline(
        "read_words", {}, [this, blocks, life = life_.watch()](Result<gpu::PipelineId> made) {
            if (!life.alive()) return;
            if (!made.ok()) return fail(made.error());
            const gpu::Binding bindings[] = {{words_}, {sums_}};
            const auto group = device_.create_bind_group(*made, bindings);
            if (!group.ok()) return fail(group.error());
            read_.pipeline = *made;
            read_.bind_group = *group;

            times_.clear();
            for (std::uint32_t i = 0; i < options_.rounds; ++i)
                steps_.push_front([this] {
                    submitted({read_}, [this](double us) {
                        times_.push_back(us);
                        next();
                    });
                });
            steps_.insert(steps_.begin() + options_.rounds, [this, blocks] {
                if (options_.rounds > 0)
                    give({.what = "empty_round",
                          .p10_us = quantile(times_, 0.1),
                          .p50_us = quantile(times_, 0.5),
                          .p99_us = quantile(times_, 0.99),
                          .dispatches = 1});
                gpu::Command whole = read_;
                whole.workgroups = {blocks, 1, 1};
                slope({whole}, [this, blocks](double us) {
                    give({.what = "read",
                          .gpu_us = us,
                          .dispatches = 1,
                          .mb = static_cast<double>(blocks * read_block_bytes) / 1e6});
                    next();
                });
            });
            next();
        });
}

Bytes KernelTiming::blob() const {
    const ExpertBlobLayout layout = expert_blob_layout(options_.shape);
    Bytes blob(layout.size_bytes);
    const auto fill = [&](const BlobSection& section, auto&& word) {
        for (std::uint64_t at = 0; at < section.size_bytes; at += 4) {
            const std::uint32_t value = word(at / 4);
            std::memcpy(blob.data() + section.offset_bytes + at, &value, 4);
        }
    };
    // scale 0.01 and zero point 8 keep the answers small
    const std::uint32_t scale_zero = options_.shape.is_mxfp4()
                                         ? 0x77777777u  // four scales of 2^-8
                                         : float_to_half(0.01f) | std::uint32_t{float_to_half(8)}
                                                                      << 16;
    fill(layout.gate_up_codes, word_of);
    fill(layout.gate_up_scale_zero, [&](std::uint64_t) { return scale_zero; });
    fill(layout.down_codes, word_of);
    fill(layout.down_scale_zero, [&](std::uint64_t) { return scale_zero; });
    const auto bias = __builtin_bit_cast(std::uint32_t, 0.25f);
    fill(layout.gate_up_bias, [&](std::uint64_t) { return bias; });
    fill(layout.down_bias, [&](std::uint64_t) { return bias; });
    return blob;
}

void KernelTiming::make_runner() {
    const Bytes weights = blob();
    const std::uint32_t units = options_.layers * options_.experts;
    store_ = std::make_unique<ExpertStore>(device_, weights.size(), units * weights.size(),
                                           ArenaOptions{.layer_units = options_.experts});
    if (const Status made = store_->reserve(units); !made.ok()) return fail(made.error());
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer)
        for (std::uint32_t expert = 0; expert < options_.experts; ++expert) {
            const Status put = store_->put(
                {static_cast<std::uint16_t>(layer), static_cast<std::uint16_t>(expert)}, weights);
            if (!put.ok()) return fail(put.error());
        }

    const std::uint32_t rows_max = *std::max_element(options_.rows.begin(), options_.rows.end());
    const WireLimits limits{.hidden_size = options_.shape.hidden_size,
                            .num_layers = options_.layers,
                            .num_experts = options_.experts,
                            .num_tokens_max = rows_max,
                            .num_pairs_max = rows_max * options_.experts};
    runner_ = std::make_unique<ExpertRunner>(device_, *store_,
                                             RunnerOptions{.limits = limits,
                                                           .shape = options_.shape,
                                                           .num_lanes = options_.layers,
                                                           .dtype = Dtype::f16});
    runner_->create([this, life = life_.watch()](Status made) {
        if (!life.alive()) return;
        if (!made.ok()) return fail(made.error());
        next();
    });
}

// Returns a group in which each row asks for all experts of a layer.
KernelTiming::Group KernelTiming::group(std::uint32_t layer, std::uint32_t rows) const {
    Group group;
    for (std::uint32_t expert = 0; expert < options_.experts; ++expert) {
        group.view.experts.push_back(
            {static_cast<std::uint16_t>(expert), static_cast<std::uint16_t>(rows)});
        for (std::uint32_t row = 0; row < rows; ++row) {
            group.view.rows.push_back(static_cast<std::uint16_t>(row));
            group.view.gates.push_back(float_to_half(0.125f));
        }
    }
    group.x.resize(wire_rows_bytes(Dtype::f16, rows, options_.shape.hidden_size));
    for (std::size_t i = 0; i < group.x.size() / 2; ++i) {
        const half value = float_to_half(static_cast<float>(word_of(i) >> 16) / 65536.0f - 0.5f);
        std::memcpy(group.x.data() + 2 * i, &value, 2);
    }
    group.view.shape = {.layer = static_cast<std::uint16_t>(layer),
                        .num_tokens = rows,
                        .hidden_dim = static_cast<std::uint16_t>(options_.shape.hidden_size),
                        .dtype = Dtype::f16,
                        .num_pairs = rows * options_.experts,
                        .num_experts = static_cast<std::uint16_t>(options_.experts)};
    return group;
}

// ---- the method

// Measures the time of one submission and of the readback after it.
void KernelTiming::submitted(std::vector<gpu::Command> commands, Us then) {
    // A browser waits only for commands that touch the readback buffer. The last command therefore
    // copies a word to that buffer.
    commands.push_back(
        {.kind = gpu::Command::Kind::copy, .source = word_, .target = readback_, .size_bytes = 4});
    const double started_us = now_us_();
    device_.submit(commands);
    device_.read_buffer(
        readback_, 4,
        [this, started_us, then = std::move(then), life = life_.watch()](Result<ByteView> bytes) {
            if (!life.alive()) return;
            if (!bytes.ok()) return fail(bytes.error());
            then(now_us_() - started_us);
        });
}

// Measures the GPU time of `commands`: the slope between one and many repetitions in a submission.
void KernelTiming::slope(std::vector<gpu::Command> commands, Us then) {
    slope_ = {.once = std::move(commands),
              .turns_left = options_.turns,
              .many_us = 1e18,
              .then = std::move(then)};
    // The first submission warms up; the second determines the number of repetitions.
    submitted(slope_.once, [this](double) {
        submitted(slope_.once, [this](double us) {
            slope_.once_us = us;
            const auto fits = static_cast<std::uint32_t>(options_.submission_us / std::max(us, 1.));
            // Choose enough repetitions that their time is long compared with a submission,
            // which varies.
            slope_.repeats = std::clamp(8 * fits, options_.turns > 1 ? 4u : 1u, repeats_max);
            for (std::uint32_t i = 0; i <= slope_.repeats; ++i)
                slope_.many.insert(slope_.many.end(), slope_.once.begin(), slope_.once.end());
            take_turn();
        });
    });
}

void KernelTiming::take_turn() {
    submitted(slope_.many, [this](double many_us) {
        slope_.many_us = std::min(slope_.many_us, many_us);
        if (--slope_.turns_left == 0) {
            // If the noise is larger than the difference of the two times, divide the whole time,
            // which gives an upper bound. If the measurement was made only once, the noise is
            // unknown, and the same is done.
            const double us = options_.turns > 1 && slope_.many_us > slope_.once_us
                                  ? (slope_.many_us - slope_.once_us) / slope_.repeats
                                  : slope_.many_us / (slope_.repeats + 1);
            const Us then = std::move(slope_.then);
            return then(std::max(us, 0.1));
        }
        submitted(slope_.once, [this](double once_us) {
            slope_.once_us = std::min(slope_.once_us, once_us);
            take_turn();
        });
    });
}

// Times rounds of the layers in round-robin order, one at a time, as a decode loop sends them.
void KernelTiming::times_of_rounds(std::uint32_t rows, std::function<void()> then) {
    groups_.clear();
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
        groups_.push_back(group(layer, rows));
        groups_.back().view.x_bytes = groups_.back().x;
    }
    times_.clear();

    std::deque<Step> rounds;
    for (std::uint32_t i = 0; i < options_.rounds; ++i)
        rounds.push_back([this, i] {
            const double started_us = now_us_();
            const Status started = runner_->run_group(
                groups_[i % options_.layers].view,
                [this, started_us, life = life_.watch()](Result<ByteView> y) {
                    if (!life.alive()) return;
                    if (!y.ok()) return fail(y.error());
                    times_.push_back(now_us_() - started_us);
                    next();
                });
            if (!started.ok()) fail(started.error());
        });
    rounds.push_back(std::move(then));
    steps_.insert(steps_.begin(), rounds.begin(), rounds.end());
    next();
}

// Records the commands of the published kernels for one expert.
void KernelTiming::hold_single(std::uint32_t rows) {
    const std::vector<float> x(std::size_t{rows} * options_.shape.hidden_size, 0.25f);
    unfinished_ = 1;
    device_.holds = true;
    const Status started = runner_->run_single({0, 0}, x,
                                               [this, life = life_.watch()](Result<ByteView>) {
                                                   if (life.alive() && --unfinished_ == 0) next();
                                               });
    device_.holds = false;
    if (!started.ok()) return fail(started.error());
    next();
}

// Records the commands of a round for each layer.
void KernelTiming::hold_rounds(std::uint32_t rows) {
    unfinished_ = options_.layers;
    device_.holds = true;
    for (std::uint32_t layer = 0; layer < options_.layers; ++layer) {
        Group asked = group(layer, rows);
        asked.view.x_bytes = asked.x;
        const Status started = runner_->run_group(asked.view,
                                                  [this, life = life_.watch()](Result<ByteView>) {
                                                      if (life.alive() && --unfinished_ == 0)
                                                          next();
                                                  });
        if (!started.ok()) return fail(started.error());
    }
    device_.holds = false;
    next();
}

// Returns the bytes of weights that a kernel reads for `experts` experts, in 10^6 bytes; 0 if it
// reads none.
double KernelTiming::mb_of(const std::string& kernel, std::uint32_t experts) const {
    const ExpertBlobLayout layout = expert_blob_layout(options_.shape);
    std::uint64_t bytes = 0;
    if (kernel.find("gate_up") != std::string::npos)
        bytes = layout.gate_up_codes.size_bytes + layout.gate_up_scale_zero.size_bytes;
    else if (kernel.find("down") != std::string::npos)
        bytes = layout.down_codes.size_bytes + layout.down_scale_zero.size_bytes;
    else if (kernel == "round" || kernel == "total")
        bytes = layout.size_bytes;
    return static_cast<double>(bytes * experts) / 1e6;
}

// Measures the time of each recorded kernel, all of them together, and the readback.
void KernelTiming::time_held(std::uint32_t rows, bool single) {
    const std::uint32_t rounds = single ? 1 : options_.layers;
    const std::uint32_t experts = single ? 1 : options_.experts;
    const std::vector<double> frame_times = std::exchange(times_, {});

    std::vector<std::string> names;
    // By kernel name: the commands of that kernel, of all rounds.
    std::vector<std::vector<gpu::Command>> parts;
    std::vector<gpu::Command> all, copies;
    for (const gpu::Command& command : device_.commands) {
        if (command.kind == gpu::Command::Kind::copy) {
            copies.push_back(command);
            continue;
        }
        const std::string name = without_family(device_.name_of(command));
        const auto found = std::find(names.begin(), names.end(), name);
        const auto at = static_cast<std::size_t>(found - names.begin());
        if (found == names.end()) {
            names.push_back(name);
            parts.emplace_back();
        }
        parts[at].push_back(command);
        all.push_back(command);
    }

    std::deque<Step> steps;
    const auto step = [&](const std::string& name, const std::vector<gpu::Command>& commands) {
        const bool whole = name == "total" || name == "round";
        const auto dispatches = static_cast<std::uint32_t>(commands.size() / rounds);
        steps.push_back([=, this, frames = whole && !single ? frame_times : std::vector<double>()] {
            slope(commands, [=, this](double us) {
                give({.what = name,
                      .rows = rows,
                      .p10_us = quantile(frames, 0.1),
                      .p50_us = quantile(frames, 0.5),
                      .p99_us = quantile(frames, 0.99),
                      .gpu_us = us / rounds,
                      .dispatches = dispatches,
                      .mb = mb_of(name, experts)});
                next();
            });
        });
    };
    // Single kernels; the measurement at a worker's start times only whole rounds.
    const bool each = options_.published;
    for (std::size_t i = 0; each && i < names.size(); ++i) step(names[i], parts[i]);
    step(single ? "total" : "round", all);
    if (each && single) step("readback", copies);

    // The recorded readbacks run at the end. They end the recorded rounds. The last of these rounds
    // continues with the next step.
    steps.push_back([this] { device_.release(); });
    steps_.insert(steps_.begin(), steps.begin(), steps.end());
    next();
}

}  // namespace moex
