#include "tests/web-worker/kernel_cases.h"

#include <cstring>
#include <memory>

#include "protocol/expert_reference.h"

namespace moex {
namespace {

class Sequence {
  public:
    explicit Sequence(std::uint64_t seed) : state_(seed * 2654435761u + 1) {}
    float next() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
    }

  private:
    std::uint64_t state_;
};

Bytes random_blob(const ExpertShape& shape, std::uint64_t seed) {
    Sequence sequence(seed);
    ExpertWeights weights{.shape = shape};
    for (auto* matrix : {&weights.gate, &weights.up, &weights.down}) {
        matrix->resize(std::size_t{shape.hidden_size} * shape.moe_intermediate_size);
        for (float& value : *matrix) value = 0.05f * sequence.next();
    }
    if (shape.has_bias) {
        const auto fill = [&](std::vector<float>& bias, std::uint32_t size) {
            bias.resize(size);
            for (float& value : bias) value = 0.5f * sequence.next();
        };
        fill(weights.gate_bias, shape.moe_intermediate_size);
        fill(weights.up_bias, shape.moe_intermediate_size);
        fill(weights.down_bias, shape.hidden_size);
    }
    return quantize_expert(weights);
}

struct Run : std::enable_shared_from_this<Run> {
    gpu::Device& device;
    KernelCase one;
    std::function<void(Result<double>)> done;
    ExpertStore store;
    ExpertRunner runner;
    Bytes blobs[2];
    GroupDispatchView group;
    Bytes x_wire;
    std::vector<float> x;  // the rows x after a round trip through the wire dtype
    std::vector<double> expected;

    Run(gpu::Device& on, const KernelCase& with, std::function<void(Result<double>)> then)
        : device(on),
          one(with),
          done(std::move(then)),
          store(on, expert_blob_layout(with.shape).size_bytes,
                2 * expert_blob_layout(with.shape).size_bytes),
          runner(on, store, options()) {
        const std::uint32_t hidden = one.shape.hidden_size;
        Sequence sequence(one.num_tokens * 1000 + hidden);
        x.resize(std::size_t{one.num_tokens} * hidden);
        for (float& value : x) value = 2.0f * sequence.next();

        x_wire.resize(wire_rows_bytes(one.x_dtype(), one.num_tokens, hidden));
        encode_rows(one.x_dtype(), x, hidden, x_wire);
        MOEX_CHECK(decode_rows(one.x_dtype(), x_wire, hidden, x), "finite rows");

        // In this group expert 0 gets every row, and expert 3 gets every second row.
        const std::uint16_t experts[] = {0, 3};
        for (int i = 0; i < (one.published ? 1 : 2); ++i) {
            std::uint16_t rows = 0;
            for (std::uint32_t row = 0; row < one.num_tokens; row += i + 1, ++rows) {
                group.rows.push_back(static_cast<std::uint16_t>(row));
                group.gates.push_back(
                    float_to_half(one.published ? 1.0f : 0.5f + 0.4f * sequence.next()));
            }
            group.experts.push_back({experts[i], rows});
            blobs[i] = random_blob(one.shape, hidden + i);
        }

        const auto num_pairs = static_cast<std::uint32_t>(group.rows.size());
        group.shape = {.layer = 2,
                       .num_tokens = one.num_tokens,
                       .hidden_dim = static_cast<std::uint16_t>(hidden),
                       .dtype = one.dtype,
                       .unsummed = one.unsummed,
                       .num_pairs = num_pairs,
                       .num_experts = static_cast<std::uint16_t>(group.experts.size())};
        group.x_bytes = x_wire;
        group.x_int8 = one.x_int8;

        expected.assign(std::size_t{one.unsummed ? num_pairs : one.num_tokens} * hidden, 0.0);
        std::size_t pair = 0;
        for (std::size_t i = 0; i < group.experts.size(); ++i) {
            const auto view = view_expert_blob(blobs[i], one.shape, one.shape.codes);
            MOEX_CHECK(view.ok(), "a blob of ours");
            const ExpertWeights weights = dequantize_expert(*view);

            const std::size_t num_rows = group.experts[i].num_rows;
            std::vector<double> rows(num_rows * hidden), y(num_rows * hidden);
            for (std::size_t r = 0; r < num_rows; ++r)
                for (std::size_t c = 0; c < hidden; ++c)
                    rows[r * hidden + c] = x[group.rows[pair + r] * std::size_t{hidden} + c];

            expert_reference(std::span<double>(y), weights, rows);
            for (std::size_t r = 0; r < num_rows; ++r)
                for (std::size_t c = 0; c < hidden; ++c)
                    expected[(one.unsummed ? pair + r : group.rows[pair + r]) * hidden + c] +=
                        half_to_float(group.gates[pair + r]) * y[r * hidden + c];

            pair += num_rows;
        }
    }
    RunnerOptions options() const {
        WireLimits limits{.hidden_size = one.shape.hidden_size,
                          .num_layers = 4,
                          .num_experts = 8,
                          .num_tokens_max = one.num_tokens,
                          .num_pairs_max = 2 * one.num_tokens};
        return {.limits = limits, .shape = one.shape, .num_lanes = 1, .kernels = one.kernels};
    }
    void finish(Result<double> result) {
        if (auto then = std::exchange(done, nullptr)) then(std::move(result));
    }
    void start() {
        Status stored = store.reserve(2);
        for (std::size_t i = 0; i < group.experts.size() && stored.ok(); ++i)
            stored = store.put(Unit{2, group.experts[i].expert}, blobs[i]);
        if (!stored.ok()) return finish(stored.error());

        runner.create([self = shared_from_this()](Status made) {
            if (!made.ok()) return self->finish(made.error());
            const auto check = [self](Result<ByteView> y) {
                if (!y.ok()) return self->finish(y.error());
                std::vector<float> answer(self->expected.size());
                if (self->one.published)
                    std::memcpy(answer.data(), y->data(), y->size());
                else
                    (void)decode_rows(self->one.dtype, *y, self->one.shape.hidden_size, answer);
                self->finish(normalized_rms_error(answer, self->expected));
            };

            const Status started = self->one.published
                                       ? self->runner.run_single(Unit{2, 0}, self->x, check)
                                       : self->runner.run_group(self->group, check);
            if (!started.ok()) self->finish(started.error());
        });
    }
};

// Compares the bits of answers. Runs every row alone and all rows together, first with all experts
// in one arena, then with each expert in an arena of its own. Does all this with the kernels by
// lanes, and then by threads.
struct BitsRun : std::enable_shared_from_this<BitsRun> {
    static constexpr std::uint16_t experts[] = {0, 3, 5, 6};
    gpu::Device& device;
    KernelCase one;
    std::function<void(Result<double>)> done;
    std::unique_ptr<ExpertStore> store;
    std::unique_ptr<ExpertRunner> runner;
    GroupDispatchView group;
    std::vector<float> x;
    Bytes x_wire;
    bool several_arenas = false;
    RoundKernels kernels = RoundKernels::lanes;
    std::uint32_t next_row = 0;  // the row to run alone; num_tokens: all rows together
    std::vector<Bytes> alone;    // answers of each row alone with the first store, by row
    double differing = 0;

    BitsRun(gpu::Device& on, const KernelCase& with, std::function<void(Result<double>)> then)
        : device(on),
          one(with),
          done(std::move(then)) {
        const std::uint32_t hidden = one.shape.hidden_size;
        Sequence sequence(one.num_tokens + hidden);
        x.resize(std::size_t{one.num_tokens} * hidden);
        for (float& value : x) value = 2.0f * sequence.next();
        alone.resize(one.num_tokens);
    }

    // The experts get every row, every second row, every third row, and the first three rows: this
    // makes whole tiles and partial tiles.
    static bool asks(std::uint16_t expert, std::uint32_t row) {
        return expert == 0 || (expert == 3 && row % 2 == 0) || (expert == 5 && row % 3 == 0) ||
               (expert == 6 && row < 3);
    }
    static half gate_of(std::uint16_t expert, std::uint32_t row) {
        return float_to_half(0.3f + 0.01f * static_cast<float>(expert + row % 7));
    }
    void make_group(std::uint32_t first, std::uint32_t num_rows) {
        group = {};
        for (const std::uint16_t expert : experts) {
            std::uint16_t rows = 0;
            for (std::uint32_t row = first; row < first + num_rows; ++row)
                if (asks(expert, row)) {
                    group.rows.push_back(static_cast<std::uint16_t>(row - first));
                    group.gates.push_back(gate_of(expert, row));
                    ++rows;
                }
            if (rows > 0) group.experts.push_back({expert, rows});
        }
        const std::uint32_t hidden = one.shape.hidden_size;
        x_wire.resize(wire_rows_bytes(one.x_dtype(), num_rows, hidden));
        encode_rows(
            one.x_dtype(),
            std::span(x).subspan(first * std::size_t{hidden}, num_rows * std::size_t{hidden}),
            hidden, x_wire);
        group.shape = {.layer = 1,
                       .num_tokens = num_rows,
                       .hidden_dim = static_cast<std::uint16_t>(hidden),
                       .dtype = one.dtype,
                       .num_pairs = static_cast<std::uint32_t>(group.rows.size()),
                       .num_experts = static_cast<std::uint16_t>(group.experts.size())};
        group.x_bytes = x_wire;
        group.x_int8 = one.x_int8;
    }

    void finish(Result<double> result) {
        if (auto then = std::exchange(done, nullptr)) then(std::move(result));
    }
    void start() {
        const std::uint64_t blob_bytes = expert_blob_layout(one.shape).size_bytes;
        store = std::make_unique<ExpertStore>(
            device, blob_bytes, 4 * blob_bytes,
            ArenaOptions{.layer_units = 4,
                         .arena_bytes_max = (several_arenas ? 1 : 4) * blob_bytes});
        Status stored = store->reserve(4);
        for (std::size_t i = 0; i < 4 && stored.ok(); ++i)
            stored = store->put(Unit{1, experts[i]}, random_blob(one.shape, i + 1));
        if (!stored.ok()) return finish(stored.error());
        MOEX_CHECK(store->arenas().size() == (several_arenas ? 4u : 1u), "arenas as asked for");

        const WireLimits limits{.hidden_size = one.shape.hidden_size,
                                .num_layers = 2,
                                .num_experts = 8,
                                .num_tokens_max = one.num_tokens,
                                .num_pairs_max = 4 * one.num_tokens};
        runner = std::make_unique<ExpertRunner>(
            device, *store,
            RunnerOptions{
                .limits = limits, .shape = one.shape, .num_lanes = 1, .kernels = kernels});
        runner->create([self = shared_from_this()](Status made) {
            if (!made.ok()) return self->finish(made.error());
            self->next();
        });
    }
    void next() {
        if (next_row > one.num_tokens) return change_store();
        const bool together = next_row == one.num_tokens;
        make_group(together ? 0 : next_row, together ? one.num_tokens : 1);
        const Status started = runner->run_group(group,
                                                 [self = shared_from_this()](Result<ByteView> y) {
                                                     if (!y.ok()) return self->finish(y.error());
                                                     self->compare(*y);
                                                     ++self->next_row;
                                                     self->next();
                                                 });
        if (!started.ok()) finish(started.error());
    }
    void compare(ByteView y) {
        const std::uint64_t row_bytes = wire_rows_bytes(one.dtype, 1, one.shape.hidden_size);
        const std::uint32_t first = next_row == one.num_tokens ? 0 : next_row;
        for (std::uint32_t row = first; (row - first) * row_bytes < y.size(); ++row) {
            const ByteView answer = y.subspan((row - first) * row_bytes, row_bytes);
            if (alone[row].empty())
                alone[row].assign(answer.begin(), answer.end());
            else if (!std::equal(answer.begin(), answer.end(), alone[row].begin()))
                ++differing;
        }
    }
    void change_store() {
        if (std::exchange(several_arenas, true) &&
            std::exchange(kernels, RoundKernels::threads) == RoundKernels::threads)
            return finish(differing);
        next_row = 0;
        // The old runner is kept: this code runs in its callback, so it must not be destroyed here.
        old_runner = std::move(runner);
        old_store = std::move(store);
        start();
    }
    std::unique_ptr<ExpertStore> old_store;
    std::unique_ptr<ExpertRunner> old_runner;  // the runner is destroyed before its store
};

}  // namespace

double kernel_tolerance(const KernelCase& one) {
    if (one.bits) return 0;
    switch (one.dtype) {
        case Dtype::f32: return 1e-6;
        case Dtype::f16: return 5e-4;
        case Dtype::bf16: return 3e-3;
        default: return 1e-2;  // for int8 rows a code is a step of 1/127 of the row's peak
    }
}

std::string kernel_case_name(const KernelCase& one) {
    return text(one.shape_name, ' ', one.shape.hidden_size, 'x', one.shape.moe_intermediate_size,
                " g", one.shape.group_size, one.shape.is_mxfp4() ? " mxfp4" : "",
                one.shape.is_clamped() ? " clamped" : "", " M=", one.num_tokens, ' ',
                dtype_name(one.dtype), one.x_int8 ? " of int8" : "",
                one.bits        ? " bits"
                : one.published ? " published"
                : one.unsummed  ? " group unsummed"
                                : " group summed",
                one.kernels == RoundKernels::lanes     ? " by lanes"
                : one.kernels == RoundKernels::threads ? " by threads"
                                                       : "");
}

static ExpertShape in_mxfp4(ExpertShape shape) {
    shape.codes = ExpertDtype::mxfp4;
    return shape;
}

std::vector<KernelCase> kernel_cases(bool wide) {
    std::vector<KernelCase> cases;
    const auto add = [&](const char* name, ExpertShape shape,
                         std::initializer_list<std::uint32_t> sizes, bool all_forms) {
        for (const std::uint32_t num_tokens : sizes) {
            cases.push_back({name, shape, num_tokens, Dtype::f32, false, false});
            cases.push_back({name, shape, num_tokens, Dtype::f16, true, false});
            if (!all_forms) continue;
            cases.push_back({name, shape, num_tokens, Dtype::f32, true, false});
            cases.push_back({name, shape, num_tokens, Dtype::f16, false, false});
            cases.push_back({name, shape, num_tokens, Dtype::bf16, false, false});
            cases.push_back({name, shape, num_tokens, Dtype::int8, true, false});
            cases.push_back({.shape_name = name,
                             .shape = shape,
                             .num_tokens = num_tokens,
                             .dtype = Dtype::f16,
                             .x_int8 = true});
            cases.push_back({name, shape, num_tokens, Dtype::f32, false, true});
        }
    };

    const std::initializer_list<std::uint32_t> all_sizes = {1, 2, 3, 4, 5, 8, 16, 17, 33, 64};
    add("demo", {384, 256, 128}, all_sizes, true);
    add("odd", {96, 160, 32}, all_sizes, true);
    add("odd", {352, 224, 32}, all_sizes, true);
    add("demo", {384, 256, 64}, {1, 5}, true);
    add("demo", {384, 256, 32}, {1, 5}, true);
    // With this clamp, about a fifth of the values reach it.
    add("odd", {96, 160, 32, true, 0.7f}, {1, 4, 8, 9, 33}, true);
    add("demo", {384, 256, 128, true, 0.7f}, {1, 5, 17}, true);
    if (wide) add("gpt-oss", {2880, 2880, 64, true, 7.0f}, {1, 8}, false);
    add("odd", in_mxfp4({96, 160, 32}), {1, 4, 8, 9, 33}, true);
    add("odd", in_mxfp4({352, 224, 32, true, 0.7f}), {1, 4, 17}, true);
    if (wide) add("gpt-oss", in_mxfp4({2880, 2880, 32, true, 7.0f}), {1, 8}, false);
    add("qwen", {2048, 768, 128}, {1, 8, 64}, wide);
    add("paper", {4096, 2048, 128}, {1, 8}, wide);
    if (wide)
        for (std::size_t i = cases.size(); i-- > 0;) {
            if (cases[i].published || cases[i].shape.hidden_size > 512) continue;
            cases[i].kernels = RoundKernels::lanes;
            cases.push_back(cases[i]);
            cases.back().kernels = RoundKernels::threads;
        }

    // Cases of bits: shapes with one or two chunks of a row per lane, shapes in which some lanes
    // have no chunk, and the shape of a served model.
    for (const std::uint32_t rows : {1u, 2u, 5u, 8u, 9u, 21u})
        for (const ExpertShape shape : {ExpertShape{96, 160, 32}, {96, 160, 32, true, 0.7f}})
            cases.push_back({"odd", shape, rows, Dtype::f32, false, false, true});
    for (const std::uint32_t rows : {1u, 5u, 9u, 21u})
        for (const ExpertShape shape : {ExpertShape{96, 160, 32}, {352, 224, 32, true, 0.7f}})
            cases.push_back({"odd", in_mxfp4(shape), rows, Dtype::f16, false, false, true});
    cases.push_back({"odd", {352, 224, 32}, 21, Dtype::f16, false, false, true});
    cases.push_back({"odd", {352, 224, 32}, 11, Dtype::bf16, false, false, true});
    cases.push_back({"odd", {352, 224, 32, true, 0.7f}, 21, Dtype::f16, false, false, true});
    cases.push_back({"qwen", {2048, 768, 128}, 9, Dtype::f16, false, false, true});
    cases.push_back({.shape_name = "odd",
                     .shape = {352, 224, 32},
                     .num_tokens = 11,
                     .dtype = Dtype::f16,
                     .bits = true,
                     .x_int8 = true});
    return cases;
}

void run_kernel_case(gpu::Device& device, const KernelCase& one,
                     std::function<void(Result<double>)> done) {
    if (one.bits)
        std::make_shared<BitsRun>(device, one, std::move(done))->start();
    else
        std::make_shared<Run>(device, one, std::move(done))->start();
}

}  // namespace moex
