#include "hub/engine/hub_matrix.h"

#include <vector>

namespace moex {

AlignedBuffer pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                              ThreadPool& threads) {
    constexpr std::uint32_t int4_group = 32;
    out = {.dtype = dtype,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = dtype == PackedDtype::int4 ? int4_group : packed_group_size(from.num_in)};
    const auto pack =
        dtype == PackedDtype::int4
            ? static_cast<void (*)(std::byte*, const PackedMatrix&, const WeightMatrix&,
                                   std::uint32_t, std::uint32_t)>(pack_int4)
            : pack_int8;
    AlignedBuffer memory(out.size_bytes());
    out.data = memory.data();

    threads.parallel_for(out.num_panels(), 1, [&](std::size_t begin, std::size_t end) {
        pack(memory.data(), out, from, static_cast<std::uint32_t>(begin),
             static_cast<std::uint32_t>(end));
    });
    return memory;
}

void multiply(std::span<const HubProduct> products, RowsIn x, QuantizedBuffer& buffer,
              ThreadPool& threads) {
    const HubMatrix& first = *products.front().weights;
    if (!first.packed.data) {
        std::vector<MatmulJob> jobs;
        for (const HubProduct& one : products) jobs.push_back({one.out, one.weights->exact, x});
        matmul(jobs, threads);
        return;
    }

    const QuantizedRows rows = quantize_rows(buffer, x, first.packed.num_in,
                                             first.packed.group_size, threads);
    std::vector<PackedMatmulJob> jobs;
    for (const HubProduct& one : products) jobs.push_back({one.out, one.weights->packed, rows});
    matmul_packed(jobs, threads);
}

}  // namespace moex
