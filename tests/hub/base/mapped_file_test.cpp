// Tests the messages that the hub writes when a mapped file changes, instead of ending with a bus
// error without a message.
#include "hub/base/mapped_file.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace moex {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
  protected:
    MappedFileTest()
        : path_(fs::temp_directory_path() / ("moex-mapped-" + std::to_string(::getpid()))) {
        std::ofstream(path_) << std::string(100'000, 'x');
        // The file's time is set one hour back, so that the next change is detected whatever the
        // clock's resolution.
        fs::last_write_time(path_, fs::file_time_type::clock::now() - std::chrono::hours(1));
    }
    ~MappedFileTest() override { fs::remove(path_); }

    MappedFile map() const {
        auto file = MappedFile::open(path_);
        EXPECT_TRUE(file.ok()) << file.error().message;
        return std::move(*file);
    }

    const fs::path path_;
};
using MappedFileDeathTest = MappedFileTest;

TEST_F(MappedFileTest, AFileThatStaysIsUnchanged) {
    MappedFile file = map();
    EXPECT_TRUE(file.check_unchanged().ok());
    const MappedFile moved = std::move(file);
    EXPECT_TRUE(moved.check_unchanged().ok());
    EXPECT_EQ(moved.bytes().size(), 100'000u);
}

TEST_F(MappedFileTest, AShortenedFileIsNamedWithBothSizes) {
    const MappedFile file = map();
    fs::resize_file(path_, 10);

    const Status status = file.check_unchanged();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message,
              path_.string() +
                  ": had 100000 bytes when it was opened, has 10 now; put the file back "
                  "(`moex-hub verify` says what else is damaged) and start again");
}

TEST_F(MappedFileTest, FileWrittenInPlaceIsDetectedByTime) {
    const MappedFile file = map();
    std::fstream(path_, std::ios::in | std::ios::out) << "y";

    const Status status = file.check_unchanged();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("was written to since it was opened"), std::string::npos)
        << status.error().message;
}

TEST_F(MappedFileTest, ARemovedOrReplacedFileDoesNoHarm) {
    const MappedFile file = map();
    std::ofstream(path_.string() + ".new") << "another";
    fs::rename(path_.string() + ".new", path_);
    EXPECT_TRUE(file.check_unchanged().ok());
    fs::remove(path_);
    EXPECT_TRUE(file.check_unchanged().ok());
    EXPECT_EQ(static_cast<char>(file.bytes().back()), 'x');
}

TEST_F(MappedFileDeathTest, MapFaultPrintsOneSentenceAndExitsWithOne) {
    const auto read_shortened = [&] {
        guard_mapped_files();
        { const MappedFile closed = map(); }  // the next map uses its entry again
        const MappedFile file = map();
        fs::resize_file(path_, 4096);
        volatile std::byte last = file.bytes().back();
        (void)last;
    };

    EXPECT_EXIT(read_shortened(), testing::ExitedWithCode(1),
                "^moex-hub: .*moex-mapped-.*: had 100000 bytes when it was opened, has 4096 now; "
                "put the file back .*and start again\n$");
}

TEST_F(MappedFileDeathTest, OtherBusErrorsEndTheProcessAsBefore) {
    const auto raise_one = [] {
        guard_mapped_files();
        ::raise(SIGBUS);
        ::raise(SIGBUS);  // a real fault would be raised again when its instruction runs again
    };
    EXPECT_EXIT(raise_one(), testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace moex
