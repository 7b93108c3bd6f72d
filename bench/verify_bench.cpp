// Measures the cost of checking answers, and the distance of honest answers from the answers that
// the judge computes.
//   verify_bench [--model DIR] [--text FILE] [--skip TOKENS] [--rows N] [--seconds S]
//                [--threads N] [--question residuals|cost|both]
// --question residuals: the rows are hidden activations of the model on the text, each used once.
// Each row is split over one to four workers as routing does, and answered by six kinds of honest
// workers (profiles). CSV: profile, rows of answers, pairs in these rows, the largest error as a
// share of the tolerance. Goal: at most a third. The bench ends after S seconds with the rows
// measured so far; --skip lets several processes measure different parts of the text.
// --question cost: measures the CPU time of one token on the hub (experts are remote), and of
// judging the share of its rows that is checked for contributors with a record, alternately. CSV:
// rate of checks, ms of a token, ms of its checks, per cent.
// example: verify_bench --text tests/golden/demo/val_excerpt.txt --rows 1000000
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hub/dispatch/trust/answer_judge.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/perplexity.h"
#include "protocol/expert_reference.h"

namespace moex {
namespace {

struct Options {
    std::string model = "static/models/demo", text = "tests/golden/demo/val_excerpt.txt",
                question = "both";
    std::uint64_t num_rows = 100'000, num_skipped = 0;
    double seconds = 1e9;
    std::uint32_t num_threads = 2;
};

double cpu_seconds() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A backend that answers zeros and records the requests, so that only the hub's own part of a token
// is measured.
class Listener : public ExpertBackend {
  public:
    explicit Listener(ExpertBackend* answers) : answers_(answers) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override {
        if (keep) {
            asked.push_back({batch.layer,
                             batch.top_k,
                             {batch.x.begin(), batch.x.end()},
                             {batch.expert_ids.begin(), batch.expert_ids.end()},
                             {batch.expert_weights.begin(), batch.expert_weights.end()}});
        }
        if (answers_ != nullptr) return answers_->submit(batch);
        std::fill(batch.y.begin(), batch.y.end(), 0.0f);
        return std::make_unique<Nothing>(batch.num_tokens);
    }
    const char* name() const override { return "listener"; }

    struct Asked {
        std::uint32_t layer = 0, top_k = 0;
        std::vector<float> x;
        std::vector<std::uint16_t> experts;
        std::vector<float> gates;
    };
    bool keep = true;
    std::vector<Asked> asked;

  private:
    class Nothing : public ExpertRound {
      public:
        explicit Nothing(std::uint32_t num_tokens) { answer_.rows.resize(num_tokens); }
        Result<ExpertAnswer> wait(std::stop_token) override { return std::move(answer_); }

      private:
        ExpertAnswer answer_;
    };
    ExpertBackend* answers_;
};

// Builds the request for a layer's summed rows, as a worker that holds all experts would receive
// it.
AnswerSample sample_of(const Listener::Asked& asked, std::uint32_t hidden, std::uint32_t row_begin,
                       std::uint32_t row_end) {
    AnswerSample sample{.layer = asked.layer,
                        .hidden_size = hidden,
                        .x = {asked.x.begin() + std::ptrdiff_t{row_begin} * hidden,
                              asked.x.begin() + std::ptrdiff_t{row_end} * hidden}};
    for (std::uint32_t row = row_begin; row < row_end; ++row)
        for (std::uint32_t k = 0; k < asked.top_k; ++k)
            sample.pairs.push_back(
                {.expert = asked.experts[row * asked.top_k + k],
                 .x_row = row - row_begin,
                 .y_row = row - row_begin,
                 .gate = half_to_float(float_to_half(asked.gates[row * asked.top_k + k]))});
    std::stable_sort(sample.pairs.begin(), sample.pairs.end(),
                     [](const auto& a, const auto& b) { return a.expert < b.expert; });
    return sample;
}

// Builds the request for one of `num_workers` workers that share the experts. The request contains
// the rows before `row_end`. The request is empty where the rows use none of this worker's experts.
AnswerSample share_of(const Listener::Asked& asked, std::uint32_t hidden, std::uint32_t row_begin,
                      std::uint32_t row_end, std::uint32_t worker, std::uint32_t num_workers) {
    AnswerSample sample{.layer = asked.layer, .hidden_size = hidden};
    std::uint32_t num_rows = 0;
    for (std::uint32_t row = row_begin; row < row_end; ++row) {
        const std::size_t num_pairs = sample.pairs.size();
        for (std::uint32_t k = 0; k < asked.top_k; ++k) {
            const std::uint16_t expert = asked.experts[row * asked.top_k + k];
            if (expert % num_workers != worker) continue;
            const float gate = asked.gates[row * asked.top_k + k];
            sample.pairs.push_back({.expert = expert,
                                    .x_row = num_rows,
                                    .y_row = num_rows,
                                    .gate = half_to_float(float_to_half(gate))});
        }
        if (sample.pairs.size() == num_pairs) continue;

        const float* x = asked.x.data() + std::size_t{row} * hidden;
        sample.x.insert(sample.x.end(), x, x + hidden);
        ++num_rows;
    }
    std::stable_sort(sample.pairs.begin(), sample.pairs.end(),
                     [](const auto& a, const auto& b) { return a.expert < b.expert; });
    return sample;
}

struct Profile {
    const char* name;
    Dtype dtype;
    enum class Arithmetic { f32, f16_between, int8 } arithmetic;
};

class HonestWorker {
  public:
    HonestWorker(std::shared_ptr<const ModelPackage> package, ThreadPool& threads)
        : package_(std::move(package)),
          exact_(package_, threads, {}),
          integers_(package_, threads, {}, Arithmetic::int8) {}

    std::vector<float> answer(const Profile& profile, const AnswerSample& sample) {
        const std::size_t hidden = sample.hidden_size;
        std::vector<float> x = sample.x, y(sample.x.size()), x_of, y_of, gates;
        round_rows(sample.dtype, x, sample.hidden_size);
        for (std::size_t begin = 0, end = 0; begin < sample.pairs.size(); begin = end) {
            const std::uint16_t expert = sample.pairs[begin].expert;
            while (end < sample.pairs.size() && sample.pairs[end].expert == expert) ++end;

            const std::size_t count = end - begin;
            x_of.resize(count * hidden);
            y_of.resize(count * hidden);
            gates.resize(count);
            for (std::size_t i = 0; i < count; ++i) {
                gates[i] = sample.pairs[begin + i].gate;
                std::copy_n(x.data() + sample.pairs[begin + i].x_row * hidden, hidden,
                            x_of.data() + i * hidden);
            }
            compute(profile, sample.layer, expert, x_of, gates, y_of);
            for (std::size_t i = 0; i < count; ++i)
                for (std::size_t c = 0; c < hidden; ++c)
                    y[sample.pairs[begin + i].y_row * hidden + c] += y_of[i * hidden + c];
        }
        round_rows(sample.dtype, y, sample.hidden_size);
        return y;
    }

  private:
    void compute(const Profile& profile, std::uint32_t layer, std::uint16_t expert,
                 std::span<const float> x, std::span<const float> gates, std::span<float> y) {
        switch (profile.arithmetic) {
            case Profile::Arithmetic::f32: (void)exact_.compute(layer, expert, x, gates, y); break;
            case Profile::Arithmetic::int8:
                (void)integers_.compute_int8(layer, expert, x, gates, y);
                break;
            case Profile::Arithmetic::f16_between: {
                const ExpertWeights& weights = weights_of(layer, expert);
                const std::size_t hidden = x.size() / gates.size();
                std::vector<double> between(weights.shape.moe_intermediate_size), out(hidden);
                for (std::size_t row = 0; row < gates.size(); ++row) {
                    const auto from = x.begin() + static_cast<std::ptrdiff_t>(row * hidden);
                    const std::vector<double> in(from, from + static_cast<std::ptrdiff_t>(hidden));
                    expert_gate_up(between, weights, in);
                    for (double& value : between)
                        value = half_to_float(float_to_half(static_cast<float>(value)));
                    expert_down(out, weights, between);
                    for (std::size_t c = 0; c < hidden; ++c)
                        y[row * hidden + c] = static_cast<float>(out[c] * gates[row]);
                }
                break;
            }
        }
    }
    const ExpertWeights& weights_of(std::uint32_t layer, std::uint16_t expert) {
        const auto [at, is_new] = dequantized_.try_emplace({layer, expert});
        if (is_new)
            at->second = dequantize_expert(*view_expert_blob(*package_->blob(layer, expert),
                                                             package_->expert_shape(),
                                                             package_->expert_dtype()));
        return at->second;
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts exact_, integers_;
    std::map<std::pair<std::uint32_t, std::uint16_t>, ExpertWeights> dequantized_;
};

struct Residual {
    std::uint64_t rows = 0, pairs = 0;
    double largest = 0;
};

// Judges the answers for all rows of one layer that were requested in one batch.
Residual residual_of(const Profile& profile, const Listener::Asked& asked, HonestWorker& worker,
                     const LocalExperts& judge, std::uint32_t hidden, std::uint32_t num_workers) {
    constexpr std::uint32_t rows_at_once = 64;
    Residual residual;
    const auto num_rows = static_cast<std::uint32_t>(asked.x.size() / hidden);
    for (std::uint32_t begin = 0; begin < num_rows; begin += rows_at_once)
        for (std::uint32_t at = 0; at < num_workers; ++at) {
            AnswerSample sample = share_of(
                asked, hidden, begin, std::min(num_rows, begin + rows_at_once), at, num_workers);
            if (sample.pairs.empty()) continue;
            sample.dtype = profile.dtype;
            sample.arithmetic = profile.arithmetic == Profile::Arithmetic::int8
                                    ? WorkerArithmetic::int8
                                    : WorkerArithmetic::exact;
            sample.y = worker.answer(profile, sample);
            residual.largest = std::max(residual.largest, judge_answer(sample, judge).residual);
            residual.rows += sample.y.size() / hidden;
            residual.pairs += sample.pairs.size();
        }
    return residual;
}

// Computes the model over window after window of the text, until each profile has answered the
// wanted rows.
void print_residuals(Decoder& decoder, LocalExperts& answers, std::span<const TokenId> tokens,
                     HonestWorker& worker, const LocalExperts& judge, const Options& options) {
    using enum Profile::Arithmetic;
    constexpr std::uint32_t window = 256;
    const Profile profiles[] = {{"f32 sums; f16 wire", Dtype::f16, f32},
                                {"f32 sums; bf16 wire", Dtype::bf16, f32},
                                {"f32 sums; int8 wire", Dtype::int8, f32},
                                {"f16 between the halves; f16 wire", Dtype::f16, f16_between},
                                {"f16 between the halves; f32 wire", Dtype::f32, f16_between},
                                {"int8 activations; f16 wire", Dtype::f16, int8}};
    Residual residuals[std::size(profiles)];
    const std::uint32_t hidden = decoder.config().hidden_size;
    const auto began = std::chrono::steady_clock::now();
    const auto is_over = [&] {
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
        return residuals[0].rows >= options.num_rows || spent.count() > options.seconds;
    };
    for (std::size_t at = options.num_skipped; at + window <= tokens.size() && !is_over();
         at += window) {
        Listener listener(&answers);
        const auto read = measure_perplexity(decoder, listener, tokens.subspan(at, window),
                                             {.window_tokens = window, .num_windows = 1}, {});
        if (!read.ok()) std::fprintf(stderr, "%s\n", read.error().message.c_str());

        std::uint32_t turn = static_cast<std::uint32_t>(at / window);
        for (const Listener::Asked& asked : listener.asked) {
            const std::uint32_t num_workers = 1 + turn++ % 4;
            for (std::size_t i = 0; i < std::size(profiles); ++i) {
                const Residual more = residual_of(profiles[i], asked, worker, judge, hidden,
                                                  num_workers);
                residuals[i].rows += more.rows;
                residuals[i].pairs += more.pairs;
                residuals[i].largest = std::max(residuals[i].largest, more.largest);
            }
        }
    }

    std::printf("profile,rows,pairs,residual_max,wanted\n");
    for (std::size_t i = 0; i < std::size(profiles); ++i)
        std::printf("%s,%llu,%llu,%.4f,0.3333\n", profiles[i].name,
                    static_cast<unsigned long long>(residuals[i].rows),
                    static_cast<unsigned long long>(residuals[i].pairs), residuals[i].largest);
    std::fflush(stdout);
}

void print_cost(Decoder& decoder, std::span<const TokenId> tokens, const LocalExperts& judge,
                std::uint32_t hidden, const std::vector<Listener::Asked>& asked) {
    // A token of one stream requests one row a layer, and 1 row in 256 is computed again.
    constexpr double rate = 1.0 / 256;
    constexpr std::uint32_t num_tokens = 64, num_turns = 7;
    std::vector<double> token_ms, check_ms, share;
    std::size_t at = 0;
    for (std::uint32_t turn = 0; turn < num_turns; ++turn) {
        Listener nobody(nullptr);
        nobody.keep = false;
        double began = cpu_seconds();
        for (std::uint32_t i = 0; i < num_tokens; ++i)
            (void)measure_perplexity(decoder, nobody, tokens.subspan(2 * i, 2),
                                     {.window_tokens = 2, .num_windows = 1}, {});
        token_ms.push_back(1e3 * (cpu_seconds() - began) / (2 * num_tokens));

        began = cpu_seconds();
        std::uint32_t num_layers = 0;
        for (std::uint32_t i = 0; i < 256; ++i, at = (at + 1) % asked.size(), ++num_layers) {
            AnswerSample sample = sample_of(asked[at], hidden, 0, 1);
            sample.y.resize(sample.x.size());
            (void)judge_answer(sample, judge);
        }
        const double row_ms = 1e3 * (cpu_seconds() - began) / num_layers;
        std::uint32_t layers = 0;
        for (const auto& one : asked) layers = std::max(layers, one.layer + 1);
        check_ms.push_back(rate * row_ms * layers);
        share.push_back(100 * check_ms.back() / token_ms.back());
    }
    const auto median = [](std::vector<double> values) {
        std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
        return values[values.size() / 2];
    };
    std::printf("rate,token_cpu_ms,checks_cpu_ms,per_cent,wanted\n1/256,%.3f,%.4f,%.2f,2\n",
                median(token_ms), median(check_ms), median(share));
}

int run(const Options& options) {
    const auto package = ModelPackage::open(options.model);
    if (!package.ok()) {
        std::fprintf(stderr, "%s\n", package.error().message.c_str());
        return 1;
    }
    ThreadPool threads(options.num_threads);
    auto decoder = Decoder::create(*package, threads, {.arithmetic = Arithmetic::int8});
    auto tokenizer = Tokenizer::load(*(*package)->tokenizer_file("tokenizer.json"),
                                     *(*package)->tokenizer_file("tokenizer_config.json"));
    std::ifstream file(options.text);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::vector<TokenId> tokens = (*tokenizer)->encode(text, SpecialTokens::as_text);

    const LocalExperts judge(*package, threads, {}, Arithmetic::int8);
    LocalExperts answers(*package, threads, {});
    if (options.question != "cost") {
        HonestWorker worker(*package, threads);
        print_residuals(**decoder, answers, tokens, worker, judge, options);
    }
    if (options.question == "residuals") return 0;

    Listener listener(&answers);
    const auto read = measure_perplexity(**decoder, listener, tokens,
                                         {.window_tokens = 256, .num_windows = 12}, {});
    if (!read.ok()) {
        std::fprintf(stderr, "%s\n", read.error().message.c_str());
        return 1;
    }

    print_cost(**decoder, tokens, judge, (*package)->config().hidden_size, listener.asked);
    return 0;
}

}  // namespace
}  // namespace moex

int main(int argc, char** argv) {
    moex::Options options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i], value = argv[i + 1];
        if (name == "--model")
            options.model = value;
        else if (name == "--text")
            options.text = value;
        else if (name == "--rows")
            options.num_rows = std::strtoull(value.c_str(), nullptr, 10);
        else if (name == "--skip")
            options.num_skipped = std::strtoull(value.c_str(), nullptr, 10);
        else if (name == "--seconds")
            options.seconds = std::strtod(value.c_str(), nullptr);
        else if (name == "--threads")
            options.num_threads = static_cast<std::uint32_t>(std::atoi(value.c_str()));
        else if (name == "--question")
            options.question = value;
        else
            return std::fprintf(stderr, "%s: see the head of bench/verify_bench.cpp\n", argv[i]), 2;
    }
    return moex::run(options);
}
