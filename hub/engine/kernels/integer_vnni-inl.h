// The loops of the two VNNI paths. The instruction `dpbusd` adds four products of an unsigned and a
// signed byte to 32 bits and never saturates. Weights are the unsigned operand: a code of 4 bits as
// it is, one of 8 bits plus 128, one of 6 bits plus 32, and twice the value of mxfp4 plus 12. The
// formula subtracts these offsets again as a zero point (all values are whole numbers below 2^24,
// and so exact in f32). Included by integer_avx_vnni.cpp and integer_avx512_vnni.cpp, which define
//   Whole, Real   vectors of `lanes` i32 and f32, and the operations on them that are used below
//   parts         how many vectors make a panel
//   tile_rows     how many rows share the loads of a panel
//   tile_panels   how many panels share the loads of a row
//   rows_at_once  up to this many rows walk over one panel together: they are limited by memory,
//                 which is then read without a pause
//   vectors_at_once   how many vectors of these panels share a load of x: limited by registers

// With several rows, a tile prefetches the same position of the next panels: this is far enough
// ahead for memory, and three panels fit the L2 cache. Only the first `asking_rows` rows prefetch,
// and each of them does, since a processor with many pending loads drops further prefetches. One or
// two rows prefetch the weights that they read next. For the numbers of rows in between, the
// product is limited by memory alone, and a prefetch is an additional request. There an EPYC (Zen
// 5) loses time by prefetching, and a Xeon (Sapphire Rapids) gains: a product of four rows with
// 6-bit weights is 1.28 times as fast.
constexpr std::uint32_t asking_rows = 16;
constexpr int busy_rows(PackedDtype dtype) {
    return dtype == PackedDtype::int4 || dtype == PackedDtype::mxfp4 ? 3 : 6;
}
inline bool few_rows_ask() {
    static const bool asks = __builtin_cpu_is("intel");
    return asks;
}

template <PackedDtype DTYPE, int ROWS, int PANELS, bool ASKS>
inline void prefetch_weights(const std::byte* weights, std::size_t panel_bytes) {
    const char* at = reinterpret_cast<const char*>(weights);
    if constexpr (ROWS <= 2)
        _mm_prefetch(at + 2048, _MM_HINT_T0);
    else if constexpr (ASKS)
        _mm_prefetch(at + PANELS * panel_bytes, _MM_HINT_T1);
}

// Number of vectors of unsigned codes, 4 inputs each, in 64 bytes of a panel, or in three times
// 64 bytes in int6.
template <PackedDtype DTYPE>
constexpr int vectors = DTYPE == PackedDtype::int8   ? 1
                        : DTYPE == PackedDtype::int6 ? 4
                                                     : 2;
template <PackedDtype DTYPE>
inline void unpack(Whole (&w)[vectors<DTYPE>], const std::byte* codes) {
    if constexpr (DTYPE == PackedDtype::int8) {
        w[0] = plus_128(load(codes));
    } else if constexpr (DTYPE == PackedDtype::int6) {
        const Whole a = load(codes), b = load(codes + 64), c = load(codes + 128);
        w[0] = low_six(a);
        w[1] = low_six(b);
        w[2] = low_six(c);
        w[3] = high_twos(a, b, c);
    } else if constexpr (DTYPE == PackedDtype::mxfp4) {
        const Whole both = load_anywhere(codes);
        w[0] = twice_plus_12(low_half(both));
        w[1] = twice_plus_12(high_half(both));
    } else {
        const Whole both = load(codes);
        w[0] = low_half(both);
        w[1] = high_half(both);
    }
}

// Adds the products of one group to sums[row][part], where the parts are the vectors of PANELS
// panels, panel after panel.
template <PackedDtype DTYPE, int ROWS, int PANELS, bool ASKS>
inline void sum_group(Whole (&sums)[ROWS][PANELS * parts], const std::byte* codes,
                      const std::int8_t* const (&x)[ROWS], std::size_t first,
                      std::uint32_t group_size, std::size_t panel_bytes) {
    constexpr int columns = PANELS * parts, at_once = std::min(columns, vectors_at_once);
    static_assert(columns % at_once == 0);
    constexpr std::uint32_t inputs = 4 * vectors<DTYPE>;
    constexpr int lines = DTYPE == PackedDtype::int6 ? 3 : 1;
    for (std::uint32_t k = 0; k < group_size; k += inputs, codes += lines * 64) {
#pragma GCC unroll 6
        for (int first_vector = 0; first_vector < columns; first_vector += at_once) {
            Whole w[at_once][vectors<DTYPE>];
#pragma GCC unroll 3
            for (int i = 0; i < at_once; ++i) {
                const int vector = first_vector + i, part = vector % parts;
                const std::byte* at = codes + vector / parts * panel_bytes;
#pragma GCC unroll 3
                for (int line = 0; line < lines && part == 0; ++line)
                    prefetch_weights<DTYPE, ROWS, PANELS, ASKS>(at + line * 64, panel_bytes);
                unpack<DTYPE>(w[i], at + part * lanes * 4);
            }
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int j = 0; j < vectors<DTYPE>; ++j) {
                    const std::size_t input = first + k + 4 * static_cast<std::size_t>(j);
                    const Whole four = four_codes(x[r] + input);
#pragma GCC unroll 3
                    for (int i = 0; i < at_once; ++i) {
                        Whole& sum = sums[r][first_vector + i];
                        sum = dot(sum, w[i][j], four);
                    }
                }
        }
    }
}

// Returns the value at which the sums of a group start: minus the codes' offset times the sum of x.
// For int4 the offset is subtracted later, because each output has its own zero point.
template <PackedDtype DTYPE>
inline Whole first_sums(float x_sum) {
    if constexpr (DTYPE == PackedDtype::int4)
        return whole_zero();
    else
        return to_whole(times(real(x_sum), real(DTYPE == PackedDtype::int8    ? -128
                                                : DTYPE == PackedDtype::mxfp4 ? -12
                                                                              : -32)));
}

// Returns the scales of the outputs in vector `part` of a panel.
template <PackedDtype DTYPE>
inline Real scales_of(const std::byte* scales, int part) {
    if constexpr (DTYPE == PackedDtype::int8) return load_floats(scales + part * lanes * 4);
    if constexpr (DTYPE == PackedDtype::mxfp4) return load_exponents(scales + part * lanes);
    return load_halves(scales + part * lanes * 2);
}

// Computes the products of ROWS rows with the outputs of PANELS panels.
template <PackedDtype DTYPE, int ROWS, int PANELS, bool ASKS>
void tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
          const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t panel) {
    constexpr int columns = PANELS * parts;
    const std::int8_t* x[ROWS];
    const float *x_scales[ROWS], *x_sums[ROWS];
    Real totals[ROWS][columns];
    for (int r = 0; r < ROWS; ++r) {
        const std::uint32_t row = first_row + static_cast<std::uint32_t>(r);
        x[r] = rows.row_codes(row);
        x_scales[r] = rows.row_scales(row);
        x_sums[r] = rows.row_sums(row);
        for (int i = 0; i < columns; ++i) totals[r][i] = real(0);
    }

    const std::size_t panel_bytes = weights.panel_bytes();
    const PanelGroups<DTYPE> groups(weights, panel);
    for (std::uint32_t group = 0; group < rows.num_groups; ++group) {
        const GroupPlace at = groups[group];
        Whole sums[ROWS][columns];
        for (int r = 0; r < ROWS; ++r) {
            const Whole begin = first_sums<DTYPE>(x_sums[r][group]);
            for (int i = 0; i < columns; ++i) sums[r][i] = begin;
        }
        sum_group<DTYPE, ROWS, PANELS, ASKS>(
            sums, at.codes, x, std::size_t{group} * rows.group_size, rows.group_size, panel_bytes);

#pragma GCC unroll 6
        for (int i = 0; i < columns; ++i) {
            const std::byte* scales = at.scales + i / parts * panel_bytes;
            const int part = i % parts;
            if (ROWS > 1 && part == 0)
                prefetch_weights<DTYPE, ROWS, PANELS, ASKS>(scales, panel_bytes);
            const Real scale = scales_of<DTYPE>(scales, part);
            Real zero = real(0);
            if constexpr (DTYPE == PackedDtype::int4)
                zero = load_halves(scales + 32 + part * lanes * 2);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r) {
                Real centred = to_real(sums[r][i]);
                if constexpr (DTYPE == PackedDtype::int4)
                    centred = minus(centred, times(zero, real(x_sums[r][group])));
                totals[r][i] = plus(totals[r][i],
                                    times(times(scale, real(x_scales[r][group])), centred));
            }
        }
    }

    for (int p = 0; p < PANELS; ++p) {
        const std::uint32_t width = panel_width(weights, panel + static_cast<std::uint32_t>(p));
        for (int r = 0; r < ROWS; ++r) {
            float* to = out + static_cast<std::size_t>(r) * out_stride + p * panel_outs;
            alignas(64) float line[panel_outs];
            // usually true: whole vectors are stored without the call of memcpy for few bytes
            const bool is_whole = width == panel_outs;
            for (int i = 0; i < parts; ++i)
                store((is_whole ? to : line) + i * lanes, totals[r][p * parts + i]);
            if (!is_whole) std::memcpy(to, line, width * sizeof(float));
        }
    }
}

// Calls tile(), with prefetching of the weights that are read next if ROWS makes that worthwhile.
template <PackedDtype DTYPE, int ROWS, int PANELS>
void asking_tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
                 const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t panel) {
    constexpr bool only_waits = ROWS > 2 && ROWS < busy_rows(DTYPE) && PANELS == 1;
    if (only_waits && !few_rows_ask())
        tile<DTYPE, ROWS, PANELS, false>(out, out_stride, weights, rows, first_row, panel);
    else
        tile<DTYPE, ROWS, PANELS, true>(out, out_stride, weights, rows, first_row, panel);
}

// Multiplies the last rows, from first_row on and at most ROWS rows, in one pass over the panels.
template <PackedDtype DTYPE, int ROWS, int PANELS>
void last_tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
               const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t panel) {
    if constexpr (ROWS > 1)
        if (rows.num_rows - first_row < ROWS)
            return last_tile<DTYPE, ROWS - 1, PANELS>(out, out_stride, weights, rows, first_row,
                                                      panel);
    asking_tile<DTYPE, ROWS, PANELS>(out, out_stride, weights, rows, first_row, panel);
}

// Multiplies PANELS panels at a time, with at most ROWS rows at once, while at least PANELS panels
// are left. Returns the index of the first panel that is left.
template <PackedDtype DTYPE, int ROWS, int PANELS>
std::uint32_t walk(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
                   std::uint32_t panel, std::uint32_t panel_end) {
    for (; panel_end - panel >= PANELS; panel += PANELS) {
        const auto at = [&](std::uint32_t r) {
            return out.data + r * out.stride + std::size_t{panel} * panel_outs;
        };
        std::uint32_t r = 0;
        for (; r + ROWS <= x.num_rows && r < asking_rows; r += ROWS)
            asking_tile<DTYPE, ROWS, PANELS>(at(r), out.stride, weights, x, r, panel);
        for (; r + ROWS <= x.num_rows; r += ROWS)
            tile<DTYPE, ROWS, PANELS, false>(at(r), out.stride, weights, x, r, panel);
        if (r < x.num_rows)
            last_tile<DTYPE, ROWS - 1, PANELS>(at(r), out.stride, weights, x, r, panel);
    }
    return panel;
}

template <PackedDtype DTYPE>
void product(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
             std::uint32_t panel_begin, std::uint32_t panel_end) {
    std::uint32_t panel = panel_begin;
    if (tile_panels > 1 && x.num_rows > rows_at_once) {
        panel = walk<DTYPE, tile_rows, tile_panels>(out, weights, x, panel, panel_end);
        if constexpr (tile_panels > 2)
            panel = walk<DTYPE, tile_rows, 2>(out, weights, x, panel, panel_end);
    }
    walk<DTYPE, rows_at_once, 1>(out, weights, x, panel, panel_end);
}
