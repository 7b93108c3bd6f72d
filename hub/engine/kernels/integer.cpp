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
    // Huge pages are only requested: if the system does not grant them, the memory has small pages.
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

// Stores the int8 group of one output in a block. The words of 4 codes of an output are 64 bytes
// apart.
void put_int8(std::byte* block, std::uint32_t lane, float scale, const std::int8_t* codes,
              std::size_t num_words) {
    std::memcpy(block + lane * sizeof(float), &scale, sizeof scale);
    for (std::size_t word = 0; word < num_words; ++word)
        std::memcpy(block + 64 + (word * panel_outs + lane) * 4, codes + word * 4, 4);
}

// Reorders a word of 8 int4 codes from the package's order to a panel's. In the package, code k is
// in bits 4k..4k+3. In the result, byte j has the codes of inputs j and j + 4.
std::uint32_t reorder_int4(std::uint32_t word) {
    // spreads four codes of 4 bits, one into each byte
    const auto spread = [](std::uint32_t nibbles) {
        nibbles = (nibbles | nibbles << 8) & 0x00ff00ff;
        return (nibbles | nibbles << 4) & 0x0f0f0f0f;
    };
    return spread(word & 0xffff) | spread(word >> 16) << 4;
}

// Stores the int4 group of one output in a block, from words in the package's order.
void put_int4(std::byte* block, std::uint32_t lane, std::uint32_t scale_zero,
              const std::uint32_t* words, std::size_t num_words) {
    const auto scale = static_cast<half>(scale_zero), zero = static_cast<half>(scale_zero >> 16);
    std::memcpy(block + lane * 2, &scale, 2);
    std::memcpy(block + 32 + lane * 2, &zero, 2);

    for (std::size_t word = 0; word < num_words; ++word) {
        const std::uint32_t reordered = reorder_int4(words[word]);
        std::memcpy(block + 64 + (word * panel_outs + lane) * 4, &reordered, 4);
    }
}

// Stores the mxfp4 group of one output in a block.
void put_mxfp4(std::byte* block, std::uint32_t lane, std::uint8_t scale, const std::uint32_t* words,
               std::size_t num_words) {
    block[lane] = static_cast<std::byte>(scale);
    for (std::size_t word = 0; word < num_words; ++word) {
        const std::uint32_t reordered = reorder_int4(words[word]);
        std::memcpy(block + 16 + (word * panel_outs + lane) * 4, &reordered, 4);
    }
}

// Stores the int6 group of one output in a block, as the first or the `second` of the block's two
// groups.
void put_int6(std::byte* block, std::uint32_t second, std::uint32_t lane, half scale,
              const std::int8_t* codes, std::size_t group_size) {
    std::memcpy(block + second * 32 + lane * 2, &scale, 2);
    std::byte* to = block + 64 + second * group_size * 12;
    for (std::size_t first = 0; first < group_size; first += 16)
        for (std::size_t part = 0; part < 3; ++part)
            for (std::size_t k = 0; k < 4; ++k) {
                const auto low = static_cast<std::uint32_t>(codes[first + 4 * part + k] + 32),
                           last = static_cast<std::uint32_t>(codes[first + 12 + k] + 32);
                const auto both = static_cast<std::byte>(low | (last >> 2 * part & 3) << 6);
                to[(first / 16 * 3 + part) * 64 + lane * 4 + k] = both;
            }
}

// Calls pack_group(block, lane, out, group) for every group of every output, including the unused
// outputs and groups that fill up the last panel and the last block.
template <class PackGroup>
void for_groups(std::byte* to, const PackedMatrix& shape, std::uint32_t panel_begin,
                std::uint32_t panel_end, const PackGroup& pack_group) {
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        std::byte* const begin = to + panel * shape.panel_bytes();
        const std::uint32_t per_block = shape.groups_per_block();
        for (std::uint32_t group = 0; group < shape.num_blocks() * per_block; ++group)
            for (std::uint32_t lane = 0; lane < panel_outs; ++lane)
                pack_group(begin + group / per_block * shape.block_bytes(), lane,
                           std::size_t{panel} * panel_outs + lane, group);
    }
}

// Does the same as for_groups(), but reads each group's weights: it calls pack_weights(block, lane,
// group, weights). Weights outside the matrix are zero.
template <class PackWeights>
void for_weights(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
                 std::uint32_t panel_begin, std::uint32_t panel_end,
                 const PackWeights& pack_weights) {
    float weights[128];
    for_groups(to, shape, panel_begin, panel_end,
               [&](std::byte* block, std::uint32_t lane, std::size_t out, std::uint32_t group) {
                   const std::uint32_t group_size = shape.group_size, first = group * group_size;
                   std::fill_n(weights, group_size, 0.0f);
                   const std::uint32_t count = out < shape.num_out && first < shape.num_in
                                                   ? std::min(group_size, shape.num_in - first)
                                                   : 0;
                   for (std::uint32_t k = 0; k < count; ++k)
                       weights[k] = weight_at(from, out * shape.num_in + first + k);
                   pack_weights(block, lane, group, std::span<const float>(weights, group_size));
               });
}

}  // namespace

void pack_int8(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    for_weights(
        to, shape, from, panel_begin, panel_end,
        [](std::byte* block, std::uint32_t lane, std::uint32_t, std::span<const float> weights) {
            std::int8_t codes[128];
            const float scale = quantize_int8_group(weights, codes);
            put_int8(block, lane, scale, codes, weights.size() / 4);
        });
}

void pack_int8(std::byte* to, const PackedMatrix& shape, const Int8Matrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    constexpr std::int8_t zeros[128] = {};
    for_groups(to, shape, panel_begin, panel_end,
               [&](std::byte* block, std::uint32_t lane, std::size_t out, std::uint32_t group) {
                   const std::size_t index = out * shape.num_groups() + group;
                   const bool is_there = out < shape.num_out;
                   put_int8(block, lane, is_there ? from.scales[index] : 0,
                            is_there ? from.codes + index * shape.group_size : zeros,
                            shape.group_size / 4);
               });
}

void pack_int6(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    for_weights(to, shape, from, panel_begin, panel_end,
                [](std::byte* block, std::uint32_t lane, std::uint32_t group,
                   std::span<const float> weights) {
                    std::int8_t codes[128];
                    const half scale = quantize_int6_group(weights, codes);
                    put_int6(block, group % 2, lane, scale, codes, weights.size());
                });
}

void pack_int4(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    for_weights(
        to, shape, from, panel_begin, panel_end,
        [](std::byte* block, std::uint32_t lane, std::uint32_t, std::span<const float> weights) {
            std::uint32_t words[16];
            const std::uint32_t scale_zero = quantize_int4_group(weights, words);
            put_int4(block, lane, scale_zero, words, weights.size() / 8);
        });
}

void pack_int4(std::byte* to, const PackedMatrix& shape, const Int4Matrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end) {
    constexpr std::uint32_t zeros[16] = {};
    const std::uint32_t num_words = shape.group_size / 8;
    MOEX_CHECK((from.mxfp4_scales != nullptr) == (shape.dtype == PackedDtype::mxfp4),
               "the panels are for codes of another kind");
    for_groups(to, shape, panel_begin, panel_end,
               [&](std::byte* block, std::uint32_t lane, std::size_t out, std::uint32_t group) {
                   const std::size_t index = out * shape.num_groups() + group;
                   const bool is_there = out < shape.num_out;
                   if (from.mxfp4_scales != nullptr)
                       return put_mxfp4(block, lane, is_there ? from.mxfp4_scales[index] : 0,
                                        is_there ? from.codes + index * num_words : zeros,
                                        num_words);
                   put_int4(block, lane, is_there ? from.scale_zero[index] : 0,
                            is_there ? from.codes + index * num_words : zeros, num_words);
               });
}

}  // namespace moex
