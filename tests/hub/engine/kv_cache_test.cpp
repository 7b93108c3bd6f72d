// Compares the paged cache with a plain map under random operations: reserve, write, roll back,
// move and save.
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
                    const Bytes saved = sequence.serialize();
                    sequence.roll_back(0);
                    auto restored = KvCache::Sequence::deserialize(cache, saved);
                    RC_ASSERT(restored.ok());
                    sequence = std::move(restored).value();
                    reserved[s] = cache.pages_for(tokens);
                    RC_ASSERT(sequence.serialize() == saved);
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

TEST(KvCacheTest, DamagedOrForeignStateIsRefused) {
    const ModelConfig config = small_config();
    KvCache cache(config, {4, 8});
    KvCache::Sequence sequence(cache);
    ASSERT_TRUE(sequence.reserve(5));

    for (std::uint32_t p = 0; p < 5; ++p)
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            sequence.store(layer, p, row_of(config, 1), row_of(config, 2));
    sequence.commit(5);
    const Bytes saved = sequence.serialize();
    const std::uint32_t free_before = cache.pages_free();

    for (std::size_t size = 0; size < saved.size(); ++size)
        EXPECT_FALSE(KvCache::Sequence::deserialize(cache, ByteView(saved).first(size)).ok())
            << size;
    Bytes longer = saved;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(KvCache::Sequence::deserialize(cache, longer).ok());

    Bytes huge = saved;
    Bytes rounded = saved;
    rounded[24] = std::byte{1};  // f16
    EXPECT_EQ(KvCache::Sequence::deserialize(cache, rounded).error().code, ErrorCode::bad_file);

    // Test a number of tokens for which no machine has enough memory.
    std::fill(huge.begin() + 20, huge.begin() + 24, std::byte{0xff});
    EXPECT_FALSE(KvCache::Sequence::deserialize(cache, huge).ok());

    ModelConfig other = config;
    other.num_kv_heads = 1;
    KvCache foreign(other, {4, 8});
    const auto refused = KvCache::Sequence::deserialize(foreign, saved);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::bad_file);
    EXPECT_EQ(cache.pages_free(), free_before);

    KvCache full(config, {4, 1});
    EXPECT_EQ(KvCache::Sequence::deserialize(full, saved).error().code, ErrorCode::overloaded);
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
