// Emulates AMX's tile instructions with plain loops. A condition that would raise a fault on a real
// processor ends the test program. Source: Intel SDM, volume 2, LDTILECFG, TILELOADD, TILESTORED,
// TDPBSSD, TDPBUSD.
#include "tests/hub/engine/integer_amx_emulated.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "hub/engine/kernels/integer_paths.h"
#include "hub/engine/kernels/integer_row_trial.h"
#include "protocol/check.h"

namespace moex::test {
namespace {

constexpr int num_tiles = 8, rows_max = 16, row_bytes_max = 64;
struct Tile {
    int rows = 0, row_bytes = 0;  // 0: not configured
    std::uint8_t data[rows_max][row_bytes_max] = {};
};
thread_local Tile tiles[num_tiles];

Tile& configured(int index) {
    MOEX_CHECK(tiles[index].rows > 0 && tiles[index].row_bytes > 0, "a tile without a shape");
    return tiles[index];
}

void load_config(const void* memory) {
    std::uint8_t bytes[64];
    std::memcpy(bytes, memory, sizeof bytes);
    MOEX_CHECK(bytes[0] == 1 && bytes[1] == 0, "palette 1, from the first row");
    for (int i = 0; i < num_tiles; ++i) {
        std::uint16_t row_bytes = 0;
        std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof row_bytes);
        const int rows = bytes[48 + i];
        MOEX_CHECK(rows <= rows_max && row_bytes <= row_bytes_max, "a tile that is too large");
        tiles[i] = {rows, row_bytes};
    }
}
void release() {
    for (Tile& tile : tiles) tile = {};
}
void zero(int to) { std::memset(configured(to).data, 0, sizeof tiles[to].data); }

void load(int to, const void* memory, std::size_t stride) {
    Tile& tile = configured(to);
    zero(to);
    for (int r = 0; r < tile.rows; ++r)
        std::memcpy(tile.data[r], static_cast<const std::uint8_t*>(memory) + r * stride,
                    static_cast<std::size_t>(tile.row_bytes));
}
void store(int from, void* memory, std::size_t stride) {
    const Tile& tile = configured(from);
    for (int r = 0; r < tile.rows; ++r)
        std::memcpy(static_cast<std::uint8_t*>(memory) + r * stride, tile.data[r],
                    static_cast<std::size_t>(tile.row_bytes));
}

// Computes sum[m][n] += x[m][4 k + i] w[k][4 n + i]; x is signed, w has the type Weight.
template <class Weight>
void dot(int sum, int x, int w) {
    Tile& c = configured(sum);
    const Tile &a = configured(x), &b = configured(w);
    MOEX_CHECK(c.rows == a.rows && c.row_bytes == b.row_bytes && a.row_bytes == 4 * b.rows,
               "tiles whose shapes do not fit");
    for (int m = 0; m < c.rows; ++m)
        for (int n = 0; n < c.row_bytes / 4; ++n) {
            std::int32_t total = 0;
            std::memcpy(&total, c.data[m] + 4 * n, 4);
            for (int k = 0; k < b.rows; ++k)
                for (int i = 0; i < 4; ++i)
                    total += static_cast<std::int8_t>(a.data[m][4 * k + i]) *
                             static_cast<Weight>(b.data[k][4 * n + i]);
            std::memcpy(c.data[m] + 4 * n, &total, 4);
        }
}

}  // namespace
}  // namespace moex::test

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_loadconfig moex::test::load_config
#define _tile_release moex::test::release
#define _tile_zero moex::test::zero
#define _tile_loadd moex::test::load
#define _tile_stored moex::test::store
#define _tile_dpbssd moex::test::dot<std::int8_t>
#define _tile_dpbsud moex::test::dot<std::uint8_t>
// Rename the functions of integer_amx.cpp, so that they do not collide with the program's. The
// macro rows_where_faster replaces the speed trial: tiles always count as faster.
#define integer_amx integer_amx_over_loops
#define integer_amx_supported integer_amx_over_loops_supported
#define rows_where_faster(few, many, rows_min, dtype, group_size) \
    ((void)(many), (void)(group_size), (rows_min))
#include "hub/engine/kernels/integer_amx.cpp"

namespace moex::test {
const IntegerPath& amx_emulated() { return integer_amx_over_loops(); }
}  // namespace moex::test
#endif
