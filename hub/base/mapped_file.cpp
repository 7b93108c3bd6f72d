#include "hub/base/mapped_file.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/check.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::string_view advice =
    "; put the file back (`moex-hub verify` says what else is damaged) and start again";

FileStamp stamp_from(const struct stat& info) {
    return {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino),
            static_cast<std::uint64_t>(info.st_size),
            std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

Error system_error(const std::filesystem::path& path, int cause) {
    const ErrorCode code = cause == ENOENT || cause == ENOTDIR ? ErrorCode::not_found
                                                               : ErrorCode::io_error;
    return {code, text(path.string(), ": ", std::strerror(cause))};
}

// Builds one line without allocating: a signal handler may interrupt malloc().
class SignalLine {
  public:
    void add(std::string_view part) {
        for (const char c : part)
            if (size_ + 1 < sizeof bytes_) bytes_[size_++] = c >= ' ' && c != 0x7f ? c : '?';
    }
    void add(std::uint64_t number) {
        char digits[20];
        std::size_t first = sizeof digits;
        do {
            digits[--first] = static_cast<char>('0' + number % 10);
            number /= 10;
        } while (number > 0);
        add(std::string_view(digits + first, sizeof digits - first));
    }
    void write_to_stderr() {
        bytes_[size_++] = '\n';
        [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, bytes_, size_);
    }

  private:
    char bytes_[2048];
    std::size_t size_ = 0;
};

}  // namespace

// Entries are never freed, so that the fault handler can walk their list at any moment. The entry
// of a closed file has no `begin`, and the next file that is opened reuses it.
struct MappedFile::Entry {
    std::atomic<const std::byte*> begin{nullptr};
    std::size_t size = 0;
    std::string path;
    Entry* next = nullptr;
};

struct MappedFiles {
    using Entry = MappedFile::Entry;

    static Entry* add(const std::byte* begin, std::size_t size, std::string path) {
        const std::lock_guard lock(mutex);
        Entry* entry = first.load();
        while (entry != nullptr && entry->begin.load() != nullptr) entry = entry->next;

        const bool fresh = entry == nullptr;
        if (fresh) entry = new Entry;
        entry->size = size;
        entry->path = std::move(path);
        entry->begin.store(begin);

        if (fresh) {
            entry->next = first.load();
            first.store(entry);
        }

        return entry;
    }

    static void on_bus_error(int, siginfo_t* info, void*) {
        const auto* const address = static_cast<const std::byte*>(info->si_addr);
        for (const Entry* entry = first.load(); entry != nullptr; entry = entry->next) {
            const std::byte* const begin = entry->begin.load();
            if (begin == nullptr || address < begin || address >= begin + entry->size) continue;
            // another thread has reported its fault and is about to end the process
            if (said.test_and_set())
                for (;;) ::pause();
            say(*entry);
            ::_exit(1);
        }

        // The fault is in no mapped file. Restore the default handler: the instruction runs again,
        // and the fault then ends the process.
        std::signal(SIGBUS, SIG_DFL);
    }

    static void say(const Entry& entry) {
        struct stat info {};
        const bool is_short = ::stat(entry.path.c_str(), &info) == 0 &&
                              static_cast<std::uint64_t>(info.st_size) < entry.size;
        SignalLine line;
        line.add("moex-hub: ");
        line.add(entry.path);

        if (is_short) {
            line.add(": had ");
            line.add(std::uint64_t{entry.size});
            line.add(" bytes when it was opened, has ");
            line.add(static_cast<std::uint64_t>(info.st_size));
            line.add(" now");
        } else {
            line.add(": can no longer be read; its disk or network file system may be gone");
        }

        line.add(advice);
        line.write_to_stderr();
    }

    static inline std::mutex mutex;  // guards changes of the list; the fault handler takes no lock
    static inline std::atomic<Entry*> first{nullptr};
    static inline std::atomic_flag said;
};
static_assert(std::atomic<const std::byte*>::is_always_lock_free, "read by a signal handler");

Result<FileStamp> stamp_of(const std::filesystem::path& path) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return system_error(path, errno);
    if (!S_ISREG(info.st_mode))
        return Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};
    return stamp_from(info);
}

Error changed_file_error(const std::filesystem::path& path, const FileStamp& before,
                         const FileStamp& now) {
    if (now.size_bytes == before.size_bytes)
        return {ErrorCode::bad_file,
                text(path.string(), ": was written to since it was opened", advice)};
    return {ErrorCode::bad_file,
            text(path.string(), ": had ", before.size_bytes, " bytes when it was opened, has ",
                 now.size_bytes, " now", advice)};
}

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
    // Open with O_NONBLOCK: without this flag, opening a named pipe would wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return system_error(path, errno);

    struct stat info {};
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        ::close(fd);
        return Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};
    }

    MappedFile file;
    const auto size = static_cast<std::size_t>(info.st_size);
    if (size > 0) {
        void* const address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED) {
            const int cause = errno;
            ::close(fd);
            return Error{ErrorCode::io_error,
                         text(path.string(), ": cannot be mapped: ", std::strerror(cause))};
        }
        file.data_ = static_cast<const std::byte*>(address);
    }

    ::close(fd);

    file.stamp_ = stamp_from(info);
    if (size > 0) file.entry_ = MappedFiles::add(file.data_, size, path.string());
    return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      stamp_(std::exchange(other.stamp_, {})),
      entry_(std::exchange(other.entry_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(stamp_, other.stamp_);
    std::swap(entry_, other.entry_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ == nullptr) return;
    entry_->begin.store(nullptr);
    ::munmap(const_cast<std::byte*>(data_), stamp_.size_bytes);
}

std::optional<FileStamp> MappedFile::changed_to() const {
    if (entry_ == nullptr) return std::nullopt;
    const auto now = stamp_of(entry_->path);
    // If the file was removed or replaced, the map still shows the old file, which is unchanged.
    if (!now.ok() || now->device != stamp_.device || now->inode != stamp_.inode)
        return std::nullopt;
    if (*now == stamp_) return std::nullopt;
    return *now;
}

Status MappedFile::check_unchanged() const {
    const std::optional<FileStamp> now = changed_to();
    if (!now) return {};
    return changed_file_error(entry_->path, stamp_, *now);
}

void MappedFile::accept(const FileStamp& now) {
    MOEX_CHECK(now.size_bytes == stamp_.size_bytes, "the size of a map does not change");
    // Set the time only: the size is equal, and other threads may be reading it.
    stamp_.modified_ns = now.modified_ns;
}

void MappedFile::release_pages() const {
    if (data_ != nullptr)
        ::madvise(const_cast<std::byte*>(data_), stamp_.size_bytes, MADV_DONTNEED);
}

void guard_mapped_files() {
    struct sigaction action {};
    action.sa_sigaction = MappedFiles::on_bus_error;
    // The thread's own stack is usable here: the fault was in a map, not on the stack.
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace moex
