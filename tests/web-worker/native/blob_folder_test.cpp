// Tests which blobs a folder keeps, and which it evicts.
#include "web-worker/native/blob_folder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace moex::native {
namespace {

constexpr std::uint64_t blob_bytes = 1u << 20;

Sha256 hash_of(int number) { return {std::byte(number)}; }

std::filesystem::path new_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "moex-folder-XXXXXX").string();
    return mkdtemp(pattern.data());
}

class BlobFolderTest : public testing::Test {
  protected:
    ~BlobFolderTest() override { std::filesystem::remove_all(folder_); }

    // Opens the folder as a starting worker does. `limit`: number of blobs; 0: no limit.
    std::unique_ptr<BlobFolder> begin(const std::string& model, std::uint64_t limit) {
        auto folder = std::make_unique<BlobFolder>(BlobFolder::Options{
            folder_, limit * blob_bytes,
            [this](const std::string& sentence) { told_.push_back(sentence); }});
        folder->serves_model(model);
        return folder;
    }
    // Reads a blob as a fetch does, and writes it if it is missing. Returns true if the blob was in
    // the folder.
    static bool ask(BlobFolder& folder, int number) {
        if (folder.read(hash_of(number), blob_bytes)) return true;
        folder.write(hash_of(number), Bytes(blob_bytes, std::byte(number)));
        return false;
    }
    std::string here() const {
        std::string numbers;
        for (int number = 0; number < 10; ++number)
            if (std::filesystem::exists(folder_ / to_hex(hash_of(number))))
                numbers += static_cast<char>('0' + number);
        return numbers;
    }

    const std::filesystem::path folder_ = new_folder();
    std::vector<std::string> told_;
};

TEST_F(BlobFolderTest, KeepsAllWithoutALimitAndGivesItsBytes) {
    auto folder = begin("a", 0);
    for (const int number : {1, 2, 3}) EXPECT_FALSE(ask(*folder, number));
    for (const int number : {1, 2, 3}) EXPECT_TRUE(ask(*folder, number));
    EXPECT_EQ(folder->read(hash_of(2), blob_bytes), Bytes(blob_bytes, std::byte(2)));
    EXPECT_EQ(folder->bytes_kept(), 3 * blob_bytes);
    EXPECT_TRUE(told_.empty());
}

TEST_F(BlobFolderTest, OtherModelsAreEvictedFirstThenTheLeastUsed) {
    {
        auto before = begin("other", 0);
        for (const int number : {1, 2}) ask(*before, number);
        // Blob 1 is used often, but belongs to another model.
        for (int i = 0; i < 9; ++i) ask(*before, 1);
    }
    {
        auto folder = begin("served", 4);
        for (const int number : {3, 4}) ask(*folder, number);
        ask(*folder, 3);
    }
    auto folder = begin("served", 4);
    EXPECT_EQ(here(), "1234");
    ask(*folder, 5);
    EXPECT_EQ(here(), "1345") << "the least recently used of the other model is evicted";
    ask(*folder, 6);
    EXPECT_EQ(here(), "3456");

    // Blob 3 was used twice, and the other blobs once.
    ask(*folder, 7);
    EXPECT_EQ(here(), "3456") << "the new one was used once, as they were";
    ASSERT_EQ(told_.size(), 1u);
    EXPECT_NE(told_[0].find("the limit of 4 MB"), std::string::npos) << told_[0];
    ask(*folder, 7);
    EXPECT_EQ(here(), "3567") << "4 was used less often";
    ask(*folder, 8);
    EXPECT_EQ(here(), "3567");
    EXPECT_EQ(told_.size(), 1u) << "reported once";
    EXPECT_EQ(folder->bytes_kept(), 4 * blob_bytes);
}

TEST_F(BlobFolderTest, BlobOfAnotherSizeIsIgnoredAndWrittenAgain) {
    auto folder = begin("a", 0);
    ask(*folder, 1);
    std::filesystem::resize_file(folder_ / to_hex(hash_of(1)), 1000);
    EXPECT_FALSE(folder->read(hash_of(1), blob_bytes));
    folder->drop(hash_of(1));
    EXPECT_FALSE(ask(*folder, 1));
    EXPECT_TRUE(ask(*folder, 1));
}

TEST_F(BlobFolderTest, FullDiskIsReportedOnceWithoutAPartialFile) {
    auto folder = begin("a", 0);
    ask(*folder, 1);
    // The system refuses to write files longer than the limit that is set here, as a full disk
    // would.
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{blob_bytes / 2, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (const int number : {2, 3}) EXPECT_FALSE(ask(*folder, number));
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);

    ASSERT_EQ(told_.size(), 1u);
    EXPECT_NE(told_[0].find(folder_.string()), std::string::npos) << told_[0];
    EXPECT_NE(told_[0].find("File too large"), std::string::npos) << told_[0];
    EXPECT_EQ(here(), "1");
    EXPECT_EQ(folder->bytes_kept(), blob_bytes);
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
        EXPECT_NE(entry.path().extension(), ".part");
    EXPECT_TRUE(ask(*folder, 1)) << "stored blobs can still be read";

    folder->drop(hash_of(1));  // frees room
    EXPECT_FALSE(ask(*folder, 2));
    EXPECT_EQ(here(), "2");
}

}  // namespace
}  // namespace moex::native
