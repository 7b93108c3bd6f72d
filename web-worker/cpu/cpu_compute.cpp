#include "web-worker/cpu/cpu_compute.h"

#include <cstring>

#include "hub/engine/kernels/expert_round_plain.h"
#include "protocol/expert_reference.h"
#include "web-worker/known_answers.h"

namespace moex {
namespace {

// The processor sets no limit for weights: the memory budget is the only limit.
constexpr std::uint64_t memory_bytes_max = 1ull << 40;

Status answer(std::vector<float>& y, const KnownAnswers& known, const CpuStore& store,
              ThreadPool& threads) {
    std::vector<std::uint32_t> rows(known.num_tokens);
    for (std::uint32_t row = 0; row < rows.size(); ++row) rows[row] = row;
    const RowsIn x{known.x.data(), known.shape.hidden_size, known.num_tokens};
    y.resize(known.x.size());

    if (store.arithmetic() == WorkerArithmetic::int8) {
        MOEX_ASSIGN(expert, store.packed({0, 0}, 0, known.num_tokens));
        compute_experts({&expert, 1}, x, rows, y.data(), threads);

        std::vector<float> twin(known.shape.hidden_size);
        for (std::uint32_t row = 0; row < rows.size(); ++row) {
            const std::size_t first = std::size_t{row} * twin.size();
            plain::compute_expert(twin, expert.gate_up, expert.down,
                                  std::span(known.x).subspan(first, twin.size()), expert.extras);
            if (std::memcmp(twin.data(), y.data() + first, twin.size() * sizeof(float)) != 0)
                return Error{ErrorCode::internal, "integer kernels do not give the bits they must"};
        }
        return {};
    }
    MOEX_ASSIGN(expert, store.exact({0, 0}, 0, known.num_tokens));
    compute_experts({&expert, 1}, x, rows, y.data(), threads);
    return {};
}

Result<double> test_arithmetic(WorkerArithmetic arithmetic, ExpertForm form, ThreadPool& threads) {
    const KnownAnswers known(form);
    CpuStore store(known.shape, arithmetic, known.blob.size());
    MOEX_TRY(store.put({0, 0}, known.blob));
    std::vector<float> y;
    MOEX_TRY(answer(y, known, store, threads));
    // int8 has rounding errors, so its error is not reported; answer() has compared the bits of its
    // result with its twin.
    if (arithmetic == WorkerArithmetic::int8) return 0.0;
    return normalized_rms_error(y, known.expected);
}

}  // namespace

CpuCompute::CpuCompute(Platform& platform, const WorkerOptions& options)
    : platform_(platform),
      arithmetic_(options.arithmetic),
      threads_(options.threads) {
    const std::size_t num_threads = threads_.num_threads();
    adapter_.backend = "cpu";
    adapter_.architecture = arithmetic_ == WorkerArithmetic::int8 ? integer_path().name
                                                                  : kernel_target();
    adapter_.description = text("processor, ", num_threads,
                                num_threads == 1 ? " thread" : " threads");
    adapter_.max_buffer_bytes = adapter_.max_binding_bytes = memory_bytes_max;
}

void CpuCompute::self_test(ExpertForm form, std::function<void(Result<double>)> done) {
    platform_.set_timer(0, [this, form, life = life_.watch(), done = std::move(done)] {
        if (!life.alive()) return;
        Result<double> tested = test_arithmetic(WorkerArithmetic::int8, form, threads_);
        if (tested.ok()) tested = test_arithmetic(WorkerArithmetic::exact, form, threads_);
        done(std::move(tested));
    });
}

Compute::Parts CpuCompute::make(const Welcome& welcome, std::uint64_t weights_bytes,
                                std::uint64_t calls_bytes) {
    auto store = std::make_unique<CpuStore>(welcome.expert_shape, arithmetic_of(welcome, *this),
                                            weights_bytes);
    auto runner = std::make_unique<CpuRunner>(platform_, threads_, *store, welcome, calls_bytes);
    return {std::move(store), std::move(runner)};
}

}  // namespace moex
