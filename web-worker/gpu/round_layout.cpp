// Checks at compile time that the runner writes the words that the kernels read: the build takes
// the kernels' constants from the WGSL itself.
#include "web-worker/gpu/round_layout.h"

#include <cstddef>

#include "kernels_constants.h"

namespace moex::gpu {
namespace {

constexpr bool at_word(std::size_t offset_bytes, std::uint32_t word) {
    return offset_bytes == 4 * std::size_t{word};
}

// All kernels include the same header constants, so checking those of pack_rows is enough.
namespace header = kernels::pack_rows;
static_assert(at_word(offsetof(RoundHeader, num_tokens), header::header_num_tokens));
static_assert(at_word(offsetof(RoundHeader, num_answers), header::header_num_answers));
static_assert(at_word(offsetof(RoundHeader, dtype), header::header_dtype));
static_assert(at_word(offsetof(RoundHeader, x_word), header::header_x_word));
static_assert(at_word(offsetof(RoundHeader, pairs_word), header::header_pairs_word));
static_assert(at_word(offsetof(RoundHeader, answer_starts_word),
                      header::header_answer_starts_word));
static_assert(at_word(offsetof(RoundHeader, answer_pairs_word), header::header_answer_pairs_word));

static_assert(kernels::group_gate_up_8::tile_rows == tile_rows[1]);
static_assert(kernels::group_down_1::tile_rows == tile_rows[0] &&
              kernels::group_down_8::tile_rows == tile_rows[1]);

}  // namespace
}  // namespace moex::gpu
