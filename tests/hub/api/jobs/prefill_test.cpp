// Tests of /v1/prefill: the pages are those of the prompt, whole or resumed, and a client that
// reads nothing holds a bounded number of bytes and no sequence of the engine.
#include "hub/api/jobs/prefill_job.h"

#include <cstring>

#include "hub/base/sha256.h"
#include "protocol/kv_translate.h"
#include "tests/hub/api/api_fixture.h"
#include "tests/support/must.h"

namespace moex::test {
namespace {

// Records a stream of records. The client "reads" a record when read() or read_all() is called.
class CapturedRecords : public ByteResponder {
  public:
    void respond(HttpResponse response) override { end(std::move(response)); }
    void begin_stream(const std::string&) override { FAIL() << "a stream of events"; }
    void expect_stream() override {}
    void send_event(StreamEvent, std::function<void()>) override { FAIL() << "an event"; }
    void begin_records(const std::string& content_type) override {
        EXPECT_EQ(content_type, "application/octet-stream");
        const std::lock_guard lock(mutex_);
        EXPECT_FALSE(begun_);
        begun_ = true;
    }
    void send_record(std::shared_ptr<const Bytes> record, std::function<void()> on_sent) override {
        {
            const std::lock_guard lock(mutex_);
            EXPECT_TRUE(begun_ && !done_);
            records_.push_back(*record);
            if (!reads_) unread_.push_back(std::move(on_sent));
            wake_.notify_all();
        }
        if (on_sent) on_sent();
    }
    void end_stream() override { end({}); }
    void on_disconnect(std::function<void()> handler) override {
        const std::lock_guard lock(mutex_);
        on_disconnect_ = std::move(handler);
    }

    void stop_reading() { reads_ = false; }
    // Reads what was sent, and all that follows.
    void read_all() {
        std::vector<std::function<void()>> unread;
        {
            const std::lock_guard lock(mutex_);
            reads_ = true;
            unread.swap(unread_);
        }
        for (const auto& on_sent : unread) on_sent();
    }
    void disconnect() {
        std::function<void()> handler;
        {
            const std::lock_guard lock(mutex_);
            handler = on_disconnect_;
        }
        handler();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return done_; });
    }
    void wait_for_records(std::size_t count) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return done_ || records_.size() >= count; });
    }
    std::size_t num_records() const {
        const std::lock_guard lock(mutex_);
        return records_.size();
    }
    const HttpResponse& response() const { return response_; }
    const std::vector<Bytes>& records() const { return records_; }

  private:
    void end(HttpResponse response) {
        const std::lock_guard lock(mutex_);
        EXPECT_FALSE(done_) << "answered twice";
        response_ = std::move(response);
        done_ = true;
        wake_.notify_all();
    }
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::function<void()> on_disconnect_;
    HttpResponse response_;
    std::vector<Bytes> records_;
    std::vector<std::function<void()>> unread_;
    bool begun_ = false, done_ = false, reads_ = true;
};

class PrefillTest : public ApiTest {
  protected:
    void SetUp() override { make(engine_options_, {.kv_source = source()}); }

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
    std::vector<TokenId> tokens(std::size_t count) const {
        std::vector<TokenId> out;
        for (std::size_t i = 0; i < count; ++i)
            out.push_back(static_cast<TokenId>(i * 37 % model_.package->config().vocab_size));
        return out;
    }
    std::shared_ptr<CapturedRecords> begin(const Json& body, std::string owner = "ada") {
        auto answer = std::make_shared<CapturedRecords>();
        send(body, std::move(owner), answer);
        return answer;
    }
    void send(const Json& body, std::string owner, std::shared_ptr<CapturedRecords> answer) {
        HttpRequest request;
        request.body = body.dump();
        request.client = request.owner = std::move(owner);
        api_->prefill(std::move(request), std::move(answer));
    }
    static Json wish(const std::vector<TokenId>& prompt, Json extra = Json::object()) {
        Json body{{"prompt", prompt}};
        body.update(extra);
        return body;
    }

    EngineOptions engine_options_;
};

TEST_F(PrefillTest, PagesHaveTheTokensAndTheChain) {
    const auto prompt = tokens(300);
    const auto answer = begin(wish(prompt, {{"rows", "f32"}}));
    answer->wait();
    ASSERT_EQ(answer->records().size(), 3u);
    std::uint32_t first = 0;
    for (const Bytes& record : answer->records()) {
        const KvPage page = must(decode_kv_page(record));
        EXPECT_EQ(page.first_position, first);
        const auto before = std::span<const TokenId>(prompt).first(first);
        EXPECT_EQ(page.before, sha256(std::as_bytes(before)));
        const std::size_t count = first < 256 ? 128 : 32;  // full pages of 16 only
        ASSERT_EQ(page.tokens.size(), count);
        EXPECT_TRUE(std::equal(page.tokens.begin(), page.tokens.end(), prompt.begin() + first));
        KvSource wanted = source();
        wanted.page_tokens = handed_page_tokens;
        EXPECT_TRUE(require_source(page.source, wanted).ok());
        first += handed_page_tokens;
    }
}

// The rows are those that the decoder computes without the engine.
TEST_F(PrefillTest, RowsAreThoseOfTheDecoder) {
    const auto prompt = tokens(150);
    const auto answer = begin(wish(prompt, {{"rows", "f32"}}));
    answer->wait();
    ASSERT_EQ(answer->records().size(), 2u);

    const ModelConfig& config = model_.package->config();
    KvCache cache(config, {.num_pages = 16});
    KvCache::Sequence sequence(cache);
    ASSERT_TRUE(sequence.reserve(150));
    const StepRows rows{.kv = &sequence, .tokens = prompt};
    ASSERT_TRUE(model_.decoder->step(std::span(&rows, 1), experts_).ok());
    const std::size_t head_bytes = config.head_dim * sizeof(float);
    for (const Bytes& record : answer->records()) {
        const KvPage page = must(decode_kv_page(record));
        const std::byte* at = page.rows.data();
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            for (const bool is_v : {false, true})
                for (std::uint32_t head = 0; head < config.num_kv_heads; ++head)
                    for (std::uint32_t i = 0; i < page.tokens.size(); ++i, at += head_bytes) {
                        const auto all = is_v ? sequence.v(layer, page.first_position + i)
                                              : sequence.k(layer, page.first_position + i);
                        ASSERT_EQ(std::memcmp(at, all.data() + head * config.head_dim, head_bytes),
                                  0)
                            << "layer " << layer << " position " << page.first_position + i;
                    }
    }
}

TEST_F(PrefillTest, AResumedStreamHasTheSamePages) {
    const auto prompt = tokens(400);
    for (const char* rows : {"f32", "f16", "u8"}) {
        const auto whole = begin(wish(prompt, {{"rows", rows}}));
        whole->wait();
        ASSERT_EQ(whole->records().size(), 4u);
        const auto rest = begin(wish(prompt, {{"rows", rows}, {"first_page", 2}}));
        rest->wait();
        ASSERT_EQ(rest->records().size(), 2u);
        EXPECT_EQ(rest->records()[0], whole->records()[2]);
        EXPECT_EQ(rest->records()[1], whole->records()[3]);
    }
    const auto nothing = begin(wish(prompt, {{"first_page", 4}}));
    nothing->wait();
    EXPECT_TRUE(nothing->records().empty());
    EXPECT_EQ(nothing->response().status, 200u);
    const auto brief = begin(wish(tokens(15)));
    brief->wait();
    EXPECT_TRUE(brief->records().empty());
}

TEST_F(PrefillTest, BadBodiesAreRefusedByName) {
    const Json bodies[] = {
        Json::object(),        {{"prompt", "a text"}},      {{"prompt", Json::array()}},
        {{"prompt", {1, -1}}}, {{"prompt", {1, 1u << 30}}}, {{"prompt", {1.5}}},
        {{"prompt", {{1}}}}};
    for (const Json& body : bodies) {
        const auto answer = begin(body);
        answer->wait();
        EXPECT_EQ(answer->response().status, 400u) << body;
        EXPECT_EQ(Json::parse(answer->response().body)["error"]["param"], "prompt") << body;
    }
    for (const auto& [name, value] : {std::pair<const char*, Json>{"rows", "int8"},
                                      {"rows", 3},
                                      {"first_page", -1},
                                      {"first_page", "2"},
                                      {"model", 1}}) {
        const auto answer = begin(wish(tokens(20), {{name, value}}));
        answer->wait();
        EXPECT_EQ(answer->response().status, 400u);
        EXPECT_EQ(Json::parse(answer->response().body)["error"]["param"], name);
    }
    const auto other = begin(wish(tokens(20), {{"model", "another"}}));
    other->wait();
    EXPECT_EQ(other->response().status, 404u);
    const auto large = begin(wish(tokens(model_.package->config().context_tokens)));
    large->wait();
    EXPECT_EQ(large->response().status, 400u);
}

TEST_F(PrefillTest, AHubThatGivesNoModelHandsOffNoPages) {
    make(engine_options_, {});
    const auto answer = begin(wish(tokens(20)));
    answer->wait();
    EXPECT_EQ(answer->response().status, 501u);
}

// A client that reads nothing has at most four places, and the engine computes nothing for it
// beyond the first window of each.
TEST_F(PrefillTest, AClientThatReadsNothingTakesFourPlaces) {
    std::vector<std::shared_ptr<CapturedRecords>> held;
    for (int i = 0; i < 100; ++i) {
        held.push_back(std::make_shared<CapturedRecords>());
        held.back()->stop_reading();
        send(wish(tokens(150)), "mallory", held.back());
    }
    std::size_t num_refused = 0;
    for (const auto& one : held) {
        one->wait_for_records(2);
        if (one->num_records() > 0) continue;
        EXPECT_EQ(one->response().status, 429u);
        ++num_refused;
    }
    EXPECT_EQ(num_refused, 96u);

    const auto other = begin(wish(tokens(150)), "ada");
    other->wait();
    EXPECT_EQ(other->records().size(), 2u);
    for (const auto& one : held)
        if (one->num_records() > 0) one->read_all();
    for (const auto& one : held) one->wait();
    held.clear();
    const auto again = begin(wish(tokens(150)), "mallory");
    again->wait();
    EXPECT_EQ(again->records().size(), 2u) << "the places are free again";
}

// A job with a client that reads nothing yet. The job has done all that it does for such a client.
class UnreadPrefillTest : public PrefillTest {
  protected:
    void begin_unread(std::vector<TokenId> prompt, std::uint64_t held_bytes_max) {
        PrefillJobInputs inputs;
        inputs.engine = engine_.get();
        inputs.observer = std::make_shared<const ApiObserver>();
        inputs.params = {.prompt = prompt, .row_type = KvRowType::f32};
        inputs.source = source();
        inputs.held_bytes_max = held_bytes_max;
        inputs.run_later = [](std::function<void()> work) {
            work();
            return true;
        };
        inputs.client = "ada";
        answer_->stop_reading();
        job_ = std::make_shared<PrefillJob>(std::move(inputs), answer_);
        job_->start();
        answer_->wait_for_records(1);
        compute_all();
    }
    // The engine is idle then: whatever it still had to compute, it would do before this request.
    void compute_all() { begin(wish(tokens(20)), "ada")->wait(); }
    void read_all(const std::vector<TokenId>& prompt) {
        answer_->read_all();
        answer_->wait();
        ASSERT_EQ(answer_->records().size(), 8u);
        const auto whole = begin(wish(prompt, {{"rows", "f32"}}), "ada");
        whole->wait();
        EXPECT_EQ(whole->records(), answer_->records()) << "windows change no bit";
    }
    const std::shared_ptr<CapturedRecords> answer_ = std::make_shared<CapturedRecords>();
    std::shared_ptr<PrefillJob> job_;
};

// The job computes the next window only when the client has read the last.
TEST_F(UnreadPrefillTest, UnreadPagesStopTheNextWindow) {
    const auto prompt = tokens(1000);
    begin_unread(prompt, 0);  // windows of 128 tokens
    EXPECT_EQ(answer_->num_records(), 1u);
    EXPECT_LE(engine_->counters().prompt_tokens, 128u + 16u);
    read_all(prompt);
}

// One window is computed while the pages of another one are on their way.
TEST_F(UnreadPrefillTest, AWindowIsComputedWhileTheLastIsSent) {
    const auto prompt = tokens(1000);
    ASSERT_EQ(source().row_type, KvRowType::f32);
    begin_unread(prompt, kv_rows_bytes(source(), 300));  // windows of 256 tokens
    while (engine_->counters().prompt_tokens < 512) std::this_thread::yield();
    compute_all();
    EXPECT_LE(engine_->counters().prompt_tokens, 512u + 2 * 16u);
    read_all(prompt);
}

TEST_F(PrefillTest, ADisconnectEndsTheComputation) {
    experts_.hold();
    const auto answer = begin(wish(tokens(200)));
    while (engine_->counters().running == 0) std::this_thread::yield();
    answer->disconnect();
    experts_.release();
    while (engine_->counters().running > 0) std::this_thread::yield();
    EXPECT_EQ(answer->num_records(), 0u);
}

TEST_F(PrefillTest, PagesOfOneClientReachNoOther) {
    const auto prompt = tokens(256);
    begin(wish(prompt), "ada")->wait();
    const auto cached = [&] { return engine_->counters().cached_tokens; };
    const auto before = cached();
    begin(wish(prompt), "bob")->wait();
    EXPECT_EQ(cached(), before);
    begin(wish(prompt), "ada")->wait();
    EXPECT_GT(cached(), before);
}

}  // namespace
}  // namespace moex::test
