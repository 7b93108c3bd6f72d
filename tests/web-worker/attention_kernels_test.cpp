// Compares the kernels of attention, and of the cache that they read, with reference functions in
// double (decoder_twins.h), at odd sizes.
#include "tests/web-worker/decoder_kernels.h"
#include "tests/web-worker/decoder_twins.h"
#include "web-worker/decoder/kv_rows.h"

namespace moex::test {
namespace {

// Decodes the codes that rope_store_u8 wrote for one token of one head. `slot`: the number of the
// head, counted over the heads of keys and then those of values.
struct StoredHead {
    float scale = 0, zero = 0;
    Floats values;
};
StoredHead stored_head(const Words& kv, std::uint32_t kv_heads, std::uint32_t head_dim,
                       std::uint32_t page, std::uint32_t slot, std::uint32_t token) {
    const std::uint32_t quads = head_dim / 4, heads = 2 * kv_heads,
                        base = page * heads * kv_page_tokens * (quads + 1),
                        scale_zero = kv[base + (heads * quads + slot) * kv_page_tokens + token];
    StoredHead head{half_to_float(static_cast<half>(scale_zero & 0xffff)),
                    half_to_float(static_cast<half>(scale_zero >> 16)),
                    {}};
    for (std::uint32_t d = 0; d < head_dim; ++d) {
        const std::uint32_t at = slot < kv_heads ? d / 4 * kv_page_tokens + token
                                                 : token * quads + d / 4,
                            code = kv[base + slot * kv_page_tokens * quads + at] >> 8 * (d % 4) &
                                   255;
        head.values.push_back(std::fma(static_cast<float>(code), head.scale, head.zero));
    }
    return head;
}

// Compares the u8 codes with those of the reference function. The attention is then compared with a
// reference that uses these codes.
Floats checked_codes(const StoredHead& mine, const test::Doubles& wanted) {
    const test::CodedHead twin = test::code_head(wanted);
    EXPECT_NEAR(mine.zero, twin.zero, 1e-3 * std::abs(twin.zero));
    EXPECT_NEAR(mine.scale, twin.scale, 1e-3 * twin.scale);
    const double f16_step = std::abs(twin.zero) / 1024;
    for (std::size_t d = 0; d < wanted.size(); ++d) {
        EXPECT_NEAR(mine.values[d], twin.values[d], 1.01 * twin.scale + f16_step);
        EXPECT_NEAR(mine.values[d], wanted[d], 0.6 * twin.scale + f16_step);
    }
    return mine.values;
}

// Returns the table of rotation angles: for each position first all cosines, then all sines.
Floats angles(std::uint32_t positions, std::uint32_t head_dim, double theta) {
    Floats cos_sin(positions * head_dim);
    for (std::uint32_t p = 0; p < positions; ++p)
        for (std::uint32_t i = 0; i < head_dim / 2; ++i) {
            const double angle = p * std::pow(theta, -2.0 * i / head_dim);
            cos_sin[p * head_dim + i] = static_cast<float>(std::cos(angle));
            cos_sin[p * head_dim + head_dim / 2 + i] = static_cast<float>(std::sin(angle));
        }
    return cos_sin;
}

class AttentionKernelsTest : public DecoderKernelsTest, public testing::WithParamInterface<KvKind> {
  protected:
    static std::string suffix() {
        return GetParam() == KvKind::f16 ? "_f16" : GetParam() == KvKind::u8 ? "_u8" : "";
    }
    // Returns the number of words that one head takes for one token. head_dim is even, and a
    // multiple of 4 for u8 codes.
    static std::size_t head_words(std::uint32_t head_dim) {
        return GetParam() == KvKind::f32   ? head_dim
               : GetParam() == KvKind::f16 ? head_dim / 2
                                           : head_dim / 4 + 1;
    }
};
INSTANTIATE_TEST_SUITE_P(Kv, AttentionKernelsTest,
                         testing::Values(KvKind::f32, KvKind::f16, KvKind::u8));

// Returns the constants of rope_store with norms of q and k, and of attend_page.
std::vector<gpu::KernelConstant> store_constants(std::uint32_t heads, std::uint32_t kv_heads,
                                                 std::uint32_t head_dim, std::uint32_t rotary,
                                                 std::uint32_t norms_all_heads) {
    return {{"num_heads", heads},
            {"num_kv_heads", kv_heads},
            {"head_dim", head_dim},
            {"rotary_size", rotary},
            {"has_qk_norm", 1},
            {"norms_all_heads", norms_all_heads},
            {"epsilon_bits", std::bit_cast<std::uint32_t>(1e-6f)}};
}
std::vector<gpu::KernelConstant> attend_constants(std::uint32_t heads, std::uint32_t kv_heads,
                                                  std::uint32_t head_dim, std::uint32_t window,
                                                  float scale) {
    return {{"num_heads", heads},
            {"num_kv_heads", kv_heads},
            {"head_dim", head_dim},
            {"window", window},
            {"scale_bits", std::bit_cast<std::uint32_t>(scale)}};
}

// Stores 131 positions with rope_store in two pages of the cache, the second page first, and then
// computes the attention over all positions.
TEST_P(AttentionKernelsTest, AttentionOverPagesAgreesWithDouble) {
    constexpr std::uint32_t heads = 20, kv_heads = 2, head_dim = 36, positions = 131, pages = 2,
                            slots = heads + 2 * kv_heads;
    constexpr double theta = 10000;
    const Floats qkv = random_floats(positions * slots * head_dim, 8),
                 norms = random_floats(2 * head_dim, 9);
    std::vector<StepRow> rows;
    for (std::uint32_t p = 0; p < positions; ++p) rows.push_back({0, p, 1});
    const Floats cos_sin = angles(pages * kv_page_tokens, head_dim, theta);
    const Words page_table = {9, 1, 0};
    const auto stored = run("rope_store" + suffix(),
                            store_constants(heads, kv_heads, head_dim, head_dim, 0),
                            {rows_buffer(rows), words_of(qkv), words_of(norms), words_of(cos_sin),
                             page_table, Words(positions * heads * head_dim),
                             Words(pages * 2 * kv_heads * kv_page_tokens * head_words(head_dim))},
                            {slots, positions, 1});
    const auto attended = run(
        "attend_page" + suffix(), attend_constants(heads, kv_heads, head_dim, 0, 0),
        {rows_buffer(rows, {.part_pages = pages}), page_table, stored[5], stored[6],
         Words(positions * heads * pages * head_dim), Words(positions * heads * pages * 2)},
        {kv_heads * 2, pages, positions});
    const Floats out = floats_of(
        run("attend_merge",
            {{"num_heads", heads}, {"head_dim", head_dim}, {"transposes", 0}, {"window", 0}},
            {rows_buffer(rows, {.part_pages = pages}), attended[4], attended[5],
             Words(positions * heads * head_dim)},
            {heads, positions, 1})[3]);

    const auto head_of = [&](std::uint32_t row, std::uint32_t slot) {
        return std::span(qkv).subspan((row * slots + slot) * head_dim, head_dim);
    };
    const Floats q_stored = floats_of(stored[5]);
    for (const std::uint32_t row : {0u, 127u, 130u})
        for (const std::uint32_t head : {0u, 9u, 19u}) {
            const auto turned = test::rope(head_of(row, head), std::span(norms).first(head_dim),
                                           1e-6, row, theta);
            EXPECT_LE(
                normalized_rms_error(
                    std::span(q_stored).subspan((row * heads + head) * head_dim, head_dim), turned),
                1e-6);

            Floats k, v;
            const std::uint32_t kv_head = head / (heads / kv_heads);
            const auto add = [&](Floats& to, std::uint32_t p, std::uint32_t slot,
                                 const test::Doubles& wanted) {
                const Floats held = GetParam() != KvKind::u8
                                        ? Floats(wanted.begin(), wanted.end())
                                        : checked_codes(
                                              stored_head(stored[6], kv_heads, head_dim,
                                                          page_table[1 + p / kv_page_tokens], slot,
                                                          p % kv_page_tokens),
                                              wanted);
                to.insert(to.end(), held.begin(), held.end());
            };
            for (std::uint32_t p = 0; p <= row; ++p) {
                add(k, p, kv_head,
                    test::rope(head_of(p, heads + kv_head), std::span(norms).last(head_dim), 1e-6,
                               p, theta));
                const auto value = head_of(p, heads + kv_heads + kv_head);
                add(v, p, kv_heads + kv_head, test::Doubles(value.begin(), value.end()));
            }
            const auto mine = std::span(out).subspan((row * heads + head) * head_dim, head_dim);
            const Floats q(turned.begin(), turned.end());
            EXPECT_LE(normalized_rms_error(mine, test::attend(q, k, v)),
                      GetParam() == KvKind::f16 ? 1e-3 : 1e-5)
                << "row " << row << " head " << head;
        }
}

// Returns the values that a cache of f32 or f16 has for one token of one head, by the layout of
// kv_rows.h.
Floats values_of_page(KvKind kind, std::uint32_t head_dim, std::span<const std::uint32_t> page,
                      std::uint32_t kv_heads, std::size_t head_at) {
    Words rows(page.size());
    rows_of_gpu_page({kind, 1, kv_heads, head_dim}, std::as_bytes(page),
                     std::as_writable_bytes(std::span(rows)));
    const std::size_t first = head_at * head_dim;
    if (kind == KvKind::f32) return floats_of(std::span(rows).subspan(first, head_dim));
    Floats values;
    for (std::size_t i = first; i < first + head_dim; ++i)
        values.push_back(half_to_float(static_cast<half>(rows[i / 2] >> 16 * (i % 2))));
    return values;
}

// Writes rows of f16 into two pages of the cache, the second page first, and reads them back.
TEST_P(AttentionKernelsTest, CopiedRowsAreThoseOfTheCache) {
    constexpr std::uint32_t kv_heads = 2, head_dim = 36, pages = 2, slots = 2 * kv_heads;
    const std::uint32_t positions[] = {5, 127, 130};
    std::vector<StepRow> rows;
    for (const std::uint32_t position : positions) rows.push_back({0, position, 1});
    const Words page_table = {9, 1, 0};
    std::vector<half> halves;
    for (const float value : random_floats(rows.size() * slots * head_dim, 17))
        halves.push_back(float_to_half(value));
    Words copied(halves.size() / 2);
    std::memcpy(copied.data(), halves.data(), halves.size() * sizeof(half));

    const std::vector<gpu::KernelConstant> constants = {{"num_kv_heads", kv_heads},
                                                        {"head_dim", head_dim}};
    const std::size_t page_words = slots * kv_page_tokens * head_words(head_dim);
    const Words cache = run("kv_scatter" + suffix(), constants,
                            {rows_buffer(rows), page_table, Words(pages * page_words), copied},
                            {slots, 3, 1})[2];
    const Words back = run("kv_gather" + suffix(), constants,
                           {rows_buffer(rows), page_table, cache, Words(copied.size())},
                           {slots, 3, 1})[3];
    const auto used = static_cast<std::size_t>(
        std::count_if(cache.begin(), cache.end(), [](std::uint32_t word) { return word != 0; }));
    EXPECT_LE(used, 3 * slots * head_words(head_dim)) << "other rows were written";
    if (GetParam() != KvKind::u8) EXPECT_EQ(back, copied);

    for (std::uint32_t row = 0; row < 3; ++row)
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            const std::uint32_t page = page_table[1 + positions[row] / kv_page_tokens],
                                token = positions[row] % kv_page_tokens;
            Floats wanted, read;
            for (std::size_t at = (row * slots + slot) * head_dim; wanted.size() < head_dim; ++at) {
                wanted.push_back(half_to_float(halves[at]));
                read.push_back(half_to_float(static_cast<half>(back[at / 2] >> 16 * (at % 2))));
            }
            if (GetParam() != KvKind::u8) {
                const auto words = std::span(cache).subspan(page * page_words, page_words);
                EXPECT_EQ(values_of_page(GetParam(), head_dim, words, kv_heads,
                                         slot * kv_page_tokens + token),
                          wanted);
                continue;
            }
            Floats held = checked_codes(stored_head(cache, kv_heads, head_dim, page, slot, token),
                                        {wanted.begin(), wanted.end()});
            for (float& value : held) value = half_to_float(float_to_half(value));
            EXPECT_EQ(read, held);
        }
}

// Row 130 sees tokens of two pages, and row 199 sees none of the first page. A sink is a further
// token with that logit, whose values are zeros.
TEST_F(DecoderKernelsTest, WindowsSinksPartialRotationAndNormsOverAllHeadsAgreeWithDouble) {
    constexpr std::uint32_t heads = 4, kv_heads = 2, head_dim = 36, rotary = 24, positions = 200,
                            pages = 2, slots = heads + 2 * kv_heads, window = 60;
    constexpr double theta = 10000, scale = 0.25;
    const Floats qkv = random_floats(positions * slots * head_dim, 31),
                 norms = random_floats((heads + kv_heads) * head_dim, 32),
                 sinks = random_floats(heads, 33);
    std::vector<StepRow> rows;
    for (std::uint32_t p = 0; p < positions; ++p) rows.push_back({0, p, 0});
    const Words page_table = {0, 1};
    const auto stored = run(
        "rope_store", store_constants(heads, kv_heads, head_dim, rotary, 1),
        {rows_buffer(rows), words_of(qkv), words_of(norms),
         words_of(angles(pages * kv_page_tokens, rotary, theta)), page_table,
         Words(positions * heads * head_dim), Words(pages * 2 * kv_heads * 128 * head_dim)},
        {slots, positions, 1});
    const auto parts = run(
        "attend_page", attend_constants(heads, kv_heads, head_dim, window, scale),
        {rows_buffer(rows, {.part_pages = pages}), page_table, stored[5], stored[6],
         Words(positions * heads * pages * head_dim), Words(positions * heads * pages * 2)},
        {kv_heads, pages, positions});
    const Floats out = floats_of(
        run("attend_merge_sinks",
            {{"num_heads", heads}, {"head_dim", head_dim}, {"transposes", 0}, {"window", window}},
            {rows_buffer(rows, {.part_pages = pages}), parts[4], parts[5],
             Words(positions * heads * head_dim), words_of(sinks)},
            {heads, positions, 1})[3]);

    // Returns heads [first, first + count) of a row, normalised together, and each rotated.
    const auto turned = [&](std::uint32_t row, std::uint32_t first, std::uint32_t count) {
        const auto of_row = std::span(qkv).subspan((row * slots + first) * head_dim,
                                                   count * head_dim);
        test::Doubles all(of_row.begin(), of_row.end());
        all = test::add_norm(all, {}, std::span(norms).subspan(first * head_dim, count * head_dim),
                             1e-6);
        for (std::uint32_t head = 0; head < count; ++head) {
            const auto begin = all.begin() + head * head_dim;
            const Floats plain(begin, begin + rotary);
            const auto moved = test::rope(plain, {}, 1e-6, row, theta);
            std::copy(moved.begin(), moved.end(), begin);
        }
        return Floats(all.begin(), all.end());
    };
    for (const std::uint32_t row : {5u, 130u, 199u})
        for (std::uint32_t head = 0; head < heads; ++head) {
            const std::uint32_t kv_head = head / (heads / kv_heads);
            const Floats all_q = turned(row, 0, heads);
            Floats q(all_q.begin() + head * head_dim, all_q.begin() + (head + 1) * head_dim), k, v;
            double length = 0;
            for (float& value : q) {
                value *= static_cast<float>(scale * std::sqrt(head_dim));
                length += double{value} * value;
            }
            for (std::uint32_t p = row < window ? 0 : row + 1 - window; p <= row; ++p) {
                const Floats keys = turned(p, heads, kv_heads);
                k.insert(k.end(), keys.begin() + kv_head * head_dim,
                         keys.begin() + (kv_head + 1) * head_dim);
                const auto values = std::span(qkv).subspan(
                    (p * slots + heads + kv_heads + kv_head) * head_dim, head_dim);
                v.insert(v.end(), values.begin(), values.end());
            }
            for (const float value : q)
                k.push_back(static_cast<float>(sinks[head] * std::sqrt(head_dim) * value / length));
            v.resize(k.size());
            const auto mine = std::span(out).subspan((row * heads + head) * head_dim, head_dim);
            EXPECT_LE(normalized_rms_error(mine, test::attend(q, k, v)), 1e-5)
                << "row " << row << " head " << head;
        }
}

// The kernel takes blocks of 256 pages. A row has the same bits alone and beside other rows.
TEST_F(DecoderKernelsTest, MergedPartsOfManyPagesAgreeWithDouble) {
    constexpr std::uint32_t heads = 2, head_dim = 36, pages = 600;
    const std::vector<std::uint32_t> positions = {pages * kv_page_tokens - 1, 257 * kv_page_tokens,
                                                  300 * kv_page_tokens + 5, 100};
    const auto num_rows = static_cast<std::uint32_t>(positions.size());
    const Floats parts = random_floats(num_rows * heads * pages * head_dim, 41);
    Floats peaks = random_floats(num_rows * heads * pages * 2, 42);
    for (std::size_t i = 0; i < peaks.size(); i += 2) {
        peaks[i] *= 8;
        peaks[i + 1] = 1 + std::abs(peaks[i + 1]);
    }
    const auto merged = [&](std::uint32_t first, std::uint32_t count, std::uint32_t window) {
        std::vector<StepRow> rows;
        for (std::uint32_t row = first; row < first + count; ++row)
            rows.push_back({0, positions[row], 0});
        const auto of_rows = [&](const Floats& all) {
            const std::size_t size = all.size() / num_rows;
            return words_of({all.begin() + static_cast<std::ptrdiff_t>(first * size),
                             all.begin() + static_cast<std::ptrdiff_t>((first + count) * size)});
        };
        return floats_of(run(
            "attend_merge",
            {{"num_heads", heads}, {"head_dim", head_dim}, {"transposes", 0}, {"window", window}},
            {rows_buffer(rows, {.part_pages = pages}), of_rows(parts), of_rows(peaks),
             Words(count * heads * head_dim)},
            {heads, count, 1})[3]);
    };
    for (const std::uint32_t window : {0U, 260 * kv_page_tokens}) {
        const Floats out = merged(0, num_rows, window);
        for (std::uint32_t row = 0; row < num_rows; ++row) {
            const Floats of_row(out.begin() + row * heads * head_dim,
                                out.begin() + (row + 1) * heads * head_dim);
            EXPECT_EQ(merged(row, 1, window), of_row) << "row " << row << " window " << window;
            const std::uint32_t seen = positions[row] + 1,
                                first_page = window && seen > window
                                                 ? (seen - window) / kv_page_tokens
                                                 : 0;
            test::Doubles wanted;
            for (std::uint32_t head = 0; head < heads; ++head) {
                test::Doubles mix(head_dim);
                double sum = 0;
                for (std::uint32_t page = first_page; page <= positions[row] / kv_page_tokens;
                     ++page) {
                    const std::size_t at = (row * heads + head) * pages + page;
                    const double weight = std::exp(double{peaks[2 * at]});
                    sum += weight * peaks[2 * at + 1];
                    for (std::uint32_t d = 0; d < head_dim; ++d)
                        mix[d] += weight * parts[at * head_dim + d];
                }
                for (const double value : mix) wanted.push_back(value / sum);
            }
            EXPECT_LE(normalized_rms_error(of_row, wanted), 1e-5)
                << "row " << row << " window " << window;
        }
    }
}

}  // namespace
}  // namespace moex::test
