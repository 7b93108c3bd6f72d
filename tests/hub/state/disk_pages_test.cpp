// Tests the pages on disk: what returns after a restart, and what does not: pages of other clients,
// keys, models and texts, damaged ones, old ones, and those of liars.
#include "hub/state/disk_pages.h"

#include <csignal>
#include <fstream>
#include <future>
#include <numeric>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "hub/base/log.h"
#include "hub/state/page_files.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

namespace fs = std::filesystem;
constexpr std::uint32_t page_tokens = 4;

class DiskPagesTest : public testing::Test {
  protected:
    DiskPagesTest() : folder_("disk-pages") {
        set_log(LogLevel::error);
        options_.folder = folder_.path() / "pages";
        options_.key.fill(std::byte{7});
        options_.source.end_layer = 2;
        options_.source.num_kv_heads = 1;
        options_.source.head_dim = 8;
        options_.source.page_tokens = page_tokens;
        options_.bytes_max = 1 << 20;
        options_.retry_after = std::chrono::milliseconds(0);
        options_.unix_time_s = [this] { return std::time(nullptr) + later_s_; };
        open();
    }
    void open() {
        pages_.reset();
        auto opened = DiskPages::open(options_);
        ASSERT_TRUE(opened.ok()) << opened.error().message;
        pages_ = *std::move(opened);
        pages_->wait_until_written();
    }
    static std::vector<TokenId> text_of(std::uint32_t first, std::size_t count) {
        std::vector<TokenId> tokens(count);
        std::iota(tokens.begin(), tokens.end(), first);
        return tokens;
    }
    // The rows that the tests store for the page that ends with `tokens`.
    Bytes rows_of(std::span<const TokenId> tokens) const {
        Bytes rows(kv_rows_bytes(options_.source, page_tokens));
        for (std::size_t i = 0; i < rows.size(); ++i)
            rows[i] = static_cast<std::byte>(tokens.back() * 31 + tokens.front() + i);
        return rows;
    }
    // Keeps all pages of a text and waits until they are on disk.
    void keep(const std::string& client, const std::vector<TokenId>& tokens,
              std::vector<std::uint64_t> workers = {},
              std::unique_ptr<TextMemory>* memory = nullptr) {
        for (std::size_t end = page_tokens; end <= tokens.size(); end += page_tokens) {
            const auto text = std::span(tokens).first(end);
            ASSERT_TRUE(pages_->keep({.client = client,
                                      .tokens = text,
                                      .workers = workers,
                                      .memory = memory,
                                      .read = [&](std::span<std::byte> rows, std::span<std::byte>) {
                                          const Bytes wanted = rows_of(text);
                                          std::copy(wanted.begin(), wanted.end(), rows.begin());
                                          return Status();
                                      }}));
        }
        pages_->wait_until_written();
    }
    // Fetches the pages of a text, checks their rows, and returns their number.
    std::size_t fetch(const std::string& client, const std::vector<TokenId>& tokens,
                      std::uint32_t first_page = 0, std::unique_ptr<TextMemory>* memory = nullptr) {
        std::promise<FetchedPages> promise;
        const auto id = pages_->fetch(
            {.client = client,
             .tokens = tokens,
             .first_page = first_page,
             .bytes_max = 1 << 20,
             .done = [&](FetchedPages fetched) { promise.set_value(std::move(fetched)); },
             .memory = memory});
        if (id == 0) return 0;
        const FetchedPages fetched = promise.get_future().get();
        EXPECT_EQ(fetched.id, id);
        for (std::size_t i = 0; i < fetched.pages.size(); ++i) {
            const auto text = std::span(tokens).first((first_page + i + 1) * page_tokens);
            const ByteView rows = fetched.pages[i].rows;
            EXPECT_EQ(Bytes(rows.begin(), rows.end()), rows_of(text));
        }
        last_ = {};
        for (const StoredPage& page : fetched.pages) last_ = page.workers;
        return fetched.pages.size();
    }
    std::vector<fs::path> files() const {
        std::vector<fs::path> found;
        for (const FoundPage& page : find_pages(options_.folder))
            found.push_back(options_.folder / page_file(page.folder, page.name, page.parent));
        return found;
    }
    static void change(const fs::path& path, std::size_t offset) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(offset));
        const char one = static_cast<char>(file.get() ^ 1);
        file.seekp(static_cast<std::streamoff>(offset));
        file.put(one);
    }

    test::TemporaryFolder folder_;
    DiskPagesOptions options_;
    std::int64_t later_s_ = 0;
    std::vector<std::uint64_t> last_;  // workers of the last fetched page
    std::unique_ptr<DiskPages> pages_;
};

TEST_F(DiskPagesTest, PagesOfATextReturnAfterARestart) {
    const auto text = text_of(100, 14);
    keep("ada", text);
    EXPECT_EQ(fetch("ada", text), 3u);
    open();
    EXPECT_EQ(pages_->counters().pages, 3u);
    EXPECT_EQ(fetch("ada", text), 3u);
    EXPECT_EQ(fetch("ada", text, 2), 1u);
    EXPECT_EQ(fetch("ada", text_of(100, 9)), 2u);
    auto other = text;
    other[5] = 1;
    EXPECT_EQ(fetch("ada", other), 1u);
    EXPECT_EQ(pages_->counters().pages_read, 7u);
    EXPECT_EQ(pages_->counters().pages_refused, 0u);
}

// The names of a text's pages are the same whether the hash begins at the first token or goes on
// where an earlier call ended.
TEST_F(DiskPagesTest, MemoryOfATextChangesNoName) {
    const auto text = text_of(100, 40), other = text_of(200, 40);
    std::unique_ptr<TextMemory> memory, memory_of_other;
    keep("ada", text, {}, &memory);
    ASSERT_NE(memory, nullptr);
    keep("ada", other);
    const auto named = files();
    EXPECT_EQ(named.size(), 20u);
    EXPECT_EQ(fetch("ada", text), 10u);

    // Forwards, backwards, and beyond the end of what is stored.
    for (const std::uint32_t first_page : {0u, 3u, 9u, 4u, 10u, 1u}) {
        EXPECT_EQ(fetch("ada", text, first_page, &memory), 10u - first_page);
        EXPECT_EQ(fetch("ada", other, first_page, &memory_of_other), 10u - first_page);
    }
    keep("ada", text, {}, &memory);
    keep("ada", other, {}, &memory_of_other);
    EXPECT_EQ(files(), named);
    EXPECT_EQ(pages_->counters().pages_refused, 0u);
}

TEST_F(DiskPagesTest, PagesOfAnotherClientOrModelAreNotFound) {
    const auto text = text_of(100, 8);
    keep("ada", text);
    EXPECT_EQ(fetch("grace", text), 0u);
    options_.source.model.fill(std::byte{1});
    open();
    EXPECT_EQ(fetch("ada", text), 0u);
    options_.source.model.fill(std::byte{0});
    open();
    EXPECT_EQ(fetch("ada", text), 2u);
}

TEST_F(DiskPagesTest, NothingOnDiskSaysAnythingPlain) {
    const auto text = text_of(0x61626364, 8);
    keep("client-of-this-test", text);
    const std::string tokens(reinterpret_cast<const char*>(text.data()), 16);
    const Bytes rows = rows_of(std::span(text).first(4));
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder)) {
        EXPECT_EQ(entry.path().string().find("client-of"), std::string::npos);
        if (!entry.is_regular_file()) continue;
        std::ifstream in(entry.path(), std::ios::binary);
        const std::string bytes(std::istreambuf_iterator<char>(in), {});
        EXPECT_EQ(bytes.find(tokens), std::string::npos);
        EXPECT_EQ(bytes.find(as_text_view(rows).substr(0, 16)), std::string::npos);
        EXPECT_EQ(bytes.find("client-of"), std::string::npos);
    }
}

TEST_F(DiskPagesTest, EachDamagedPageIsRefusedAndDeleted) {
    const auto text = text_of(100, 8);
    keep("ada", text);
    const std::size_t size = fs::file_size(files()[0]);
    std::uint64_t refused = 0;
    for (std::size_t offset = 0; offset < size; offset += 7) {
        keep("ada", text);
        for (const fs::path& file : files())
            if (file.string().ends_with(hex_of(PageName{}))) change(file, offset);
        EXPECT_EQ(fetch("ada", text), 0u) << offset;
        EXPECT_EQ(pages_->counters().pages_refused, ++refused);
        EXPECT_TRUE(files().empty());
    }
}

TEST_F(DiskPagesTest, TornTemporaryAndForeignFilesDoNoHarm) {
    const auto text = text_of(100, 12);
    keep("ada", text);
    const fs::path one = files()[0];
    std::ofstream(one.string() + ".tmp") << "half a page";
    std::ofstream(options_.folder / "notes.txt") << "of somebody";
    std::ofstream(one.parent_path() / "notes.txt") << "of somebody";
    for (const fs::path& file : files())
        if (file.string().ends_with(hex_of(PageName{}))) fs::resize_file(file, 40);
    open();
    EXPECT_FALSE(fs::exists(one.string() + ".tmp"));
    EXPECT_TRUE(fs::exists(options_.folder / "notes.txt"));
    EXPECT_EQ(fetch("ada", text), 0u);
    EXPECT_EQ(pages_->counters().pages, 0u);
    keep("ada", text);
    EXPECT_EQ(fetch("ada", text), 3u);
}

TEST_F(DiskPagesTest, FileInThePlaceOfAnotherIsRefused) {
    const auto text = text_of(100, 4), other = text_of(200, 4);
    keep("ada", text);
    const fs::path first = files()[0];
    keep("ada", other);
    for (const fs::path& file : files())
        if (file != first) fs::copy_file(file, first, fs::copy_options::overwrite_existing);
    EXPECT_EQ(fetch("ada", text), 0u);
    EXPECT_EQ(fetch("ada", other), 1u);
}

TEST_F(DiskPagesTest, PagesOfAnotherKeyAreDeleted) {
    const auto text = text_of(100, 8);
    keep("ada", text);
    options_.key.fill(std::byte{8});
    open();
    EXPECT_EQ(pages_->counters().pages, 0u);
    EXPECT_TRUE(files().empty());
    keep("ada", text);
    EXPECT_EQ(fetch("ada", text), 2u);
}

TEST_F(DiskPagesTest, BytesStayBelowTheLimitAndBeginningsStay) {
    const auto text = text_of(100, 40), old = text_of(500, 40);
    keep("ada", old);
    const std::uint64_t page_bytes = pages_->counters().bytes / 10;
    options_.bytes_max = 14 * page_bytes;
    open();
    keep("ada", text);
    EXPECT_LE(pages_->counters().bytes, options_.bytes_max);
    EXPECT_EQ(pages_->counters().pages_evicted, 6u);
    EXPECT_EQ(files().size(), 14u);
    EXPECT_EQ(fetch("ada", old), 4u);
    EXPECT_EQ(fetch("ada", text), 10u);
}

TEST_F(DiskPagesTest, OldPagesLeaveAfterTheirTime) {
    const auto text = text_of(100, 8);
    keep("ada", text);
    later_s_ = 23 * 3600;
    open();
    EXPECT_EQ(fetch("ada", text), 2u);
    later_s_ = 24 * 3600 + 2;
    open();
    EXPECT_EQ(fetch("ada", text), 0u);
    EXPECT_TRUE(files().empty());
}

TEST_F(DiskPagesTest, PagesOfARevokedKeyAreDeleted) {
    std::atomic<bool> is_valid = true;
    options_.key_id_of = [](std::string_view client) { return std::string(client.substr(4)); };
    options_.key_is_valid = [&](std::string_view id) { return id != "1a2b" || is_valid; };
    open();
    const auto text = text_of(100, 8);
    keep("ada 1a2b", text);
    keep("ada 3c4d", text);
    is_valid = false;
    open();
    EXPECT_EQ(fetch("ada 1a2b", text), 0u);
    EXPECT_EQ(fetch("ada 3c4d", text), 2u);
    EXPECT_EQ(files().size(), 2u);
}

TEST_F(DiskPagesTest, PagesOfALiarAreDeletedNowAndRefusedLater) {
    const auto text = text_of(100, 8), other = text_of(200, 8), third = text_of(300, 4);
    pages_->know_worker(1, "key of one");
    pages_->know_worker(2, "key of two");
    keep("ada", text, {1});
    keep("ada", other, {2});
    keep("ada", third, {2, 3});
    EXPECT_EQ(fetch("ada", third), 1u);
    EXPECT_EQ(last_, (std::vector<std::uint64_t>{2, 3}));
    pages_->forget_worker(1);
    EXPECT_EQ(fetch("ada", text), 0u);
    EXPECT_EQ(files().size(), 3u);

    open();
    pages_->know_worker(9, "key of two");
    EXPECT_EQ(fetch("ada", other), 2u);
    EXPECT_EQ(last_, (std::vector<std::uint64_t>{9}));
    options_.worker_is_banned = [](std::string_view key) { return key == "key of two"; };
    open();
    EXPECT_EQ(fetch("ada", other), 0u);
    EXPECT_EQ(fetch("ada", third), 0u);
    EXPECT_TRUE(files().empty());
}

// A fetch waits behind another one; meanwhile its pages are deleted, since a worker has lied. In an
// earlier version they were counted and reported as damaged pages.
TEST_F(DiskPagesTest, PageThatLeftBeforeItIsReadIsNoRefusal) {
    const auto first = text_of(100, 4), text = text_of(200, 8);
    pages_->know_worker(1, "key of one");
    keep("ada", first);
    keep("ada", text, {1});

    std::promise<void> begun, may_end;
    pages_->fetch(
        {.client = "ada", .tokens = first, .bytes_max = 1 << 20, .done = [&](FetchedPages) {
             begun.set_value();
             may_end.get_future().wait();
         }});
    std::promise<FetchedPages> promise;
    const auto id = pages_->fetch(
        {.client = "ada", .tokens = text, .bytes_max = 1 << 20, .done = [&](FetchedPages fetched) {
             promise.set_value(std::move(fetched));
         }});
    EXPECT_NE(id, 0u);
    begun.get_future().wait();
    pages_->forget_worker(1);
    may_end.set_value();
    const FetchedPages fetched = promise.get_future().get();
    EXPECT_EQ(fetched.id, id);
    EXPECT_TRUE(fetched.pages.empty());
    EXPECT_EQ(pages_->counters().pages_refused, 0u);
}

// The worker's lie is found while the store reads its page: the file was read already. In an
// earlier version the page was returned.
TEST_F(DiskPagesTest, PageThatLeavesWhileItIsReadIsNotReturned) {
    const auto text = text_of(100, 8);
    options_.worker_is_banned = [this](std::string_view) {
        pages_->forget_worker(1);
        return false;
    };
    open();
    pages_->know_worker(1, "key of one");
    keep("ada", text, {1});
    EXPECT_EQ(fetch("ada", text), 0u);
    EXPECT_EQ(pages_->counters().pages_refused, 0u);
    EXPECT_EQ(pages_->counters().pages_read, 0u);
    EXPECT_TRUE(files().empty());
}

// In an earlier version the limit left out the second parts of pages.
TEST_F(DiskPagesTest, QueueLimitCountsBothPartsOfAPage) {
    const std::uint64_t part_bytes = kv_rows_bytes(options_.source, page_tokens) / 2;
    options_.num_window_layers = 1;
    options_.window = page_tokens;
    options_.queue_bytes_max = 3 * part_bytes;
    open();
    const auto keep_page = [&](const std::vector<TokenId>& tokens) {
        return pages_->keep(
            {.client = "ada",
             .tokens = tokens,
             .workers = {},
             .read = [](std::span<std::byte>, std::span<std::byte>) { return Status(); }});
    };
    const auto first = text_of(100, page_tokens);
    ASSERT_TRUE(keep_page(first));
    pages_->wait_until_written();

    std::promise<void> begun, may_end;
    ASSERT_NE(pages_->fetch({.client = "ada",
                             .tokens = first,
                             .bytes_max = 1 << 20,
                             .done =
                                 [&](FetchedPages) {
                                     begun.set_value();
                                     may_end.get_future().wait();
                                 }}),
              0u);
    begun.get_future().wait();  // the store's thread writes nothing until `may_end`
    EXPECT_TRUE(keep_page(text_of(200, page_tokens))) << "two parts of the limit's three";
    EXPECT_FALSE(keep_page(text_of(300, page_tokens)));
    may_end.set_value();
    pages_->wait_until_written();
    EXPECT_TRUE(keep_page(text_of(300, page_tokens)));
}

TEST_F(DiskPagesTest, DeletedFolderIsMadeAgain) {
    const auto text = text_of(100, 8);
    keep("ada", text);
    EXPECT_EQ(forget_pages(options_.folder).value(), 2u);
    EXPECT_EQ(fetch("ada", text), 0u);
    fs::remove_all(options_.folder);
    keep("ada", text);
    EXPECT_EQ(fetch("ada", text), 2u);
    EXPECT_EQ(pages_->counters().writes_failed, 0u);
}

TEST_F(DiskPagesTest, FolderThatCannotBeWrittenIsCountedAndRecovers) {
    const auto text = text_of(100, 8);
    fs::remove_all(options_.folder);
    std::ofstream(options_.folder) << "a file, not a folder";
    keep("ada", text);
    EXPECT_GE(pages_->counters().writes_failed, 1u);
    EXPECT_EQ(pages_->counters().pages, 0u);
    EXPECT_FALSE(DiskPages::open(options_).ok());
    fs::remove(options_.folder);
    keep("ada", text);
    EXPECT_EQ(fetch("ada", text), 2u);
}

// A limit of the size of files stands for a full disk: a write ends in the middle of a page.
TEST_F(DiskPagesTest, WriteThatEndsHalfwayLeavesNothing) {
    const auto text = text_of(100, 8);
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 100;
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    keep("ada", text);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, old_handler);

    EXPECT_GE(pages_->counters().writes_failed, 1u);
    for (const auto& entry : fs::recursive_directory_iterator(options_.folder))
        EXPECT_TRUE(!entry.is_regular_file() || entry.path().filename() == key_check_name)
            << entry.path();
    keep("ada", text);
    EXPECT_EQ(fetch("ada", text), 2u);
}

TEST_F(DiskPagesTest, FetchThatWasDroppedCallsNobody) {
    const auto text = text_of(100, 400);
    keep("ada", text);
    for (int round = 0; round < 50; ++round) {
        auto calls = std::make_shared<std::atomic<int>>(0);
        pages_->fetch(
            {.client = "ada", .tokens = text, .bytes_max = 1 << 20, .done = [calls](FetchedPages) {
                 ++*calls;
             }});
        pages_->drop_fetches();
        const int seen = *calls;
        EXPECT_EQ(fetch("ada", text), 100u);
        EXPECT_EQ(*calls, seen);
    }
}

}  // namespace
}  // namespace moex
