// The gaps between a decoding user's tokens while somebody else's long prompt arrives.
//   latency_bench [--shape NAME | --model DIR] [--threads N] [--prompt TOKENS] [--stretch X]
//   [--repeats N] [--header]
// --stretch: how many decode steps a step may last beside a prompt
// (EngineOptions::step_stretch_max); 1000000 is the time without a bound: chunks then grow to whole
// steps. Local backend, one user who decodes. CSV: see the header. ratio_*: gaps beside the prompt
// over the median gap before it came. example: latency_bench --shape bench-moe --prompt 1000
// --header
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/synth.h"

namespace moex {
namespace {

struct Flags {
    std::string shape = "bench-moe", model;
    std::uint32_t threads = 0, prompt_tokens = 1000, repeats = 3;
    double stretch = 2;
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
        else if (flag == "--stretch")
            flags.stretch = std::strtod(value, nullptr);
        else
            fail("unknown flag " + flag);
    }
    return flags;
}

void measure(const Flags& flags, const std::filesystem::path& folder, ThreadPool& threads) {
    const auto package = ModelPackage::open(folder);
    if (!package.ok()) fail(package.error().message);
    const auto decoder = Decoder::create(*package, threads);
    if (!decoder.ok()) fail(decoder.error().message);
    LocalExperts experts(*package, threads, {});
    Engine engine(**decoder, experts, {.sequences_max = 2, .step_stretch_max = flags.stretch});

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
