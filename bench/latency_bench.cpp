// How long people wait for a next token and for a first one, on the local backend in int8.
//   latency_bench [--shape NAME | --model DIR] [--threads N] [--prompt TOKENS] [--stretch X]
//                 [--repeats N] [--users N [--answer TOKENS]] [--kv-dtype f32|f16|int8] [--header]
// --stretch: how many decode steps a step may last beside a prompt
// (EngineOptions::step_stretch_max); 1000000 is the time without a bound: chunks then grow to whole
// steps.
// --kv-dtype: f16 unless given, as `serve` has it in int8 arithmetic.
// Without --users: one user decodes while another's prompt arrives. ratio_*: gaps beside the prompt
// over the median gap before it came.
// With --users: so many prompts arrive at once. ratio_*: gaps while somebody waits for a first
// token, each over the median gap of as many users when nobody does. one_at_a_time_ms: what the
// median user would wait were they served one after the other, whole answers.
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
    bool header = false;
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

// One user decodes; after some tokens the prompt comes, and the user goes on until it is done.
struct Scene {
    std::vector<double> alone_ms, beside_ms;
    double ttft_ms = 0;
};
Scene play(Engine& engine, const ModelConfig& config, const Flags& flags, std::uint32_t seed) {
    constexpr std::uint32_t tokens_alone = 24;
    Scene scene;
    TimePoint last{}, arrived{};
    bool is_done = false;
    GenerationId talker = 0;
    std::promise<void> ended;

    const GenerationSink late{.on_token =
                                  [&](const TokenEvent&) {
                                      scene.ttft_ms = to_ms(now_steady() - arrived);
                                      is_done = true;
                                      engine.cancel(talker);
                                  },
                              .on_end = nullptr};
    const GenerationSink sink{
        .on_token =
            [&](const TokenEvent& event) {
                const TimePoint now = now_steady();
                if (event.index > 4)
                    (event.index <= tokens_alone ? scene.alone_ms : scene.beside_ms)
                        .push_back(to_ms(now - last));
                last = now;
                if (event.index != tokens_alone) return;
                arrived = now;
                if (!engine
                         .submit(request_of(flags.prompt_tokens, 1, config.vocab_size, seed), late)
                         .ok())
                    fail("the prompt was refused; is the model's context shorter?");
            },
        .on_end = [&](const GenerationEnd&) { ended.set_value(); }};

    const auto id = engine.submit(request_of(8, config.context_tokens, config.vocab_size, seed + 1),
                                  sink);
    if (!id.ok()) fail(id.error().message);
    talker = *id;
    ended.get_future().wait();
    if (!is_done) fail("the decoding user ended before the prompt; its context is too short");
    return scene;
}

double at(std::vector<double> values, double share) {
    std::sort(values.begin(), values.end());
    return values.at(std::min(
        values.size() - 1, static_cast<std::size_t>(share * static_cast<double>(values.size()))));
}

// Of an even number the mean of the two in the middle, as one_at_a_time_ms has it.
double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return (values.at((values.size() - 1) / 2) + values.at(values.size() / 2)) / 2;
}

// Users who all come at once. Their answers end one after the other, so that the gaps of every
// number of users are seen when nobody waits any more.
class Crowd {
  public:
    struct Gap {
        std::uint64_t step = 0;   // that ended it
        std::uint32_t users = 0;  // with a gap that this step ended
        bool is_beside = false;   // somebody waited for a first token when it began
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
    // Each gap beside waiting users over the median one of as many users alone.
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
        bool is_beside = false;  // somebody waited when it had its last token
    };
    // On the engine's thread.
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
        if (flag == "--header") {
            flags.header = true;
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

void measure(const Flags& flags, const std::filesystem::path& folder, ThreadPool& threads) {
    const auto package = ModelPackage::open(folder);
    if (!package.ok()) fail(package.error().message);
    const auto decoder = Decoder::create(*package, threads, {.arithmetic = Arithmetic::int8});
    if (!decoder.ok()) fail(decoder.error().message);
    LocalExperts experts(*package, threads, {}, Arithmetic::int8);
    Engine engine(**decoder, experts,
                  {.sequences_max = std::max(2u, flags.users),
                   .kv_dtype = flags.kv_dtype,
                   .step_stretch_max = flags.stretch});
    if (flags.users > 0) return measure_crowd(engine, (*package)->config(), flags, threads);

    Scene all;
    std::vector<double> ttft_ms;
    for (std::uint32_t repeat = 0; repeat < flags.repeats; ++repeat) {
        const Scene one = play(engine, (*package)->config(), flags, 100 * repeat);
        all.alone_ms.insert(all.alone_ms.end(), one.alone_ms.begin(), one.alone_ms.end());
        all.beside_ms.insert(all.beside_ms.end(), one.beside_ms.begin(), one.beside_ms.end());
        ttft_ms.push_back(one.ttft_ms);
    }

    if (flags.header)
        std::printf(
            "shape,threads,prompt_tokens,stretch,gap_alone_p50_ms,gaps_beside,gap_p50_ms,gap_p99_"
            "ms,ratio_p50,ratio_p99,ttft_median_ms\n");
    const double alone = at(all.alone_ms, 0.5), p50 = at(all.beside_ms, 0.5),
                 p99 = at(all.beside_ms, 0.99);
    std::printf("%s,%zu,%u,%g,%.1f,%zu,%.1f,%.1f,%.2f,%.2f,%.0f\n", flags.shape.c_str(),
                threads.num_threads(), flags.prompt_tokens, flags.stretch, alone,
                all.beside_ms.size(), p50, p99, p50 / alone, p99 / alone, at(ttft_ms, 0.5));
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
