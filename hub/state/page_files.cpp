#include "hub/state/page_files.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "protocol/text.h"

namespace moex {

namespace fs = std::filesystem;

namespace {

constexpr const char* temporary_end = ".tmp";
constexpr const char* window_end = ".window";
constexpr std::size_t name_digits = 2 * std::tuple_size_v<PageName>;

// Held while a client's folder is made for its first file, and while an empty one is removed.
std::mutex folders_mutex;

Error io_error(const fs::path& path, const char* what) {
    return {ErrorCode::io_error, text(path.string(), ": ", what, ": ", std::strerror(errno))};
}

std::optional<PageName> parse_name(std::string_view hex) {
    PageName name{};
    if (hex.size() != name_digits) return std::nullopt;
    for (std::size_t i = 0; i < name.size(); ++i) {
        unsigned value = 0;
        const char* const first = hex.data() + 2 * i;
        if (std::from_chars(first, first + 2, value, 16).ptr != first + 2) return std::nullopt;
        name[i] = static_cast<std::byte>(value);
    }
    return name;
}

// Closes a file at the end of a block.
struct OpenFile {
    explicit OpenFile(int opened) : fd(opened) {}
    ~OpenFile() {
        if (fd >= 0) ::close(fd);
    }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    int fd;
};

Status write_all(int fd, ByteView bytes, const fs::path& path) {
    while (!bytes.empty()) {
        const ssize_t count = ::write(fd, bytes.data(), bytes.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return io_error(path, "cannot write");
        bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return {};
}

// Calls `visit(path, file name)` for what is in a folder. A folder that cannot be read has nothing.
template <class Visit>
void for_each_in(const fs::path& folder, Visit visit) {
    std::error_code failure;
    for (fs::directory_iterator at(folder, failure), end; !failure && at != end;
         at.increment(failure))
        visit(at->path(), at->path().filename().string());
}

}  // namespace

std::string hex_of(const PageName& name) {
    constexpr const char* digits = "0123456789abcdef";
    std::string hex;
    for (const std::byte one : name) {
        hex += digits[std::to_integer<unsigned>(one) >> 4];
        hex += digits[std::to_integer<unsigned>(one) & 15];
    }
    return hex;
}

std::string page_file(const std::string& client_folder, const PageName& name,
                      const PageName& parent) {
    return client_folder + "/" + hex_of(name) + "." + hex_of(parent);
}

std::string window_file(const std::string& page_file) { return page_file + window_end; }

Status make_private_folder(const fs::path& folder) {
    std::error_code failure;
    fs::create_directories(folder, failure);
    if (failure)
        return Error{ErrorCode::io_error,
                     text(folder.string(), ": cannot make the folder: ", failure.message())};
    if (::chmod(folder.c_str(), 0700) != 0) return io_error(folder, "cannot make it private");
    if (::access(folder.c_str(), W_OK | X_OK) != 0) return io_error(folder, "cannot write there");
    return {};
}

std::string read_key_check(const fs::path& folder) {
    const auto content = read_text_file(folder / key_check_name, 4096);
    return content.ok() ? *content : std::string();
}

std::vector<FoundPage> find_pages(const fs::path& folder) {
    std::vector<FoundPage> found;
    for_each_in(folder, [&](const fs::path& client, const std::string& client_name) {
        if (client_name.size() < name_digits + 2 || client_name[name_digits] != '.' ||
            !parse_name(client_name.substr(0, name_digits)))
            return;
        for_each_in(client, [&](const fs::path& path, const std::string& name) {
            if (name.ends_with(temporary_end)) {
                ::unlink(path.c_str());
                return;
            }
            if (name.ends_with(window_end)) {
                struct stat page {};
                const std::string whole = path.string();
                if (::stat(whole.substr(0, whole.size() - std::strlen(window_end)).c_str(),
                           &page) != 0)
                    ::unlink(path.c_str());
                return;
            }
            if (name.size() != 2 * name_digits + 1 || name[name_digits] != '.') return;
            const auto own = parse_name(name.substr(0, name_digits)),
                       parent = parse_name(name.substr(name_digits + 1));
            struct stat info {};
            if (!own || !parent || ::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode))
                return;
            struct stat window {};
            const bool has_window = ::stat(window_file(path.string()).c_str(), &window) == 0;
            const auto window_bytes = static_cast<std::uint64_t>(has_window ? window.st_size : 0);
            found.push_back({.folder = client_name,
                             .name = *own,
                             .parent = *parent,
                             .bytes = static_cast<std::uint64_t>(info.st_size) + window_bytes,
                             .window_bytes = window_bytes,
                             .written_s = info.st_mtim.tv_sec,
                             .used_ns = std::int64_t{info.st_atim.tv_sec} * 1'000'000'000 +
                                        info.st_atim.tv_nsec});
        });
    });
    return found;
}

Status write_page_file(const fs::path& folder, const std::string& file, ByteView bytes) {
    const fs::path path = folder / file, temporary = path.string() + temporary_end;
    const auto open_new = [&] {
        return ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    };
    int fd = open_new();
    if (fd < 0 && errno == ENOENT) {
        const std::lock_guard lock(folders_mutex);
        MOEX_TRY(make_private_folder(folder));
        MOEX_TRY(make_private_folder(path.parent_path()));
        fd = open_new();
    }
    const OpenFile opened(fd);
    if (fd < 0) return io_error(temporary, "cannot make the file");
    Status status = write_all(fd, bytes, temporary);
    if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0)
        status = io_error(path, "cannot rename to it");
    if (!status.ok()) ::unlink(temporary.c_str());
    return status;
}

Result<Bytes> read_page_file(const fs::path& folder, const std::string& file,
                             std::uint64_t bytes_max) {
    const fs::path path = folder / file;
    const OpenFile opened(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat info {};
    if (opened.fd < 0 || ::fstat(opened.fd, &info) != 0) return io_error(path, "cannot read");
    const auto size = static_cast<std::uint64_t>(info.st_size);
    if (!S_ISREG(info.st_mode) || size > bytes_max)
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": ", size, " bytes, wanted at most ", bytes_max)};
    Bytes bytes(size);
    const Status read = pread_all(opened.fd, 0, bytes);
    if (!read.ok())
        return Error{read.error().code, text(path.string(), ": ", read.error().message)};

    // The time of the last access is the order of eviction after a restart.
    const timespec times[2] = {{0, UTIME_NOW}, {0, UTIME_OMIT}};
    (void)::futimens(opened.fd, times);
    return bytes;
}

void delete_page_file(const fs::path& folder, const std::string& file) {
    const fs::path path = folder / file;
    ::unlink(path.c_str());
    const std::lock_guard lock(folders_mutex);
    ::rmdir(path.parent_path().c_str());  // succeeds once the client has no page
}

Result<std::uint64_t> forget_pages(const fs::path& folder) {
    std::uint64_t count = 0;
    std::error_code failure;
    if (!fs::exists(folder, failure)) return count;
    for (const FoundPage& page : find_pages(folder)) {
        const fs::path path = folder / page_file(page.folder, page.name, page.parent);
        if (::unlink(path.c_str()) != 0 && errno != ENOENT) return io_error(path, "cannot delete");
        if (page.window_bytes > 0) ::unlink(window_file(path.string()).c_str());
        ++count;
        const std::lock_guard lock(folders_mutex);
        ::rmdir(path.parent_path().c_str());
    }
    return count;
}

}  // namespace moex
