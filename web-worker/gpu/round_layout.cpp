// Holds the layout that the runner writes to the words that the kernels read: the build takes
// their constants from the WGSL itself.
#include "web-worker/gpu/round_layout.h"

#include <cstddef>

#include "kernels_constants.h"

namespace moex::gpu {
namespace {

constexpr bool at_word(std::size_t offset_bytes, std::uint32_t word) {
    return offset_bytes == 4 * std::size_t{word};
}

static_assert(at_word(offsetof(RoundHeader, num_tokens), kernels::unpack_rows::header_num_tokens));
static_assert(at_word(offsetof(RoundHeader, hidden_size),
                      kernels::unpack_rows::header_hidden_size));
static_assert(at_word(offsetof(RoundHeader, dtype), kernels::unpack_rows::header_dtype));
static_assert(at_word(offsetof(RoundHeader, x_word), kernels::unpack_rows::header_x_word));

static_assert(at_word(offsetof(RoundHeader, hidden_size),
                      kernels::group_gate_up_1::header_hidden_size));
static_assert(at_word(offsetof(RoundHeader, moe_intermediate_size),
                      kernels::group_gate_up_1::header_moe_intermediate_size));
static_assert(at_word(offsetof(RoundHeader, group_size),
                      kernels::group_gate_up_1::header_group_size));
static_assert(at_word(offsetof(RoundHeader, pairs_word),
                      kernels::group_gate_up_1::header_pairs_word));
static_assert(at_word(offsetof(RoundHeader, gate_up_scale_zero_word),
                      kernels::group_gate_up_1::header_scale_zero_word));

static_assert(at_word(offsetof(RoundHeader, hidden_size),
                      kernels::group_down_1::header_hidden_size));
static_assert(at_word(offsetof(RoundHeader, moe_intermediate_size),
                      kernels::group_down_1::header_moe_intermediate_size));
static_assert(at_word(offsetof(RoundHeader, group_size), kernels::group_down_1::header_group_size));
static_assert(at_word(offsetof(RoundHeader, pairs_word), kernels::group_down_1::header_pairs_word));
static_assert(at_word(offsetof(RoundHeader, down_codes_word),
                      kernels::group_down_1::header_down_codes_word));
static_assert(at_word(offsetof(RoundHeader, down_scale_zero_word),
                      kernels::group_down_1::header_down_scale_zero_word));

static_assert(at_word(offsetof(RoundHeader, num_tokens), kernels::pack_rows::header_num_tokens));
static_assert(at_word(offsetof(RoundHeader, hidden_size), kernels::pack_rows::header_hidden_size));
static_assert(at_word(offsetof(RoundHeader, num_pairs), kernels::pack_rows::header_num_pairs));
static_assert(at_word(offsetof(RoundHeader, dtype), kernels::pack_rows::header_dtype));
static_assert(at_word(offsetof(RoundHeader, unsummed), kernels::pack_rows::header_unsummed));
static_assert(at_word(offsetof(RoundHeader, token_starts_word),
                      kernels::pack_rows::header_token_starts_word));
static_assert(at_word(offsetof(RoundHeader, token_pairs_word),
                      kernels::pack_rows::header_token_pairs_word));

static_assert(kernels::group_gate_up_1::tile_rows == 1 && kernels::group_down_1::tile_rows == 1);
static_assert(kernels::group_gate_up_4::tile_rows == tile_rows_max &&
              kernels::group_down_4::tile_rows == tile_rows_max);

}  // namespace
}  // namespace moex::gpu
