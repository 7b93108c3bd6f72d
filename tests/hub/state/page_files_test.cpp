// Tests the files of pages where several threads write and delete them.
#include "hub/state/page_files.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

// Deleting a page removes the client's folder if it is empty. In an earlier version a page that was
// written at that moment failed, and no further page was kept for a while.
TEST(PageFilesTest, PageIsWrittenWhileItsFolderIsRemoved) {
    const test::TemporaryFolder folder("page-files");
    std::atomic<bool> has_ended = false;
    std::thread deleting([&] {
        while (!has_ended) delete_page_file(folder.path(), "client/none");
    });
    const Bytes page(100);
    int failed = 0;
    for (int i = 0; i < 2000; ++i) {
        failed += !write_page_file(folder.path(), "client/page", page).ok();
        delete_page_file(folder.path(), "client/page");
    }
    has_ended = true;
    deleting.join();
    EXPECT_EQ(failed, 0);
}

}  // namespace
}  // namespace moex
