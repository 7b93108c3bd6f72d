#include "hub/engine/hub_matrix.h"

#include <vector>

#include "protocol/hub_codes.h"

namespace moex {

namespace {

// out.data and its memory; pack(to, panel_begin, panel_end) writes panels.
template <class Pack>
AlignedBuffer pack_panels(PackedMatrix& out, ThreadPool& threads, const Pack& pack) {
    AlignedBuffer memory(out.size_bytes());
    out.data = memory.data();
    threads.parallel_for(out.num_panels(), 1, [&](std::size_t begin, std::size_t end) {
        pack(memory.data(), static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end));
    });
    return memory;
}

}  // namespace

AlignedBuffer pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                              ThreadPool& threads) {
    const bool is_int4 = dtype == PackedDtype::int4;
    out = {.dtype = dtype,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = is_int4 ? hub_int4_group_size : packed_group_size(from.num_in)};
    return pack_panels(out, threads, [&](std::byte* to, std::uint32_t begin, std::uint32_t end) {
        if (is_int4)
            pack_int4(to, out, from, begin, end);
        else
            pack_int8(to, out, from, begin, end);
    });
}

AlignedBuffer pack_hub_matrix(PackedMatrix& out, const Int8Matrix& from, ThreadPool& threads) {
    out = {.dtype = PackedDtype::int8,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = from.group_size};
    return pack_panels(out, threads, [&](std::byte* to, std::uint32_t begin, std::uint32_t end) {
        pack_int8(to, out, from, begin, end);
    });
}

AlignedBuffer pack_hub_matrix(PackedMatrix& out, const Int4Matrix& from, ThreadPool& threads) {
    out = {.dtype = PackedDtype::int4,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = from.group_size};
    return pack_panels(out, threads, [&](std::byte* to, std::uint32_t begin, std::uint32_t end) {
        pack_int4(to, out, from, begin, end);
    });
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
