// The two VNNI paths: `dpbusd` adds four products of an unsigned and a signed byte to 32 bits and
// never saturates. Weights are the unsigned side: a code of 4 bits as it is, one of 8 bits plus
// 128 and one of 6 plus 32, which the formula then takes back as a zero (all of it whole numbers
// below 2^24, and so exact in f32). Included by integer_avx_vnni.cpp and integer_avx512_vnni.cpp,
// which define
//   Whole, Real   vectors of `lanes` i32 and f32, and the operations on them that stand below
//   parts         how many of them make a panel
//   tile_rows     how many rows share a panel's loads
//   busy_rows     with so many rows of a dtype and more, products take longer than their weights
//                 take to come from memory

// Who is busy asks for the same place of the next panel: far enough ahead for memory, and a panel
// fits the second cache. Fewer rows only wait for memory, and that would be one request more; a
// single one asks for what is next.
template <PackedDtype DTYPE, int ROWS>
inline void prefetch_weights(const std::byte* weights, std::size_t panel_bytes) {
    const char* at = reinterpret_cast<const char*>(weights);
    if constexpr (ROWS >= busy_rows(DTYPE))
        _mm_prefetch(at + panel_bytes, _MM_HINT_T1);
    else if constexpr (ROWS == 1)
        _mm_prefetch(at + 2048, _MM_HINT_T0);
}

// Of int6, 16 inputs from three times 64 bytes.
template <int ROWS>
inline void sum_int6(Whole (&sums)[ROWS][parts], const std::byte* codes,
                     const std::int8_t* const (&x)[ROWS], std::size_t first,
                     std::uint32_t group_size, std::size_t panel_bytes) {
    for (std::uint32_t k = 0; k < group_size; k += 16, codes += 192) {
#pragma GCC unroll 3
        for (int b = 0; b < 3; ++b)
            prefetch_weights<PackedDtype::int6, ROWS>(codes + b * 64, panel_bytes);
#pragma GCC unroll 2
        for (int i = 0; i < parts; ++i) {
            const std::byte* at = codes + i * lanes * 4;
            const Whole a = load(at), b = load(at + 64), c = load(at + 128);
            const Whole w[4] = {low_six(a), low_six(b), low_six(c), high_twos(a, b, c)};
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
                for (int j = 0; j < 4; ++j)
                    sums[r][i] = dot(sums[r][i], w[j], four_codes(x[r] + first + k + 4 * j));
        }
    }
}

// Sums of one group: [rows][parts of the panel].
template <PackedDtype DTYPE, int ROWS>
inline void sum_group(Whole (&sums)[ROWS][parts], const std::byte* codes,
                      const std::int8_t* const (&x)[ROWS], std::size_t first,
                      std::uint32_t group_size, std::size_t panel_bytes) {
    if constexpr (DTYPE == PackedDtype::int6)
        return sum_int6<ROWS>(sums, codes, x, first, group_size, panel_bytes);
    constexpr std::uint32_t inputs = DTYPE == PackedDtype::int8 ? 4 : 8;  // in 64 bytes
    for (std::uint32_t k = 0; k < group_size; k += inputs, codes += 64) {
        prefetch_weights<DTYPE, ROWS>(codes, panel_bytes);
#pragma GCC unroll 2
        for (int i = 0; i < parts; ++i) {
            const Whole loaded = load(codes + i * lanes * 4);
            if constexpr (DTYPE == PackedDtype::int8) {
                const Whole w = plus_128(loaded);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r)
                    sums[r][i] = dot(sums[r][i], w, four_codes(x[r] + first + k));
            } else {
                const Whole low = low_half(loaded), high = high_half(loaded);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; ++r) {
                    sums[r][i] = dot(sums[r][i], low, four_codes(x[r] + first + k));
                    sums[r][i] = dot(sums[r][i], high, four_codes(x[r] + first + k + 4));
                }
            }
        }
    }
}

// ROWS rows times one panel.
template <PackedDtype DTYPE, int ROWS>
void tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
          const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t panel) {
    const std::int8_t* x[ROWS];
    Real totals[ROWS][parts];
    for (int r = 0; r < ROWS; ++r) {
        x[r] = rows.row_codes(first_row + static_cast<std::uint32_t>(r));
        for (int i = 0; i < parts; ++i) totals[r][i] = real(0);
    }

    const std::size_t panel_bytes = weights.panel_bytes();
    for (std::uint32_t group = 0; group < rows.num_groups; ++group) {
        const GroupPlace at = group_place<DTYPE>(weights, panel, group);
        if constexpr (ROWS > 1) prefetch_weights<DTYPE, ROWS>(at.scales, panel_bytes);
        Whole sums[ROWS][parts];
        for (int r = 0; r < ROWS; ++r)
            for (int i = 0; i < parts; ++i) sums[r][i] = whole_zero();
        sum_group<DTYPE, ROWS>(sums, at.codes, x, std::size_t{group} * rows.group_size,
                               rows.group_size, panel_bytes);

        for (int r = 0; r < ROWS; ++r) {
            const std::uint32_t row = first_row + static_cast<std::uint32_t>(r);
            const Real x_scale = real(rows.row_scales(row)[group]),
                       x_sum = real(rows.row_sums(row)[group]);
            for (int i = 0; i < parts; ++i) {
                const Real scale = DTYPE == PackedDtype::int8
                                       ? load_floats(at.scales + i * lanes * 4)
                                       : load_halves(at.scales + i * lanes * 2);
                const Real zero = DTYPE == PackedDtype::int4
                                      ? load_halves(at.scales + 32 + i * lanes * 2)
                                      : real(DTYPE == PackedDtype::int8 ? 128 : 32);
                const Real centred = minus(to_real(sums[r][i]), times(zero, x_sum));
                totals[r][i] = plus(totals[r][i], times(times(scale, x_scale), centred));
            }
        }
    }

    const std::uint32_t width = panel_width(weights, panel);
    for (int r = 0; r < ROWS; ++r) {
        alignas(64) float line[panel_outs];
        for (int i = 0; i < parts; ++i) store(line + i * lanes, totals[r][i]);
        std::memcpy(out + static_cast<std::size_t>(r) * out_stride, line, width * sizeof(float));
    }
}

// The rows from first_row on, ROWS at most, in one walk over the panel.
template <PackedDtype DTYPE, int ROWS>
void last_tile(float* out, std::size_t out_stride, const PackedMatrix& weights,
               const QuantizedRows& rows, std::uint32_t first_row, std::uint32_t panel) {
    if constexpr (ROWS > 1)
        if (rows.num_rows - first_row < ROWS)
            return last_tile<DTYPE, ROWS - 1>(out, out_stride, weights, rows, first_row, panel);
    tile<DTYPE, ROWS>(out, out_stride, weights, rows, first_row, panel);
}

template <PackedDtype DTYPE>
void product(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
             std::uint32_t panel_begin, std::uint32_t panel_end) {
    for (std::uint32_t panel = panel_begin; panel < panel_end; ++panel) {
        const auto at = [&](std::uint32_t r) {
            return out.data + r * out.stride + std::size_t{panel} * panel_outs;
        };
        std::uint32_t r = 0;
        for (; r + tile_rows <= x.num_rows; r += tile_rows)
            tile<DTYPE, tile_rows>(at(r), out.stride, weights, x, r, panel);
        if (r < x.num_rows)
            last_tile<DTYPE, tile_rows - 1>(at(r), out.stride, weights, x, r, panel);
    }
}
