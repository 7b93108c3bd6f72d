#include "hub/engine/kernels/integer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "protocol/check.h"
#include "protocol/half.h"
#include "protocol/hub_codes.h"

namespace moex {

AlignedBuffer::AlignedBuffer(std::size_t size_bytes) {
    Result<AlignedBuffer> made = allocate(size_bytes);
    MOEX_CHECK(made.ok(), made.error().message);
    *this = std::move(*made);
}

Result<AlignedBuffer> AlignedBuffer::allocate(std::size_t size_bytes) {
    constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
    const std::size_t alignment = size_bytes >= huge_page_bytes ? huge_page_bytes : 64;
    const std::size_t rounded = (size_bytes + alignment - 1) / alignment * alignment;
    AlignedBuffer made;
    if (rounded == 0) return made;

    made.data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    if (!made.data_)
        return Error{ErrorCode::no_space, text("the system has no memory of ", rounded, " bytes")};
#if defined(MADV_HUGEPAGE)
    // A wish: where the system does not grant it, pages are small.
    if (alignment == huge_page_bytes) ::madvise(made.data_.get(), rounded, MADV_HUGEPAGE);
#endif
    return made;
}
void AlignedBuffer::Free::operator()(std::byte* data) const { std::free(data); }

std::uint32_t packed_group_size(std::uint32_t num_in) { return int8_group_size(num_in); }

namespace {

float weight_at(const WeightMatrix& from, std::size_t at) {
    return from.dtype == WeightDtype::bf16
               ? bfloat16_to_float(static_cast<const bfloat16*>(from.data)[at])
               : static_cast<const float*>(from.data)[at];
}

// One output's group of int8: where its 4 codes of every word lie 64 bytes apart.
void pack_int8_group(std::byte* block, std::uint32_t lane, std::span<const float> weights) {
    std::int8_t codes[128];
    const float scale = quantize_int8_group(weights, codes);
    std::memcpy(block + lane * sizeof(float), &scale, sizeof scale);
    for (std::size_t word = 0; word < weights.size() / 4; ++word)
        std::memcpy(block + 64 + (word * panel_outs + lane) * 4, codes + word * 4, 4);
}

// Code k of a published word lies in bits 4k..4k+3; here byte j has inputs j and j + 4.
std::uint32_t reorder_int4(std::uint32_t word) {
    const auto spread = [](std::uint32_t nibbles) {  // four of them, each into a byte
        nibbles = (nibbles | nibbles << 8) & 0x00ff00ff;
        return (nibbles | nibbles << 4) & 0x0f0f0f0f;
    };
    return spread(word & 0xffff) | spread(word >> 16) << 4;
}

// One output's group of int4 that was rounded here.
void pack_int4_group(std::byte* block, std::uint32_t lane, std::span<const float> weights) {
    std::uint32_t codes[16];
    const std::uint32_t scale_zero = quantize_int4_group(weights, codes);
    const auto scale = static_cast<half>(scale_zero), zero = static_cast<half>(scale_zero >> 16);
    std::memcpy(block + lane * 2, &scale, 2);
    std::memcpy(block + 32 + lane * 2, &zero, 2);

    for (std::size_t word = 0; word < weights.size() / 8; ++word) {
        const std::uint32_t reordered = reorder_int4(codes[word]);
        std::memcpy(block + 64 + (word * panel_outs + lane) * 4, &reordered, 4);
    }
}

// Cuts `from` into groups of outputs' weights, filled up with zeros: pack_group(block, lane,
// group).
template <class PackGroup>
void pack_weights(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
                  std::uint32_t panel_begin, std::uint32_t panel_end, const PackGroup& pack_group) {
    const std::uint32_t groups = shape.num_groups(), group_size = shape.group_size;
    float weights[128];

    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        std::byte* block = to + panel * shape.panel_bytes();
        for (std::uint32_t group = 0; group < groups; ++group, block += shape.block_bytes())
            for (std::uint32_t lane = 0; lane < panel_outs; ++lane) {
                const std::size_t out = std::size_t{panel} * panel_outs + lane;
                const std::uint32_t first = group * group_size;

                std::fill_n(weights, group_size, 0.0f);
                const std::uint32_t count = out < shape.num_out
                                                ? std::min(group_size, shape.num_in - first)
                                                : 0;
                for (std::uint32_t k = 0; k < count; ++k)
                    weights[k] = weight_at(from, out * shape.num_in + first + k);
                pack_group(block, lane, std::span<const float>(weights, group_size));
            }
    }
}

}  // namespace

void pack_int8(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    pack_weights(to, shape, from, panel_begin, panel_end, pack_int8_group);
}

void pack_int8(std::byte* to, const PackedMatrix& shape, const Int8Matrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    const std::uint32_t groups = shape.num_groups(), group_words = shape.group_size / 4;

    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        std::byte* block = to + panel * shape.panel_bytes();
        for (std::uint32_t group = 0; group < groups; ++group, block += shape.block_bytes())
            for (std::uint32_t lane = 0; lane < panel_outs; ++lane) {
                const std::size_t out = std::size_t{panel} * panel_outs + lane;
                const bool real = out < shape.num_out;

                const float scale = real ? from.scales[out * groups + group] : 0;
                std::memcpy(block + lane * sizeof(float), &scale, sizeof scale);
                const std::int8_t* const codes = real ? from.codes + out * shape.num_in +
                                                            std::size_t{group} * shape.group_size
                                                      : nullptr;
                for (std::uint32_t word = 0; word < group_words; ++word) {
                    std::byte* const at = block + 64 + (word * panel_outs + lane) * 4;
                    if (real)
                        std::memcpy(at, codes + word * 4, 4);
                    else
                        std::memset(at, 0, 4);
                }
            }
    }
}

void pack_int4(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    pack_weights(to, shape, from, panel_begin, panel_end, pack_int4_group);
}

void pack_int4(std::byte* to, const PackedMatrix& shape, const Int4Matrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    const std::uint32_t groups = shape.num_groups(), group_words = shape.group_size / 8;

    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        std::byte* block = to + panel * shape.panel_bytes();
        for (std::uint32_t group = 0; group < groups; ++group, block += shape.block_bytes())
            for (std::uint32_t lane = 0; lane < panel_outs; ++lane) {
                const std::size_t out = std::size_t{panel} * panel_outs + lane;
                const bool real = out < shape.num_out;

                const std::uint32_t scale_zero = real ? from.scale_zero[out * groups + group] : 0;
                const auto scale = static_cast<half>(scale_zero),
                           zero = static_cast<half>(scale_zero >> 16);
                std::memcpy(block + lane * 2, &scale, 2);
                std::memcpy(block + 32 + lane * 2, &zero, 2);

                for (std::uint32_t word = 0; word < group_words; ++word) {
                    const std::uint32_t codes =
                        real ? reorder_int4(from.codes[(out * groups + group) * group_words + word])
                             : 0;
                    std::memcpy(block + 64 + (word * panel_outs + lane) * 4, &codes, 4);
                }
            }
    }
}

}  // namespace moex
