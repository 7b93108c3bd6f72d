// Tests pages that sequences share: a sequence that takes over a page reads the values of its
// tokens, and one that goes on under the number of an ended text begins as that one did, under any
// history of appending, publishing, rolling back, forgetting and running out of room.
#include <algorithm>
#include <map>
#include <random>
#include <set>
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

// A text that continues an ended one has the same number, so that workers need not get it again.
TEST(KvPrefixTest, TextThatGoesOnHasTheNumberOfTheEndedOne) {
    std::vector<std::uint64_t> ended, kept;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> resumed;
    KvCache cache(prefix_config(),
                  {.page_tokens = 4,
                   .num_pages = 40,
                   .ended = [&](std::uint64_t id) { ended.push_back(id); },
                   .kept = [&](std::uint64_t id) { kept.push_back(id); },
                   .resumed = [&](std::uint64_t id,
                                  std::uint32_t tokens) { resumed.emplace_back(id, tokens); }});
    const auto begin = [&](std::vector<TokenId> tokens, std::string scope = {}) {
        Talk talk(cache, std::move(scope));
        talk.tokens = std::move(tokens);
        EXPECT_TRUE(talk.compute());
        talk.kv.publish(talk.tokens, talk.workers);
        return talk;
    };
    std::optional<Talk> first = begin({1, 2, 3, 4, 5, 6, 7, 8, 9});
    const std::uint64_t id = first->kv.id();
    {
        const Talk beside = begin({1, 2, 3, 4, 5, 6, 7, 8, 20});  // the first one still lives
        EXPECT_NE(beside.kv.id(), id);
    }
    EXPECT_TRUE(resumed.empty());
    first.reset();
    EXPECT_EQ(kept.back(), id);
    EXPECT_NE(begin({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "another client").kv.id(), id);

    // The second turn begins as the first one, and then differs. A third text at the same time has
    // a number of its own.
    std::optional<Talk> second = begin({1, 2, 3, 4, 5, 6, 7, 8, 30, 31, 32, 33, 34});
    EXPECT_EQ(second->kv.id(), id);
    EXPECT_EQ(resumed.back(), std::pair(id, 8u));
    const Talk third = begin({1, 2, 3, 4, 5, 6, 7, 8, 30});
    EXPECT_NE(third.kv.id(), id);
    second.reset();
    // A text with less than half of the pages leaves the number to another one.
    EXPECT_NE(begin({1, 2, 3, 4, 60}).kv.id(), id);
    const Talk fourth = begin({1, 2, 3, 4, 5, 6, 7, 8, 30, 31, 32, 33, 50});
    EXPECT_EQ(fourth.kv.id(), id);
    EXPECT_EQ(resumed.back(), std::pair(id, 12u));
    // Workers forget a number that was replaced, and a text without a whole page.
    begin({70, 71});
    EXPECT_EQ(ended.size(), 3u);
    EXPECT_EQ(std::ranges::count(ended, id), 0);
    EXPECT_EQ(std::ranges::count(kept, id), 2);
}

// Whatever else happened to the pages, others that know an ended text know the beginning of the one
// that has its number.
TEST(KvPrefixTest, TextThatGoesOnBeginsAsTheEndedOneUnderAnyHistory) {
    std::mt19937 random(7);
    std::map<std::uint64_t, std::vector<TokenId>> known;  // the newest tokens of each number
    std::set<std::uint64_t> kept;
    const Talk* asker = nullptr;
    int resumed = 0;
    const auto resume = [&](std::uint64_t id, std::uint32_t count) {
        const std::vector<TokenId>& text = known.at(id);
        ++resumed;
        EXPECT_EQ(kept.erase(id), 1u);
        ASSERT_LE(count, text.size());
        EXPECT_TRUE(std::equal(text.begin(), text.begin() + count, asker->tokens.begin()));
    };
    KvCache cache(prefix_config(), {.page_tokens = 2,
                                    .num_pages = 12,
                                    .ended = [&](std::uint64_t id) { known.erase(id); },
                                    .kept = [&](std::uint64_t id) { kept.insert(id); },
                                    .resumed = resume});
    std::vector<Talk> talks;
    for (int i = 0; i < 4; ++i) talks.emplace_back(cache);
    for (int operation = 0; operation < 70'000 && !HasFailure(); ++operation) {
        Talk& talk = talks[random() % 4];
        asker = &talk;
        switch (random() % 8) {
            case 0: talk.roll_back(random() % (talk.kv.num_tokens() + 1)); break;
            case 1: cache.forget_worker(1 + random() % 2); break;
            case 2: talk.kv.publish(talk.tokens, talk.workers); break;
            case 3:
                talk.kv.publish(talk.tokens, talk.workers);
                talk = Talk(cache);
                break;
            default:
                for (std::size_t more = 1 + random() % 5; more > 0; --more)
                    talk.tokens.push_back(random() % 2);
                if (!talk.compute(1 + random() % 2)) talk.roll_back(0);
                break;
        }
        known[talk.kv.id()] = talk.tokens;
        EXPECT_TRUE(talk.is_whole());
    }
    EXPECT_GT(resumed, 500);
}

// Numbers of which no page is left are forgotten.
TEST(KvPrefixTest, EndedNumbersTakeNoMemoryForever) {
    std::uint64_t resumed = 0;
    KvCache cache(prefix_config(), {.page_tokens = 4,
                                    .num_pages = 4,
                                    .ended = [](std::uint64_t) {},
                                    .kept = [](std::uint64_t) {},
                                    .resumed = [&](std::uint64_t, std::uint32_t) { ++resumed; }});
    for (TokenId i = 0; i < 500; ++i) {
        Talk talk(cache);
        talk.tokens = {i, i, i, i, i};
        ASSERT_TRUE(talk.compute());
        talk.kv.publish(talk.tokens, talk.workers);
        EXPECT_LE(cache.kept_texts(), 9u);
    }
    EXPECT_EQ(resumed, 0u);
}

}  // namespace
}  // namespace moex
