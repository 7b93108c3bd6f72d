// The layout of the bytes that kernels and the expert runner share: the upload buffer of a grouped
// round, and the small uniforms. All offsets are in 32-bit words. The kernels in wgsl/ use the same
// header words (checked in round_layout.cpp); tests compare the answers.
#pragma once

#include <cstdint>

namespace moex::gpu {

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

// The header of an upload buffer; the places, tables and x follow it.
struct RoundHeader {
    std::uint32_t num_tokens = 0;  // header word 0: number of rows of x
    // Header word 1: number of rows of y: one per token, or per pair if not summed.
    std::uint32_t num_answers = 0;
    std::uint32_t dtype = 0;   // header word 2: dtype of y on the wire
    std::uint32_t x_word = 0;  // header word 3: index of the first word of x
    // Header word 4: index of the table of num_pairs x {row, gate as f32 bits}.
    std::uint32_t pairs_word = 0;
    // Header word 5: index of a table of [num_answers + 1] indices into the table at word 6.
    std::uint32_t answer_starts_word = 0;
    // Header word 6: index of the table of num_pairs x AnswerPair: the pairs of each answer, in the
    // order in which they are added.
    std::uint32_t answer_pairs_word = 0;
    std::uint32_t x_dtype = 0;  // header word 7: dtype of x on the wire
    // Header word 8 + place: index of the first word of the list of tiles of that place. A place is
    // (arena, tile family); there is one word for each place.
};
inline constexpr std::uint32_t round_header_words = 8;
static_assert(sizeof(RoundHeader) == 4 * round_header_words,
              "the kernels read words 0..7, then the places");

// One (row, expert) pair whose output is added to an answer.
struct AnswerPair {
    std::uint32_t blob_word = 0;  // first word of the expert's blob in its arena
    std::uint32_t pair = 0;
    std::uint32_t gate = 0;  // f32 bits
    std::uint32_t unused = 0;
};
static_assert(sizeof(AnswerPair) == 16, "the kernels step by 4 words");

// One unit of work: up to tile_rows pairs of the same expert.
struct RoundTile {
    std::uint32_t blob_word = 0;  // first word of the expert's blob in its arena
    std::uint32_t first_pair = 0;
    std::uint32_t num_pairs = 0;
    std::uint32_t row = 0;  // row of x that the first pair of this tile uses
};
static_assert(sizeof(RoundTile) == 16, "the kernels step by 4 words");

// The families of kernels: tiles with a single row, and with up to eight rows.
inline constexpr std::uint32_t tile_families = 2;
inline constexpr std::uint32_t tile_rows[tile_families] = {1, 8};

// Uniform of group_gate_up and group_down: the index of the header word that contains the first
// word of the list of tiles.
struct GroupPlace {
    std::uint32_t first_tile_word = 0;  // 8 + place
    std::uint32_t unused[3] = {0, 0, 0};
};
static_assert(sizeof(GroupPlace) == 16);

// The uniform (parameters) of the three published kernels for single calls.
struct ExpertParams {
    std::uint32_t blob_word = 0, num_tokens = 0, hidden_size = 0, moe_intermediate_size = 0,
                  group_size = 0;
    std::uint32_t gate_up_scale_zero_word = 0, down_codes_word = 0, down_scale_zero_word = 0;
};
static_assert(sizeof(ExpertParams) == 32);

}  // namespace moex::gpu
