// Computes the sizes of an ExpertRunner's buffers, and the number of lanes and rows that fit.
#include <algorithm>

#include "web-worker/expert_runner.h"

namespace moex {
namespace {

// The most rows of a single call. The hub sends larger calls as groups, or splits them.
constexpr std::uint32_t single_tokens_max = 512;
// The number of rounds in flight (lanes): half of the hub's queue depth. One round is read back
// while another is computed; the calls that wait behind them need no memory of a GPU.
constexpr std::uint32_t lanes_max = 4;

}  // namespace

ExpertRunner::Sizes ExpertRunner::sizes_of(const RunnerOptions& options) {
    const std::uint64_t hidden = options.shape.hidden_size,
                        inner = options.shape.moe_intermediate_size;

    const std::uint64_t tokens = options.tokens_max, pairs = options.pairs_max;
    Sizes sizes;

    const std::uint64_t table_words = RoundPlan::table_words_max(ExpertStore::arenas_max, tokens,
                                                                 pairs);
    sizes.upload = gpu::round_up(4 * table_words + wire_rows_bytes(options.dtype, tokens, hidden),
                                 16);
    sizes.x = gpu::round_up(4 * hidden * tokens, 16);
    sizes.intermediate = gpu::round_up(4 * inner * pairs, 16);
    sizes.y_pairs = gpu::round_up(4 * hidden * pairs, 16);
    sizes.y_wire = gpu::round_up(wire_rows_bytes(options.dtype, std::max(tokens, pairs), hidden),
                                 16);

    sizes.single_tokens = std::min<std::uint64_t>(single_tokens_max, tokens);
    sizes.single_x = 4 * sizes.single_tokens * hidden;
    sizes.single_intermediate = 4 * sizes.single_tokens * inner;
    sizes.single_gate_up = 2 * sizes.single_intermediate;
    return sizes;
}

std::uint64_t ExpertRunner::buffer_bytes(const RunnerOptions& options) {
    const Sizes sizes = sizes_of(options);
    const std::uint64_t lane = sizes.upload + sizes.x + sizes.intermediate + sizes.y_pairs +
                               sizes.y_wire + group_frame_bytes(sizes.y_wire);
    const std::uint64_t single = 3 * sizes.single_x + sizes.single_gate_up +
                                 sizes.single_intermediate + sizeof(gpu::ExpertParams);
    return options.num_lanes * lane + single +
           gpu::tile_families * ExpertStore::arenas_max * sizeof(gpu::GroupPlace);
}

RunnerOptions ExpertRunner::fit(RunnerOptions options, std::uint64_t bytes_max,
                                const gpu::AdapterInfo& adapter) {
    if (options.tokens_max == 0) options.tokens_max = options.limits.num_tokens_max;
    if (options.pairs_max == 0) options.pairs_max = options.limits.num_pairs_max;
    if (options.kernels == RoundKernels::by_adapter)
        options.kernels = adapter.software ? RoundKernels::threads : RoundKernels::lanes;
    const auto too_large = [&] {
        const Sizes sizes = sizes_of(options);
        const std::uint64_t largest = std::max(
            {sizes.upload, sizes.intermediate, sizes.y_wire, sizes.single_gate_up});
        return largest > std::min(adapter.max_binding_bytes, adapter.max_buffer_bytes) ||
               buffer_bytes(options) > bytes_max;
    };

    while (options.num_lanes > 2 && too_large()) --options.num_lanes;

    while ((options.pairs_max > 1 || options.tokens_max > 1) && too_large()) {
        if (options.tokens_max >= options.pairs_max)
            options.tokens_max -= options.tokens_max / 8 + 1;
        else
            options.pairs_max -= options.pairs_max / 8 + 1;
        options.tokens_max = std::max(1u, options.tokens_max);
        options.pairs_max = std::max(1u, options.pairs_max);
    }
    return options;
}

RunnerOptions ExpertRunner::options_for(const Welcome& welcome, std::uint64_t bytes_max,
                                        const gpu::AdapterInfo& adapter) {
    const RunnerOptions wanted{.limits = welcome.limits,
                               .shape = welcome.expert_shape,
                               .num_lanes = std::clamp(welcome.queue_depth / 2, 2u, lanes_max),
                               .dtype = welcome.dtype};
    return fit(wanted, bytes_max, adapter);
}

}  // namespace moex
