// Computes the known answers on a GPU in groups of all rows and of one row, and as single calls.
#include <cstring>

#include "web-worker/expert_runner.h"
#include "web-worker/known_answers.h"

namespace moex {
namespace {

struct SelfTest : std::enable_shared_from_this<SelfTest>, KnownAnswers {
    gpu::Device& device;
    std::function<void(Result<double>)> done;
    ExpertStore store;
    ExpertRunner runner;
    double worst = 0;

    SelfTest(gpu::Device& on, ExpertForm form, std::function<void(Result<double>)> then)
        : KnownAnswers(form),
          device(on),
          done(std::move(then)),
          store(on, expert_blob_layout(shape).size_bytes, expert_blob_layout(shape).size_bytes),
          runner(on, store, options()) {}
    RunnerOptions options() const {
        WireLimits limits{.hidden_size = hidden,
                          .num_layers = 1,
                          .num_experts = 1,
                          .num_tokens_max = num_tokens,
                          .num_pairs_max = num_tokens};
        return {.limits = limits, .shape = shape, .num_lanes = 1};
    }
    void finish(Result<double> result) {
        // Calling `then` may drop the last reference to this object, so `done` is moved out first.
        if (auto then = std::exchange(done, nullptr)) then(std::move(result));
    }
    void compare(ByteView y) {
        std::vector<float> answer(y.size() / 4);
        std::memcpy(answer.data(), y.data(), y.size());
        worst = std::max(worst,
                         normalized_rms_error(answer, std::span(expected).first(answer.size())));
    }
    void start() {
        Status stored = store.reserve(1);
        if (stored.ok()) stored = store.put(Unit{0, 0}, blob);
        if (!stored.ok()) return finish(stored.error());
        runner.create([self = shared_from_this()](Status made) {
            if (!made.ok()) return self->finish(made.error());
            self->run_group(num_tokens);
        });
    }
    // Runs all rows (a tile of four and a single row), then the first row alone, then the three
    // published kernels.
    void run_group(std::uint32_t rows) {
        GroupDispatchView group;
        group.shape = {.layer = 0,
                       .num_tokens = rows,
                       .hidden_dim = hidden,
                       .dtype = Dtype::f32,
                       .unsummed = false,
                       .num_pairs = rows,
                       .num_experts = 1};
        group.experts = {GroupExpert{0, static_cast<std::uint16_t>(rows)}};

        for (std::uint32_t row = 0; row < rows; ++row) {
            group.rows.push_back(static_cast<std::uint16_t>(row));
            group.gates.push_back(float_to_half(1.0f));
        }

        group.x_bytes = std::as_bytes(std::span(x).first(std::size_t{rows} * hidden));

        const Status started = runner.run_group(
            group, [self = shared_from_this(), rows](Result<ByteView> y) {
                if (!y.ok()) return self->finish(y.error());
                self->compare(*y);
                if (rows > 1)
                    self->run_group(1);
                else
                    self->run_single();
            });
        if (!started.ok()) finish(started.error());
    }
    void run_single() {
        const Status started = runner.run_single(Unit{0, 0}, x,
                                                 [self = shared_from_this()](Result<ByteView> y) {
                                                     if (!y.ok()) return self->finish(y.error());
                                                     self->compare(*y);
                                                     self->finish(self->worst);
                                                 });
        if (!started.ok()) finish(started.error());
    }
};

}  // namespace

void ExpertRunner::self_test(gpu::Device& device, ExpertForm form,
                             std::function<void(Result<double>)> done) {
    std::make_shared<SelfTest>(device, form, std::move(done))->start();
}

}  // namespace moex
