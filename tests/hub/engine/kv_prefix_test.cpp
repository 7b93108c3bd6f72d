// Tests pages that sequences share: a sequence that takes over a page reads the values of its
// tokens, under any history of appending, publishing, rolling back, forgetting and running out of
// room.
#include <algorithm>
#include <vector>

#include <rapidcheck.h>

#include "hub/engine/kv_cache.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

ModelConfig prefix_config() {
    ModelConfig config = test::tiny_config();
    config.num_layers = 2;
    config.layers.resize(2);
    config.head_dim = 3;
    return config;
}

// Returns the value that the test stores as the keys of a position. It depends on all tokens up to
// this position, as in a model.
float value_of(std::span<const TokenId> tokens) {
    std::uint32_t value = 17;
    for (const TokenId id : tokens) value = (value * 31 + id) % 65521;
    return static_cast<float>(value);
}

struct Talk {
    explicit Talk(KvCache& cache, std::string scope = {}) : kv(cache, std::move(scope)) {}
    KvCache::Sequence kv;
    std::vector<TokenId> tokens;
    std::vector<std::vector<std::uint64_t>> workers;

    // Writes the rows of those `tokens` that are not in the cache yet. Returns false if the cache
    // has no room.
    bool compute(std::uint64_t worker = 1) {
        kv.adopt(tokens, [&](const auto& who) { workers.push_back(who); });
        if (!kv.reserve(static_cast<std::uint32_t>(tokens.size()))) return false;
        const std::uint32_t first = kv.num_tokens();
        for (std::uint32_t p = first; p < tokens.size(); ++p)
            for (std::uint32_t layer = 0; layer < 2; ++layer) {
                const float value = value_of(std::span(tokens).first(p + 1)) +
                                    static_cast<float>(layer) * 0.25f;
                const std::size_t size = kv.k(layer, p).size();
                kv.store(layer, p, std::vector<float>(size, value),
                         std::vector<float>(size, -value));
            }
        kv.commit(static_cast<std::uint32_t>(tokens.size()) - first);
        workers.resize(tokens.size() / kv.page_tokens() + 1, {worker});
        return true;
    }
    void roll_back(std::uint32_t count) {
        kv.roll_back(count);
        tokens.resize(count);
        workers.resize(count / kv.page_tokens());
    }
    bool is_whole() const {
        for (std::uint32_t p = 0; p < kv.num_tokens(); ++p)
            for (std::uint32_t layer = 0; layer < 2; ++layer) {
                const float value = value_of(std::span(tokens).first(p + 1)) +
                                    static_cast<float>(layer) * 0.25f;
                for (const float one : kv.k(layer, p))
                    if (one != value) return false;
                for (const float one : kv.v(layer, p))
                    if (one != -value) return false;
            }
        return kv.num_tokens() == tokens.size();
    }
};

TEST(KvPrefixTest, EverySequenceReadsItsOwnTokensUnderAnyHistory) {
    EXPECT_TRUE(rc::check([] {
        constexpr std::uint32_t num_pages = 12;
        KvCache cache(prefix_config(), {2, num_pages});
        std::vector<Talk> talks;
        for (int i = 0; i < 4; ++i) talks.emplace_back(cache, i == 3 ? "other" : "one");

        const int num_operations = *rc::gen::inRange(1, 60);
        for (int operation = 0; operation < num_operations; ++operation) {
            Talk& talk = talks[*rc::gen::inRange<std::size_t>(0, talks.size())];
            const auto size = static_cast<std::uint32_t>(talk.tokens.size());
            switch (*rc::gen::inRange(0, 6)) {
                case 0:
                case 1: {  // draw from few different tokens, so that prefixes are often equal
                    const std::vector<TokenId> before = talk.tokens;
                    for (int more = *rc::gen::inRange(1, 6); more > 0; --more)
                        talk.tokens.push_back(*rc::gen::inRange<TokenId>(0, 2));
                    if (!talk.compute()) {
                        talk.kv.roll_back(0);
                        talk.tokens.clear();
                        talk.workers.clear();
                    }
                    break;
                }
                case 2: talk.kv.publish(talk.tokens, talk.workers); break;
                case 3: talk.roll_back(*rc::gen::inRange<std::uint32_t>(0, size + 1)); break;
                case 4: talk.roll_back(0); break;
                case 5: cache.forget_worker(*rc::gen::inRange<std::uint64_t>(1, 3)); break;
            }
            for (const Talk& one : talks) RC_ASSERT(one.is_whole());
            RC_ASSERT(cache.pages_cached() <= cache.pages_free());
        }
        talks.clear();
        RC_ASSERT(cache.pages_free() == num_pages);
    }));
}

TEST(KvPrefixTest, FullPagesOfACommonPrefixAreShared) {
    KvCache cache(prefix_config(), {4, 8});
    Talk first(cache), second(cache), foreign(cache, "somebody else");
    first.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    ASSERT_TRUE(first.compute());
    first.kv.publish(first.tokens, first.workers);

    second.kv.adopt(std::vector<TokenId>{1, 2, 3, 4, 5, 6, 7, 0, 9});
    EXPECT_EQ(second.kv.num_tokens(), 4u);
    foreign.kv.adopt(first.tokens);
    EXPECT_EQ(foreign.kv.num_tokens(), 0u);
    EXPECT_EQ(cache.pages_free(), 5u);  // one page is shared by two sequences

    first.roll_back(0);
    EXPECT_EQ(cache.pages_cached(), 1u);
    EXPECT_EQ(cache.pages_free(), 7u);
}

TEST(KvPrefixTest, RecentlyUsedPagesStayWhenRoomIsShort) {
    KvCache cache(prefix_config(), {4, 4});
    const auto say = [&](std::vector<TokenId> tokens) {
        Talk talk(cache);
        talk.tokens = std::move(tokens);
        ASSERT_TRUE(talk.compute());
        talk.kv.publish(talk.tokens, talk.workers);
    };
    const auto known = [&](std::vector<TokenId> tokens) {
        Talk talk(cache);
        talk.kv.adopt(tokens);
        return talk.kv.num_tokens();
    };
    const std::vector<TokenId> a{1, 1, 1, 1, 1, 1, 1, 1}, b{2, 2, 2, 2, 2, 2, 2, 2}, c{3, 3, 3, 3};
    say(a);
    say(b);
    EXPECT_EQ(cache.pages_cached(), 4u);
    EXPECT_EQ(known(a), 8u);  // this lookup makes the pages of `a` the most recently used
    say(c);
    EXPECT_EQ(known(a), 8u);
    EXPECT_EQ(known(b), 4u);  // the second page of `b` was evicted, its first page is still shared
    EXPECT_EQ(known(c), 4u);
}

TEST(KvPrefixTest, PagesOfAForgottenWorkerAreNotShared) {
    KvCache cache(prefix_config(), {4, 8});
    Talk running(cache);
    running.tokens = {1, 2, 3, 4};
    ASSERT_TRUE(running.compute(7));
    running.kv.publish(running.tokens, running.workers);
    {
        Talk over(cache);
        over.tokens = {5, 5, 5, 5};
        ASSERT_TRUE(over.compute(8));
        over.kv.publish(over.tokens, over.workers);
    }
    EXPECT_EQ(cache.pages_cached(), 1u);
    cache.forget_worker(7);
    cache.forget_worker(8);
    EXPECT_EQ(cache.pages_cached(), 0u);
    EXPECT_TRUE(running.is_whole());

    // The following pages are not taken over either: they were computed from the pages of the
    // forgotten worker.
    running.tokens.insert(running.tokens.end(), {6, 6, 6, 6});
    ASSERT_TRUE(running.compute(1));
    running.kv.publish(running.tokens, running.workers);
    Talk later(cache);
    later.kv.adopt(running.tokens);
    EXPECT_EQ(later.kv.num_tokens(), 0u);
}

}  // namespace
}  // namespace moex
