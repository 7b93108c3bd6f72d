// Tests of /v1/pages: a client's pages spare the hub the computation, for this client's text alone,
// and whatever is not of this text, model or form is refused by name.
#include "hub/api/jobs/taken_pages.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "hub/api/jobs/prefill_job.h"
#include "hub/base/sha256.h"
#include "protocol/checksum.h"
#include "protocol/half.h"
#include "protocol/kv_translate.h"
#include "tests/hub/api/api_fixture.h"
#include "tests/support/must.h"

namespace moex::test {
namespace {

// Counts what is charged, and grants `granted` tokens.
class Account : public RequestAccount {
  public:
    explicit Account(std::uint64_t granted) : granted_(granted) {}
    Checked<void> reserve(std::uint64_t tokens_max) override {
        if (tokens_max <= granted_) return {};
        return Refusal{429, "no tokens are left", "rate_limit_exceeded", ""};
    }
    void settle(std::uint64_t tokens) override { settled = tokens; }
    void count(std::uint64_t prompt_tokens, std::uint64_t) override { counted = prompt_tokens; }
    void on_key_ended(std::function<void()>) override {}
    std::uint64_t settled = 0, counted = 0;

  private:
    const std::uint64_t granted_;
};

template <class T>
ErrorCode must_not(const Result<T>& result) {
    EXPECT_FALSE(result.ok());
    return result.ok() ? ErrorCode::internal : result.error().code;
}

// A page store that records which scopes are offered to it.
class RecordingStore : public KvPageStore {
  public:
    bool keep(const FullPage& page) override {
        kept.emplace_back(page.client);
        return true;
    }
    std::uint64_t fetch(PageWish) override { return 0; }
    void drop_fetches() override {}
    void forget_worker(std::uint64_t) override {}
    PageStoreCounters counters() const override { return {}; }
    std::vector<std::string> kept;
};

class TakenPagesTest : public ApiTest {
  protected:
    void SetUp() override { open_hub(64u << 20); }
    void open_hub(std::uint64_t bytes_max) {
        engine_options_.page_store = nullptr;
        make(engine_options_, {});  // the engine of an earlier call ends before its store
        taken_ = std::make_unique<TakenPages>(TakenPagesOptions{.source = source(),
                                                                .bytes_max = bytes_max,
                                                                .clock = [this] { return now_; },
                                                                .other = &store_});
        engine_options_.page_store = taken_.get();
        make(engine_options_, {.kv_source = source(), .taken = taken_.get()});
    }
    KvSource source() const {
        const ModelConfig& config = model_.package->config();
        KvSource out;
        out.model = must(parse_sha256(model_.package->manifest_sha256()));
        out.end_layer = config.num_layers;
        out.num_kv_heads = config.num_kv_heads;
        out.head_dim = config.head_dim;
        out.rotary_size = config.head_dim;
        out.rope_base = config.layers.front().rope.theta;
        out.norm_epsilon = config.rms_norm_eps;
        out.page_tokens = engine_options_.page_tokens;
        return out;
    }
    std::vector<TokenId> tokens(std::size_t count, std::size_t step = 37) const {
        std::vector<TokenId> out;
        for (std::size_t i = 0; i < count; ++i)
            out.push_back(
                static_cast<TokenId>((i * step + 5) % model_.package->config().vocab_size));
        return out;
    }

    // ---- a device: it computes rows as the hub does, and names its own arithmetic
    std::vector<Bytes> pages_of(const std::vector<TokenId>& text, KvRowType type) {
        const std::uint32_t page_tokens = engine_options_.page_tokens,
                            num_pages = static_cast<std::uint32_t>(text.size()) / page_tokens;
        KvCache cache(model_.package->config(), {.page_tokens = page_tokens, .num_pages = 80});
        KvCache::Sequence sequence(cache);
        std::vector<Bytes> rows(num_pages, Bytes(kv_rows_bytes(source(), page_tokens)));
        std::vector<KvPage> own;
        for (std::uint32_t i = 0; i < num_pages; ++i) {
            const std::uint32_t first = i * page_tokens;
            EXPECT_TRUE(sequence.reserve(first + page_tokens));
            const StepRows step{.kv = &sequence,
                                .tokens = std::span(text).subspan(first, page_tokens)};
            EXPECT_TRUE(model_.decoder->step(std::span(&step, 1), experts_).ok());
            EXPECT_TRUE(sequence.read_page(i, rows[i]).ok());
            own.push_back(page_at(text, first, page_tokens));
            own.back().source.page_tokens = page_tokens;
            own.back().rows = rows[i];
        }
        const auto hash_of = [&](std::uint32_t count) {
            return sha256(std::as_bytes(std::span(text).first(count)));
        };
        std::vector<Bytes> out;
        for (const OwnedKvPage& page : must(resize_kv_pages(own, handed_page_tokens, hash_of)))
            out.push_back(encode_kv_page(must(convert_kv_rows(page.page, type)).page));
        return out;
    }
    KvPage page_at(const std::vector<TokenId>& text, std::uint32_t first, std::uint32_t count) {
        KvPage page{.source = taken_->wanted(), .first_position = first};
        page.source.row_type = KvRowType::f32;
        page.before = sha256(std::as_bytes(std::span(text).first(first)));
        page.tokens.assign(text.begin() + first, text.begin() + first + count);
        return page;
    }

    // ---- requests
    using Answer = std::shared_ptr<CapturedAnswer>;
    HttpRequest request_of(const std::string& owner) {
        HttpRequest request;
        request.client = request.owner = owner;
        return request;
    }
    Answer open(const Json& body, const std::string& owner = "ada") {
        HttpRequest request = request_of(owner);
        request.body = body.dump();
        const auto answer = std::make_shared<CapturedAnswer>();
        api_->open_pages(std::move(request), answer);
        answer->wait();
        return answer;
    }
    Answer send(const std::string& name, const std::vector<Bytes>& pages,
                const std::string& owner = "ada", std::shared_ptr<RequestAccount> account = {}) {
        HttpRequest request = request_of(owner);
        request.rest = name;
        request.account = std::move(account);
        for (const Bytes& page : pages) {
            const auto size = static_cast<std::uint32_t>(page.size());
            request.body.append(reinterpret_cast<const char*>(&size), sizeof size);
            request.body.append(reinterpret_cast<const char*>(page.data()), page.size());
        }
        const auto answer = std::make_shared<CapturedAnswer>();
        api_->take_pages(std::move(request), answer);
        answer->wait();
        return answer;
    }
    Json complete(const std::vector<TokenId>& prompt, const std::string& pages = {},
                  const std::string& owner = "ada") {
        HttpRequest request = request_of(owner);
        Json body{{"prompt", prompt}, {"max_tokens", 12}, {"temperature", 0}};
        if (!pages.empty()) body["moex"] = {{"pages", pages}};
        request.body = body.dump();
        const auto answer = std::make_shared<CapturedAnswer>();
        api_->complete(std::move(request), answer);
        answer->wait();
        EXPECT_EQ(answer->status(), 200u) << answer->response().body;
        return answer->json();
    }
    static std::uint32_t cached(const Json& answer) {
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    }
    static std::string words(const Json& answer) { return answer["choices"][0]["text"]; }
    std::string opened(const std::vector<TokenId>& prompt, const std::string& owner = "ada") {
        return open({{"prompt", prompt}}, owner)->json()["pages"];
    }

    EngineOptions engine_options_;
    RecordingStore store_;
    TimePoint now_ = now_steady();
    std::unique_ptr<TakenPages> taken_;
};

// Rows in the hub's own form and arithmetic: the text is the hub's own, to the last token.
TEST_F(TakenPagesTest, HubComputesNewTokensAlone) {
    const auto prompt = tokens(330);
    const std::string name = opened(prompt);
    const auto answer = send(name, pages_of(prompt, KvRowType::f32));
    ASSERT_EQ(answer->status(), 200u) << answer->response().body;
    EXPECT_EQ(answer->json()["tokens"], 320);

    const Json moved = complete(prompt, name), own = complete(prompt, {}, "bob");
    EXPECT_EQ(cached(moved), 320u);
    EXPECT_EQ(cached(own), 0u);
    EXPECT_EQ(words(moved), words(own));
    for (const std::string& client : store_.kept)
        EXPECT_FALSE(client.starts_with("pages:")) << "a client's pages were offered to a disk";
}

// f16 holds the hub's rows to 11 bits, and u8 to 8: the next token of a text that the model knows
// does not depend on that, and the rows are those of kv_translate.
TEST_F(TakenPagesTest, OtherFormsAreTranslated) {
    const auto prompt = tokens(300);
    for (const KvRowType type : {KvRowType::f16, KvRowType::u8}) {
        const std::string name = opened(prompt);
        const auto pages = pages_of(prompt, type);
        ASSERT_EQ(send(name, pages)->json()["tokens"], 288);
        FetchedPages given;
        std::mutex mutex;
        std::condition_variable wake;
        bool is_given = false;
        const std::string scope = TakenPages::scope_of(name);
        ASSERT_NE(taken_->fetch({.client = scope,
                                 .tokens = prompt,
                                 .first_page = 9,
                                 .bytes_max = 1,
                                 .done =
                                     [&](FetchedPages pages_given) {
                                         const std::lock_guard lock(mutex);
                                         given = std::move(pages_given);
                                         is_given = true;
                                         wake.notify_all();
                                     }}),
                  0u);
        std::unique_lock lock(mutex);
        ASSERT_TRUE(wake.wait_for(lock, std::chrono::seconds(30), [&] { return is_given; }));
        ASSERT_EQ(given.pages.size(), 1u);
        const auto converted = must(
            convert_kv_rows(must(decode_kv_page(pages[1])), KvRowType::f32));
        const std::span<const TokenId> all = prompt;
        const auto resized = must(resize_kv_pages({&converted.page, 1}, 16, [&](std::uint32_t n) {
            return sha256(std::as_bytes(all.first(n)));
        }));
        EXPECT_TRUE(std::ranges::equal(given.pages[0].rows, resized[1].page.rows));
        lock.unlock();
        EXPECT_EQ(cached(complete(prompt, name)), 288u);
    }
}

TEST_F(TakenPagesTest, NextTurnComputesItsNewTokensAlone) {
    const auto prompt = tokens(300);
    const std::string name = opened(prompt);
    send(name, pages_of(prompt, KvRowType::f32));
    complete(prompt, name);
    // A longer text goes on with the name: the hub has all of the first turn.
    const auto longer = tokens(560);
    const auto answer = open({{"prompt", longer}, {"pages", name}})->json();
    EXPECT_EQ(answer["pages"], name);
    EXPECT_EQ(answer["tokens"], 288);
    const auto pages = pages_of(longer, KvRowType::f32);
    // The page that the hub has a part of is sent whole, and what is known of it changes nothing.
    EXPECT_EQ(send(name, {pages[2], pages[3], pages[4]})->json()["tokens"], 560);
    EXPECT_EQ(words(complete(longer, name)), words(complete(longer, {}, "bob")));
    // An early message was edited: the pages before it stay.
    auto edited = longer;
    edited[200] ^= 1u;
    EXPECT_EQ(open({{"prompt", edited}, {"pages", name}})->json()["tokens"], 192);
}

TEST_F(TakenPagesTest, RefusedTurnLosesNoPages) {
    const auto prompt = tokens(300);
    const std::string name = opened(prompt);
    send(name, pages_of(prompt, KvRowType::f32));
    engine_->drain();  // takes no more requests
    EXPECT_EQ(open({{"prompt", tokens(560)}, {"pages", name}})->status(), 503u);
    EXPECT_EQ(must(taken_->num_tokens("ada", name)), 288u);
}

TEST_F(TakenPagesTest, NothingIsSentWhereTheHubKnowsThePrefix) {
    const auto prompt = tokens(300);
    complete(prompt);
    const auto known = open({{"prompt", prompt}, {"held", 290}})->json();
    EXPECT_TRUE(known["pages"].is_null());
    EXPECT_EQ(known["tokens"], 288);
    EXPECT_EQ(taken_->bytes(), 0u);
    EXPECT_TRUE(open({{"prompt", prompt}})->json()["pages"].is_null());
    // Of a longer text the hub has the beginning, and the client sends the rest.
    const auto longer = tokens(520);
    const auto part = open({{"prompt", longer}})->json();
    ASSERT_FALSE(part["pages"].is_null());
    EXPECT_GE(part["tokens"], 288);
    const auto pages = pages_of(longer, KvRowType::f32);
    const std::string name = part["pages"];
    EXPECT_EQ(send(name, {pages[2], pages[3]})->json()["tokens"], 512);
    const Json moved = complete(longer, name);
    EXPECT_EQ(cached(moved), 512u);
    EXPECT_EQ(words(moved), words(complete(longer, {}, "bob")));
    // A look computes nothing.
    const auto computed = engine_->counters().prompt_tokens;
    open({{"prompt", tokens(900, 41)}});
    EXPECT_EQ(engine_->counters().prompt_tokens, computed);
}

TEST_F(TakenPagesTest, PagesArriveAgainAfterACutLine) {
    const auto prompt = tokens(400);
    const std::string name = opened(prompt);
    const auto pages = pages_of(prompt, KvRowType::f16);
    EXPECT_EQ(send(name, {pages[1]})->status(), 409u) << "page 0 is missing";
    EXPECT_EQ(send(name, {pages[0], pages[1]})->json()["tokens"], 256);
    EXPECT_EQ(send(name, {pages[0], pages[1]})->json()["tokens"], 256) << "the answer was lost";
    EXPECT_EQ(open({{"prompt", prompt}, {"pages", name}})->json()["tokens"], 256);
    EXPECT_EQ(send(name, {pages[2], pages[3]})->json()["tokens"], 400);
    EXPECT_EQ(taken_->bytes(), 25 * kv_rows_bytes(source(), 16));
}

TEST_F(TakenPagesTest, PagesOfOneClientReachNoOther) {
    const auto prompt = tokens(300);
    const std::string name = opened(prompt, "mallory");
    // Rows that are wrong on purpose.
    auto pages = pages_of(tokens(300, 41), KvRowType::f32);
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
        const KvPage other = must(decode_kv_page(pages[i]));
        KvPage page = page_at(prompt, i * 128, static_cast<std::uint32_t>(other.tokens.size()));
        page.rows = other.rows;
        pages[i] = encode_kv_page(page);
    }
    ASSERT_EQ(send(name, pages, "mallory")->status(), 200u);
    const Json poisoned = complete(prompt, name, "mallory");
    EXPECT_EQ(cached(poisoned), 288u);

    const Json clean = complete(prompt, {}, "bob");
    EXPECT_NE(words(poisoned), words(clean)) << "the rows had no effect";
    EXPECT_EQ(cached(clean), 0u);
    // Another client that learned the name, and the same client without it.
    const Json stolen = complete(prompt, name, "carol");
    EXPECT_EQ(cached(stolen), 0u);
    EXPECT_EQ(stolen["moex"]["dropped"][0], "moex.pages");
    EXPECT_EQ(words(stolen), words(clean));
    const Json without = complete(prompt, {}, "mallory");
    EXPECT_EQ(cached(without), 0u);
    EXPECT_EQ(words(without), words(clean));
    EXPECT_EQ(send(name, {pages[0]}, "carol")->status(), 404u);
    HttpRequest request = request_of("carol");
    request.rest = name;
    const auto answer = std::make_shared<CapturedAnswer>();
    api_->forget_pages(std::move(request), answer);
    answer->wait();
    EXPECT_EQ(answer->status(), 404u);
}

// Every byte of a header, with a checksum that is right again, is refused; the text keeps nothing.
TEST_F(TakenPagesTest, EveryAlteredFieldIsRefused) {
    const auto prompt = tokens(128);
    const std::string name = opened(prompt);
    const Bytes page = pages_of(prompt, KvRowType::f16)[0];
    const std::size_t header = 736;  // 216 + 128 * 4, and zeros up to a multiple of 16
    std::size_t refused = 0;
    for (std::size_t at = 0; at < header; ++at) {
        Bytes altered = page;
        altered[at] ^= std::byte{1};
        const bool is_checked = at >= 28;
        if (is_checked) {
            const std::uint64_t sum = checksum64(ByteView(altered).subspan(28));
            std::memcpy(altered.data() + 20, &sum, sizeof sum);
        }
        const auto taken = taken_->take("ada", name, altered);
        EXPECT_FALSE(taken.ok()) << "byte " << at;
        refused += !taken.ok();
    }
    EXPECT_EQ(refused, header);
    EXPECT_EQ(*taken_->num_tokens("ada", name), 0u);
    EXPECT_EQ(taken_->bytes(), 0u);
    EXPECT_TRUE(taken_->take("ada", name, page).ok());
}

TEST_F(TakenPagesTest, AThousandMutatedStreamsAreRefused) {
    const auto prompt = tokens(160);
    const std::string name = opened(prompt);
    const auto pages = pages_of(prompt, KvRowType::u8);
    std::mt19937 random(41);
    for (int i = 0; i < 1000; ++i) {
        auto sent = pages;
        Bytes& page = sent[random() % sent.size()];
        switch (random() % 3) {
            case 0: page[random() % page.size()] ^= std::byte{1} << (random() % 8); break;
            case 1: page.resize(random() % page.size()); break;
            default: page.insert(page.end(), 1 + random() % 64, std::byte{7});
        }
        EXPECT_EQ(send(name, sent)->status(), 400u) << "mutation " << i;
        ASSERT_LE(*taken_->num_tokens("ada", name), 128u);
    }
    EXPECT_LE(taken_->bytes(), 8 * kv_rows_bytes(source(), 16));
    EXPECT_EQ(send(name, pages)->json()["tokens"], 160);
    EXPECT_EQ(words(complete(prompt, name)).empty(), false);
}

// Infinite rows, and finite ones that no device has, would make a contributor's honest answer look
// false.
TEST_F(TakenPagesTest, ValuesBeyondF16AreRefused) {
    const auto prompt = tokens(128);
    const std::string name = opened(prompt);
    const Bytes page = pages_of(prompt, KvRowType::f32)[0];
    for (const float value : {INFINITY, NAN, 7e4f, -1e30f}) {
        KvPage bad = must(decode_kv_page(page));
        Bytes rows(bad.rows.begin(), bad.rows.end());
        std::memcpy(rows.data() + 4000, &value, sizeof value);
        bad.rows = rows;
        EXPECT_EQ(must_not(taken_->take("ada", name, encode_kv_page(bad))), ErrorCode::non_finite);
    }
    // 8-bit codes with a scale that is too large
    const Bytes page_of_codes = pages_of(prompt, KvRowType::u8)[0];
    KvPage codes = must(decode_kv_page(page_of_codes));
    Bytes rows(codes.rows.begin(), codes.rows.end());
    const half large = float_to_half(60000.0f);
    const std::size_t head_dim = codes.source.head_dim;
    rows[0] = std::byte{255};
    std::memcpy(rows.data() + (head_dim + 3) / 4 * 4, &large, sizeof large);
    codes.rows = rows;
    EXPECT_EQ(must_not(taken_->take("ada", name, encode_kv_page(codes))), ErrorCode::non_finite);
    EXPECT_EQ(taken_->bytes(), 0u);
}

TEST_F(TakenPagesTest, TokensCountAgainstTheLimit) {
    const auto prompt = tokens(300);
    const std::string name = opened(prompt);
    const auto pages = pages_of(prompt, KvRowType::u8);
    const auto poor = std::make_shared<Account>(128);
    EXPECT_EQ(send(name, pages, "ada", poor)->status(), 429u);
    EXPECT_EQ(*taken_->num_tokens("ada", name), 0u);
    const auto rich = std::make_shared<Account>(1000);
    EXPECT_EQ(send(name, pages, "ada", rich)->status(), 200u);
    EXPECT_EQ(rich->settled, 288u);
    EXPECT_EQ(rich->counted, 288u);
    const auto again = std::make_shared<Account>(1000);
    send(name, pages, "ada", again);
    EXPECT_EQ(again->settled, 0u) << "pages that the hub has cost nothing";
}

TEST_F(TakenPagesTest, MemoryIsBoundedAndTimeEnds) {
    const std::uint64_t page = kv_rows_bytes(source(), 16);
    open_hub(40 * page);
    const auto ada = tokens(160, 41), first = tokens(256), second = tokens(256, 43);
    const std::string hers = opened(ada);
    ASSERT_EQ(send(hers, pages_of(ada, KvRowType::u8))->status(), 200u);
    const std::string old = opened(first, "mallory");
    send(old, pages_of(first, KvRowType::u8), "mallory");
    now_ += std::chrono::seconds(1);
    const std::string young = opened(second, "mallory");
    send(young, pages_of(second, KvRowType::u8), "mallory");
    EXPECT_LE(taken_->bytes(), 40 * page);
    EXPECT_TRUE(taken_->num_tokens("ada", hers).ok()) << "the larger client's text leaves";

    // One text that has no room alone: nothing else leaves for it any more.
    const auto huge = tokens(1000, 47);
    const std::string large = opened(huge, "carol");
    const auto pages = pages_of(huge, KvRowType::u8);
    unsigned status = 200;
    for (std::size_t i = 0; i < pages.size() && status == 200; ++i)
        status = send(large, {pages[i]}, "carol")->status();
    EXPECT_EQ(status, 503u);
    EXPECT_LE(taken_->bytes(), 40 * page);

    now_ += std::chrono::minutes(11);
    api_->sweep_streams();
    EXPECT_EQ(taken_->bytes(), 0u);
    EXPECT_EQ(cached(complete(ada, hers)), 0u);
    // A client has eight texts at most.
    std::vector<std::string> names;
    for (std::size_t i = 0; i < 9; ++i) {
        names.push_back(opened(tokens(200, 51 + 2 * i)));
        now_ += std::chrono::seconds(1);
    }
    EXPECT_FALSE(taken_->num_tokens("ada", names[0]).ok());
    EXPECT_TRUE(taken_->num_tokens("ada", names[1]).ok());
}

TEST_F(TakenPagesTest, BadBodiesAreRefusedByName) {
    const auto prompt = tokens(200);
    EXPECT_EQ(open({{"prompt", "a text"}})->status(), 400u);
    EXPECT_EQ(open({{"prompt", prompt}, {"held", 201}})->json()["error"]["param"], "held");
    EXPECT_EQ(open({{"prompt", prompt}, {"pages", 1}})->json()["error"]["param"], "pages");
    EXPECT_EQ(open({{"prompt", prompt}, {"model", "another"}})->status(), 404u);
    const std::string name = opened(prompt);
    HttpRequest request = request_of("ada");
    request.rest = name;
    request.body = std::string("\xff\0\0\0abc", 7);
    const auto answer = std::make_shared<CapturedAnswer>();
    api_->take_pages(std::move(request), answer);
    answer->wait();
    EXPECT_EQ(answer->status(), 400u);
    make(engine_options_, {});
    EXPECT_EQ(open({{"prompt", prompt}})->status(), 501u);
    EXPECT_EQ(send(name, {})->status(), 501u);
}

}  // namespace
}  // namespace moex::test
