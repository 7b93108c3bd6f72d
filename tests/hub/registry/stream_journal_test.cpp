// Tests of the fleet's key, of what is sealed with it, and of the journals of streams: only their
// owner writes them, one of several takers wins, and changed bytes are refused.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "hub/registry/postgres_store.h"
#include "hub/registry/stream_journal.h"
#include "tests/support/must.h"
#include "tests/support/postgres_server.h"
#include "tests/support/wait_until.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
using test::must;
using test::PostgresServer;
using test::wait_until;

constexpr Duration long_life = std::chrono::seconds(60);
const std::string stream_id = "aaaaaaaa-0123456789abcdef0123456789abcdef";

Bytes bytes_of(std::string_view words) {
    const ByteView view = as_byte_view(words);
    return {view.begin(), view.end()};
}
std::string text_of(const Bytes& bytes) { return std::string(as_text_view(bytes)); }

FleetKey key_of(std::uint8_t first) {
    FleetKey::Bits bits{};
    bits[0] = std::byte{first};
    return FleetKey(bits);
}

class FleetKeyTest : public testing::Test {
  protected:
    FleetKeyTest() {
        std::string pattern = (fs::temp_directory_path() / "moex-fleet-XXXXXX").string();
        if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
        root_ = pattern;
    }
    ~FleetKeyTest() override { fs::remove_all(root_); }
    fs::path file_of(std::string_view content, mode_t mode = 0600) {
        const fs::path file = root_ / "given";
        std::ofstream(file) << content;
        ::chmod(file.c_str(), mode);
        return file;
    }
    fs::path root_;
};

TEST_F(FleetKeyTest, AMadeKeyIsPrivateAndReadAgain) {
    const fs::path file = root_ / "key";
    ASSERT_TRUE(FleetKey::make(file).ok());
    struct stat found {};
    ASSERT_EQ(::stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u);
    const FleetKey key = must(FleetKey::read(file));
    EXPECT_EQ(key.derive("journal"), must(FleetKey::read(file)).derive("journal"));
    EXPECT_NE(key.derive("journal"), key.derive("requests"));
    EXPECT_NE(key.derive("journal"), key.derive("journal", as_byte_view("salt")));

    EXPECT_FALSE(FleetKey::make(file).ok()) << "a key is never overwritten";
    ASSERT_TRUE(FleetKey::make(root_ / "other").ok());
    EXPECT_NE(must(FleetKey::read(root_ / "other")).derive("journal"), key.derive("journal"));
}

TEST_F(FleetKeyTest, AFileThatOthersReadOrThatIsNoKeyIsRefused) {
    const std::string right(64, 'a');
    EXPECT_TRUE(FleetKey::read(file_of(right + "\n")).ok());
    for (const mode_t mode : {0644, 0640, 0604, 0660}) {
        const auto read = FleetKey::read(file_of(right, mode));
        ASSERT_FALSE(read.ok()) << std::oct << mode;
        EXPECT_NE(read.error().message.find("chmod 600"), std::string::npos);
    }
    for (const std::string& wrong :
         {std::string(), std::string(63, 'a'), right + "a", std::string(64, 'g'), " " + right}) {
        const auto read = FleetKey::read(file_of(wrong));
        ASSERT_FALSE(read.ok()) << wrong;
        EXPECT_NE(read.error().message.find("64 hexadecimal digits"), std::string::npos);
    }
    EXPECT_EQ(FleetKey::read(root_ / "none").error().code, ErrorCode::not_found);
}

TEST(SealerTest, ChangedMovedAndForeignTextsAreRefused) {
    Sealer sealer(key_of(1));
    const Bytes plain = bytes_of("The sea was calm.");
    const Bytes sealed = sealer.seal(plain, "here");
    EXPECT_EQ(must(Sealer(key_of(1)).open(sealed, "here")), plain) << "another process opens it";
    EXPECT_NE(sealer.seal(plain, "here"), sealed) << "no two texts have one nonce";
    EXPECT_EQ(text_of(sealed).find("sea"), std::string::npos);

    EXPECT_EQ(Sealer(key_of(2)).open(sealed, "here").error().code, ErrorCode::bad_file);
    EXPECT_EQ(sealer.open(sealed, "there").error().code, ErrorCode::bad_file);
    for (std::size_t i = 0; i < sealed.size(); ++i) {
        Bytes changed = sealed;
        changed[i] ^= std::byte{1};
        EXPECT_FALSE(sealer.open(changed, "here").ok()) << "byte " << i;
        EXPECT_FALSE(sealer.open(ByteView(sealed).first(i), "here").ok()) << i << " bytes";
    }
    EXPECT_EQ(must(sealer.open(sealer.seal({}, "here"), "here")), Bytes());
}

TEST(FleetCodeTest, ACodeFitsItsWordsAndItsKeyAlone) {
    const std::string code = key_of(1).code_of("GET /v1/streams/1");
    EXPECT_TRUE(key_of(1).is_code_of(code, "GET /v1/streams/1"));
    EXPECT_FALSE(key_of(1).is_code_of(code, "GET /v1/streams/2"));
    EXPECT_FALSE(key_of(2).is_code_of(code, "GET /v1/streams/1"));
    EXPECT_FALSE(key_of(1).is_code_of(code.substr(1), "GET /v1/streams/1"));
    EXPECT_FALSE(key_of(1).is_code_of("", "GET /v1/streams/1"));
}

class StreamTableTest : public testing::Test {
  protected:
    // One server for all tests of the suite, since it takes seconds to make one.
    static void SetUpTestSuite() {
        if (PostgresServer::is_installed()) server_ = std::make_unique<PostgresServer>();
    }
    static void TearDownTestSuite() { server_.reset(); }
    void SetUp() override {
        if (!server_) GTEST_SKIP() << "SKIPPED: no postgresql-15";
        store_ = must(PostgresStore::open(must(PostgresAddress::parse(server_->url()))));
        members_ = make_membership(*store_);
        table_ = std::make_unique<StreamTable>(*store_);
        ASSERT_TRUE(change("DELETE FROM streams; DELETE FROM hubs").ok());
    }
    Incarnation enter(const std::string& hub_id, Duration life = long_life) {
        return {hub_id,
                must(members_->enter({.hub_id = hub_id, .address = "http://" + hub_id}, life))};
    }
    std::unique_ptr<StreamJournal> journal_of(const Incarnation& hub,
                                              StreamJournalOptions options = {}) {
        return std::make_unique<StreamJournal>(
            *store_, key_of(1), [hub] { return hub; },
            [this](const std::string& id) {
                const std::lock_guard lock(mutex_);
                lost_.push_back(id);
            },
            options);
    }
    Status change(const std::string& sql) { return (*must(store_->session())).execute(sql); }
    void wait_for_pieces(std::int64_t number, StreamJournal* flushed = nullptr) {
        wait_until([&] {
            if (flushed) flushed->flush();
            return count("SELECT count(*) FROM stream_pieces") >= number;
        });
    }
    std::int64_t count(const std::string& sql) {
        auto session = must(store_->session());
        Statement select(*session, sql);
        EXPECT_TRUE(select.step()) << select.status().error().message;
        return select.integer(0);
    }

    static inline std::unique_ptr<PostgresServer> server_;
    std::unique_ptr<PostgresStore> store_;
    std::unique_ptr<Membership> members_;
    std::unique_ptr<StreamTable> table_;
    std::mutex mutex_;
    std::vector<std::string> lost_;
};

TEST_F(StreamTableTest, OfTwoTakersOneWins) {
    const Incarnation dead = enter("aaaaaaaa", Duration{});
    const Incarnation takers[] = {enter("bbbbbbbb"), enter("cccccccc")};
    for (int round = 0; round < 50; ++round) {
        const std::string id = text(stream_id, round);
        ASSERT_TRUE(table_->insert(dead, id, bytes_of("head"), long_life).ok());
        std::atomic<int> ready{0}, won{0};
        std::atomic<std::size_t> winner{2};
        std::vector<std::thread> threads;
        for (std::size_t i = 0; i < 2; ++i)
            threads.emplace_back([&, i] {
                ++ready;
                while (ready < 2) std::this_thread::yield();
                const Status took = table_->take(id, dead, takers[i], false, long_life);
                if (took.ok()) {
                    ++won;
                    winner = i;
                } else {
                    EXPECT_EQ(took.error().code, ErrorCode::cancelled);
                }
            });
        for (std::thread& thread : threads) thread.join();
        ASSERT_EQ(won, 1) << "round " << round;
        EXPECT_EQ(must(table_->find(id)).owner, takers[winner]);
    }
}

// Both takers have found the same dead hub, and the second one is late.
TEST_F(StreamTableTest, ALateTakerIsRefusedEvenByForce) {
    const Incarnation dead = enter("aaaaaaaa", Duration{});
    const Incarnation first = enter("bbbbbbbb"), late = enter("cccccccc");
    ASSERT_TRUE(table_->insert(dead, stream_id, bytes_of("head"), long_life).ok());
    ASSERT_TRUE(table_->take(stream_id, dead, first, true, long_life).ok());
    for (const bool force : {true, false})
        EXPECT_EQ(table_->take(stream_id, dead, late, force, long_life).error().code,
                  ErrorCode::cancelled);
    EXPECT_EQ(must(table_->find(stream_id)).owner, first);

    // The first taker dies in turn: who still names the hub before it is refused again.
    ASSERT_TRUE(members_->renew({.hub_id = first.hub_id, .fence = first.fence}, Duration{}).ok());
    EXPECT_EQ(table_->take(stream_id, dead, late, false, long_life).error().code,
              ErrorCode::cancelled);
    EXPECT_TRUE(table_->take(stream_id, first, late, false, long_life).ok());
}

TEST_F(StreamTableTest, AnEndedLeaseIsTakenFromWithoutForce) {
    const Incarnation hub = enter("aaaaaaaa");
    const auto journal = journal_of(hub);
    journal->begin(stream_id, bytes_of("question"));
    journal->add(stream_id, bytes_of("one"));
    journal->flush();
    const auto taker = journal_of(enter("bbbbbbbb"));
    ASSERT_FALSE(must(taker->take(stream_id)).is_ours);

    ASSERT_TRUE(members_->renew({.hub_id = hub.hub_id, .fence = hub.fence}, Duration{}).ok());
    EXPECT_FALSE(must(table_->find(stream_id)).owner_lives);
    const auto taken = must(taker->take(stream_id));
    EXPECT_TRUE(taken.is_ours);
    EXPECT_EQ(taken.records.size(), 1u);
}

TEST_F(StreamTableTest, TheOldOwnerWritesNothingAfterATaker) {
    const Incarnation old = enter("aaaaaaaa", Duration{}), next = enter("bbbbbbbb");
    ASSERT_TRUE(table_->insert(old, stream_id, bytes_of("head"), long_life).ok());
    const StreamPiece first[] = {{stream_id, 0, bytes_of("one")}},
                      second[] = {{stream_id, 1, bytes_of("two")}},
                      forged[] = {{stream_id, 1, bytes_of("old")}};
    ASSERT_TRUE(table_->append(old, first).ok());
    ASSERT_TRUE(table_->take(stream_id, old, next, false, long_life).ok());
    ASSERT_TRUE(table_->append(old, forged).ok());
    ASSERT_TRUE(table_->end(old, stream_id, Duration{}).ok());
    ASSERT_TRUE(table_->append(next, second).ok());
    EXPECT_EQ(must(table_->sweep()), 0) << "the old owner ended nothing";

    const std::vector<StreamPiece> pieces = must(table_->pieces(stream_id));
    ASSERT_EQ(pieces.size(), 2u);
    EXPECT_EQ(text_of(pieces[1].records), "two");
    EXPECT_TRUE(must(table_->owned(old, std::vector{stream_id})).empty());
    EXPECT_EQ(must(table_->owned(next, std::vector{stream_id})).size(), 1u);
}

TEST_F(StreamTableTest, AHubWithALeaseIsTakenFromByForceAlone) {
    const Incarnation lives = enter("aaaaaaaa"), other = enter("bbbbbbbb");
    ASSERT_TRUE(table_->insert(lives, stream_id, bytes_of("head"), long_life).ok());
    EXPECT_TRUE(must(table_->find(stream_id)).owner_lives);
    EXPECT_EQ(table_->take(stream_id, lives, other, false, long_life).error().code,
              ErrorCode::cancelled);
    // A new incarnation of the same hub takes the streams of the one before at once.
    const Incarnation again = enter("aaaaaaaa");
    EXPECT_FALSE(must(table_->find(stream_id)).owner_lives);
    ASSERT_TRUE(table_->take(stream_id, lives, again, false, long_life).ok());
    ASSERT_TRUE(table_->take(stream_id, again, other, true, long_life).ok());
    EXPECT_EQ(table_->find("no such stream").error().code, ErrorCode::not_found);
}

TEST_F(StreamTableTest, AnotherHubReadsWhatTheFirstHasSealed) {
    const Incarnation first = enter("aaaaaaaa");
    const auto journal = journal_of(first);
    journal->begin(stream_id, bytes_of("a secret question"));
    for (int i = 0; i < 500; ++i) {
        journal->add(stream_id, bytes_of(text("secret token ", i)));
        if (i % 100 == 0) journal->flush();
    }
    journal->flush();
    EXPECT_EQ(count("SELECT count(*) FROM streams WHERE position('secret'::bytea IN head) > 0"), 0);
    EXPECT_EQ(count("SELECT count(*) FROM stream_pieces WHERE position('secret'::bytea IN records)"
                    " > 0"),
              0);
    EXPECT_GT(count("SELECT count(*) FROM stream_pieces"), 1);

    const Incarnation second = enter("bbbbbbbb");
    const auto taker = journal_of(second);
    const auto elsewhere = must(taker->take(stream_id));
    EXPECT_FALSE(elsewhere.is_ours);
    EXPECT_EQ(elsewhere.address, "http://aaaaaaaa");

    const auto taken = must(taker->take(stream_id, true));
    ASSERT_TRUE(taken.is_ours);
    EXPECT_EQ(text_of(taken.head), "a secret question");
    ASSERT_EQ(taken.records.size(), 500u);
    EXPECT_EQ(text_of(taken.records[499]), "secret token 499");

    // The first hub finds out with its next record, and the second one's are the journal.
    journal->add(stream_id, bytes_of("too late"));
    journal->flush();
    EXPECT_EQ(lost_, std::vector{stream_id});
    taker->add(stream_id, bytes_of("the next token"));
    taker->flush();
    const auto back = must(journal_of(enter("cccccccc"))->take(stream_id, true));
    ASSERT_EQ(back.records.size(), 501u);
    EXPECT_EQ(text_of(back.records[500]), "the next token");
}

TEST_F(StreamTableTest, AChangedJournalIsRefused) {
    const auto write = [&](const std::string& id) {
        const auto journal = journal_of(enter("aaaaaaaa"));
        journal->begin(id, bytes_of("question"));
        for (const char* word : {"one", "two"}) {
            journal->add(id, bytes_of(word));
            journal->flush();
        }
    };
    const auto taker = journal_of(enter("bbbbbbbb"));
    const std::string sealed = "a sealed text was changed";
    // Each change, and what the taker says about it.
    const std::pair<std::string, std::string> changes[] = {
        {"UPDATE streams SET head = set_byte(head, 30, get_byte(head, 30) # 1)", sealed},
        {"UPDATE stream_pieces SET records = set_byte(records, 30, get_byte(records, 30) # 1)",
         sealed},
        {"DELETE FROM stream_pieces WHERE position = 0", "lacks a piece before record 1"},
        {"UPDATE stream_pieces SET records = (SELECT records FROM stream_pieces WHERE position = "
         "0)",
         sealed},
        {"UPDATE streams SET head = (SELECT records FROM stream_pieces WHERE position = 0)",
         sealed}};
    for (const auto& [sql, words] : changes) {
        write(stream_id);
        ASSERT_TRUE(change(sql).ok()) << sql;
        const Error refused = taker->take(stream_id, true).error();
        EXPECT_EQ(refused.code, ErrorCode::bad_file) << sql;
        EXPECT_NE(refused.message.find(words), std::string::npos) << sql << ": " << refused.message;
        ASSERT_TRUE(change("DELETE FROM streams").ok());
    }
    write(stream_id);
    EXPECT_TRUE(taker->take(stream_id, true).ok());
}

TEST_F(StreamTableTest, AStoreThatIsAwayLosesNoRecord) {
    const auto journal = journal_of(enter("aaaaaaaa"));
    journal->begin(stream_id, bytes_of("question"));
    journal->add(stream_id, bytes_of("0"));
    journal->flush();
    server_->stop();
    for (int i = 1; i < 100; ++i) {
        journal->add(stream_id, bytes_of(text(i)));
        if (i % 40 == 0) journal->flush();  // fails
    }
    server_->start();
    wait_until([&] { return store_->look().answers; });
    wait_for_pieces(2, journal.get());
    journal->flush();
    const auto taken = must(journal_of(enter("bbbbbbbb"))->take(stream_id, true));
    ASSERT_EQ(taken.records.size(), 100u);
    for (int i = 0; i < 100; ++i) EXPECT_EQ(text_of(taken.records[i]), text(i));
}

// A lock on the table holds a write up until its connection is ended; meanwhile a record arrives.
TEST_F(StreamTableTest, RecordsKeepTheirOrderOverAWriteThatFails) {
    const auto journal = journal_of(enter("aaaaaaaa"));
    journal->begin(stream_id, bytes_of("question"));
    journal->flush();
    {
        const auto lock = must(store_->session());
        ASSERT_TRUE((*lock).execute("BEGIN; LOCK TABLE stream_pieces").ok());
        journal->add(stream_id, bytes_of("one"));
        wait_until([&] { return count("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0; });
        journal->add(stream_id, bytes_of("two"));
        EXPECT_EQ(count("SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE NOT granted"),
                  1);
        journal->flush();  // waits for the failure
        ASSERT_TRUE((*lock).execute("ROLLBACK").ok());
    }
    EXPECT_FALSE(store_->session().ok()) << "a lost connection means a store that is away";
    wait_until([&] { return store_->look().answers; });
    wait_for_pieces(1, journal.get());
    const auto taken = must(journal_of(enter("bbbbbbbb"))->take(stream_id, true));
    ASSERT_EQ(taken.records.size(), 2u);
    EXPECT_EQ(text_of(taken.records[0]), "one");
    EXPECT_EQ(text_of(taken.records[1]), "two");
}

TEST_F(StreamTableTest, BeyondItsBoundAStreamLosesItsJournal) {
    const auto journal = journal_of(enter("aaaaaaaa"), {.waiting_bytes_max = 1000});
    journal->begin(stream_id, bytes_of("question"));
    journal->flush();
    journal->add(stream_id, Bytes(2000));
    journal->flush();
    EXPECT_EQ(journal->counters().dropped, 1u);
    ASSERT_TRUE(table_->sweep().ok());
    EXPECT_EQ(count("SELECT count(*) FROM streams"), 0) << "a journal with a gap is of no use";
}

// Requests are larger than tokens: while the store is away, they count like these.
TEST_F(StreamTableTest, BeyondItsBoundAStreamBeginsWithoutAJournal) {
    const auto journal = journal_of(enter("aaaaaaaa"),
                                    {.write_every = 60s, .waiting_bytes_max = 1000});
    journal->begin("first", Bytes(600));
    journal->begin(stream_id, Bytes(600));
    journal->add(stream_id, bytes_of("one"));
    journal->add("first", bytes_of("one"));
    EXPECT_EQ(journal->counters().dropped, 1u);
    journal->flush();
    EXPECT_EQ(count("SELECT count(*) FROM streams"), 1);
    EXPECT_EQ(count("SELECT count(*) FROM stream_pieces"), 1);
    journal->begin(stream_id, Bytes(600));
    journal->flush();
    EXPECT_EQ(count("SELECT count(*) FROM streams"), 2) << "there is room again";
}

TEST_F(StreamTableTest, RecordsAreWrittenWithoutAnyoneWaiting) {
    const auto journal = journal_of(enter("aaaaaaaa"));
    journal->begin(stream_id, bytes_of("question"));
    journal->add(stream_id, bytes_of("one"));
    wait_for_pieces(1);
    journal->add(stream_id, bytes_of("two"));
    wait_for_pieces(2);
    EXPECT_EQ(must(journal_of(enter("bbbbbbbb"))->take(stream_id, true)).records.size(), 2u);
}

// A front that finds no hub with a journal asks for the stream anew, under its id.
TEST_F(StreamTableTest, AStreamThatBeginsAnewReplacesTheOldOne) {
    const auto first = journal_of(enter("aaaaaaaa")), second = journal_of(enter("bbbbbbbb"));
    first->begin(stream_id, bytes_of("question"));
    for (const char* word : {"one", "two"}) first->add(stream_id, bytes_of(word));
    first->flush();
    second->begin(stream_id, bytes_of("question"));
    second->add(stream_id, bytes_of("again"));
    second->flush();
    first->add(stream_id, bytes_of("three"));
    first->flush();
    EXPECT_EQ(lost_, std::vector{stream_id});
    const auto taken = must(journal_of(enter("cccccccc"))->take(stream_id, true));
    ASSERT_EQ(taken.records.size(), 1u);
    EXPECT_EQ(text_of(taken.records[0]), "again");
}

TEST_F(StreamTableTest, AStreamThatBeginsAnewHereForgetsWhatWaits) {
    const auto journal = journal_of(enter("aaaaaaaa"));
    for (const bool is_stored : {false, true}) {
        journal->begin(stream_id, bytes_of("old question"));
        for (const char* word : {"one", "two"}) journal->add(stream_id, bytes_of(word));
        if (is_stored) journal->flush();
        journal->add(stream_id, bytes_of("three"));
        journal->begin(stream_id, bytes_of("question"));
        journal->add(stream_id, bytes_of("again"));
        journal->flush();
        const auto taken = must(journal_of(enter("bbbbbbbb"))->take(stream_id, true));
        EXPECT_EQ(text_of(taken.head), "question");
        ASSERT_EQ(taken.records.size(), 1u);
        EXPECT_EQ(text_of(taken.records[0]), "again");
    }
}

TEST_F(StreamTableTest, AnEndedStreamIsDeleted) {
    const auto journal = journal_of(enter("aaaaaaaa"), {.life_after_end = Duration{}});
    journal->begin(stream_id, bytes_of("question"));
    journal->add(stream_id, bytes_of("one"));
    journal->flush();
    ASSERT_TRUE(table_->sweep().ok());
    EXPECT_EQ(count("SELECT count(*) FROM streams"), 1);
    journal->end(stream_id);
    journal->flush();
    ASSERT_TRUE(table_->sweep().ok());
    EXPECT_EQ(count("SELECT count(*) FROM streams"), 0);
    EXPECT_EQ(count("SELECT count(*) FROM stream_pieces"), 0);
}

}  // namespace
}  // namespace moex
