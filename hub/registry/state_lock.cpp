#include "hub/registry/state_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <string>
#include <system_error>
#include <utility>

#include "hub/registry/state_files.h"
#include "protocol/text.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

// Each line has a fixed place, so that a line is written by one pwrite().
constexpr std::size_t line_bytes = 80;

struct flock whole_file(short type) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    return lock;
}

Status write_line(int descriptor, std::size_t index, std::string line) {
    line.resize(line_bytes - 1, ' ');
    line += '\n';
    const auto at = static_cast<off_t>(index * line_bytes);
    if (::pwrite(descriptor, line.data(), line.size(), at) == static_cast<ssize_t>(line.size()))
        return {};
    return Error{ErrorCode::io_error, std::generic_category().message(errno)};
}

StateLock::Holder read_holder(int descriptor) {
    char lines[2 * line_bytes + 1] = {};
    StateLock::Holder holder;
    if (::pread(descriptor, lines, sizeof lines - 1, 0) < static_cast<ssize_t>(line_bytes))
        return holder;

    char digits[65] = {};
    std::sscanf(lines, "process %" SCNd64 " started %" SCNd64, &holder.process_id,
                &holder.started_s);
    if (std::sscanf(lines + line_bytes, "keys %64[0-9a-f]", digits) == 1)
        if (const auto keys = parse_sha256(digits); keys.ok()) holder.keys = *keys;
    return holder;
}

std::string utc(std::int64_t time_s) {
    const std::time_t time = time_s;
    std::tm parts{};
    gmtime_r(&time, &parts);
    char out[32];
    return std::string(out, std::strftime(out, sizeof out, "%Y-%m-%d %H:%M:%S UTC", &parts));
}

}  // namespace

Result<StateLock> StateLock::take(const fs::path& directory) {
    MOEX_TRY(secure_directory(directory));
    const fs::path file = directory / "serve.lock";
    const auto failed = [&](int cause) {
        return Error{ErrorCode::io_error, text(file.string(), ": cannot lock the state folder: ",
                                               std::generic_category().message(cause))};
    };
    StateLock lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock.descriptor_ < 0) return failed(errno);

    struct flock wanted = whole_file(F_WRLCK);
    if (::fcntl(lock.descriptor_, F_OFD_SETLK, &wanted) != 0) {
        const int cause = errno;
        if (cause != EAGAIN && cause != EACCES) return failed(cause);
        const Holder other = read_holder(lock.descriptor_);
        return Error{ErrorCode::unavailable,
                     text(directory.string(),
                          ": another `moex-hub serve` uses this state folder: "
                          "process ",
                          other.process_id, ", started ", utc(other.started_s),
                          "; stop it, or give this one a folder of its own with --state DIR")};
    }

    const auto started_s = static_cast<std::int64_t>(std::time(nullptr));
    if (::ftruncate(lock.descriptor_, 0) != 0) return failed(errno);
    // The second line gets its place now, so that confirm_keys() works while the disk is full.
    for (const std::string& line : {text("process ", ::getpid(), " started ", started_s), text("")})
        if (const Status written = write_line(lock.descriptor_, line.empty() ? 1 : 0, line);
            !written.ok())
            return Error{written.error().code, text(file.string(), ": ", written.error().message)};
    return lock;
}

std::optional<StateLock::Holder> StateLock::holder(const fs::path& directory) {
    const int descriptor = ::open((directory / "serve.lock").c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return std::nullopt;

    // F_OFD_GETLK takes no lock: it cannot keep a hub that starts now from its own.
    struct flock wanted = whole_file(F_WRLCK);
    const bool is_held = ::fcntl(descriptor, F_OFD_GETLK, &wanted) == 0 && wanted.l_type != F_UNLCK;
    std::optional<Holder> holder;
    if (is_held) holder = read_holder(descriptor);
    ::close(descriptor);
    return holder;
}

StateLock::StateLock(StateLock&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

StateLock& StateLock::operator=(StateLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

StateLock::~StateLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

void StateLock::confirm_keys(const Sha256& digest) const {
    (void)write_line(descriptor_, 1, text("keys ", to_hex(digest)));
}

}  // namespace moex
