// AMX: tiles of 16 rows by 16 outputs. A block of a panel is a tile as it lies: its row k / 4 has
// four neighbouring inputs of each of the 16 outputs. Few rows go the AVX512-VNNI way; how many is
// tried at the first product of several rows: a group's sums go through memory to become floats,
// which many rows share and few do not.
#include "hub/engine/kernels/integer_paths.h"
#include "hub/engine/kernels/integer_row_trial.h"

#if defined(__x86_64__)
#include <hwy/base.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vnni,amx-tile,amx-int8")
namespace moex {
namespace {

constexpr std::uint32_t tile_rows = 16;
constexpr std::uint32_t rows_min = 5;  // below it a tile is mostly empty

// What LDTILECFG reads. Source: Intel SDM, volume 1, chapter 18.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// The tile intrinsics do not tell the compiler what memory they read and write.
inline void memory_is_read_here(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// Tiles 0, 1: sums of 16 rows each; 2, 3: x of these; 4: weights. `step` inputs at a time.
void configure(std::uint32_t step) {
    TileConfig config;
    for (const int tile : {0, 1}) config.rows[tile] = 16, config.row_bytes[tile] = 64;
    for (const int tile : {2, 3})
        config.rows[tile] = 16, config.row_bytes[tile] = static_cast<std::uint16_t>(step);
    config.rows[4] = static_cast<std::uint8_t>(step / 4);
    config.row_bytes[4] = 64;
    memory_is_read_here(&config);
    _tile_loadconfig(&config);
}

// Halves of bytes as bytes, in the layout of int8: 64 bytes become two times 64.
void unpack_int4(std::uint8_t* to, const std::byte* codes, std::uint32_t group_size) {
    const __m512i low_half = _mm512_set1_epi8(15);
    for (std::uint32_t k = 0; k < group_size; k += 8, codes += 64, to += 128) {
        const __m512i both = _mm512_load_si512(codes);
        _mm512_store_si512(to, _mm512_and_si512(both, low_half));
        _mm512_store_si512(to + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half));
    }
}

// The same of int6: 192 bytes become four times 64.
void unpack_int6(std::uint8_t* to, const std::byte* codes, std::uint32_t group_size) {
    const __m512i low_six = _mm512_set1_epi8(63);
    for (std::uint32_t k = 0; k < group_size; k += 16, codes += 192, to += 256) {
        const __m512i a = _mm512_load_si512(codes), b = _mm512_load_si512(codes + 64),
                      c = _mm512_load_si512(codes + 128);
        _mm512_store_si512(to, _mm512_and_si512(a, low_six));
        _mm512_store_si512(to + 64, _mm512_and_si512(b, low_six));
        _mm512_store_si512(to + 128, _mm512_and_si512(c, low_six));
        const __m512i two = _mm512_and_si512(_mm512_srli_epi16(a, 6), _mm512_set1_epi8(3)),
                      four = _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(12)),
                      six = _mm512_and_si512(_mm512_srli_epi16(c, 2), _mm512_set1_epi8(48));
        _mm512_store_si512(to + 192, _mm512_or_si512(_mm512_or_si512(two, four), six));
    }
}

// The sums of a group of int8 (both sides signed) or fewer bits (weights unsigned), for 32 rows.
template <PackedDtype DTYPE>
void sum_group(std::int32_t (*sums)[panel_outs], const void* weights, const std::int8_t* x,
               std::size_t x_stride, std::uint32_t group_size, std::uint32_t step) {
    _tile_zero(0);
    _tile_zero(1);
    const auto* codes = static_cast<const std::uint8_t*>(weights);
    for (std::uint32_t k = 0; k < group_size; k += step) {
        _tile_loadd(2, x + k, x_stride);
        _tile_loadd(3, x + tile_rows * x_stride + k, x_stride);
        _tile_loadd(4, codes + std::size_t{k} * panel_outs, 64);
        if constexpr (DTYPE == PackedDtype::int8) {
            _tile_dpbssd(0, 2, 4);
            _tile_dpbssd(1, 3, 4);
        } else {
            _tile_dpbsud(0, 2, 4);
            _tile_dpbsud(1, 3, 4);
        }
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + tile_rows, 64);
    memory_is_read_here(sums);
}

// Adds the group's part of one row's totals.
template <PackedDtype DTYPE>
inline __m512 add_group(__m512 total, const std::byte* scales, const std::int32_t* sums,
                        float x_scale, float x_sum) {
    __m512 whole = _mm512_cvtepi32_ps(_mm512_load_si512(sums)), scale;
    if constexpr (DTYPE == PackedDtype::int8) {
        scale = _mm512_load_ps(scales);
    } else {
        const auto* halves = reinterpret_cast<const __m256i*>(scales);
        scale = _mm512_cvtph_ps(_mm256_load_si256(halves));
        const __m512 zero = DTYPE == PackedDtype::int6
                                ? _mm512_set1_ps(32)
                                : _mm512_cvtph_ps(_mm256_load_si256(halves + 1));
        whole = _mm512_sub_ps(whole, _mm512_mul_ps(zero, _mm512_set1_ps(x_sum)));
    }
    return _mm512_add_ps(total,
                         _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_set1_ps(x_scale)), whole));
}

// Up to 32 rows times one panel; x holds 32 rows, those beyond `count` are of no account.
template <PackedDtype DTYPE>
void product_32(float* out, std::size_t out_stride, const PackedMatrix& weights,
                const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t count,
                const std::int8_t* x, std::uint32_t panel) {
    const std::uint32_t group_size = rows.group_size, step = std::min(group_size, 64u);
    const std::size_t x_stride = std::size_t{rows.num_groups} * group_size;
    alignas(64) std::int32_t sums[2 * tile_rows][panel_outs];
    alignas(64) float totals[2 * tile_rows][panel_outs] = {};
    alignas(64) std::uint8_t unpacked[128 * panel_outs];

    for (std::uint32_t group = 0; group < rows.num_groups; ++group) {
        const GroupPlace at = group_place<DTYPE>(weights, panel, group);
        const void* codes = at.codes;
        if constexpr (DTYPE != PackedDtype::int8) {
            constexpr bool is_int4 = DTYPE == PackedDtype::int4;
            (is_int4 ? unpack_int4 : unpack_int6)(unpacked, at.codes, group_size);
            codes = unpacked;
        }
        memory_is_read_here(codes);
        sum_group<DTYPE>(sums, codes, x + std::size_t{group} * group_size, x_stride, group_size,
                         step);

        for (std::uint32_t r = 0; r < count; ++r) {
            const __m512 total = add_group<DTYPE>(_mm512_load_ps(totals[r]), at.scales, sums[r],
                                                  rows.row_scales(first_row + r)[group],
                                                  rows.row_sums(first_row + r)[group]);
            _mm512_store_ps(totals[r], total);
        }
    }

    const std::uint32_t width = panel_width(weights, panel);
    for (std::uint32_t r = 0; r < count; ++r)
        std::memcpy(out + r * out_stride, totals[r], width * sizeof(float));
}

// The codes of all rows one after the other, filled up to a multiple of 32 rows.
const std::int8_t* gather_rows(const QuantizedRows& x) {
    const std::size_t row_bytes = std::size_t{x.num_groups} * x.group_size;
    const std::size_t num_rows = (x.num_rows + 2 * tile_rows - 1) / (2 * tile_rows) * 2 * tile_rows;
    thread_local std::vector<std::int8_t> gathered;
    if (gathered.size() < num_rows * row_bytes) gathered.resize(num_rows * row_bytes);
    for (std::uint32_t r = 0; r < x.num_rows; ++r)
        std::memcpy(gathered.data() + r * row_bytes, x.row_codes(r), row_bytes);
    return gathered.data();
}

template <PackedDtype DTYPE>
void tiled(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
           std::uint32_t panel_begin, std::uint32_t panel_end) {
    const std::size_t row_bytes = std::size_t{x.num_groups} * x.group_size;
    const std::int8_t* codes = gather_rows(x);
    memory_is_read_here(codes);
    configure(std::min(x.group_size, 64u));
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel)
        for (std::uint32_t r = 0; r < x.num_rows; r += 2 * tile_rows)
            product_32<DTYPE>(out.data + r * out.stride + std::size_t{panel} * panel_outs,
                              out.stride, weights, x, r, std::min(2 * tile_rows, x.num_rows - r),
                              codes + r * row_bytes, panel);
    _tile_release();
}

// From how many rows on tiles pay, by a group's size: 32, 64 or 128.
template <PackedDtype DTYPE>
std::uint32_t tiled_rows_min(std::uint32_t group_size) {
    const auto tried = [](std::uint32_t size) {
        return rows_where_faster(integer_avx512_vnni().gemm.of(DTYPE), tiled<DTYPE>, rows_min,
                                 DTYPE, size);
    };
    static const std::uint32_t rows[] = {tried(32), tried(64), tried(128)};
    return rows[group_size / 64];
}

template <PackedDtype DTYPE>
void gemm(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
          std::uint32_t panel_begin, std::uint32_t panel_end) {
    const bool is_tiled = x.num_rows >= rows_min &&
                          x.num_rows >= tiled_rows_min<DTYPE>(x.group_size);
    (is_tiled ? tiled<DTYPE> : integer_avx512_vnni().gemm.of(DTYPE))(out, weights, x, panel_begin,
                                                                     panel_end);
}

}  // namespace

const IntegerPath& integer_amx() {
    static const IntegerPath path{
        "AMX",
        integer_avx512_vnni().gemv,
        {gemm<PackedDtype::int8>, gemm<PackedDtype::int6>, gemm<PackedDtype::int4>}};
    return path;
}

}  // namespace moex
HWY_POP_ATTRIBUTES

namespace moex {
bool integer_amx_supported() {
    if (!integer_avx512_vnni_supported() || !__builtin_cpu_supports("amx-tile") ||
        !__builtin_cpu_supports("amx-int8"))
        return false;
    constexpr long request_permission = 0x1023, tile_data = 18;
    static const bool permitted = ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return permitted;
}
}  // namespace moex
#endif
