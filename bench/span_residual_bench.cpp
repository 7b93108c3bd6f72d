// Measures how far honest answers of spans differ from the hub's own rows, keys and values.
//   span_residual_bench --text FILE | --random SEED [--model DIR] [--tokens N] [--first LAYER]
//                       [--end LAYER] [--prompt ROWS] [--threads N]
// The tolerance of checks is chosen by these figures, so the text is a calibration text; --random
// draws ids below 250 instead.
// The hub reads the text in windows of 256 tokens: 64 in steps of 16 rows, like a prompt, the
// others one by one. With --prompt a window begins with one step of that many rows instead. A
// worker in exact arithmetic computes layers [first, end) from the hub's rows at the entrance, with
// keys and values of its own; it is the hub's decoder, not a device, whose sums differ by less than
// 1e-3. CSV: rows of a step, arithmetic of the hub, keys and values of the hub, number of steps;
// then for the rows behind the span, the keys and the values the residual (span_residual.h) that
// half, 99 %, 99.9 % of the steps keep, and the largest; then the largest of the inputs of gated
// delta rules. Then the steps that differ by more than 0.5, how many of them RouteTraces calls
// wrong, and the worst of each trace. example: span_residual_bench --text calibration.txt --tokens
// 2048 --threads 1
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "hub/dispatch/span/span_residual.h"
#include "hub/engine/decoder.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/recurrent_state.h"
#include "hub/engine/span_backend.h"
#include "protocol/text.h"

namespace moex {
namespace {

struct Options {
    std::string model = "static/models/demo", text;
    std::optional<unsigned> random;
    std::size_t num_tokens = 4096, prompt_rows = 0;
    std::uint32_t first = 2, end = 7, num_threads = 2;
};

// Returns the sizes of the parts that a layer keeps of a row.
std::vector<std::size_t> parts_of(const ModelConfig& config, std::uint32_t layer) {
    if (config.has_keys(layer))
        return std::vector(2, std::size_t{config.num_kv_heads} * config.head_dim);
    const DeltaShape shape = RecurrentShape::of(config).delta;
    const std::size_t keys = std::size_t{shape.key_heads} * shape.key_dim,
                      heads = shape.value_heads;
    return {keys, keys, heads * shape.value_dim, heads, heads};
}
// Returns the bytes that the layers [0, end) keep of a row.
std::size_t row_bytes(const ModelConfig& config, std::uint32_t end) {
    std::size_t bytes = 0;
    for (std::uint32_t layer = 0; layer < end; ++layer)
        for (const std::size_t size : parts_of(config, layer)) bytes += size * sizeof(half);
    return bytes;
}

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
        if (entrance != nullptr && options_.first > 0)
            plan.push_back({1, 0, options_.first, SpanUse::away});
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
                kv_bytes = 0;  // hidden size; bytes that the layers before the span keep of a row
    Seen seen;

  private:
    class Round : public SpanRound {
      public:
        Round(Watcher& owner, const PlannedSpan& span) : owner_(owner), span_(span) {}
        Result<SpanResult> wait(std::stop_token) override {
            const std::size_t rows = owner_.entrance->size() / owner_.hidden;
            return SpanResult{*owner_.entrance, Bytes(rows * owner_.kv_bytes), 1, true};
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
    part.watcher->kv_bytes = row_bytes(package->config(), options.first);
    part.decoder->use_spans(part.watcher.get());
    return part;
}

struct Residuals {
    std::vector<SpanResidual> all;
    std::size_t num_beyond = 0, num_wrong = 0;  // steps
    RouteTraces worst;

    void add(const SpanResidual& one, const RouteTraces& traces) {
        all.push_back(one);
        num_beyond += one.largest() > tolerance;
        num_wrong += traces.is_wrong();
        worst.is_before_router |= traces.is_before_router;
        worst.rest = std::min(worst.rest, traces.rest);
        worst.size = std::max(worst.size, traces.size);
        worst.alone = std::max(worst.alone, traces.alone);
        worst.few_alone = std::max(worst.few_alone, traces.few_alone);
    }
    static constexpr double tolerance = 0.5;
};
using ResidualsByRows = std::map<std::size_t, Residuals>;

Status read_window(Part& hub, Part& worker, std::span<const TokenId> tokens, const Options& options,
                   ResidualsByRows& residuals) {
    KvCache::Sequence hubs(*hub.cache), workers(*worker.cache);
    const ModelConfig& config = hub.decoder->config();
    for (std::size_t at = 0, rows = 0; at < tokens.size(); at += rows) {
        rows = options.prompt_rows > 0 ? at == 0 ? options.prompt_rows : 1 : at < 64 ? 16 : 1;
        const auto step = [&](Part& part, KvCache::Sequence& kv) -> Status {
            const StepRows one{.kv = &kv, .tokens = tokens.subspan(at, rows), .no_logits = true};
            const auto done = part.decoder->step({&one, 1}, *part.experts);
            return done.ok() ? Status() : Status(done.error());
        };
        MOEX_TRY(step(hub, hubs));
        worker.watcher->entrance = &hub.watcher->seen.before;
        MOEX_TRY(step(worker, workers));
        const Seen &mine = hub.watcher->seen, &theirs = worker.watcher->seen;
        SpanShape shape{.hidden_size = config.hidden_size, .num_rows = rows, .row_parts = {}};
        for (std::uint32_t layer = options.first; layer < options.end; ++layer)
            shape.row_parts.push_back(parts_of(config, layer));
        residuals[rows].add(
            span_residual(shape, mine.before, {mine.x, mine.kv}, {theirs.x, theirs.kv}),
            route_traces(shape, mine.before, {mine.x, mine.kv}, {theirs.x, theirs.kv},
                         Residuals::tolerance));
    }
    return {};
}

void print(const char* hub, const char* kv, const ResidualsByRows& residuals) {
    for (const auto& [rows, found] : residuals) {
        const std::vector<SpanResidual>& all = found.all;
        std::printf("%zu,%s,%s,%zu", rows, hub, kv, all.size());
        for (const auto part : {&SpanResidual::x, &SpanResidual::k, &SpanResidual::v}) {
            std::vector<double> values;
            for (const SpanResidual& one : all) values.push_back(one.*part);
            std::sort(values.begin(), values.end());
            for (const double keep : {0.5, 0.99, 0.999, 1.0})
                std::printf(",%.4f", values[static_cast<std::size_t>(
                                         keep * static_cast<double>(values.size() - 1))]);
        }
        double delta_max = 0;
        for (const SpanResidual& one : all) delta_max = std::max(delta_max, one.delta);
        const RouteTraces& worst = found.worst;
        std::printf(",%.4f,%zu,%zu,%d,%.3f,%.3f,%.3f,%.3f\n", delta_max, found.num_beyond,
                    found.num_wrong, worst.is_before_router, worst.rest, worst.size, worst.alone,
                    worst.few_alone);
    }
    std::fflush(stdout);
}

int fail(const std::string& sentence) {
    std::fprintf(stderr, "span_residual_bench: %s\n", sentence.c_str());
    return 1;
}

Result<std::vector<TokenId>> read_tokens(const ModelPackage& package, const Options& options) {
    if (options.random) {
        std::mt19937 random(*options.random);
        std::uniform_int_distribution<TokenId> draw(
            0, std::min<TokenId>(250, static_cast<TokenId>(package.config().vocab_size)) - 1);
        std::vector<TokenId> tokens(options.num_tokens);
        for (TokenId& token : tokens) token = draw(random);
        return tokens;
    }
    auto tokenizer = Tokenizer::load(*package.tokenizer_file("tokenizer.json"),
                                     *package.tokenizer_file("tokenizer_config.json"));
    std::ifstream file(options.text);
    if (!file) return Error{ErrorCode::not_found, text("--text ", options.text, " cannot be read")};
    std::string words((std::istreambuf_iterator<char>(file)), {});
    // A token has at least one byte; most have four.
    words.resize(std::min(words.size(), 8 * options.num_tokens));
    return (*tokenizer)->encode(words, SpecialTokens::as_text);
}

int run(const Options& options) {
    const auto package = ModelPackage::open(options.model);
    if (!package.ok()) return fail(package.error().message);
    const auto tokens = read_tokens(**package, options);
    if (!tokens.ok()) return fail(tokens.error().message);

    ThreadPool threads(options.num_threads);
    std::printf(
        "rows,hub,kv,steps,x_p50,x_p99,x_p999,x_max,k_p50,k_p99,k_p999,k_max,"
        "v_p50,v_p99,v_p999,v_max,delta_max,beyond,wrong,first_layer,rest_min,size_max,"
        "alone_max,few_alone_max\n");
    Part worker = make_part(*package, threads, Arithmetic::exact, KvDtype::f16, options);
    struct Hub {
        const char *arithmetic_name, *kv_name;
        Arithmetic arithmetic;
        KvDtype kv;
    };
    for (const Hub& one : {Hub{"int8", "f16", Arithmetic::int8, KvDtype::f16},
                           Hub{"exact", "f32", Arithmetic::exact, KvDtype::f32}}) {
        Part hub = make_part(*package, threads, one.arithmetic, one.kv, options);
        ResidualsByRows residuals;
        constexpr std::size_t window = 256;
        const std::size_t end = std::min(tokens->size(), options.num_tokens);
        for (std::size_t at = 0; at + window <= end; at += window) {
            const auto part = std::span(*tokens).subspan(at, window);
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
        else if (name == "--random")
            options.random = static_cast<unsigned>(number);
        else if (name == "--prompt")
            options.prompt_rows = number;
        else if (name == "--threads")
            options.num_threads = static_cast<std::uint32_t>(number);
        else
            return std::fprintf(stderr, "%s: see the head of bench/span_residual_bench.cpp\n",
                                argv[i]),
                   2;
    }
    return moex::run(options);
}
