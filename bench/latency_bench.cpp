// Measures the time to the next token and to the first token, on the local backend in int8.
//   latency_bench [--shape NAME | --model DIR] [--threads N] [--prompt TOKENS] [--stretch X]
//                 [--repeats N] [--users N [--answer TOKENS]] [--kv-dtype f32|f16|int8] [--parts N]
//                 [--cpu-clock] [--header]
// --stretch: the longest duration, in decode steps, of a step that also computes rows of a prompt
// (EngineOptions::step_stretch_max). 1000000 removes the bound: chunks then grow to whole steps.
// --kv-dtype: f16 by default, as in `serve` with int8 arithmetic.
// --cpu-clock: gaps, and the times that the engine learns from, are CPU time of the engine's
// thread. With --threads 1 this is the time of a quiet machine.
// A gap is the time between two tokens of a user.
// Without --users: one user decodes while another user's prompt arrives. ratio_*: gaps while the
// prompt is computed, over the median gap before the prompt arrived. near_*: each such gap over the
// median of the five nearest gaps without a row of the prompt; this removes the growth of the
// user's own text and other load of the machine. near_plain_p99: a gap without prompt rows over its
// five nearest others, which is the machine's own noise. late_*: the duration of a step with rows
// of the prompt over the duration that the engine expected.
// --parts: prints a row for each of `N` parts of the prompt's steps, then one row for all parts.
// With --users: `N` prompts arrive at once. ratio_*: gaps while a user waits for its first token,
// each over the median gap of the same number of users when no user waits. one_at_a_time_ms: the
// median user's wait if whole answers were served one after the other.
// example: latency_bench --users 16 --prompt 32 --answer 64 --header
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <string>
#include <vector>

#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/synth.h"

namespace moex {
namespace {

struct Flags {
    std::string shape = "bench-moe", model;
    std::uint32_t threads = 0, prompt_tokens = 1000, repeats = 3, users = 0, answer_tokens = 64;
    double stretch = 2;
    KvDtype kv_dtype = KvDtype::f16;
    std::uint32_t parts = 1;
    bool header = false, cpu_clock = false;
};

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "latency_bench: %s\n", message.c_str());
    std::exit(1);
}

GenerationRequest request_of(std::uint32_t prompt_tokens, std::uint32_t max_tokens,
                             std::uint32_t vocab_size, std::uint32_t seed) {
    GenerationRequest request;
    for (std::uint32_t i = 0; i < prompt_tokens; ++i)
        request.prompt.push_back((i * 7919 + seed) % vocab_size);
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0;
    return request;
}

// Returns the CPU time of the calling thread, which excludes the time slices of other threads.
TimePoint now_cpu() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::seconds(time.tv_sec) +
                                                          std::chrono::nanoseconds(time.tv_nsec)));
}

// A step of the engine, and the gap between two of the user's tokens that this step ended.
struct Step {
    StepShape shape;
    Duration expected{}, took{};
    double gap_ms = 0;
    bool is_beside = false;  // the other user's prompt was being computed
};

// A scene with two users: one user decodes, another user's prompt arrives after some tokens, and
// the user decodes until the prompt is computed and for some tokens after that.
class Scene {
  public:
    std::vector<Step> steps;  // steps in order, from the user's fifth token on
    double ttft_ms = 0;

    // Called on the engine's thread, before the tokens of the step are delivered.
    void on_step(const Step& step) { step_ = step; }

    void play(Engine& engine, const ModelConfig& config, const Flags& flags, std::uint32_t seed) {
        constexpr std::uint32_t tokens_alone = 24;
        const auto clock = flags.cpu_clock ? now_cpu : now_steady;
        TimePoint last{}, arrived{};
        GenerationId talker = 0;
        std::uint32_t more = tokens_alone;  // tokens to decode after the prompt's first token
        std::promise<void> ended;

        const GenerationSink late{
            .on_token = [&](const auto&) { ttft_ms = to_ms(now_steady() - arrived); },
            .on_end = nullptr};
        const auto on_token = [&](const TokenEvent& event) {
            const TimePoint now = clock();
            step_.gap_ms = to_ms(now - last);
            step_.is_beside = event.index > tokens_alone && ttft_ms == 0;
            if (event.index > 4) steps.push_back(step_);
            last = now;
            if (ttft_ms > 0 && more-- == 0) engine.cancel(talker);
            if (event.index != tokens_alone) return;
            arrived = now_steady();
            const auto prompt = request_of(flags.prompt_tokens, 1, config.vocab_size, seed);
            if (!engine.submit(prompt, late).ok())
                fail("the prompt was refused; is the model's context shorter?");
        };

        const auto id = engine.submit(
            request_of(8, config.context_tokens, config.vocab_size, seed + 1),
            {.on_token = on_token, .on_end = [&](const auto&) { ended.set_value(); }});
        if (!id.ok()) fail(id.error().message);
        talker = *id;
        ended.get_future().wait();
        if (ttft_ms == 0) fail("the user ended before the prompt; its context is too short");
    }

  private:
    Step step_;
};

double at(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values.at(std::min(
        values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size()))));
}

// Returns the median of the values; for an even number of values it is the mean of the two in the
// middle.
double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return (values.at((values.size() - 1) / 2) + values.at(values.size() / 2)) / 2;
}

// Returns the median of the five gaps that are nearest to a step and belong to steps without a row
// of the prompt.
double plain_near(const std::vector<Step>& steps, const std::vector<std::size_t>& plain,
                  std::size_t index) {
    const auto distance = [&](std::size_t one) { return one > index ? one - index : index - one; };
    std::vector<std::size_t> near;
    const auto here = std::lower_bound(plain.begin(), plain.end(), index) - plain.begin();
    const auto end = std::min<std::ptrdiff_t>(here + 6, std::ssize(plain));
    for (auto i = std::max<std::ptrdiff_t>(0, here - 6); i < end; ++i)
        if (plain[static_cast<std::size_t>(i)] != index)
            near.push_back(plain[static_cast<std::size_t>(i)]);
    std::sort(near.begin(), near.end(),
              [&](std::size_t a, std::size_t b) { return distance(a) < distance(b); });
    near.resize(std::min<std::size_t>(near.size(), 5));
    std::vector<double> ms;
    for (const std::size_t one : near) ms.push_back(steps[one].gap_ms);
    return median(std::move(ms));
}

// The gaps between a user's tokens while a prompt is computed: of one part of each scene, or of
// whole scenes.
struct Gaps {
    std::vector<double> ms, near, late;
    std::uint64_t rows = 0, steps = 0;  // number of prompt rows, and of steps with prompt rows

    void add(const std::vector<Step>& all, std::uint32_t part, std::uint32_t parts) {
        std::vector<std::size_t> plain, beside;
        for (std::size_t i = 0; i < all.size(); ++i) {
            if (all[i].shape.prompt_rows == 0) plain.push_back(i);
            if (all[i].is_beside) beside.push_back(i);
        }
        for (std::size_t i = beside.size() * part / parts; i < beside.size() * (part + 1) / parts;
             ++i) {
            const Step& step = all[beside[i]];
            ms.push_back(step.gap_ms);
            if (step.shape.prompt_rows == 0) continue;
            near.push_back(step.gap_ms / plain_near(all, plain, beside[i]));
            if (step.expected > Duration{}) late.push_back(to_ms(step.took) / to_ms(step.expected));
            rows += step.shape.prompt_rows;
            ++steps;
        }
    }
};

// A scene of users that all arrive at once. Their answers end one after the other, so the gaps of
// every number of users are measured while no user waits for a first token.
class Crowd {
  public:
    struct Gap {
        std::uint64_t step = 0;   // number of the step that ended the gap
        std::uint32_t users = 0;  // number of users with a gap that this step ended
        bool is_beside = false;   // another user waited for its first token when the gap began
        double ms = 0;
    };
    std::vector<double> first_ms;
    std::vector<Gap> gaps;

    void play(Engine& engine, const ModelConfig& config, const Flags& flags, std::uint32_t seed) {
        constexpr std::uint32_t tokens_apart = 4;
        users_.assign(flags.users, {});
        waiting_ = open_ = flags.users;
        ended_ = {};
        engine_ = &engine;
        const std::size_t first_gap = gaps.size();

        for (std::uint32_t i = 0; i < flags.users; ++i) {
            users_[i].submitted = now_steady();
            const auto request = request_of(flags.prompt_tokens + i % 5,
                                            flags.answer_tokens + tokens_apart * i,
                                            config.vocab_size, seed + 1000 * i);
            if (!engine
                     .submit(request, {.on_token = [this, i](const auto&) { on_token(users_[i]); },
                                       .on_end = [this](const auto&) { on_end(); }})
                     .ok())
                fail("a prompt was refused; is the model's context shorter?");
        }
        ended_.get_future().wait();

        std::map<std::uint64_t, std::uint32_t> users;
        for (std::size_t i = first_gap; i < gaps.size(); ++i) ++users[gaps[i].step];
        for (std::size_t i = first_gap; i < gaps.size(); ++i) gaps[i].users = users[gaps[i].step];
    }
    // Divides each gap in which another user waited for its first token by the median gap of the
    // same number of users when no user waited.
    std::vector<double> ratios() const {
        std::vector<double> out;
        for (const Gap& gap : gaps)
            if (gap.is_beside) out.push_back(gap.ms / plain_ms(gap.users));
        return out;
    }
    double plain_ms(std::uint32_t users) const {
        std::uint32_t nearest = 0;
        const auto distance = [&](std::uint32_t n) { return n > users ? n - users : users - n; };
        for (const Gap& gap : gaps)
            if (!gap.is_beside && (nearest == 0 || distance(gap.users) < distance(nearest)))
                nearest = gap.users;
        std::vector<double> same;
        for (const Gap& gap : gaps)
            if (!gap.is_beside && gap.users == nearest) same.push_back(gap.ms);
        return at(std::move(same), 0.5);
    }

  private:
    struct User {
        TimePoint submitted, last{};
        // Another user waited for its first token when this user's newest token arrived.
        bool is_beside = false;
    };
    // Called on the engine's thread for each token of a user.
    void on_token(User& user) {
        const TimePoint now = now_steady();
        if (user.last == TimePoint{}) {
            first_ms.push_back(to_ms(now - user.submitted));
            --waiting_;
        } else {
            gaps.push_back({engine_->counters().steps, 0, user.is_beside, to_ms(now - user.last)});
        }
        user.last = now;
        user.is_beside = waiting_ > 0;
    }
    void on_end() {
        if (--open_ == 0) ended_.set_value();
    }

    Engine* engine_ = nullptr;
    std::vector<User> users_;
    std::atomic<std::uint32_t> waiting_{0}, open_{0};
    std::promise<void> ended_;
};

Flags parse(int argc, char** argv) {
    Flags flags;
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        if (flag == "--header" || flag == "--cpu-clock") {
            (flag == "--header" ? flags.header : flags.cpu_clock) = true;
            continue;
        }
        if (i + 1 == argc) fail(flag + " wants a value");
        const char* value = argv[++i];
        const auto number = static_cast<std::uint32_t>(std::strtoul(value, nullptr, 10));
        if (flag == "--shape")
            flags.shape = value;
        else if (flag == "--model")
            flags.shape = flags.model = value;
        else if (flag == "--threads")
            flags.threads = number;
        else if (flag == "--prompt")
            flags.prompt_tokens = number;
        else if (flag == "--repeats")
            flags.repeats = number;
        else if (flag == "--users")
            flags.users = number;
        else if (flag == "--answer")
            flags.answer_tokens = number;
        else if (flag == "--parts")
            flags.parts = std::max(1u, number);
        else if (flag == "--stretch")
            flags.stretch = std::strtod(value, nullptr);
        else if (flag == "--kv-dtype" && parse_kv_dtype(value))
            flags.kv_dtype = *parse_kv_dtype(value);
        else
            fail("unknown flag " + flag);
    }
    return flags;
}

void measure_crowd(Engine& engine, const ModelConfig& config, const Flags& flags,
                   const ThreadPool& threads) {
    Flags one = flags;
    one.users = 1;
    Crowd warm, alone, all;
    warm.play(engine, config, one, 7);
    for (std::uint32_t repeat = 0; repeat < flags.repeats; ++repeat) {
        alone.play(engine, config, one, 100000 * repeat + 50000);
        all.play(engine, config, flags, 100000 * repeat + 100000);
    }

    if (flags.header)
        std::printf(
            "shape,threads,users,prompt_tokens,answer_tokens,stretch,ttft_alone_ms,one_at_a_time_"
            "ms,ttft_p50_ms,ttft_p99_ms,gaps_beside,ratio_p50,ratio_p99\n");
    const double first = at(alone.first_ms, 0.5),
                 whole = first + flags.answer_tokens * alone.plain_ms(1);
    std::vector<double> ratios = all.ratios();
    const std::size_t beside = ratios.size();
    if (ratios.empty()) ratios.push_back(0);
    std::printf("%s,%zu,%u,%u,%u,%g,%.0f,%.0f,%.0f,%.0f,%zu,%.2f,%.2f\n", flags.shape.c_str(),
                threads.num_threads(), flags.users, flags.prompt_tokens, flags.answer_tokens,
                flags.stretch, first, first + (flags.users - 1) / 2.0 * whole, median(all.first_ms),
                at(all.first_ms, 0.99), beside, at(ratios, 0.5), at(ratios, 0.99));
}

void print_scenes(const std::vector<Scene>& scenes, const Flags& flags, std::size_t num_threads) {
    std::vector<double> alone_ms, ttft_ms, near_plain;
    for (const Scene& scene : scenes) {
        std::vector<std::size_t> plain;
        for (std::size_t i = 0; i < scene.steps.size(); ++i)
            if (scene.steps[i].shape.prompt_rows == 0) plain.push_back(i);
        for (const std::size_t i : plain)
            near_plain.push_back(scene.steps[i].gap_ms / plain_near(scene.steps, plain, i));
        for (const Step& step : scene.steps) {
            if (step.is_beside) break;
            alone_ms.push_back(step.gap_ms);
        }
        ttft_ms.push_back(scene.ttft_ms);
    }
    const double alone = at(alone_ms, 0.5);

    if (flags.header)
        std::printf(
            "shape,threads,prompt_tokens,stretch,part,gap_alone_p50_ms,gaps_beside,gap_p50_ms,gap_"
            "p99_ms,ratio_p50,ratio_p99,near_p50,near_p99,near_plain_p99,late_p50,late_p99,rows_"
            "mean,ttft_median_ms\n");
    for (std::uint32_t row = flags.parts == 1 ? 1 : 0; row <= flags.parts; ++row) {
        const bool is_all = row == flags.parts;
        Gaps gaps;
        for (const Scene& scene : scenes)
            gaps.add(scene.steps, is_all ? 0 : row, is_all ? 1 : flags.parts);
        if (gaps.late.empty()) gaps.late.push_back(0);
        const double p50 = at(gaps.ms, 0.5), p99 = at(gaps.ms, 0.99);
        std::printf(
            "%s,%zu,%u,%g,%s,%.1f,%zu,%.1f,%.1f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,"
            "%.0f\n",
            flags.shape.c_str(), num_threads, flags.prompt_tokens, flags.stretch,
            is_all ? "all" : std::to_string(row + 1).c_str(), alone, gaps.ms.size(), p50, p99,
            p50 / alone, p99 / alone, at(gaps.near, 0.5), at(gaps.near, 0.99), at(near_plain, 0.99),
            at(gaps.late, 0.5), at(gaps.late, 0.99),
            static_cast<double>(gaps.rows) / static_cast<double>(gaps.steps), median(ttft_ms));
    }
}

void measure(const Flags& flags, const std::filesystem::path& folder, ThreadPool& threads) {
    const auto package = ModelPackage::open(folder);
    if (!package.ok()) fail(package.error().message);
    const auto decoder = Decoder::create(*package, threads, {.arithmetic = Arithmetic::int8});
    if (!decoder.ok()) fail(decoder.error().message);
    LocalExperts experts(*package, threads, {}, Arithmetic::int8);
    std::promise<void> packed;  // experts are packed before the first user arrives, as in `serve`
    experts.pack_in_background([&] { packed.set_value(); });
    packed.get_future().wait();

    Scene* scene = nullptr;
    Engine engine(**decoder, experts,
                  {.sequences_max = std::max(2u, flags.users),
                   .kv_dtype = flags.kv_dtype,
                   .step_stretch_max = flags.stretch,
                   .clock = flags.cpu_clock ? now_cpu : now_steady,
                   .on_step = [&](const StepShape& shape, Duration expected, Duration took) {
                       if (scene)
                           scene->on_step({.shape = shape, .expected = expected, .took = took});
                   }});
    if (flags.users > 0) return measure_crowd(engine, (*package)->config(), flags, threads);

    std::vector<Scene> scenes(flags.repeats);
    for (std::uint32_t repeat = 0; repeat < flags.repeats; ++repeat) {
        scene = &scenes[repeat];
        scene->play(engine, (*package)->config(), flags, 100 * repeat);
    }
    print_scenes(scenes, flags, threads.num_threads());
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    const Flags flags = parse(argc, argv);
    ThreadPool threads(flags.threads);

    std::filesystem::path folder = flags.model, made;
    if (flags.model.empty()) {
        made = folder = std::filesystem::temp_directory_path() /
                        ("moex-latency-bench-" + std::to_string(::getpid()));
        const auto config = synth_shape(flags.shape);
        if (!config.ok()) fail(config.error().message);
        const auto report = synth_package(*config, flags.shape, 1234, folder, {}, threads, {});
        if (!report.ok()) fail(report.error().message);
    }

    measure(flags, folder, threads);
    if (!made.empty()) std::filesystem::remove_all(made);
    return 0;
}
