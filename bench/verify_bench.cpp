// What checking answers costs, and how far honest ones are from what the judge computes.
//   verify_bench [--model DIR] [--text FILE] [--rows N] [--question residuals|cost|both]
// residuals: rows of hidden activations as the model has them on the text, answered by five honest
// profiles; CSV: profile, rows, largest and mean error as a share of what is tolerated. Wanted: a
// third at most.
// cost: CPU time of one token on the hub (experts elsewhere), and of judging the share of its rows
// that is checked of contributors with a record; in turns. CSV: rate, token ms, checks ms, per
// cent. example: verify_bench --text tests/golden/demo/val_excerpt.txt --rows 1000000
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "hub/dispatch/answer_judge.h"
#include "hub/engine/local_experts.h"
#include "hub/engine/perplexity.h"
#include "protocol/expert_reference.h"

namespace moex {
namespace {

struct Options {
    std::string model = "static/models/demo", text = "tests/golden/demo/val_excerpt.txt",
                question = "both";
    std::uint64_t num_rows = 100'000;
};

double cpu_seconds() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Answers with zeros, and keeps what was asked: the hub's own part of a token.
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

// A layer's rows and pairs as one worker that holds everything would be asked for sums.
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

    std::vector<float> answer(const Profile& profile, const AnswerSample& sample) const {
        const std::uint32_t hidden = sample.hidden_size;
        std::vector<float> x = sample.x, y(sample.x.size()), one(hidden);
        round_rows(sample.dtype, x, hidden);
        for (const CheckedPair& pair : sample.pairs) {
            compute(profile, sample.layer, pair,
                    std::span(x).subspan(std::size_t{pair.x_row} * hidden, hidden), one);
            for (std::uint32_t i = 0; i < hidden; ++i)
                y[std::size_t{pair.y_row} * hidden + i] += one[i];
        }
        round_rows(sample.dtype, y, hidden);
        return y;
    }

  private:
    void compute(const Profile& profile, std::uint32_t layer, const CheckedPair& pair,
                 std::span<const float> x, std::span<float> y) const {
        const float gate[] = {pair.gate};
        switch (profile.arithmetic) {
            case Profile::Arithmetic::f32:
                (void)exact_.compute(layer, pair.expert, x, gate, y);
                break;
            case Profile::Arithmetic::int8:
                (void)integers_.compute_int8(layer, pair.expert, x, gate, y);
                break;
            case Profile::Arithmetic::f16_between: {
                const auto view = view_expert_blob(*package_->blob(layer, pair.expert),
                                                   package_->expert_shape(),
                                                   package_->expert_dtype());
                const ExpertWeights weights = dequantize_expert(*view);
                std::vector<double> between(weights.shape.moe_intermediate_size), out(x.size());
                const std::vector<double> in(x.begin(), x.end());
                expert_gate_up(between, weights, in);
                for (double& value : between)
                    value = half_to_float(float_to_half(static_cast<float>(value)));
                expert_down(out, weights, between);
                for (std::size_t i = 0; i < y.size(); ++i)
                    y[i] = static_cast<float>(out[i] * pair.gate);
                break;
            }
        }
    }

    std::shared_ptr<const ModelPackage> package_;
    LocalExperts exact_, integers_;
};

void print_residuals(const std::vector<Listener::Asked>& asked, const HonestWorker& worker,
                     const LocalExperts& judge, std::uint32_t hidden, std::uint64_t num_rows) {
    using enum Profile::Arithmetic;
    std::printf("profile,rows,residual_max,residual_mean,wanted\n");
    for (const Profile& profile :
         {Profile{"f32 sums; f16 wire", Dtype::f16, f32},
          Profile{"f32 sums; bf16 wire", Dtype::bf16, f32},
          Profile{"f32 sums; int8 wire", Dtype::int8, f32},
          Profile{"f16 between the halves; f16 wire", Dtype::f16, f16_between},
          Profile{"int8 activations; f16 wire", Dtype::f16, int8}}) {
        double largest = 0, sum = 0;
        std::uint64_t rows = 0, samples = 0;
        // a double loop over dequantised weights is no kernel: a tenth of the rows
        const std::uint64_t wanted = profile.arithmetic == f16_between ? num_rows / 10 : num_rows;
        for (std::size_t at = 0; rows < wanted; at = (at + 1) % asked.size()) {
            const auto num_tokens = static_cast<std::uint32_t>(asked[at].x.size() / hidden);
            for (std::uint32_t row = 0; row < num_tokens && rows < wanted; ++row) {
                AnswerSample sample = sample_of(asked[at], hidden, row, row + 1);
                sample.dtype = profile.dtype;
                sample.arithmetic = profile.arithmetic == int8 ? WorkerArithmetic::int8
                                                               : WorkerArithmetic::exact;
                sample.y = worker.answer(profile, sample);
                const Judgement judgement = judge_answer(sample, judge);
                largest = std::max(largest, judgement.residual);
                sum += judgement.residual;
                rows += sample.pairs.size();
                ++samples;
            }
        }
        std::printf("%s,%llu,%.4f,%.4f,0.3333\n", profile.name,
                    static_cast<unsigned long long>(rows), largest,
                    sum / static_cast<double>(samples));
        std::fflush(stdout);
    }
}

void print_cost(Decoder& decoder, std::span<const TokenId> tokens, const LocalExperts& judge,
                std::uint32_t hidden, const std::vector<Listener::Asked>& asked) {
    // What a token of one stream asks: a row a layer, of which 1 in 256 is computed again.
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
    ThreadPool threads(2);
    auto decoder = Decoder::create(*package, threads, {.arithmetic = Arithmetic::int8});
    auto tokenizer = Tokenizer::load(*(*package)->tokenizer_file("tokenizer.json"),
                                     *(*package)->tokenizer_file("tokenizer_config.json"));
    std::ifstream file(options.text);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::vector<TokenId> tokens = (*tokenizer)->encode(text, SpecialTokens::as_text);

    const LocalExperts judge(*package, threads, {}, Arithmetic::int8);
    LocalExperts answers(*package, threads, {});
    Listener listener(&answers);
    const auto read = measure_perplexity(**decoder, listener, tokens,
                                         {.window_tokens = 256, .num_windows = 12}, {});
    if (!read.ok()) {
        std::fprintf(stderr, "%s\n", read.error().message.c_str());
        return 1;
    }

    const std::uint32_t hidden = (*package)->config().hidden_size;
    if (options.question != "cost")
        print_residuals(listener.asked, HonestWorker(*package, threads), judge, hidden,
                        options.num_rows);
    if (options.question != "residuals")
        print_cost(**decoder, tokens, judge, hidden, listener.asked);
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
        else if (name == "--question")
            options.question = value;
        else
            return std::fprintf(stderr, "%s: see the head of bench/verify_bench.cpp\n", argv[i]), 2;
    }
    return moex::run(options);
}
