// Compares the paged cache with a plain map under random operations: reserve, write, roll back,
// move, and take full pages out and back.
#include "hub/engine/kv_cache.h"

#include <cmath>
#include <map>

#include <rapidcheck.h>

#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

ModelConfig small_config() {
    ModelConfig config = test::tiny_config();
    config.num_layers = 2;
    config.layers.resize(2);
    config.head_dim = 3;
    return config;
}
std::vector<float> row_of(const ModelConfig& config, float value) {
    return std::vector<float>(std::size_t{config.num_kv_heads} * config.head_dim, value);
}
// Returns a test value that differs for every cached row.
float row_value(int sequence, std::uint32_t generation, std::uint32_t layer, std::uint32_t position,
                bool is_v) {
    return static_cast<float>(((sequence * 97 + generation) * 2 + (is_v ? 1 : 0)) * 4096 +
                              layer * 1024 + position);
}

// `generations` has, for each position of the sequence, the number of the operation that wrote the
// position.
void check_rows(const KvCache::Sequence& sequence, int index,
                const std::vector<std::uint32_t>& generations, std::uint32_t num_layers) {
    RC_ASSERT(sequence.num_tokens() == generations.size());
    for (std::uint32_t p = 0; p < generations.size(); ++p)
        for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
            for (const float value : sequence.k(layer, p))
                RC_ASSERT(value == row_value(index, generations[p], layer, p, false));
            for (const float value : sequence.v(layer, p))
                RC_ASSERT(value == row_value(index, generations[p], layer, p, true));
        }
}

TEST(KvCacheTest, CacheActsLikeAMapUnderAnyHistory) {
    EXPECT_TRUE(rc::check([] {
        const ModelConfig config = small_config();
        constexpr std::uint32_t num_pages = 9;
        const std::uint32_t page_tokens = *rc::gen::inRange(1, 6);
        KvCache cache(config, {page_tokens, num_pages});
        std::vector<KvCache::Sequence> sequences;
        // For each sequence and position, the number of the operation that wrote the position.
        std::vector<std::vector<std::uint32_t>> model(3);
        for (int i = 0; i < 3; ++i) sequences.emplace_back(cache);
        std::vector<std::uint32_t> reserved(3, 0);  // pages
        const int num_operations = *rc::gen::inRange(1, 40);
        for (int operation = 0; operation < num_operations; ++operation) {
            const int s = *rc::gen::inRange(0, 3);
            KvCache::Sequence& sequence = sequences[s];
            const auto tokens = static_cast<std::uint32_t>(model[s].size());
            switch (*rc::gen::inRange(0, 4)) {
                case 0: {
                    const std::uint32_t more = *rc::gen::inRange(0, 12);
                    const std::uint32_t pages = cache.pages_for(tokens + more);
                    const std::uint32_t missing = pages > reserved[s] ? pages - reserved[s] : 0;
                    const bool fits = missing <= cache.pages_free();
                    RC_ASSERT(sequence.reserve(tokens + more) == fits);
                    if (!fits) break;
                    reserved[s] += missing;
                    for (std::uint32_t p = tokens; p < tokens + more; ++p) {
                        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
                            sequence.store(layer, p,
                                           row_of(config, row_value(s, operation, layer, p, false)),
                                           row_of(config, row_value(s, operation, layer, p, true)));
                        model[s].push_back(operation);
                    }
                    sequence.commit(more);
                    break;
                }
                case 1: {
                    const std::uint32_t kept = *rc::gen::inRange<std::uint32_t>(0, tokens + 1);
                    sequence.roll_back(kept);
                    model[s].resize(kept);
                    reserved[s] = cache.pages_for(kept);
                    break;
                }
                case 2: {
                    KvCache::Sequence moved(std::move(sequence));
                    sequence = std::move(moved);
                    break;
                }
                case 3: {
                    std::vector<Bytes> saved(tokens / page_tokens, Bytes(cache.page_bytes()));
                    for (std::uint32_t i = 0; i < saved.size(); ++i)
                        RC_ASSERT(sequence.read_page(i, saved[i]).ok());
                    sequence.roll_back(0);
                    for (const Bytes& page : saved) RC_ASSERT(sequence.append_page(page).ok());
                    model[s].resize(saved.size() * page_tokens);
                    reserved[s] = static_cast<std::uint32_t>(saved.size());
                    break;
                }
            }
            std::uint32_t used = 0;
            for (int i = 0; i < 3; ++i) {
                used += reserved[i];
                check_rows(sequences[i], i, model[i], config.num_layers);
            }
            RC_ASSERT(cache.pages_free() == num_pages - used);
        }
        sequences.clear();
        RC_ASSERT(cache.pages_free() == num_pages);
    }));
}

TEST(KvCacheTest, PageOfAnotherSizeOrWithoutRoomIsRefused) {
    const ModelConfig config = small_config();
    KvCache cache(config, {4, 2});
    KvCache::Sequence sequence(cache), other(cache);
    ASSERT_TRUE(sequence.reserve(4));
    for (std::uint32_t p = 0; p < 4; ++p)
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            sequence.store(layer, p, row_of(config, 1), row_of(config, 2));
    sequence.commit(4);

    Bytes page(cache.page_bytes());
    ASSERT_TRUE(sequence.read_page(0, page).ok());
    EXPECT_EQ(sequence.read_page(0, std::span(page).first(page.size() - 1)).error().code,
              ErrorCode::payload_size);
    EXPECT_EQ(other.append_page(ByteView(page).first(page.size() - 1)).error().code,
              ErrorCode::payload_size);
    EXPECT_EQ(other.num_tokens(), 0u);

    ASSERT_TRUE(other.append_page(page).ok());
    EXPECT_EQ(other.k(1, 3), row_of(config, 1));
    EXPECT_EQ(other.v(0, 0), row_of(config, 2));
    EXPECT_EQ(other.append_page(page).error().code, ErrorCode::overloaded);
    EXPECT_EQ(other.num_tokens(), 4u);
}

// The rows leave in the layout of protocol/kv_page.h: layer, keys before values, kv head, token.
TEST(KvCacheTest, PageLeavesInTheLayoutOfTheProtocol) {
    ModelConfig config = small_config();
    config.head_dim = 1;
    KvCache cache(config, {2, 1});
    KvCache::Sequence sequence(cache);
    ASSERT_TRUE(sequence.reserve(2));
    for (std::uint32_t layer = 0; layer < 2; ++layer)
        for (std::uint32_t p = 0; p < 2; ++p) {
            const auto base = static_cast<float>(100 * layer + p);
            sequence.store(layer, p, std::vector<float>{base, base + 10},
                           std::vector<float>{base + 50, base + 60});
        }
    sequence.commit(2);
    std::vector<float> rows(16);
    ASSERT_TRUE(sequence.read_page(0, std::as_writable_bytes(std::span(rows))).ok());
    EXPECT_EQ(rows, (std::vector<float>{0, 1, 10, 11, 50, 51, 60, 61, 100, 101, 110, 111, 150, 151,
                                        160, 161}));
}

TEST(KvCacheTest, RowsOfAnotherCacheAreCopiedAndNoOthers) {
    const ModelConfig config = small_config();
    KvCache from_cache(config, {4, 8}), to_cache(config, {4, 8});
    KvCache::Sequence from(from_cache), to(to_cache);
    for (KvCache::Sequence* one : {&from, &to}) {
        ASSERT_TRUE(one->reserve(11));
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            for (std::uint32_t p = 0; p < 11; ++p)
                one->store(layer, p, row_of(config, row_value(one == &to, 0, layer, p, false)),
                           row_of(config, row_value(one == &to, 0, layer, p, true)));
        one->commit(11);
    }
    to.copy_rows(from, 3, 9);
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
        for (std::uint32_t p = 0; p < 11; ++p) {
            const bool is_own = p < 3 || p >= 9;
            EXPECT_EQ(to.k(layer, p), row_of(config, row_value(is_own, 0, layer, p, false))) << p;
            EXPECT_EQ(to.v(layer, p), row_of(config, row_value(is_own, 0, layer, p, true))) << p;
        }
}

TEST(KvCacheTest, NoiseFillsWhatATextOfThatLengthWould) {
    const ModelConfig config = small_config();
    KvCache cache(config, {4, 8});
    KvCache::Sequence kv(cache);
    EXPECT_FALSE(kv.fill_with_noise(33));
    EXPECT_EQ(kv.num_tokens(), 0u);
    ASSERT_TRUE(kv.fill_with_noise(30));
    EXPECT_EQ(kv.num_tokens(), 30u);
    EXPECT_EQ(kv.pages().size(), 8u);
    for (std::uint32_t p = 0; p < 30; ++p) {
        EXPECT_EQ(kv.k(1, p), kv.k(1, p % 4));
        EXPECT_NE(kv.v(1, p), kv.v(1, (p + 1) % 4));
        for (const float value : kv.k(1, p)) EXPECT_LE(std::fabs(value), 1.0f);
    }
}

}  // namespace
}  // namespace moex
