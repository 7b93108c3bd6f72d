// Compares two ways to give a draft head its knowledge of a prefix from the cache: the head keeps
// the model's latest rows and computes its keys and values from them again, or it keeps the keys
// and values.
//   draft_head_bench --model DIR [--threads N] [--times N]
// DIR is a package with a draft head. If it is not there, it is made: Qwen3.6-35B-A3B with one of
// its forty layers, and its head (3 GB). CSV, a line for each number of rows: bytes of the rows,
// bytes of their keys and values, CPU time of computing these again, of copying them, and of one
// proposed token without either. Times are medians, in ms.
// example: draft_head_bench --model /tmp/qwen3.6-one-layer --times 9
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "hub/draft/head_draft.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/model/pack/synth.h"
#include "hub/model/package/draft_head.h"

namespace moex {
namespace {

double cpu_ms() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

double median_ms(int times, const std::function<double()>& once) {
    std::vector<double> all;
    for (int i = 0; i < times; ++i) all.push_back(once());
    std::nth_element(all.begin(), all.begin() + times / 2, all.end());
    return all[static_cast<std::size_t>(times / 2)];
}

template <class T>
T must(Result<T> result) {
    if (result.ok()) return std::move(result).value();
    std::fprintf(stderr, "draft_head_bench: %s\n", result.error().message.c_str());
    std::exit(1);
}

// Makes the package in `folder`.
void make_package(const std::string& folder, ThreadPool& threads) {
    ModelConfig config = must(synth_shape("qwen3.6-35b-a3b"));
    config.layers.erase(
        std::remove_if(config.layers.begin(), config.layers.end(),
                       [](const LayerPlan& one) { return one.mixer != Mixer::attention; }),
        config.layers.end());
    config.layers.resize(1);
    config.num_layers = 1;
    config.delta_net = {};
    must(synth_package(config, "one-layer", 1, folder, {}, threads, {}));
}

void run(const std::string& folder, std::size_t num_threads, int times) {
    ThreadPool threads(num_threads);
    if (!std::filesystem::exists(folder)) make_package(folder, threads);
    const auto package = must(ModelPackage::open(folder)),
               of_head = must(open_draft_head(*package));
    const auto arithmetic = has_codes(package->expert_dtype()) ? Arithmetic::int8
                                                               : Arithmetic::exact;
    const auto model = must(Decoder::create(package, threads, {.arithmetic = arithmetic}));
    const auto head = must(model->draft_head(of_head, threads));
    LocalExperts experts(of_head, threads, {}, arithmetic);

    constexpr std::uint32_t rows_max = 256;
    const ModelConfig& config = head->config();
    const KvCacheOptions pages{.page_tokens = 8, .num_pages = 256, .dtype = KvDtype::f16};
    HeadDrafts drafts(*head, experts, {.kv = pages, .rows_kept_max = rows_max});
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> rows(std::size_t{rows_max} * config.hidden_size);
    for (float& value : rows) value = normal(random);
    GenerationRequest request;
    for (std::uint32_t i = 0; i <= rows_max; ++i)
        request.prompt.push_back(static_cast<TokenId>(random() % config.vocab_size));
    request.sampling.temperature = 0;

    // CPU time of the first proposal of a draft that has seen `num_rows` rows.
    const auto propose = [&](std::uint32_t num_rows) {
        const auto draft = drafts.begin(request);
        drafts.see(*draft, 0, std::span(rows).first(num_rows * config.hidden_size));
        DraftCall call{.draft = draft.get(),
                       .tokens = std::span(request.prompt).first(num_rows + 1),
                       .tokens_max = 1};
        const double from = cpu_ms();
        drafts.propose({&call, 1});
        return cpu_ms() - from;
    };
    KvCache cache(config, pages);
    const auto copy = [&](std::uint32_t num_rows) {
        KvCache::Sequence from(cache), to(cache);
        from.reserve(num_rows);
        to.reserve(num_rows);
        const double began = cpu_ms();
        to.copy_rows(from, 0, num_rows);
        return cpu_ms() - began;
    };

    propose(rows_max);  // packs the experts
    std::printf("rows,rows_bytes,keys_bytes,again_cpu_ms,copy_cpu_ms,token_cpu_ms\n");
    const double token = median_ms(times, [&] { return propose(1); });
    for (const std::uint32_t num_rows : {16u, 64u, 128u, 256u}) {
        const double all = median_ms(times, [&] { return propose(num_rows); }),
                     copied = median_ms(times, [&] { return copy(num_rows); });
        std::printf("%u,%llu,%llu,%.2f,%.3f,%.2f\n", num_rows, 4ull * num_rows * config.hidden_size,
                    static_cast<unsigned long long>(num_rows * cache.page_bytes() / 8), all - token,
                    copied, token);
        std::fflush(stdout);
    }
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    std::string model;
    std::size_t num_threads = 2;
    int times = 5;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--model")
            model = argv[i + 1];
        else if (name == "--threads")
            num_threads = std::strtoul(argv[i + 1], nullptr, 10);
        else if (name == "--times")
            times = std::max(1, std::atoi(argv[i + 1]));
    }
    if (model.empty() || num_threads == 0) {
        std::fprintf(stderr, "usage: draft_head_bench --model DIR [--threads N] [--times N]\n");
        return 2;
    }
    moex::run(model, num_threads, times);
    return 0;
}
