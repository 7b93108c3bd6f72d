// Tests of files of a package that change while it is open: the same bytes are accepted, other
// bytes are reported once, and a blob that was damaged before is refused alone.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "hub/base/log.h"
#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

class ChangedFilesTest : public testing::Test {
  protected:
    ChangedFilesTest() {
        set_log(LogLevel::error);
        make({});
        for (std::uint32_t layer = 0; layer < package_->config().num_layers; ++layer)
            if (package_->config().is_moe(layer)) layer_ = layer;
    }

    void make(const test::CheckpointOptions& options) {
        std::filesystem::remove_all(folder_ / "in");
        std::filesystem::remove_all(folder_ / "out");
        ThreadPool threads(1);
        test::CheckpointBuilder{options}.write(folder_ / "in");
        const auto report = pack_checkpoint(folder_ / "in", folder_ / "out", {}, threads, {});
        ASSERT_TRUE(report.ok()) << report.error().message;
        open();
    }

    void open() {
        auto package = ModelPackage::open(folder_ / "out");
        ASSERT_TRUE(package.ok()) << package.error().message;
        package_ = *std::move(package);
        package_->on_changed_bytes(
            [this](const Error& error) { reported_.push_back(error.message); });
    }

    // Sets the time of a file one hour ahead for each call, so that each call changes it.
    void touch(const fs::path& file) {
        ++hours_;
        fs::last_write_time(file, fs::file_time_type::clock::now() + std::chrono::hours(hours_));
    }
    void overwrite(const fs::path& file, std::uint64_t at) {
        std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekg(static_cast<std::streamoff>(at));
        const auto old = static_cast<char>(stream.get());
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put(static_cast<char>(old ^ 1));
        stream.close();
        touch(file);
    }

    fs::path hub_file() const { return folder_ / "out/hub.safetensors"; }
    const Sha256& hash(std::uint32_t expert) const { return package_->blob_hash(layer_, expert); }
    fs::path blob_file(std::uint32_t expert) const { return package_->blob_path(hash(expert)); }

    test::TempFolder folder_{"changed-files"};
    std::shared_ptr<const ModelPackage> package_;
    std::vector<std::string> reported_;
    std::uint32_t layer_ = 0;
    int hours_ = 0;
};

TEST_F(ChangedFilesTest, TouchedFilesAreHashedAgainAndAccepted) {
    ASSERT_TRUE(package_->blob(hash(0)).ok());
    const auto files = package_->files();
    for (int time = 0; time < 3; ++time) {
        touch(hub_file());
        touch(blob_file(0));
        EXPECT_TRUE(package_->check_unchanged().ok());
        EXPECT_TRUE(package_->file(files[1].sha256).ok());
        EXPECT_TRUE(package_->blob(hash(0)).ok());
        EXPECT_TRUE(package_->blob(layer_, 0).ok());
    }
    EXPECT_TRUE(reported_.empty());
}

TEST_F(ChangedFilesTest, BlobTouchedBeforeItsFirstUseIsAccepted) {
    touch(blob_file(0));
    EXPECT_TRUE(package_->blob(layer_, 0).ok());
    EXPECT_TRUE(reported_.empty());
}

TEST_F(ChangedFilesTest, OtherFilesAreUsedWhileOneIsHashed) {
    make({.vocab_size = 1u << 18});  // hub.safetensors has 67 MB, which take a while to hash
    ASSERT_TRUE(package_->blob(hash(0)).ok());
    touch(hub_file());

    std::atomic<bool> has_begun{false}, is_done{false};
    std::thread check([&] {
        has_begun = true;
        has_begun.notify_all();
        EXPECT_TRUE(package_->check_unchanged().ok());
        is_done = true;
    });
    has_begun.wait(false);
    std::uint64_t used_meanwhile = 0;
    while (!is_done) {
        EXPECT_TRUE(package_->blob(hash(0)).ok());
        used_meanwhile += !is_done;
    }
    check.join();
    EXPECT_GE(used_meanwhile, 10u);
}

TEST_F(ChangedFilesTest, OtherBytesOfTheHubAreReportedOnce) {
    EXPECT_TRUE(package_->check_unchanged().ok());
    overwrite(hub_file(), fs::file_size(hub_file()) - 1);
    const Status found = package_->check_unchanged();
    ASSERT_FALSE(found.ok());
    EXPECT_NE(found.error().message.find("hub.safetensors: was written to"), std::string::npos);
    EXPECT_FALSE(package_->check_unchanged().ok());
    EXPECT_FALSE(package_->file(package_->files()[1].sha256).ok());
    EXPECT_EQ(reported_, std::vector<std::string>{found.error().message});
}

TEST_F(ChangedFilesTest, OtherBytesOfAMappedBlobAreReportedOnce) {
    ASSERT_TRUE(package_->blob(hash(0)).ok());
    overwrite(blob_file(0), 7);
    EXPECT_FALSE(package_->blob(hash(0)).ok());
    EXPECT_FALSE(package_->check_unchanged().ok());
    ASSERT_EQ(reported_.size(), 1u);
    EXPECT_NE(reported_[0].find(to_hex(hash(0))), std::string::npos) << reported_[0];
}

TEST_F(ChangedFilesTest, ShortenedBlobIsReportedWithItsSizes) {
    fs::resize_file(blob_file(0), 10);
    EXPECT_FALSE(package_->blob(layer_, 0).ok());
    ASSERT_EQ(reported_.size(), 1u);
    EXPECT_NE(reported_[0].find("has 10 now"), std::string::npos) << reported_[0];
}

TEST_F(ChangedFilesTest, BlobDamagedBeforeTheStartIsRefusedAlone) {
    const fs::path file = blob_file(0);
    const std::string good = test::read_file(file);
    overwrite(file, 7);
    open();

    const auto blob = package_->blob(hash(0));
    ASSERT_FALSE(blob.ok());
    EXPECT_EQ(blob.error().code, ErrorCode::hash_mismatch);
    EXPECT_NE(blob.error().message.find(file.string()), std::string::npos);
    EXPECT_FALSE(package_->blob(layer_, 0).ok());
    EXPECT_TRUE(package_->blob(layer_, 1).ok());
    EXPECT_TRUE(package_->check_unchanged().ok());
    EXPECT_TRUE(reported_.empty());

    test::write_file(file, good);
    EXPECT_TRUE(package_->blob(hash(0)).ok()) << "a blob that was put back is used";
}

using ChangedFilesDeathTest = ChangedFilesTest;
TEST_F(ChangedFilesDeathTest, OtherBytesEndAProcessWithoutAHandler) {
    package_->on_changed_bytes({});
    overwrite(hub_file(), fs::file_size(hub_file()) - 1);
    EXPECT_EXIT(package_->require_unchanged(), testing::ExitedWithCode(1),
                "^moex-hub: .*hub.safetensors: was written to .*start again\n$");
}

}  // namespace
}  // namespace moex
