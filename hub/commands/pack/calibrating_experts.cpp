#include "hub/commands/pack/calibrating_experts.h"

#include <algorithm>
#include <cstring>

#include "hub/engine/kernels/exact.h"
#include "hub/model/pack/expert_reader.h"
#include "hub/model/pack/expert_writer.h"
#include "hub/model/pack/quantize.h"

namespace moex {
namespace {

// rows that are gathered and computed together; limits the memory of a thread
constexpr std::size_t chunk_rows = 512;

// A row of the batch that uses an expert, with its gate weight.
struct UseOfExpert {
    std::uint32_t row = 0;
    float gate = 0;
};

// Answers of one expert: y[i] belongs to rows[i] of the batch.
struct ExpertRows {
    std::vector<UseOfExpert> uses;
    std::vector<float> y;  // [uses.size(), hidden_size], multiplied by the gates
};

std::vector<UseOfExpert> uses_of(const ExpertBatch& batch, std::uint32_t expert) {
    std::vector<UseOfExpert> uses;
    for (std::size_t pair = 0; pair < batch.expert_ids.size(); ++pair)
        if (batch.expert_ids[pair] == expert)
            uses.push_back(
                {static_cast<std::uint32_t>(pair / batch.top_k), batch.expert_weights[pair]});
    return uses;
}

// Computes an expert over chunks of rows, on the calling thread. Keeps its buffers.
class ExpertRun {
  public:
    explicit ExpertRun(const ExpertShape& shape) : shape_(shape) {}

    // Copies rows of the batch to x, [uses.size(), hidden_size].
    void gather(const ExpertBatch& batch, std::span<const UseOfExpert> uses,
                std::vector<float>& x) const {
        x.resize(uses.size() * shape_.hidden_size);
        for (std::size_t i = 0; i < uses.size(); ++i)
            std::copy_n(batch.x.data() + std::size_t{uses[i].row} * shape_.hidden_size,
                        shape_.hidden_size, x.data() + i * shape_.hidden_size);
    }
    // inner [num_rows, I] = silu(gate · x) * (up · x)
    void gate_up(const ExpertWeights& weights, std::span<const float> x,
                 std::vector<float>& inner) {
        const std::uint32_t width = shape_.moe_intermediate_size;
        const std::size_t num_rows = x.size() / shape_.hidden_size;
        inner.resize(num_rows * width);
        up_.resize(num_rows * width);
        product(inner, weights.gate, x, width, shape_.hidden_size);
        product(up_, weights.up, x, width, shape_.hidden_size);
        silu_mul(inner, inner, up_);
    }
    // y [num_rows, H] = gates · down · inner
    void down(const ExpertWeights& weights, std::span<const float> inner,
              std::span<const UseOfExpert> uses, std::span<float> y) {
        product(y, weights.down, inner, shape_.hidden_size, shape_.moe_intermediate_size);
        for (std::size_t i = 0; i < uses.size(); ++i)
            scale_by(y.subspan(i * shape_.hidden_size, shape_.hidden_size), uses[i].gate);
    }

  private:
    static void product(std::span<float> out, const std::vector<float>& weights,
                        std::span<const float> x, std::uint32_t num_out, std::uint32_t num_in) {
        matmul({out.data(), num_out}, {weights.data(), WeightDtype::f32, num_out, num_in},
               {x.data(), num_in, static_cast<std::uint32_t>(x.size() / num_in)}, 0, num_out);
    }

    ExpertShape shape_;
    std::vector<float> up_;
};

// Computes the rows of an expert with its weights.
void compute_rows(ExpertRun& run, const ExpertBatch& batch, const ExpertWeights& weights,
                  ExpertRows& rows) {
    std::vector<float> x, inner;
    rows.y.resize(rows.uses.size() * batch.hidden_size);
    for (std::size_t first = 0; first < rows.uses.size(); first += chunk_rows) {
        const auto uses = std::span(rows.uses).subspan(
            first, std::min(chunk_rows, rows.uses.size() - first));
        run.gather(batch, uses, x);
        run.gate_up(weights, x, inner);
        run.down(
            weights, inner, uses,
            std::span(rows.y).subspan(first * batch.hidden_size, uses.size() * batch.hidden_size));
    }
}

void add_answers(const ExpertBatch& batch, const ExpertRows& rows) {
    for (std::size_t i = 0; i < rows.uses.size(); ++i)
        add_to(
            batch.y.subspan(std::size_t{rows.uses[i].row} * batch.hidden_size, batch.hidden_size),
            std::span(rows.y).subspan(i * batch.hidden_size, batch.hidden_size));
}

class FinishedRound : public ExpertRound {
  public:
    explicit FinishedRound(Status status) : status_(std::move(status)) {}
    Result<ExpertAnswer> wait(std::stop_token) override {
        if (!status_.ok()) return status_.error();
        return ExpertAnswer{};
    }

  private:
    Status status_;
};

// Calls compute(expert, lane) for all experts, as many at a time as there are threads, and then
// add(expert, lane) in ascending order, so that the sums do not depend on the threads.
Status in_lanes(std::uint32_t num_experts, ThreadPool& threads,
                const std::function<Status(std::uint32_t, std::size_t)>& compute,
                const std::function<void(std::uint32_t, std::size_t)>& add) {
    const std::size_t num_lanes = std::min<std::size_t>(threads.num_threads(), num_experts);
    std::vector<Status> done(num_lanes);
    for (std::uint32_t first = 0; first < num_experts; first += num_lanes) {
        const std::size_t count = std::min<std::size_t>(num_lanes, num_experts - first);
        threads.parallel_for(count, 1, [&](std::size_t lane, std::size_t end) {
            for (; lane < end; ++lane)
                done[lane] = compute(first + static_cast<std::uint32_t>(lane), lane);
        });
        for (std::size_t lane = 0; lane < count; ++lane) {
            MOEX_TRY(done[lane]);
            add(first + static_cast<std::uint32_t>(lane), lane);
        }
    }
    return {};
}

// Quantises one expert by the rows of the batch that use it, and computes these rows exactly.
class ExpertCalibration {
  public:
    ExpertCalibration(const PackInput& input, const CalibratedOptions& options,
                      const ExpertBatch& batch, std::uint32_t expert)
        : input_(input),
          options_(options),
          batch_(batch),
          expert_(expert),
          run_(input.shape) {}

    Status work() {
        answers.uses = uses_of(batch_, expert_);
        const ExpertSource& source = input_.experts[batch_.layer][expert_];
        MOEX_ASSIGN(weights, read_expert_weights(input_, source));
        blob.assign(input_.layout.size_bytes, std::byte{});
        if (keeps_codes(source)) {
            LossMeter losses;
            compute_rows(run_, batch_, weights, answers);
            return write_expert_blob(input_, source, losses, blob);
        }

        MOEX_TRY(quantize_gate_up(weights));
        MOEX_ASSIGN(view, view_expert_blob(blob, input_.shape, ExpertDtype::int4));
        return quantize_down(weights, dequantize_expert(view));
    }

    ExpertRows answers;  // of the checkpoint's expert
    Bytes blob;
    CalibratedError error;

  private:
    std::uint32_t* words(const BlobSection& section) {
        return reinterpret_cast<std::uint32_t*>(blob.data() + section.offset_bytes);
    }
    // Calls body(first, uses, x, gates) for chunks of rows.
    template <class Body>
    void for_chunks(const Body& body) {
        std::vector<float> x, gates;
        for (std::size_t first = 0; first < answers.uses.size(); first += chunk_rows) {
            const auto uses = std::span(answers.uses)
                                  .subspan(first,
                                           std::min(chunk_rows, answers.uses.size() - first));
            run_.gather(batch_, uses, x);
            gates.clear();
            for (const UseOfExpert& use : uses) gates.push_back(use.gate);
            body(first, uses, x, gates);
        }
    }

    Status quantize_gate_up(const ExpertWeights& weights) {
        InputMoments moments(input_.shape.hidden_size);
        for_chunks([&](std::size_t, std::span<const UseOfExpert>, std::span<const float> x,
                       std::span<const float> gates) { moments.add(x, gates); });

        std::uint32_t *const codes = words(input_.layout.gate_up_codes),
                             *const scales = words(input_.layout.gate_up_scale_zero);
        const std::size_t size = weights.gate.size(), group = input_.shape.group_size;
        return quantize(moments, {{weights.gate, codes, scales},
                                  {weights.up, codes + size / 8, scales + size / group}});
    }

    // The moments are those of the intermediate values that the quantised gate and up give.
    Status quantize_down(const ExpertWeights& weights, const ExpertWeights& quantized) {
        InputMoments moments(input_.shape.moe_intermediate_size);
        std::vector<float> inner;
        answers.y.resize(answers.uses.size() * batch_.hidden_size);
        for_chunks([&](std::size_t first, std::span<const UseOfExpert> uses,
                       std::span<const float> x, std::span<const float> gates) {
            run_.gate_up(quantized, x, inner);
            moments.add(inner, gates);
            run_.gate_up(weights, x, inner);
            run_.down(weights, inner, uses,
                      std::span(answers.y).subspan(first * batch_.hidden_size,
                                                   uses.size() * batch_.hidden_size));
        });
        return quantize(moments, {{weights.down, words(input_.layout.down_codes),
                                   words(input_.layout.down_scale_zero)}});
    }

    struct Matrix {
        const std::vector<float>& weights;
        std::uint32_t *codes, *scale_zero;
    };
    Status quantize(const InputMoments& moments, std::initializer_list<Matrix> matrices) {
        const std::uint32_t size = moments.size(), group = input_.shape.group_size;
        const bool is_reached = std::any_of(moments.products().begin(), moments.products().end(),
                                            [](float value) { return value != 0; });
        bool fits = true;
        if (is_reached) {
            const CalibratedQuantizer quantizer(moments, options_);
            for (const Matrix& matrix : matrices)
                fits &= quantizer.quantize(matrix.weights, group, matrix.codes, matrix.scale_zero,
                                           error);
        } else {
            for (const Matrix& matrix : matrices)
                for (std::size_t row = 0; row < matrix.weights.size() / size; ++row)
                    fits &= quantize_int4_row(std::span(matrix.weights).subspan(row * size, size),
                                              group, matrix.codes + row * (size / 8),
                                              matrix.scale_zero + row * (size / group));
        }
        if (fits) return {};
        return Error{ErrorCode::bad_file,
                     text("layer ", batch_.layer, ", expert ", expert_,
                          " holds weights too large for an int4 scale in f16")};
    }

    const PackInput& input_;
    const CalibratedOptions& options_;
    const ExpertBatch& batch_;
    std::uint32_t expert_;
    ExpertRun run_;
};

}  // namespace

bool keeps_codes(const ExpertSource& source) {
    return source.gate.keeps_codes || source.up.keeps_codes || source.down.keeps_codes;
}

std::unique_ptr<ExpertRound> CheckpointExperts::submit(const ExpertBatch& batch) {
    std::fill(batch.y.begin(), batch.y.end(), 0.0f);
    std::vector<ExpertRows> rows(threads_.num_threads());
    return std::make_unique<FinishedRound>(in_lanes(
        input_.config.num_experts, threads_,
        [&](std::uint32_t expert, std::size_t lane) -> Status {
            rows[lane] = {uses_of(batch, expert), {}};
            if (rows[lane].uses.empty()) return {};
            MOEX_ASSIGN(weights, read_expert_weights(input_, input_.experts[batch.layer][expert]));
            ExpertRun run(input_.shape);
            compute_rows(run, batch, weights, rows[lane]);
            return {};
        },
        [&](std::uint32_t, std::size_t lane) { add_answers(batch, rows[lane]); }));
}

CalibratingExperts::CalibratingExperts(const PackInput& input, const CalibratedOptions& options,
                                       ThreadPool& threads, TakeBlob take_blob, Progress progress)
    : input_(input),
      options_(options),
      threads_(threads),
      take_blob_(std::move(take_blob)),
      progress_(std::move(progress)) {}

std::unique_ptr<ExpertRound> CalibratingExperts::submit(const ExpertBatch& batch) {
    return std::make_unique<FinishedRound>(compute_layer(batch));
}

Status CalibratingExperts::compute_layer(const ExpertBatch& batch) {
    std::fill(batch.y.begin(), batch.y.end(), 0.0f);
    std::vector<std::unique_ptr<ExpertCalibration>> lanes(threads_.num_threads());
    return in_lanes(
        input_.config.num_experts, threads_,
        [&](std::uint32_t expert, std::size_t lane) -> Status {
            lanes[lane] = std::make_unique<ExpertCalibration>(input_, options_, batch, expert);
            MOEX_TRY(lanes[lane]->work());
            return take_blob_(batch.layer, expert, lanes[lane]->blob);
        },
        [&](std::uint32_t expert, std::size_t lane) {
            add_answers(batch, lanes[lane]->answers);
            error_.add(lanes[lane]->error);
            num_unreached_ += lanes[lane]->answers.uses.empty() ? 1 : 0;
            lanes[lane].reset();
            if (progress_) progress_(batch.layer, expert + 1);
        });
}

}  // namespace moex
