// Measures how far honest answers of spans differ from the hub's own rows, keys and values.
//   span_residual_bench --text FILE [--model DIR] [--tokens N] [--first LAYER] [--end LAYER]
//                       [--threads N]
// The tolerance of checks is chosen by these figures, so the text is a calibration text.
// The hub reads the text in windows of 256 tokens: 64 in steps of 16 rows, like a prompt, the
// others one by one. A worker in exact arithmetic computes layers [first, end) from the hub's rows
// at the entrance, with keys and values of its own; it is the hub's decoder, not a device, whose
// sums differ by less than 1e-3. CSV: rows of a step, arithmetic of the hub, keys and values of
// the hub, number of steps; then for the rows behind the span, the keys and the values the
// residual (span_residual.h) that half, 99 %, 99.9 % of the steps keep, and the largest.
// example: span_residual_bench --text calibration.txt --tokens 2048 --threads 1
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "hub/dispatch/span/span_residual.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/span_backend.h"

namespace moex {
namespace {

struct Options {
    std::string model = "static/models/demo", text;
    std::size_t num_tokens = 4096;
    std::uint32_t first = 2, end = 7, num_threads = 2;
};

// A decoder's rows of a step.
struct Seen {
    std::vector<float> before, x;
    Bytes kv;
};

// Shows what a decoder computes in the layers of the span. Where `entrance` is set, the layers
// before the span are not computed: the decoder goes on from these rows.
class Watcher : public SpanBackend {
  public:
    explicit Watcher(const Options& options) : options_(options) {}

    std::vector<PlannedSpan> plan(const SpanBatch& batch) override {
        (void)batch;
        std::vector<PlannedSpan> plan;
        if (entrance != nullptr) plan.push_back({1, 0, options_.first, SpanUse::away});
        plan.push_back({2, options_.first, options_.end, SpanUse::check});
        return plan;
    }
    std::unique_ptr<SpanRound> submit(const PlannedSpan& span, std::span<const SpanSequence>,
                                      std::span<const float>) override {
        return std::make_unique<Round>(*this, span);
    }
    void record(const PlannedSpan&, std::uint32_t, Duration) override {}
    void ended(std::uint64_t) override {}

    const std::vector<float>* entrance = nullptr;
    std::size_t hidden = 0,
                kv_bytes = 0;  // hidden size; bytes of a row's keys and values in a layer
    Seen seen;

  private:
    class Round : public SpanRound {
      public:
        Round(Watcher& owner, const PlannedSpan& span) : owner_(owner), span_(span) {}
        Result<SpanResult> wait(std::stop_token) override {
            const std::size_t rows = owner_.entrance->size() / owner_.hidden;
            return SpanResult{*owner_.entrance, Bytes(span_.end_layer * rows * owner_.kv_bytes), 1,
                              true};
        }
        void compare(std::span<const float> before, std::span<const float> x, Bytes kv) override {
            owner_.seen = {{before.begin(), before.end()}, {x.begin(), x.end()}, std::move(kv)};
        }

      private:
        Watcher& owner_;
        PlannedSpan span_;
    };
    const Options options_;
};

struct Part {
    std::unique_ptr<Decoder> decoder;
    std::unique_ptr<LocalExperts> experts;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<Watcher> watcher;
};

Part make_part(std::shared_ptr<const ModelPackage> package, ThreadPool& threads,
               Arithmetic arithmetic, KvDtype kv, const Options& options) {
    Part part;
    part.decoder = *Decoder::create(package, threads, {.arithmetic = arithmetic});
    part.experts = std::make_unique<LocalExperts>(package, threads, ExpertRounding{}, arithmetic);
    part.cache = std::make_unique<KvCache>(
        package->config(), KvCacheOptions{.page_tokens = 16, .num_pages = 64, .dtype = kv});
    part.watcher = std::make_unique<Watcher>(options);
    part.watcher->hidden = package->config().hidden_size;
    part.watcher->kv_bytes = sizeof(half) * 2 * package->config().num_kv_heads *
                             package->config().head_dim;
    part.decoder->use_spans(part.watcher.get());
    return part;
}

using Residuals = std::map<std::size_t, std::vector<SpanResidual>>;  // by rows of a step

Status read_window(Part& hub, Part& worker, std::span<const TokenId> tokens, const Options& options,
                   Residuals& residuals) {
    KvCache::Sequence hubs(*hub.cache), workers(*worker.cache);
    const ModelConfig& config = hub.decoder->config();
    for (std::size_t at = 0, rows = 0; at < tokens.size(); at += rows) {
        rows = at < 64 ? 16 : 1;
        const auto step = [&](Part& part, KvCache::Sequence& kv) -> Status {
            const StepRows one{.kv = &kv, .tokens = tokens.subspan(at, rows), .no_logits = true};
            const auto done = part.decoder->step({&one, 1}, *part.experts);
            return done.ok() ? Status() : Status(done.error());
        };
        MOEX_TRY(step(hub, hubs));
        worker.watcher->entrance = &hub.watcher->seen.before;
        MOEX_TRY(step(worker, workers));
        const Seen &mine = hub.watcher->seen, &theirs = worker.watcher->seen;
        residuals[rows].push_back(
            span_residual({.hidden_size = config.hidden_size,
                           .num_rows = rows,
                           .row_parts = {options.end - options.first,
                                         {std::size_t{config.num_kv_heads} * config.head_dim,
                                          std::size_t{config.num_kv_heads} * config.head_dim}}},
                          mine.before, {mine.x, mine.kv}, {theirs.x, theirs.kv}));
    }
    return {};
}

void print(const char* hub, const char* kv, const Residuals& residuals) {
    for (const auto& [rows, all] : residuals) {
        std::printf("%zu,%s,%s,%zu", rows, hub, kv, all.size());
        for (const auto part : {&SpanResidual::x, &SpanResidual::k, &SpanResidual::v}) {
            std::vector<double> values;
            for (const SpanResidual& one : all) values.push_back(one.*part);
            std::sort(values.begin(), values.end());
            for (const double keep : {0.5, 0.99, 0.999, 1.0})
                std::printf(",%.4f", values[static_cast<std::size_t>(
                                         keep * static_cast<double>(values.size() - 1))]);
        }
        std::printf("\n");
    }
    std::fflush(stdout);
}

int fail(const std::string& sentence) {
    std::fprintf(stderr, "span_residual_bench: %s\n", sentence.c_str());
    return 1;
}

int run(const Options& options) {
    const auto package = ModelPackage::open(options.model);
    if (!package.ok()) return fail(package.error().message);
    auto tokenizer = Tokenizer::load(*(*package)->tokenizer_file("tokenizer.json"),
                                     *(*package)->tokenizer_file("tokenizer_config.json"));
    std::ifstream file(options.text);
    if (!file) return fail("--text " + options.text + " cannot be read");
    std::string text((std::istreambuf_iterator<char>(file)), {});
    // A token has at least one byte; most have four.
    text.resize(std::min(text.size(), 8 * options.num_tokens));
    const std::vector<TokenId> tokens = (*tokenizer)->encode(text, SpecialTokens::as_text);

    ThreadPool threads(options.num_threads);
    std::printf(
        "rows,hub,kv,steps,x_p50,x_p99,x_p999,x_max,k_p50,k_p99,k_p999,k_max,"
        "v_p50,v_p99,v_p999,v_max\n");
    Part worker = make_part(*package, threads, Arithmetic::exact, KvDtype::f16, options);
    struct Hub {
        const char *arithmetic_name, *kv_name;
        Arithmetic arithmetic;
        KvDtype kv;
    };
    for (const Hub& one : {Hub{"int8", "f16", Arithmetic::int8, KvDtype::f16},
                           Hub{"exact", "f32", Arithmetic::exact, KvDtype::f32}}) {
        Part hub = make_part(*package, threads, one.arithmetic, one.kv, options);
        Residuals residuals;
        constexpr std::size_t window = 256;
        const std::size_t end = std::min(tokens.size(), options.num_tokens);
        for (std::size_t at = 0; at + window <= end; at += window) {
            const auto part = std::span(tokens).subspan(at, window);
            const Status read = read_window(hub, worker, part, options, residuals);
            if (!read.ok()) return fail(read.error().message);
        }
        print(one.arithmetic_name, one.kv_name, residuals);
    }
    return 0;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    moex::Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i], value = argv[i + 1];
        const auto number = std::strtoull(value.c_str(), nullptr, 10);
        if (name == "--model")
            options.model = value;
        else if (name == "--text")
            options.text = value;
        else if (name == "--tokens")
            options.num_tokens = number;
        else if (name == "--first")
            options.first = static_cast<std::uint32_t>(number);
        else if (name == "--end")
            options.end = static_cast<std::uint32_t>(number);
        else if (name == "--threads")
            options.num_threads = static_cast<std::uint32_t>(number);
        else
            return std::fprintf(stderr, "%s: see the head of bench/span_residual_bench.cpp\n",
                                argv[i]),
                   2;
    }
    return moex::run(options);
}
