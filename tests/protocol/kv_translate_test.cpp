// Tests the translation of pages: between 16 and 128 tokens without a changed bit, and between f32,
// f16 and u8 within the bounds that protocol/kv_translate.h states.
#include "protocol/kv_translate.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "protocol/half.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint32_t num_layers = 2, num_kv_heads = 3;

// Stands for SHA-256: any function of the number of tokens will do.
Sha256 hash_at(std::uint32_t num_tokens) {
    Sha256 hash{};
    std::memcpy(hash.data(), &num_tokens, sizeof num_tokens);
    return hash;
}

KvSource source_of(KvRowType type, std::uint32_t page_tokens, std::uint32_t head_dim = 10) {
    KvSource source;
    source.row_type = type;
    source.end_layer = num_layers;
    source.num_kv_heads = num_kv_heads;
    source.head_dim = head_dim;
    source.page_tokens = page_tokens;
    return source;
}

// The pages of a text of `num_tokens` tokens, with random rows; the bytes of a row depend on
// nothing else than the seed.
std::vector<OwnedKvPage> pages_of(const KvSource& source, std::uint32_t num_tokens,
                                  std::uint32_t first_position = 0) {
    std::mt19937 random(36);
    std::normal_distribution<float> normal;
    std::vector<OwnedKvPage> pages;
    for (std::uint32_t first = 0; first < num_tokens; first += source.page_tokens) {
        OwnedKvPage& owned = pages.emplace_back();
        const std::uint32_t count = std::min(source.page_tokens, num_tokens - first);
        owned.page.source = source;
        owned.page.first_position = first_position + first;
        owned.page.before = hash_at(first_position + first);
        for (std::uint32_t i = 0; i < count; ++i) owned.page.tokens.push_back(first + i);
        owned.page.workers = {"ada", text("worker-", first)};
        owned.rows.resize(kv_rows_bytes(source, count));
        for (std::size_t at = 0; at + 4 <= owned.rows.size(); at += 4) {
            const float value = normal(random);
            std::memcpy(owned.rows.data() + at, &value, 4);
        }
    }
    for (OwnedKvPage& owned : pages) owned.page.rows = owned.rows;
    return pages;
}
std::vector<KvPage> views(const std::vector<OwnedKvPage>& owned) {
    std::vector<KvPage> pages;
    for (const OwnedKvPage& one : owned) pages.push_back(one.page);
    return pages;
}
Bytes copy_of(ByteView bytes) { return Bytes(bytes.begin(), bytes.end()); }

// The stored head of a token, found without the code under test.
ByteView row_of(const KvPage& page, std::size_t block, std::size_t token) {
    const std::size_t row_bytes = kv_row_bytes(page.source.row_type, page.source.head_dim);
    return page.rows.subspan((block * page.tokens.size() + token) * row_bytes, row_bytes);
}

TEST(KvTranslateTest, PagesOf16JoinTo128AndDivideAgain) {
    for (const KvRowType type : {KvRowType::f32, KvRowType::f16, KvRowType::int8, KvRowType::u8})
        for (const std::uint32_t num_tokens : {1u, 16u, 17u, 128u, 300u}) {
            const auto small = pages_of(source_of(type, 16), num_tokens);
            const auto large = resize_kv_pages(views(small), 128, hash_at);
            ASSERT_TRUE(large.ok()) << large.error().message;
            ASSERT_EQ(large->size(), (num_tokens + 127) / 128);
            for (std::uint32_t position = 0; position < num_tokens; ++position)
                for (std::size_t block = 0; block < 2 * num_layers * num_kv_heads; ++block) {
                    const KvPage& from = small[position / 16].page;
                    const KvPage& to = (*large)[position / 128].page;
                    EXPECT_EQ(to.tokens[position % 128], position);
                    EXPECT_EQ(copy_of(row_of(to, block, position % 128)),
                              copy_of(row_of(from, block, position % 16)));
                }
            EXPECT_EQ(large->front().page.workers.size(), 1 + std::min(8u, (num_tokens + 15) / 16));

            const auto again = resize_kv_pages(views(*large), 16, hash_at);
            ASSERT_TRUE(again.ok()) << again.error().message;
            ASSERT_EQ(again->size(), small.size());
            for (std::size_t i = 0; i < small.size(); ++i) {
                EXPECT_EQ((*again)[i].rows, small[i].rows);
                EXPECT_EQ((*again)[i].page.tokens, small[i].page.tokens);
                EXPECT_EQ((*again)[i].page.before, small[i].page.before);
                EXPECT_EQ((*again)[i].page.first_position, small[i].page.first_position);
                EXPECT_TRUE(require_source((*again)[i].page.source, small[i].page.source).ok());
                // A translated page is a page.
                EXPECT_TRUE(decode_kv_page(encode_kv_page((*again)[i].page)).ok());
            }
        }
}

TEST(KvTranslateTest, PagesThatDoNotFollowEachOtherAreRefused) {
    const auto whole = pages_of(source_of(KvRowType::f16, 16), 64);
    const auto message = [&](auto change, std::uint32_t page_tokens = 128) {
        std::vector<KvPage> pages = views(whole);
        change(pages);
        const auto resized = resize_kv_pages(pages, page_tokens, hash_at);
        return resized.ok() ? std::string("accepted") : resized.error().message;
    };
    EXPECT_EQ(message([](auto&) {}), "accepted");
    EXPECT_NE(message([](auto& pages) { pages.erase(pages.begin() + 1); }).find("begins at 32"),
              std::string::npos);
    EXPECT_NE(message([](auto& pages) { pages.erase(pages.begin()); }).find("multiple of 128"),
              std::string::npos);
    EXPECT_NE(message([](auto& pages) { pages[2].source.norm_epsilon = 1; }).find("norm_epsilon"),
              std::string::npos);
    EXPECT_NE(message([](auto& pages) { pages[3].before = {}; }).find("another text"),
              std::string::npos);
    EXPECT_NE(message([](auto& pages) { pages[1].tokens.pop_back(); }).find("has 15 tokens"),
              std::string::npos);
    EXPECT_NE(message([](auto& pages) { pages.clear(); }).find("0 pages"), std::string::npos);
    EXPECT_NE(message([](auto&) {}, 0).find("pages of 0 tokens"), std::string::npos);
}

TEST(KvTranslateTest, RecurrentStateStaysAtTheEndOfAPage) {
    auto small = pages_of(source_of(KvRowType::f16, 16), 32);
    for (OwnedKvPage& owned : small) {
        owned.state.assign(3, static_cast<std::byte>(owned.page.first_position + 1));
        owned.page.state = owned.state;
    }
    const auto large = resize_kv_pages(views(small), 128, hash_at);
    ASSERT_TRUE(large.ok()) << large.error().message;
    EXPECT_EQ(large->front().state, small.back().state);
    const auto again = resize_kv_pages(views(*large), 16, hash_at);
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().code, ErrorCode::unsupported);
}

// Returns the values of all rows, decoded by a plain formula for each form.
std::vector<std::vector<double>> values_of(const KvPage& page) {
    const auto half_at = [](ByteView row, std::size_t offset) {
        half bits = 0;
        std::memcpy(&bits, row.data() + offset, sizeof bits);
        return double{half_to_float(bits)};
    };
    std::vector<std::vector<double>> rows;
    const std::size_t size = page.source.head_dim, codes_end = (size + 3) / 4 * 4;
    for (std::size_t block = 0; block < 2 * num_layers * num_kv_heads; ++block)
        for (std::size_t token = 0; token < page.tokens.size(); ++token) {
            const ByteView row = row_of(page, block, token);
            std::vector<double>& values = rows.emplace_back(size);
            for (std::size_t i = 0; i < size; ++i) {
                float single = 0;
                if (page.source.row_type == KvRowType::f32)
                    std::memcpy(&single, row.data() + 4 * i, 4);
                values[i] = page.source.row_type == KvRowType::f32 ? double{single}
                            : page.source.row_type == KvRowType::f16
                                ? half_at(row, 2 * i)
                                : half_at(row, codes_end + 2) +
                                      half_at(row, codes_end) *
                                          double(std::to_integer<unsigned>(row[i]));
            }
        }
    return rows;
}

// Rows of several sizes and offsets: near zero, far from it, one value only, subnormal in f16.
std::vector<OwnedKvPage> hard_pages(std::uint32_t head_dim) {
    auto pages = pages_of(source_of(KvRowType::f32, 16, head_dim), 16);
    Bytes& rows = pages.front().rows;
    const double scales[] = {1, 1e-3, 30, 1e-7, 1000, 0}, offsets[] = {0, 5, -300, 1e-6, 20000};
    for (std::size_t i = 0; i * 4 < rows.size(); ++i) {
        float value = 0;
        std::memcpy(&value, rows.data() + 4 * i, 4);
        const std::size_t row = i / head_dim;
        value = static_cast<float>(value * scales[row % 6] + offsets[row / 6 % 5]);
        std::memcpy(rows.data() + 4 * i, &value, 4);
    }
    pages.front().page.rows = rows;
    return pages;
}

TEST(KvTranslateTest, HalvesStayWithinTheirBound) {
    const auto pages = hard_pages(10);
    const KvPage& page = pages.front().page;
    const auto halves = convert_kv_rows(page, KvRowType::f16);
    ASSERT_TRUE(halves.ok()) << halves.error().message;
    const auto back = convert_kv_rows(halves->page, KvRowType::f32);
    ASSERT_TRUE(back.ok());
    const auto before = values_of(page), stored = values_of(halves->page),
               after = values_of(back->page);
    EXPECT_EQ(stored, after);
    for (std::size_t row = 0; row < before.size(); ++row)
        for (std::size_t i = 0; i < before[row].size(); ++i)
            EXPECT_LE(std::abs(before[row][i] - after[row][i]),
                      std::max(std::abs(before[row][i]) * 0x1p-11, 0x1p-25));
    // What is stored as f16 comes back with the same bytes.
    EXPECT_EQ(convert_kv_rows(back->page, KvRowType::f16)->rows, halves->rows);
}

TEST(KvTranslateTest, CodesStayWithinTheirBoundThereAndBack) {
    for (const std::uint32_t head_dim : {1u, 10u, 64u, 128u}) {
        const auto pages = hard_pages(head_dim);
        const KvPage& page = pages.front().page;
        const auto codes = convert_kv_rows(page, KvRowType::u8);
        ASSERT_TRUE(codes.ok()) << codes.error().message;
        EXPECT_EQ(codes->page.source.row_type, KvRowType::u8);
        const auto back = convert_kv_rows(codes->page, KvRowType::f32);
        const auto codes_again = convert_kv_rows(back->page, KvRowType::u8);
        const auto before = values_of(page), after = values_of(codes->page),
                   again = values_of(codes_again->page);
        double worst = 0;
        for (std::size_t row = 0; row < before.size(); ++row) {
            const auto [low, high] = std::minmax_element(before[row].begin(), before[row].end());
            const double bound = kv_code_error(*low, *high);
            // The bound is tight: half a code, and the rounding of zero and scale to f16.
            EXPECT_LE(bound, (*high - *low) * 0x1.1p-9 + 1.01 * std::abs(*low) * 0x1p-11 +
                                 (*high - *low) * 0x1.1p-11 + 1e-5 + std::abs(*high) * 0x1p-21);
            for (std::size_t i = 0; i < before[row].size(); ++i) {
                const double error = std::abs(before[row][i] - after[row][i]);
                EXPECT_LE(error, bound) << "row " << row << " of " << *low << " to " << *high;
                EXPECT_LE(std::abs(before[row][i] - again[row][i]), 2 * bound + 1e-9);
                worst = std::max(worst, error / bound);
            }
        }
        EXPECT_GT(worst, 0.3) << "the bound is far too wide";
    }
}

// Two heads by hand: the codes are those of wgsl/decoder/rope_store.wgsl.
TEST(KvTranslateTest, CodesOfAHeadAreTheKernels) {
    OwnedKvPage owned;
    owned.page.source = source_of(KvRowType::f32, 1, 5);
    owned.page.source.end_layer = owned.page.source.num_kv_heads = 1;
    owned.page.tokens = {7};
    const float values[] = {-1, -0.5f, 0, 0.5f, 1.55f, 2, 2, 2, 2, 2};
    owned.rows.resize(sizeof values);
    std::memcpy(owned.rows.data(), values, sizeof values);
    owned.page.rows = owned.rows;
    const auto codes = convert_kv_rows(owned.page, KvRowType::u8);
    ASSERT_TRUE(codes.ok()) << codes.error().message;
    // Keys: zero -1 (0xbc00), scale 2.55 / 255 in f16 (0x211f); codes of 0, 0.5, 1, 1.5 and 2.55.
    // Values: zero 2 (0x4000), scale 0. The three bytes behind the codes are padding.
    const std::uint8_t wanted[] = {0, 50, 100, 150, 255, 0, 0, 0, 0x1f, 0x21, 0, 0xbc,
                                   0, 0,  0,   0,   0,   0, 0, 0, 0,    0,    0, 0x40};
    ASSERT_EQ(codes->rows.size(), std::size(wanted));
    for (std::size_t i = 0; i < std::size(wanted); ++i)
        EXPECT_EQ(std::to_integer<unsigned>(codes->rows[i]), wanted[i]) << "byte " << i;
}

TEST(KvTranslateTest, ValuesThatDoNotFitAreRefused) {
    for (const float value : {65520.0f, -1e30f, INFINITY, NAN}) {
        auto pages = pages_of(source_of(KvRowType::f32, 16), 16);
        std::memcpy(pages.front().rows.data() + 80, &value, sizeof value);
        for (const KvRowType type : {KvRowType::f16, KvRowType::u8, KvRowType::f32}) {
            const auto converted = convert_kv_rows(pages.front().page, type);
            EXPECT_EQ(converted.ok(), type == KvRowType::f32 && std::isfinite(value)) << value;
            if (converted.ok()) continue;
            EXPECT_EQ(converted.error().code, ErrorCode::non_finite);
        }
    }
    const auto floats = pages_of(source_of(KvRowType::f32, 16), 16);
    EXPECT_EQ(convert_kv_rows(floats.front().page, KvRowType::int8).error().code,
              ErrorCode::unsupported);
}

// A head of 40 values has two scales before its codes.
TEST(KvTranslateTest, IntegerCodesAreMultipliedByTheirGroupsScale) {
    constexpr std::uint32_t head_dim = 40;
    auto pages = pages_of(source_of(KvRowType::int8, 16, head_dim), 1);
    Bytes& rows = pages.front().rows;
    const float scales[] = {0.5f, -2.0f};
    std::memcpy(rows.data(), scales, sizeof scales);
    for (std::size_t i = 0; i < head_dim; ++i)
        rows[sizeof scales + i] = static_cast<std::byte>(static_cast<std::int8_t>(i * 7 - 127));
    for (std::size_t i = head_dim + sizeof scales; i < rows.size(); ++i) rows[i] = {};
    const auto floats = convert_kv_rows(pages.front().page, KvRowType::f32);
    ASSERT_TRUE(floats.ok()) << floats.error().message;
    for (std::size_t i = 0; i < head_dim; ++i) {
        float value = 0;
        std::memcpy(&value, floats->rows.data() + 4 * i, sizeof value);
        const int code = static_cast<std::int8_t>(i * 7 - 127);
        EXPECT_EQ(value, scales[i / 32] * static_cast<float>(code)) << i;
    }
}

}  // namespace
}  // namespace moex
