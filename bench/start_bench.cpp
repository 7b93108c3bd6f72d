// Measures the time from a package on disk to the first token on the local backend, and the memory
// that this takes.
//   start_bench [--shape NAME | --model DIR] [--threads N] [--prompt TOKENS] [--ahead on|off]
//               [--hub-dtype bf16|int8|int4] [--header]
// --hub-dtype: the dtype of the package that the bench makes. --ahead off: experts are packed when
// they are first used. A prompt arrives as soon as the hub accepts one, and a second prompt when
// the first is answered. The header line names the CSV columns. first_ms counts from the start;
// packed_ms is the time at which the last expert was stored in panels (empty with --ahead off);
// first_mb and packed_mb are the process's memory at these two times, package_mb the size of
// tensors and blobs on disk.
// example: start_bench --shape bench-moe --header
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>

#include "hub/engine/decoder.h"
#include "hub/engine/engine.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/synth.h"

namespace moex {
namespace {

struct Flags {
    std::string shape = "bench-moe", model;
    HubDtype hub_dtype = HubDtype::bf16;
    std::uint32_t threads = 0, prompt_tokens = 32;
    bool ahead = true, header = false;
};

[[noreturn]] void fail(const std::string& message) {
    std::fprintf(stderr, "start_bench: %s\n", message.c_str());
    std::exit(1);
}

// Returns the resident memory of this process, including pages of mapped files.
double resident_mb() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
    return 0;
}

double package_mb(const std::filesystem::path& folder) {
    double bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) bytes += static_cast<double>(entry.file_size());
    return bytes / (1 << 20);
}

// Sends a prompt, and waits for its first token.
void answer(Engine& engine, std::uint32_t prompt_tokens, std::uint32_t vocab_size,
            std::uint32_t seed) {
    GenerationRequest request;
    for (std::uint32_t i = 0; i < prompt_tokens; ++i)
        request.prompt.push_back((i * 7919 + seed) % vocab_size);
    request.max_tokens = 1;
    std::promise<void> done;
    const auto id = engine.submit(
        request, {.on_token = nullptr, .on_end = [&](const auto&) { done.set_value(); }});
    if (!id.ok()) fail(id.error().message);
    done.get_future().wait();
}

void measure(const Flags& flags, const std::filesystem::path& folder) {
    const TimePoint started = now_steady();
    const auto ms = [&] { return to_ms(now_steady() - started); };

    ThreadPool threads(flags.threads);
    const auto package = ModelPackage::open(folder);
    if (!package.ok()) fail(package.error().message);
    const double opened_ms = ms();
    const auto decoder = Decoder::create(
        *package, threads,
        {.arithmetic = Arithmetic::int8,
         .hub_dtype = flags.hub_dtype == HubDtype::int4 ? PackedDtype::int4 : PackedDtype::int8});
    if (!decoder.ok()) fail(decoder.error().message);
    const std::uint32_t vocab_size = (*package)->config().vocab_size;

    std::promise<void> packed;
    double packed_ms = 0;
    LocalExperts experts(*package, threads, {}, Arithmetic::int8);
    Engine engine(**decoder, experts, {.kv_bytes_max = 64 << 20});
    if (flags.ahead)
        experts.pack_in_background([&] {
            packed_ms = ms();
            packed.set_value();
        });
    const double ready_ms = ms();

    answer(engine, flags.prompt_tokens, vocab_size, 1);
    const double first_ms = ms(), first_mb = resident_mb();
    answer(engine, flags.prompt_tokens, vocab_size, 2);
    const double second_ms = ms() - first_ms;
    if (flags.ahead) packed.get_future().wait();

    if (flags.header)
        std::printf(
            "shape,threads,hub_dtype,ahead,package_mb,opened_ms,ready_ms,first_ms,second_prompt_ms,"
            "packed_ms,"
            "first_mb,packed_mb\n");
    std::printf("%s,%zu,%s,%s,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f,%.0f\n", flags.shape.c_str(),
                threads.num_threads(), hub_dtype_name((*package)->hub_dtype()),
                flags.ahead ? "on" : "off", package_mb(folder), opened_ms, ready_ms, first_ms,
                second_ms, packed_ms, first_mb, resident_mb());
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
        else if (flag == "--hub-dtype") {
            const auto dtype = parse_hub_dtype(value);
            if (!dtype.ok()) fail(dtype.error().message);
            flags.hub_dtype = *dtype;
        } else if (flag == "--threads")
            flags.threads = number;
        else if (flag == "--prompt")
            flags.prompt_tokens = number;
        else if (flag == "--ahead")
            flags.ahead = std::string(value) != "off";
        else
            fail("unknown flag " + flag);
    }
    return flags;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    using namespace moex;
    const Flags flags = parse(argc, argv);
    std::filesystem::path folder = flags.model, made;
    if (flags.model.empty()) {
        made = folder = std::filesystem::temp_directory_path() /
                        ("moex-start-bench-" + std::to_string(::getpid()));
        const auto config = synth_shape(flags.shape);
        if (!config.ok()) fail(config.error().message);
        ThreadPool threads(flags.threads);
        const auto report = synth_package(*config, flags.shape, 1234, folder,
                                          {.hub_dtype = flags.hub_dtype}, threads, {});
        if (!report.ok()) fail(report.error().message);
    }
    measure(flags, folder);
    if (!made.empty()) std::filesystem::remove_all(made);
    return 0;
}
