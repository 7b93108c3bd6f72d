// Tests the packer as a process: it resumes after a kill at any moment, and its memory use stays
// small.
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hub/model/pack/packer.h"
#include "hub/model/package/package.h"
#include "hub/model/package/verify.h"
#include "tests/support/checkpoint_builder.h"

namespace moex {
namespace {

using test::CheckpointBuilder;
using test::TempFolder;
namespace fs = std::filesystem;

// Packs in a child process, which is stopped at its `stop_at`-th progress event and killed there.
// Returns false if the child ended before.
bool pack_and_kill(const fs::path& in, const fs::path& out, std::uint64_t stop_at) {
    int reached[2];
    EXPECT_EQ(::pipe(reached), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ThreadPool threads(2);
        std::uint64_t events = 0;
        static_cast<void>(pack_checkpoint(in, out, {}, threads, [&](const PackProgress&) {
            if (++events < stop_at) return;
            const char byte = 1;
            if (::write(reached[1], &byte, 1) != 1) ::_exit(3);
            for (;;) ::pause();
        }));

        ::_exit(0);
    }

    ::close(reached[1]);
    char byte = 0;
    const bool stopped = ::read(reached[0], &byte, 1) == 1;
    ::close(reached[0]);
    if (stopped) ::kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);

    return stopped;
}

std::map<std::string, ino_t> inodes(const fs::path& folder) {
    std::map<std::string, ino_t> found;
    for (const auto& entry : fs::directory_iterator(folder)) {
        struct stat info {};
        EXPECT_EQ(::stat(entry.path().c_str(), &info), 0);
        found[entry.path().filename().string()] = info.st_ino;
    }
    return found;
}

TEST(PackerProcessTest, KilledPackerResumesAndGivesTheSamePackage) {
    TempFolder folder("resume");
    CheckpointBuilder({.num_layers = 5, .mlp_only_layers = {2}}).write(folder / "in");
    {
        ThreadPool threads(2);
        ASSERT_TRUE(pack_checkpoint(folder / "in", folder / "whole", {}, threads, {}).ok());
    }

    const std::string wanted = test::read_file(folder / "whole/manifest.json");
    std::uint64_t kills = 0;
    std::uint32_t resumed_max = 0;
    for (std::uint64_t stop_at = 1; stop_at < 60; stop_at += 3) {
        const fs::path out = folder / text("out-", stop_at);
        if (!pack_and_kill(folder / "in", out, stop_at)) break;

        ++kills;
        const auto half = ModelPackage::open(out);
        ASSERT_FALSE(half.ok()) << "stopped at event " << stop_at;
        EXPECT_NE(half.error().message.find("not finished"), std::string::npos)
            << half.error().message;
        const auto before = inodes(out / "weights");

        ThreadPool threads(2);
        const auto report = pack_checkpoint(folder / "in", out, {}, threads, {});
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_EQ(test::read_file(out / "manifest.json"), wanted) << "stopped at event " << stop_at;
        EXPECT_TRUE(verify_package(out, {}).ok());

        // A layer has four experts. The resumed packer must keep all layers before the unfinished
        // layer, and must not write them again.
        EXPECT_EQ(report->layers_resumed, std::min<std::uint64_t>((stop_at - 1) / 4, 4))
            << "stopped at event " << stop_at;
        resumed_max = std::max(resumed_max, report->layers_resumed);

        for (const auto& [name, inode] : inodes(out / "weights"))
            if (!name.starts_with(".tmp-") && before.contains(name)) {
                EXPECT_EQ(before.at(name), inode) << name;
            }

        EXPECT_FALSE(fs::exists(out / ".pack-state"));
        for (const auto& entry : fs::recursive_directory_iterator(out))
            EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-"));
    }

    EXPECT_GE(kills, 8u);
    EXPECT_EQ(resumed_max, 4u);
}

bool changes_a_folder(std::uint64_t call) {
    for (const long number : {
#ifdef SYS_rename
             long{SYS_rename}, long{SYS_mkdir}, long{SYS_unlink}, long{SYS_rmdir},
#endif
             long{SYS_renameat}, long{SYS_renameat2}, long{SYS_mkdirat}, long{SYS_unlinkat}})
        if (call == static_cast<std::uint64_t>(number)) return true;
    return false;
}

enum class Traced { ended, killed, not_allowed };
// Packs in a child process with one thread. The child process is killed right before its
// `kill_at`-th system call that creates, renames or removes an entry of a folder.
Traced pack_and_kill_at_call(const fs::path& in, const fs::path& out, std::uint64_t kill_at) {
    const pid_t child = ::fork();
    if (child == 0) {
        if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(9);
        ::raise(SIGSTOP);
        ThreadPool threads(1);
        ::_exit(pack_checkpoint(in, out, {}, threads, {}).ok() ? 0 : 1);
    }

    int status = 0;
    std::uint64_t calls = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) return Traced::not_allowed;

    ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    for (long signal = 0;;) {
        ::ptrace(PTRACE_SYSCALL, child, nullptr, signal);
        EXPECT_EQ(::waitpid(child, &status, __WALL), child);
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
            return Traced::ended;
        }

        signal = WSTOPSIG(status) == (SIGTRAP | 0x80) ? 0 : WSTOPSIG(status);
        if (signal != 0) continue;

        __ptrace_syscall_info info{};
        if (::ptrace(PTRACE_GET_SYSCALL_INFO, child, reinterpret_cast<void*>(sizeof info), &info) <=
            0) {
            ::kill(child, SIGKILL);
            ::waitpid(child, &status, __WALL);
            return Traced::not_allowed;
        }

        if (info.op != PTRACE_SYSCALL_INFO_ENTRY || !changes_a_folder(info.entry.nr) ||
            ++calls < kill_at)
            continue;

        ::kill(child, SIGKILL);
        EXPECT_EQ(::waitpid(child, &status, __WALL), child);
        return Traced::killed;
    }
}

// Kills the packer before each of its steps on the file system. Afterwards the folder has either a
// complete package, or an unfinished one that the same command finishes and that no other
// checkpoint reuses.
TEST(PackerProcessTest, PackageIsCompleteOrResumesAfterAKillBeforeAnyStep) {
    TempFolder folder("steps");
    CheckpointBuilder({.num_layers = 2, .mlp_only_layers = {}}).write(folder / "in");
    CheckpointBuilder({.seed = 2, .num_layers = 2, .mlp_only_layers = {}}).write(folder / "other");
    for (const char* name : {"in", "other"})
        test::write_file(folder / name / "generation_config.json", "{}");
    ThreadPool threads(1);
    ASSERT_TRUE(pack_checkpoint(folder / "in", folder / "in-whole", {}, threads, {}).ok());

    ASSERT_TRUE(pack_checkpoint(folder / "other", folder / "other-whole", {}, threads, {}).ok());
    const auto manifest = [](const fs::path& package) {
        return test::read_file(package / "manifest.json");
    };

    std::uint64_t whole = 0, half = 0;
    for (std::uint64_t kill_at = 1;; ++kill_at) {
        const fs::path out = folder / text("out-", kill_at), copy = folder / text("copy-", kill_at);
        const Traced traced = pack_and_kill_at_call(folder / "in", out, kill_at);
        if (traced == Traced::not_allowed) GTEST_SKIP() << "SKIPPED: ptrace is not allowed here";
        if (traced == Traced::ended) break;

        if (fs::exists(out)) fs::copy(out, copy, fs::copy_options::recursive);
        const auto found = ModelPackage::open(out);
        ++(found.ok() ? whole : half);
        if (found.ok()) {
            EXPECT_TRUE(verify_package(out, {}).ok()) << kill_at;
        }

        const auto again = pack_checkpoint(folder / "in", out, {}, threads, {});
        if (!again.ok()) {
            EXPECT_TRUE(found.ok()) << kill_at;
            EXPECT_NE(again.error().message.find("holds a package already"), std::string::npos)
                << kill_at << ": " << again.error().message;
        }

        EXPECT_TRUE(verify_package(out, {}).ok()) << kill_at;
        EXPECT_EQ(manifest(out), manifest(folder / "in-whole")) << kill_at;
        for (const auto& entry : fs::recursive_directory_iterator(out))
            EXPECT_FALSE(entry.path().filename().string().starts_with("."))
                << kill_at << ": " << entry.path();

        if (pack_checkpoint(folder / "other", copy, {}, threads, {}).ok()) {
            EXPECT_EQ(manifest(copy), manifest(folder / "other-whole")) << kill_at;
            EXPECT_TRUE(verify_package(copy, {}).ok()) << kill_at;
        }
    }

    std::printf("%llu kills left a half package, %llu a whole one\n",
                static_cast<unsigned long long>(half), static_cast<unsigned long long>(whole));
    EXPECT_GE(half, 15u);
    EXPECT_GE(whole, 2u);
}

// Tests the state that a kill leaves on a file system which lists .pack-state/input before the
// records.
TEST(PackerProcessTest, RecordsWithoutAnInputAreNotReused) {
    TempFolder folder("orphans");
    CheckpointBuilder{test::CheckpointOptions{}}.write(folder / "in");
    CheckpointBuilder({.seed = 2}).write(folder / "other");
    ThreadPool threads(2);
    ASSERT_TRUE(pack_checkpoint(folder / "other", folder / "wanted", {}, threads, {}).ok());
    ASSERT_TRUE(pack_and_kill(folder / "in", folder / "out", 7));
    ASSERT_TRUE(fs::exists(folder / "out/.pack-state/layer-0"));

    fs::remove(folder / "out/.pack-state/input");
    const auto report = pack_checkpoint(folder / "other", folder / "out", {}, threads, {});
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->layers_resumed, 0u);
    EXPECT_EQ(test::read_file(folder / "out/manifest.json"),
              test::read_file(folder / "wanted/manifest.json"));
}

TEST(PackerProcessTest, UnfinishedPackageBelongsToItsInputAndOptions) {
    TempFolder folder("other");
    CheckpointBuilder{test::CheckpointOptions{}}.write(folder / "in");
    ASSERT_TRUE(pack_and_kill(folder / "in", folder / "out", 5));
    ThreadPool threads(2);
    auto report = pack_checkpoint(folder / "in", folder / "out",
                                  {.expert_dtype = ExpertDtype::bf16}, threads, {});
    ASSERT_FALSE(report.ok());

    EXPECT_NE(report.error().message.find("other options"), std::string::npos)
        << report.error().message;
    CheckpointBuilder({.seed = 2}).write(folder / "in");
    report = pack_checkpoint(folder / "in", folder / "out", {}, threads, {});
    ASSERT_FALSE(report.ok());
    EXPECT_NE(report.error().message.find("another checkpoint"), std::string::npos)
        << report.error().message;
}

TEST(PackerProcessTest, TwoPackersNeverShareAFolder) {
    TempFolder folder("two");
    CheckpointBuilder{test::CheckpointOptions{}}.write(folder / "in");

    ThreadPool threads(1);
    std::string second;
    const auto report = pack_checkpoint(
        folder / "in", folder / "out", {}, threads, [&](const PackProgress&) {
            if (!second.empty()) return;
            ThreadPool other(1);
            const auto refused = pack_checkpoint(folder / "in", folder / "out", {}, other, {});
            second = refused.ok() ? "packed" : refused.error().message;
        });

    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_NE(second.find("another packer"), std::string::npos) << second;
}

std::uint64_t peak_bytes_of_packing(const fs::path& in, const fs::path& out) {
    const pid_t child = ::fork();
    if (child == 0) {
        ThreadPool threads(2);
        const auto report = pack_checkpoint(in, out, {}, threads, {});
        ::_exit(report.ok() ? 0 : 1);
    }

    int status = 0;
    struct rusage usage {};
    EXPECT_EQ(::wait4(child, &status, 0, &usage), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

TEST(PackerProcessTest, MemoryStaysBounded) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "SKIPPED: a sanitizer's own memory would be counted";
#endif
    TempFolder folder("memory");
    const bool slow = std::getenv("MOEX_SLOW_TESTS") != nullptr;
    const std::uint64_t input_bytes = slow ? 2'000'000'000 : 600'000'000,
                        peak_max = slow ? 512'000'000 : 256'000'000;
    test::write_large_checkpoint(folder / "in", input_bytes);
    EXPECT_GT(fs::file_size(folder / "in/model.safetensors"), input_bytes);
    const std::uint64_t peak = peak_bytes_of_packing(folder / "in", folder / "out");
    std::printf("peak %llu MB for a checkpoint of %llu MB\n",
                static_cast<unsigned long long>(peak / 1'000'000),
                static_cast<unsigned long long>(input_bytes / 1'000'000));
    EXPECT_LT(peak, peak_max);
    EXPECT_TRUE(ModelPackage::open(folder / "out").ok());
}

}  // namespace
}  // namespace moex
