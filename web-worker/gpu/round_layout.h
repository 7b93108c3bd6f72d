// The bytes that kernels and the expert runner share: the
// upload buffer of a grouped round, and the small uniforms.
// All offsets are in 32-bit words. The kernels in wgsl/
// name the same header words; tests compare the answers.
#pragma once

#include <cstdint>

namespace moex::gpu {

// The header of an upload buffer; the places, tables and x follow it.
struct RoundHeader {
    std::uint32_t num_tokens = 0;             // 0
    std::uint32_t hidden_size = 0;            // 1
    std::uint32_t moe_intermediate_size = 0;  // 2
    std::uint32_t group_size = 0;             // 3
    std::uint32_t num_pairs = 0;              // 4
    std::uint32_t dtype = 0;                  // 5: of x and y, as on the wire
    std::uint32_t x_word = 0;                 // 6: where x begins
    std::uint32_t unsummed = 0;               // 7: 1 answers a row per pair
    std::uint32_t pairs_word = 0;             // 8: num_pairs x {row, gate as f32 bits}
    // 9: [num_tokens + 1], into the next table (summed only)
    std::uint32_t token_starts_word = 0;
    // 10: [num_pairs], the pairs of each token in the order of the table
    std::uint32_t token_pairs_word = 0;
    std::uint32_t gate_up_scale_zero_word = 0;  // 11: from the start of a blob
    std::uint32_t down_codes_word = 0;          // 12
    std::uint32_t down_scale_zero_word = 0;     // 13
    std::uint32_t unused[2] = {0, 0};
    // 16 + place: the first word of that place's list of tiles;
    // a place is (arena, tile rows). As many as there are.
};
inline constexpr std::uint32_t round_header_words = 16;
static_assert(sizeof(RoundHeader) == 4 * round_header_words,
              "the kernels read words 0..15, then the places");

// One unit of work: up to tile_rows pairs of one expert.
struct RoundTile {
    std::uint32_t blob_word = 0;  // in its arena
    std::uint32_t first_pair = 0;
    std::uint32_t num_pairs = 0;
    std::uint32_t unused = 0;
};
static_assert(sizeof(RoundTile) == 16, "the kernels step by 4 words");
inline constexpr std::uint32_t tile_rows_max = 4;

// Uniform of group_gate_up and group_down: which header
// word holds the first word of the list of tiles.
struct GroupPlace {
    std::uint32_t first_tile_word = 0;  // 16 + place
    std::uint32_t unused[3] = {0, 0, 0};
};
static_assert(sizeof(GroupPlace) == 16);

// Uniform of the three published kernels.
struct ExpertParams {
    std::uint32_t blob_word = 0, num_tokens = 0, hidden_size = 0, moe_intermediate_size = 0,
                  group_size = 0;
    std::uint32_t gate_up_scale_zero_word = 0, down_codes_word = 0, down_scale_zero_word = 0;
};
static_assert(sizeof(ExpertParams) == 32);

}  // namespace moex::gpu
