#include "hub/engine/hub_matrix.h"

#include <algorithm>

#include "protocol/hub_codes.h"

namespace moex {

namespace {

// Allocates out.data and fills it with panels, in parallel: pack(to, panel_begin, panel_end) writes
// a range of panels.
template <class Pack>
void pack_panels(PackedMatrix& out, PackedMemory& memory, ThreadPool& threads, const Pack& pack) {
    std::byte* to = memory.take(out.size_bytes());
    out.data = to;
    threads.parallel_for(out.num_panels(), 1, [&](std::size_t begin, std::size_t end) {
        pack(to, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end));
    });
}

using PackWeights = void (*)(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
                             std::uint32_t panel_begin, std::uint32_t panel_end);
PackWeights pack_weights(PackedDtype dtype) {
    if (dtype == PackedDtype::int8) return pack_int8;
    if (dtype == PackedDtype::int6) return pack_int6;
    return pack_int4;
}

std::uint32_t default_group_size(PackedDtype dtype, std::uint32_t num_in) {
    if (dtype == PackedDtype::int8) return packed_group_size(num_in);
    return dtype == PackedDtype::int6 ? hub_int6_group_size : hub_int4_group_size;
}

}  // namespace

std::byte* PackedMemory::take(std::size_t size_bytes) {
    constexpr std::size_t alignment = 64, piece_bytes = std::size_t{32} << 20;
    const std::size_t rounded = (size_bytes + alignment - 1) / alignment * alignment;
    if (rounded > left_bytes_) {
        left_bytes_ = std::max(rounded, piece_bytes);
        next_ = pieces_.emplace_back(left_bytes_).data();
    }

    std::byte* taken = next_;
    next_ += rounded;
    left_bytes_ -= rounded;
    return taken;
}

void pack_hub_matrix(PackedMatrix& out, const WeightMatrix& from, PackedDtype dtype,
                     PackedMemory& memory, ThreadPool& threads, std::uint32_t group_size) {
    out = {.dtype = dtype,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = group_size != 0 ? group_size : default_group_size(dtype, from.num_in)};
    const PackWeights pack = pack_weights(dtype);
    pack_panels(out, memory, threads, [&](std::byte* to, std::uint32_t begin, std::uint32_t end) {
        pack(to, out, from, begin, end);
    });
}

void pack_hub_matrix(PackedMatrix& out, const Int8Matrix& from, PackedMemory& memory,
                     ThreadPool& threads) {
    out = {.dtype = PackedDtype::int8,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = from.group_size};
    pack_panels(out, memory, threads, [&](std::byte* to, std::uint32_t begin, std::uint32_t end) {
        pack_int8(to, out, from, begin, end);
    });
}

void pack_hub_matrix(PackedMatrix& out, const Int4Matrix& from, PackedMemory& memory,
                     ThreadPool& threads) {
    out = {.dtype = PackedDtype::int4,
           .num_out = from.num_out,
           .num_in = from.num_in,
           .group_size = from.group_size};
    pack_panels(out, memory, threads, [&](std::byte* to, std::uint32_t begin, std::uint32_t end) {
        pack_int4(to, out, from, begin, end);
    });
}

void multiply(std::span<const HubProduct> products, RowsIn x, QuantizedBuffer& buffer,
              ThreadPool& threads, const MakeRow& make) {
    const HubMatrix& first = *products.front().weights;
    if (!first.packed.data) {
        if (make) parallel_each(threads, x.num_rows, first.exact.num_in, walk_floats, make);
        std::vector<MatmulJob> jobs;
        for (const HubProduct& one : products) jobs.push_back({one.out, one.weights->exact, x});
        matmul(jobs, threads);
        return;
    }

    const QuantizedRows rows = quantize_rows(buffer, x, first.packed.num_in,
                                             first.packed.group_size, threads, make);
    std::vector<PackedMatmulJob> jobs;
    for (const HubProduct& one : products) jobs.push_back({one.out, one.weights->packed, rows});
    matmul_packed(jobs, threads);
}

}  // namespace moex
