// Measures the time of a token, and the parts of this time, for a whole model with random weights
// on one GPU.
//   decoder_bench [--device NAME] [--shapes NAME,...|all] [--weights int4|bf16|f32|mixed|mxfp4,...]
//                 [--fetch I,...] [--tokens N] [--turns N] [--context N] [--prompt N]
//                 [--behind N] [--kernels on|off] [--kv f32|f16|u8] [--ablation on|off] [--spread
//                 on|off]
// CSV: what, shape, weights, fetch, tokens, ms_token, tok_s, ms_least, ms_most, prep_ms, issue_ms,
// exec_ms, fetch_ms, model_ms, utilisation, dispatches, created, mb, gb_s. The columns are
// explained in web-worker/decoder/decoder_timing.h; /bench.html measures the same in a tab.
// --behind N: the prompt follows N tokens that are not computed. Their keys and values are zeros,
// which takes as long to read as others.
// --ablation on: also measures steps that create all buffers and bind groups anew. Other WebGPU
// programs do this, since it is cheap there. Here each creation waits for the GPU.
// --spread: computes a single row over more lanes (GpuDecoderOptions); on by default where the GPU
// is hardware.
// --weights: int4, bf16 and f32 apply to all matrices (int4 in groups of 32); mixed stands for the
// dtypes of a package: INT4 experts, and bf16 for the rest. A software rasteriser gets less work,
// which shows that the program works.
// example: decoder_bench --shapes qwen2-1.5b,qwen3-30b-a3b --weights int4 --fetch 1,8,32
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/support/posted_loop.h"
#include "web-worker/decoder/decoder_timing.h"
#include "web-worker/gpu/vulkan/vulkan_device.h"

namespace moex {
namespace {

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "decoder_bench: %s\n", what.c_str());
    std::exit(1);
}

std::vector<std::string> parts_of(const std::string& value) {
    std::vector<std::string> parts;
    std::istringstream in(value);
    for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
    return parts;
}

struct Options {
    std::string device;
    std::vector<std::string> shapes = bench_shapes(), weights = {"int4", "bf16"};
    DecoderTimingOptions timing{.fetch = {1, 8, 32}, .ablation = false, .kernels = true};
};

Options options_of(int argc, char** argv) {
    Options options;
    DecoderTimingOptions& timing = options.timing;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], value = argv[i + 1];
        const auto number = static_cast<std::uint32_t>(std::atoi(value.c_str()));
        if (flag == "--device")
            options.device = value;
        else if (flag == "--shapes")
            options.shapes = value == "all" ? bench_shapes() : parts_of(value);
        else if (flag == "--weights")
            options.weights = parts_of(value);
        else if (flag == "--fetch") {
            timing.fetch.clear();
            for (const std::string& part : parts_of(value))
                timing.fetch.push_back(std::max(1u, static_cast<unsigned>(std::stoul(part))));
        } else if (flag == "--tokens")
            timing.tokens = std::max(4u, number);
        else if (flag == "--turns")
            timing.turns = std::clamp(number, 1u, timing.tokens / 4);
        else if (flag == "--context")
            timing.context = std::max(128u, number);
        else if (flag == "--prompt")
            timing.prompt = std::max(1u, number);
        else if (flag == "--behind")
            timing.behind = number;
        else if (flag == "--kernels")
            timing.kernels = value == "on";
        else if (flag == "--spread")
            timing.spread = value == "on";
        else if (flag == "--ablation")
            timing.ablation = value == "on";
        else if (flag == "--kv")
            timing.kv_kind = value == "f16"  ? KvKind::f16
                             : value == "u8" ? KvKind::u8
                                             : KvKind::f32;
        else
            fail("unknown flag " + flag);
    }
    if (timing.fetch.empty()) fail("--fetch wants numbers");
    return options;
}

std::string weights_label(const DecoderTimingOptions& timing) {
    return timing.weights + (timing.kv_kind == KvKind::f16  ? " kv16"
                             : timing.kv_kind == KvKind::u8 ? " kv8"
                                                            : "");
}

void print(const DecoderTimingOptions& timing, const DecoderTimingRow& row) {
    const auto figure = [](double value, int digits) {
        if (value <= 0) return std::string();
        char text[32];
        std::snprintf(text, sizeof text, "%.*f", digits, value);
        return std::string(text);
    };
    const double tok_s = row.ms_token > 0 ? 1e3 / row.ms_token : 0;
    std::printf("%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s\n", row.what.c_str(),
                timing.shape.c_str(), weights_label(timing).c_str(), figure(row.fetch, 0).c_str(),
                figure(row.tokens, 0).c_str(), figure(row.ms_token, 3).c_str(),
                figure(tok_s, 1).c_str(), figure(row.ms_least, 3).c_str(),
                figure(row.ms_most, 3).c_str(), figure(row.prep_ms, 3).c_str(),
                figure(row.issue_ms, 3).c_str(), figure(row.exec_ms, 4).c_str(),
                figure(row.fetch_ms, 3).c_str(), figure(row.model_ms, 3).c_str(),
                figure(row.utilisation(), 2).c_str(), figure(row.dispatches, 0).c_str(),
                figure(row.created, 0).c_str(), figure(row.mb, 1).c_str(),
                figure(row.mb > 0 ? row.gb_s() : 0, 0).c_str());
    std::fflush(stdout);
}

void run(gpu::Device& device, gpu::PostedLoop& loop, DecoderTimingOptions timing) {
    if (device.adapter().software) timing.shorten();
    DecoderTiming bench(device, timing, [] {
        return std::chrono::duration<double, std::micro>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    });
    bool finished = false;
    bench.start([&](const DecoderTimingRow& row) { print(timing, row); },
                [&](Status done) {
                    if (!done.ok()) fail(done.error().message);
                    finished = true;
                });
    if (!finished) loop.run_until(finished, &device);
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    Options options = options_of(argc, argv);
    test::PostedLoop loop;
    auto device = gpu::open_vulkan_device({.device = options.device}, loop.poster());
    if (!device.ok()) fail(device.error().message);
    std::printf("# Machine: %s\n", (*device)->adapter().description.c_str());
    std::printf(
        "what,shape,weights,fetch,tokens,ms_token,tok_s,ms_least,ms_most,prep_ms,issue_ms,exec_ms,"
        "fetch_ms,model_ms,utilisation,dispatches,created,mb,gb_s\n");
    for (const std::string& shape : options.shapes)
        for (const std::string& weights : options.weights) {
            options.timing.shape = shape;
            options.timing.weights = weights;
            run(**device, loop, options.timing);
        }
    return 0;
}
