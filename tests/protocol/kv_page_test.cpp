// Tests the format of pages of keys and values: a page has the same contents after a round trip,
// every damaged byte is refused, and a page of another source is refused by the name of the field.
#include "protocol/kv_page.h"

#include <functional>
#include <random>

#include <gtest/gtest.h>

#include "protocol/checksum.h"

namespace moex {
namespace {

KvSource sample_source() {
    KvSource source;
    source.model.fill(std::byte{0x11});
    source.texts.fill(std::byte{0x22});
    source.arithmetic = KvArithmetic::integer;
    source.weights = KvWeights::int6;
    source.rounding = KvRounding::f16;
    source.row_type = KvRowType::f16;
    source.end_layer = 3;
    source.num_kv_heads = 2;
    source.head_dim = 5;
    source.rotary_size = 4;
    source.rope_base = 1e6;
    source.rope_scaling = {.factor = 8, .original_context_tokens = 8192};
    source.norm_epsilon = 1e-6;
    source.page_tokens = 4;
    return source;
}

struct Sample {
    Bytes rows, state;
    KvPage page;
    explicit Sample(std::uint32_t num_tokens = 4) {
        page.source = sample_source();
        page.before.fill(std::byte{0x33});
        page.first_position = 8;
        for (std::uint32_t i = 0; i < num_tokens; ++i) page.tokens.push_back(1000 + i);
        page.workers = {"", "ada", "grace"};
        state.assign(7, std::byte{9});
        for (std::size_t i = 0; i < kv_rows_bytes(page.source, num_tokens); ++i)
            rows.push_back(static_cast<std::byte>(i * 7));
        page.state = state;
        page.rows = rows;
    }
};

TEST(KvPageTest, ChecksumEqualsThePublishedValues) {
    EXPECT_EQ(checksum64({}), 0xef46db3751d8e999u);
    EXPECT_EQ(checksum64(as_byte_view("a")), 0xd24ec4f1a98c6e5bu);
    EXPECT_EQ(checksum64(as_byte_view("abc")), 0x44bc2cf5ad770999u);
    // 39 bytes: one block of 32, then a part of 4 and three bytes
    EXPECT_EQ(checksum64(as_byte_view("Nobody inspects the spammish repetition")),
              0xfbcea83c8a378bf1u);
}

TEST(KvPageTest, RoundTripKeepsEveryField) {
    for (const std::uint32_t num_tokens : {1u, 3u, 4u}) {
        const Sample sample(num_tokens);
        const Bytes bytes = encode_kv_page(sample.page);
        const auto read = decode_kv_page(bytes);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_TRUE(require_source(read->source, sample.page.source).ok());
        EXPECT_EQ(read->before, sample.page.before);
        EXPECT_EQ(read->first_position, 8u);
        EXPECT_EQ(read->tokens, sample.page.tokens);
        EXPECT_EQ(read->workers, sample.page.workers);
        EXPECT_EQ(Bytes(read->state.begin(), read->state.end()), sample.state);
        EXPECT_EQ(Bytes(read->rows.begin(), read->rows.end()), sample.rows);
        EXPECT_EQ(encode_kv_page(*read), bytes);
    }
}

// Three layers, one of which has a window.
TEST(KvPageTest, PartsHaveWholeLayersAndAreReadAsWhatTheyAre) {
    Sample sample;
    const std::size_t layer_bytes = sample.rows.size() / 3;
    const std::pair<KvPart, std::size_t> parts[] = {
        {KvPart::without_window, 2}, {KvPart::with_window, 1}, {KvPart::state, 0}};
    for (const auto& [part, num_layers] : parts) {
        sample.page.part = part;
        sample.page.rows = ByteView(sample.rows).first(num_layers * layer_bytes);
        const Bytes bytes = encode_kv_page(sample.page);
        const auto read = decode_kv_page(bytes, part);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(read->rows.size(), num_layers * layer_bytes);
        EXPECT_EQ(encode_kv_page(*read), bytes);
        EXPECT_EQ(Bytes(read->state.begin(), read->state.end()), sample.state);
        for (const KvPart other :
             {KvPart::whole, KvPart::without_window, KvPart::with_window, KvPart::state}) {
            if (other == part) continue;
            EXPECT_EQ(decode_kv_page(bytes, other).error().code, ErrorCode::unknown_flags);
        }
        for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
            Bytes changed = bytes;
            changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
            EXPECT_FALSE(decode_kv_page(changed, part).ok()) << "bit " << bit;
        }
    }
}

TEST(KvPageTest, EveryChangedBitAndEveryLengthIsRefused) {
    const Bytes bytes = encode_kv_page(Sample().page);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
        Bytes changed = bytes;
        changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        EXPECT_FALSE(decode_kv_page(changed).ok()) << "bit " << bit;
    }
    for (std::size_t size = 0; size < bytes.size(); ++size)
        EXPECT_FALSE(decode_kv_page(ByteView(bytes).first(size)).ok()) << size;
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(decode_kv_page(longer).ok());
}

// Changes random bytes and corrects the checksum, so that the checks of the fields decide. Accepted
// bytes must be the encoding of what was read.
TEST(KvPageTest, MutationsWithARightChecksumAreRefusedOrWhole) {
    const Bytes bytes = encode_kv_page(Sample().page);
    std::mt19937 random(20261127);
    int refused = 0;
    for (int round = 0; round < 4000; ++round) {
        Bytes changed = bytes;
        for (std::uint32_t count = 1 + random() % 4; count > 0; --count)
            changed[28 + random() % (changed.size() - 28)] = static_cast<std::byte>(random());
        const std::uint64_t checksum = checksum64(ByteView(changed).subspan(28));
        for (std::size_t i = 0; i < 8; ++i)
            changed[20 + i] = static_cast<std::byte>(checksum >> (8 * i));
        const auto read = decode_kv_page(changed);
        if (read.ok())
            EXPECT_EQ(encode_kv_page(*read), changed);
        else
            ++refused;
    }
    EXPECT_GT(refused, 100);
}

TEST(KvPageTest, RoundTripKeepsEveryRounding) {
    Sample sample;
    for (const KvRounding rounding :
         {KvRounding::any, KvRounding::f16, KvRounding::bf16, KvRounding::int8, KvRounding::f32}) {
        sample.page.source.rounding = rounding;
        const Bytes bytes = encode_kv_page(sample.page);
        const auto read = decode_kv_page(bytes);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(read->source.rounding, rounding);
    }
}

TEST(KvPageTest, PageOfAnotherSourceIsRefusedByTheFieldsName) {
    const KvSource wanted = sample_source();
    const std::pair<const char*, std::function<void(KvSource&)>> changes[] = {
        {"model", [](KvSource& source) { source.model[31] = std::byte{0}; }},
        {"texts", [](KvSource& source) { source.texts[0] = std::byte{0}; }},
        {"arithmetic", [](KvSource& source) { source.arithmetic = KvArithmetic::gpu; }},
        {"weights", [](KvSource& source) { source.weights = KvWeights::int4; }},
        {"rounding", [](KvSource& source) { source.rounding = KvRounding::any; }},
        {"row_type", [](KvSource& source) { source.row_type = KvRowType::u8; }},
        {"first_layer", [](KvSource& source) { source.first_layer = 1; }},
        {"end_layer", [](KvSource& source) { source.end_layer = 2; }},
        {"num_kv_heads", [](KvSource& source) { source.num_kv_heads = 1; }},
        {"head_dim", [](KvSource& source) { source.head_dim = 64; }},
        {"rotary_size", [](KvSource& source) { source.rotary_size = 2; }},
        {"rope_base", [](KvSource& source) { source.rope_base = 1e4; }},
        {"rope_scaling.factor", [](KvSource& source) { source.rope_scaling.factor = 2; }},
        {"rope_scaling.low_freq_factor",
         [](KvSource& source) { source.rope_scaling.low_freq_factor = 2; }},
        {"rope_scaling.high_freq_factor",
         [](KvSource& source) { source.rope_scaling.high_freq_factor = 2; }},
        {"rope_scaling.original_context_tokens",
         [](KvSource& source) { source.rope_scaling.original_context_tokens = 1; }},
        {"norm_epsilon", [](KvSource& source) { source.norm_epsilon = 1e-5; }},
        {"window", [](KvSource& source) { source.window = 4096; }},
        {"page_tokens", [](KvSource& source) { source.page_tokens = 128; }},
    };
    for (const auto& [name, change] : changes) {
        KvSource found = wanted;
        change(found);
        const Status refused = require_source(found, wanted);
        ASSERT_FALSE(refused.ok()) << name;
        EXPECT_NE(refused.error().message.find(text("KV page: ", name, " is ")), std::string::npos)
            << refused.error().message;
    }
    EXPECT_TRUE(require_source(wanted, wanted).ok());
}

TEST(KvPageTest, FieldsOutOfRangeAreRefusedByName) {
    const Bytes bytes = encode_kv_page(Sample().page);
    // offsets of fields, from the table in PROTOCOL.md
    const std::tuple<const char*, std::size_t, std::uint32_t> changes[] = {
        {"end_layer", 100, 0},      {"num_kv_heads", 104, 0},   {"num_kv_heads", 104, 5000},
        {"head_dim", 108, 5000},    {"rotary_size", 112, 6},    {"page_tokens", 120, 0},
        {"page_tokens", 120, 5000}, {"first_position", 200, 7}, {"num_tokens", 204, 0},
        {"num_tokens", 204, 5},     {"num_workers", 208, 5000}};
    for (const auto& [name, offset, value] : changes) {
        Bytes changed = bytes;
        for (std::size_t i = 0; i < 4; ++i)
            changed[offset + i] = static_cast<std::byte>(value >> (8 * i));
        const std::uint64_t checksum = checksum64(ByteView(changed).subspan(28));
        for (std::size_t i = 0; i < 8; ++i)
            changed[20 + i] = static_cast<std::byte>(checksum >> (8 * i));
        const auto read = decode_kv_page(changed);
        ASSERT_FALSE(read.ok()) << name;
        EXPECT_EQ(read.error().code, ErrorCode::bad_field) << read.error().message;
        EXPECT_NE(read.error().message.find(name), std::string::npos) << read.error().message;
    }
}

}  // namespace
}  // namespace moex
