// Measures how fast a checkpoint becomes a package: bf16 safetensors in, INT4 (and bf16) expert
// blobs out, on this machine's disk.
//   pack_bench [--checkpoint DIR | --megabytes N] [--threads N] [--repeats N]
// Default: a checkpoint of 2000 MB that the bench makes.
// CSV: checkpoint, threads, experts, input MB, output MB, MB/s median and best (input), peak
// resident MB of the whole program.
// example: pack_bench --megabytes 2000 --threads 2
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "hub/base/clock.h"
#include "hub/model/pack/packer.h"
#include "tests/support/checkpoint_builder.h"

int main(int argc, char** argv) {
    using namespace moex;
    std::string checkpoint;
    std::uint64_t megabytes = 2000;
    std::uint32_t num_threads = 0, repeats = 3;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i];
        if (flag == "--checkpoint")
            checkpoint = argv[i + 1];
        else if (flag == "--megabytes")
            megabytes = std::strtoull(argv[i + 1], nullptr, 10);
        else if (flag == "--threads")
            num_threads = static_cast<std::uint32_t>(std::atoi(argv[i + 1]));
        else if (flag == "--repeats")
            repeats = std::max(1, std::atoi(argv[i + 1]));
        else {
            std::fprintf(stderr, "pack_bench: unknown flag %s\n", argv[i]);
            return 2;
        }
    }

    ThreadPool threads(num_threads);
    const test::TempFolder made("moex-pack-bench");
    const std::string name = checkpoint.empty()
                                 ? "synthetic"
                                 : std::filesystem::path(checkpoint).filename().string();
    if (checkpoint.empty()) {
        checkpoint = made / "checkpoint";
        test::write_large_checkpoint(checkpoint, megabytes * 1'000'000);
    }

    std::printf(
        "checkpoint,threads,experts,input_mb,output_mb,mb_per_s_median,mb_per_s_best,"
        "peak_resident_mb\n");
    for (const ExpertDtype dtype : {ExpertDtype::int4, ExpertDtype::bf16}) {
        std::vector<double> speeds;
        PackReport last;
        for (std::uint32_t repeat = 0; repeat < repeats; ++repeat) {
            const std::filesystem::path out = made / "package";
            const TimePoint started = now_steady();
            const auto report = pack_checkpoint(checkpoint, out, {.expert_dtype = dtype}, threads,
                                                [](const PackProgress&) {});
            if (!report.ok()) {
                std::fprintf(stderr, "pack_bench: %s\n", report.error().message.c_str());
                return 1;
            }

            last = *report;
            speeds.push_back(static_cast<double>(last.input_bytes) / 1e3 /
                             to_ms(now_steady() - started));
            std::filesystem::remove_all(out);
        }

        std::sort(speeds.begin(), speeds.end());
        rusage usage{};
        ::getrusage(RUSAGE_SELF, &usage);

        std::printf("%s,%zu,%s,%.0f,%.0f,%.0f,%.0f,%.0f\n", name.c_str(), threads.num_threads(),
                    expert_dtype_name(dtype), static_cast<double>(last.input_bytes) / 1e6,
                    static_cast<double>(last.output_bytes) / 1e6, speeds[speeds.size() / 2],
                    speeds.back(), static_cast<double>(usage.ru_maxrss) / 1e3);
        std::fflush(stdout);
    }
    return 0;
}
