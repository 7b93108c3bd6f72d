#include "hub/model/pack/whole_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace moex {

Error system_error(const std::filesystem::path& path, int cause) {
    const bool full = cause == ENOSPC || cause == EDQUOT;
    return {full ? ErrorCode::no_space : ErrorCode::io_error,
            text(path.string(), ": ", std::strerror(cause),
                 full ? "; free some space and run the same command again" : "")};
}

WholeFile::WholeFile(std::filesystem::path path, std::filesystem::path temporary)
    : path_(std::move(path)),
      temporary_(std::move(temporary)) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) status_ = system_error(temporary_, errno);
}

WholeFile::~WholeFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

Status WholeFile::write(ByteView bytes) {
    while (status_.ok() && !bytes.empty()) {
        const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0)
            status_ = system_error(path_, errno);
        else
            bytes = bytes.subspan(static_cast<std::size_t>(count));
    }

    return status_;
}

Status WholeFile::finish() {
    MOEX_TRY(status_);
    if (::fsync(fd_) != 0) return system_error(path_, errno);
    ::close(std::exchange(fd_, -1));
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error(path_, errno);
    return {};
}

Status write_whole_file(const std::filesystem::path& path, ByteView content) {
    WholeFile file(path, path.parent_path() / text(".tmp-", path.filename().string()));
    MOEX_TRY(file.write(content));
    return file.finish();
}

void sync_directory(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    ::fsync(fd);
    ::close(fd);
}

}  // namespace moex
