// The AMX path: tiles of 16 rows by 16 outputs. A block of a panel already has the layout of a
// tile: its row k / 4 has four neighbouring inputs of each of the 16 outputs. A product of few rows
// uses the AVX512-VNNI path instead, because tiles have fixed costs: codes are unpacked into
// memory, and the sums of a group pass through memory to become floats. Only many rows share these
// costs. The limit is measured at the first product of several rows.
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

constexpr std::uint32_t tile_rows = 16, block_rows = 2 * tile_rows;
// tiles share the weights' loads between rows, so one row gains nothing
constexpr std::uint32_t rows_min = 2;

// Operand of the instruction LDTILECFG, which sets the shapes of the tile registers. Source: Intel
// SDM, volume 1, chapter 18.
struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
};

// Tells the compiler that `memory` is read here: the tile intrinsics do not declare what memory
// they read and write.
inline void memory_is_read_here(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

// Use of the tile registers: 0 and 1 hold the sums of 16 rows each, and 2 the sums of the remaining
// rows. 3 to 5 hold `step` inputs of the same rows, and 6 holds the weights.
constexpr int x_tiles = 3, weights_tile = 6, last_rows_tile = 2, no_tile = -1;
void configure(std::uint32_t num_rows, std::uint32_t step) {
    TileConfig config;
    for (int tile = 0; tile < x_tiles; ++tile) {
        const std::uint32_t rows = tile == last_rows_tile ? num_rows % tile_rows : tile_rows;
        if (rows == 0) continue;
        config.rows[tile] = config.rows[x_tiles + tile] = static_cast<std::uint8_t>(rows);
        config.row_bytes[tile] = 64;
        config.row_bytes[x_tiles + tile] = static_cast<std::uint16_t>(step);
    }
    config.rows[weights_tile] = static_cast<std::uint8_t>(step / 4);
    config.row_bytes[weights_tile] = 64;
    memory_is_read_here(&config);
    _tile_loadconfig(&config);
}

// Prefetch distance in bytes. It is long enough that weights arrive from memory without a pause.
constexpr std::size_t bytes_ahead = 4096;
inline void ask_ahead(const std::byte* codes) {
    _mm_prefetch(reinterpret_cast<const char*>(codes) + bytes_ahead, _MM_HINT_T0);
}
inline __m512i load_and_ask(const std::byte* codes) {
    ask_ahead(codes);
    return _mm512_load_si512(codes);
}

// Unpacks int4 codes, two per byte, to one code per byte in the layout of int8: each 64 bytes
// become two times 64 bytes.
void unpack_int4(std::uint8_t* to, const std::byte* codes, std::uint32_t group_size) {
    const __m512i low_half = _mm512_set1_epi8(15);
    for (std::uint32_t k = 0; k < group_size; k += 8, codes += 64, to += 128) {
        const __m512i both = load_and_ask(codes);
        _mm512_store_si512(to, _mm512_and_si512(both, low_half));
        _mm512_store_si512(to + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half));
    }
}

// Unpacks mxfp4 codes to twice their values, one per byte in the layout of int8.
void unpack_mxfp4(std::uint8_t* to, const std::byte* codes, std::uint32_t group_size) {
    const __m512i low_half = _mm512_set1_epi8(15),
                  twice = _mm512_broadcast_i32x4(
                      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    for (std::uint32_t k = 0; k < group_size; k += 8, codes += 64, to += 128) {
        ask_ahead(codes);
        const __m512i both = _mm512_loadu_si512(codes);
        _mm512_store_si512(to, _mm512_shuffle_epi8(twice, _mm512_and_si512(both, low_half)));
        _mm512_store_si512(
            to + 64,
            _mm512_shuffle_epi8(twice, _mm512_and_si512(_mm512_srli_epi16(both, 4), low_half)));
    }
}

// Unpacks int6 codes to one code per byte in the layout of int8, and subtracts their offset of 32.
// Each 192 bytes become four times 64 bytes.
void unpack_int6(std::uint8_t* to, const std::byte* codes, std::uint32_t group_size) {
    constexpr int first_or_second_in_third = 0xf8;  // truth table of a | (b & c) for vpternlog
    const __m512i low_six = _mm512_set1_epi8(63), too_much = _mm512_set1_epi8(32);
    for (std::uint32_t k = 0; k < group_size; k += 16, codes += 192, to += 256) {
        const __m512i a = load_and_ask(codes), b = load_and_ask(codes + 64),
                      c = load_and_ask(codes + 128);
        const __m512i two = _mm512_and_si512(_mm512_srli_epi16(a, 6), _mm512_set1_epi8(3));
        const __m512i four = _mm512_ternarylogic_epi32(
            two, _mm512_srli_epi16(b, 4), _mm512_set1_epi8(12), first_or_second_in_third);
        const __m512i six = _mm512_ternarylogic_epi32(
            four, _mm512_srli_epi16(c, 2), _mm512_set1_epi8(48), first_or_second_in_third);
        const __m512i codes_of_four[] = {_mm512_and_si512(a, low_six), _mm512_and_si512(b, low_six),
                                         _mm512_and_si512(c, low_six), six};
        for (int i = 0; i < 4; ++i)
            _mm512_store_si512(to + 64 * i, _mm512_sub_epi8(codes_of_four[i], too_much));
    }
}

// Contiguous rows of codes, borrowed: each row begins row_bytes() after the row before it.
struct Rows {
    const std::int8_t* codes = nullptr;
    const float *scales = nullptr, *sums = nullptr;
    std::uint32_t num_rows = 0, num_groups = 0, group_size = 0;

    std::size_t row_bytes() const { return std::size_t{num_groups} * group_size; }
    Rows from(std::uint32_t row) const {
        return {codes + row * row_bytes(),
                scales + std::size_t{row} * num_groups,
                sums + std::size_t{row} * num_groups,
                num_rows - row,
                num_groups,
                group_size};
    }
};

// Returns the rows of x as contiguous rows. If x has a row index, the rows are copied in the order
// of that index.
Rows rows_in_order(const QuantizedRows& x) {
    Rows rows{x.codes, x.scales, x.sums, x.num_rows, x.num_groups, x.group_size};
    if (!x.row_index) return rows;

    thread_local std::vector<std::int8_t> codes;
    thread_local std::vector<float> scales, sums;
    codes.resize(x.num_rows * rows.row_bytes());
    scales.resize(std::size_t{x.num_rows} * x.num_groups);
    sums.resize(scales.size());
    for (std::uint32_t r = 0; r < x.num_rows; ++r) {
        std::memcpy(codes.data() + r * rows.row_bytes(), x.row_codes(r), rows.row_bytes());
        std::copy_n(x.row_scales(r), x.num_groups, &scales[std::size_t{r} * x.num_groups]);
        std::copy_n(x.row_sums(r), x.num_groups, &sums[std::size_t{r} * x.num_groups]);
    }
    rows.codes = codes.data();
    rows.scales = scales.data();
    rows.sums = sums.data();
    return rows;
}

// Clears the sums in tile 0, 1 or 2; the intrinsics require a literal tile number.
template <int TILE>
inline void zero_sums() {
    if constexpr (TILE == 0) _tile_zero(0);
    if constexpr (TILE == 1) _tile_zero(1);
    if constexpr (TILE == 2) _tile_zero(2);
}
template <int TILE>
inline void store_sums(std::int32_t (*sums)[panel_outs]) {
    if constexpr (TILE == 0) _tile_stored(0, sums, 64);
    if constexpr (TILE == 1) _tile_stored(1, sums, 64);
    if constexpr (TILE == 2) _tile_stored(2, sums, 64);
}
template <PackedDtype DTYPE, int TILE>
inline void add_products(const std::int8_t* x, std::size_t x_stride) {
    constexpr bool is_int4 = DTYPE == PackedDtype::int4;
    if constexpr (TILE == 0) _tile_loadd(3, x, x_stride);
    if constexpr (TILE == 1) _tile_loadd(4, x, x_stride);
    if constexpr (TILE == 2) _tile_loadd(5, x, x_stride);
    if constexpr (TILE == 0 && is_int4) _tile_dpbsud(0, 3, 6);
    if constexpr (TILE == 1 && is_int4) _tile_dpbsud(1, 4, 6);
    if constexpr (TILE == 2 && is_int4) _tile_dpbsud(2, 5, 6);
    if constexpr (TILE == 0 && !is_int4) _tile_dpbssd(0, 3, 6);
    if constexpr (TILE == 1 && !is_int4) _tile_dpbssd(1, 4, 6);
    if constexpr (TILE == 2 && !is_int4) _tile_dpbssd(2, 5, 6);
}

// Computes the sums of codes · x codes of one group in tiles. Codes of x are signed; codes of
// weights are signed, too, except in int4.
template <PackedDtype DTYPE, int FIRST, int SECOND>
inline void sum_group(std::int32_t (*sums)[panel_outs], const std::uint8_t* weights,
                      const std::int8_t* x, std::size_t x_stride, std::uint32_t group_size,
                      std::uint32_t step) {
    zero_sums<FIRST>();
    if constexpr (SECOND != no_tile) zero_sums<SECOND>();
    for (std::uint32_t k = 0; k < group_size; k += step) {
        _tile_loadd(6, weights + std::size_t{k} * panel_outs, 64);
        add_products<DTYPE, FIRST>(x + k, x_stride);
        if constexpr (SECOND != no_tile)
            add_products<DTYPE, SECOND>(x + tile_rows * x_stride + k, x_stride);
    }
    store_sums<FIRST>(sums);
    if constexpr (SECOND != no_tile) store_sums<SECOND>(sums + tile_rows);
    memory_is_read_here(sums);
}

inline __m512 load_halves(const std::byte* from) {
    const __m256i halves = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
    // masked, because GCC 12 warns about the intrinsic without a mask
    return _mm512_maskz_cvtph_ps(0xffff, halves);
}

// Returns 2^(scale - 128) for the scales of mxfp4: four times the scale, which is a normal number,
// divided by eight.
inline __m512 load_exponents(const std::byte* from) {
    const __m512i bytes = _mm512_cvtepu8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(bytes, _mm512_set1_epi32(2)), 23);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.125f));
}

// Adds one group's sums, scaled, to the totals of `count` rows. The scales and sums of x of
// neighbouring rows are `stride` apart.
template <PackedDtype DTYPE>
inline void add_group(float (*totals)[panel_outs], const std::int32_t (*sums)[panel_outs],
                      const std::byte* scales, const float* x_scales, const float* x_sums,
                      std::size_t stride, std::uint32_t count) {
    __m512 scale, zero = _mm512_setzero_ps();
    if constexpr (DTYPE == PackedDtype::int8) {
        scale = _mm512_load_ps(scales);
    } else if constexpr (DTYPE == PackedDtype::mxfp4) {
        scale = load_exponents(scales);
    } else {
        scale = load_halves(scales);
        if constexpr (DTYPE == PackedDtype::int4) zero = load_halves(scales + 32);
    }
#pragma GCC unroll 4
    for (std::uint32_t r = 0; r < count; ++r, x_scales += stride, x_sums += stride) {
        __m512 whole = _mm512_cvtepi32_ps(_mm512_load_si512(sums[r]));
        if constexpr (DTYPE == PackedDtype::int4)
            whole = _mm512_sub_ps(whole, _mm512_mul_ps(zero, _mm512_set1_ps(*x_sums)));
        const __m512 part = _mm512_mul_ps(_mm512_mul_ps(scale, _mm512_set1_ps(*x_scales)), whole);
        _mm512_store_ps(totals[r], _mm512_add_ps(_mm512_load_ps(totals[r]), part));
    }
}

// Gives the codes of one panel in the layout of tiles. Codes of fewer than 8 bits are unpacked
// group by group, one group ahead of the computation, and the unpacked codes are kept if a later
// block of rows needs them.
template <PackedDtype DTYPE>
class PanelCodes {
  public:
    PanelCodes(const PackedMatrix& weights, std::uint32_t panel, std::uint32_t num_groups,
               bool is_kept)
        : groups_(weights, panel),
          group_size_(weights.group_size),
          num_groups_(num_groups),
          is_kept_(is_kept) {
        if constexpr (DTYPE == PackedDtype::int8) return;
        unpacked_ = memory((is_kept ? num_groups : 2) * group_bytes());
        unpack(0);
    }
    const std::byte* scales(std::uint32_t index) const { return groups_[index].scales; }
    // Returns the unpacked codes of group `index`. Groups must be requested in ascending order;
    // only if the codes are kept may a second pass begin again at the first group.
    const std::uint8_t* codes(std::uint32_t index) {
        if constexpr (DTYPE == PackedDtype::int8) {
            const std::byte* codes = groups_[index].codes;
            for (; num_begun_ <= index; ++num_begun_)
                for (std::size_t at = 0; at < group_bytes(); at += 64) ask_ahead(codes + at);
            return reinterpret_cast<const std::uint8_t*>(codes);
        } else {
            if (num_begun_ == index + 1 && num_begun_ < num_groups_) unpack(index + 1);
            return place(index);
        }
    }

  private:
    static std::uint8_t* memory(std::size_t size) {
        thread_local AlignedBuffer bytes;
        thread_local std::size_t held = 0;
        if (held < size) bytes = AlignedBuffer(held = size);
        return reinterpret_cast<std::uint8_t*>(bytes.data());
    }
    std::size_t group_bytes() const { return std::size_t{group_size_} * panel_outs; }
    std::uint8_t* place(std::uint32_t index) const {
        return unpacked_ + (is_kept_ ? index : index % 2) * group_bytes();
    }
    void unpack(std::uint32_t index) {
        constexpr auto unpack_group = DTYPE == PackedDtype::int4    ? unpack_int4
                                      : DTYPE == PackedDtype::mxfp4 ? unpack_mxfp4
                                                                    : unpack_int6;
        unpack_group(place(index), groups_[index].codes, group_size_);
        memory_is_read_here(unpacked_);
        num_begun_ = index + 1;
    }

    const PanelGroups<DTYPE> groups_;
    const std::uint32_t group_size_, num_groups_;
    const bool is_kept_;
    std::uint8_t* unpacked_ = nullptr;
    std::uint32_t num_begun_ = 0;  // groups
};

// Multiplies a block of rows by one panel. The sums of a group are added to the totals one group
// later, because values stored from a tile register can be loaded only after a delay.
template <PackedDtype DTYPE, int FIRST, int SECOND>
void product_of_block(float* out, std::size_t out_stride, const PackedMatrix& weights,
                      std::uint32_t panel, PanelCodes<DTYPE>& codes, const Rows& rows,
                      std::uint32_t count) {
    const std::uint32_t step = std::min(rows.group_size, 64u);
    alignas(64) std::int32_t sums[2][block_rows][panel_outs];
    alignas(64) float totals[block_rows][panel_outs];
    std::memset(totals, 0, count * sizeof totals[0]);
    const auto add = [&](std::uint32_t group) {
        add_group<DTYPE>(totals, sums[group % 2], codes.scales(group), rows.scales + group,
                         rows.sums + group, rows.num_groups, count);
    };

    for (std::uint32_t group = 0; group < rows.num_groups; ++group) {
        sum_group<DTYPE, FIRST, SECOND>(sums[group % 2], codes.codes(group),
                                        rows.codes + std::size_t{group} * rows.group_size,
                                        rows.row_bytes(), rows.group_size, step);
        if (group > 0) add(group - 1);
    }
    add(rows.num_groups - 1);

    const auto there = static_cast<__mmask16>((1u << panel_width(weights, panel)) - 1);
    for (std::uint32_t r = 0; r < count; ++r)
        _mm512_mask_storeu_ps(out + r * out_stride, there, _mm512_load_ps(totals[r]));
}

template <PackedDtype DTYPE>
void tiled(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
           std::uint32_t panel_begin, std::uint32_t panel_end) {
    const Rows rows = rows_in_order(x);
    memory_is_read_here(rows.codes);
    configure(x.num_rows, std::min(x.group_size, 64u));
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        PanelCodes<DTYPE> codes(weights, panel, x.num_groups, x.num_rows > block_rows);
        for (std::uint32_t r = 0; r < x.num_rows; r += block_rows) {
            const std::uint32_t count = std::min(block_rows, x.num_rows - r);
            const auto product = count == block_rows ? product_of_block<DTYPE, 0, 1>
                                 : count > tile_rows ? product_of_block<DTYPE, 0, last_rows_tile>
                                 : count == tile_rows
                                     ? product_of_block<DTYPE, 0, no_tile>
                                     : product_of_block<DTYPE, last_rows_tile, no_tile>;
            product(out.data + r * out.stride + std::size_t{panel} * panel_outs, out.stride,
                    weights, panel, codes, rows.from(r), count);
        }
    }
    _tile_release();
}

// Returns the smallest number of rows for which AMX tiles are faster than AVX512-VNNI, for a group
// size of 32, 64 or 128.
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
    static const IntegerPath path{"AMX",
                                  integer_avx512_vnni().gemv,
                                  {gemm<PackedDtype::int8>, gemm<PackedDtype::int6>,
                                   gemm<PackedDtype::int4>, gemm<PackedDtype::mxfp4>}};
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
