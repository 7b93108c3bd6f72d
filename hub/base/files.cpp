#include "hub/base/files.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/text.h"

namespace moex {

Status pread_all(int fd, std::uint64_t offset, std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size()) {
        const ssize_t count = ::pread(fd, out.data() + done, out.size() - done,
                                      static_cast<off_t>(offset + done));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return Error{ErrorCode::io_error, std::strerror(errno)};
        if (count == 0)
            return Error{ErrorCode::bad_file, "the file ended early; is it still being written?"};
        done += static_cast<std::size_t>(count);
    }

    return {};
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t bytes_max) {
    // Open with O_NONBLOCK: without this flag, opening a named pipe would wait for a writer.
    const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::not_found
                                                                   : ErrorCode::io_error;
        return Error{code, text(path.string(), ": ", std::strerror(errno))};
    }

    struct stat info {};
    Status status;
    std::string content;
    if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        status = Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};
    } else if (static_cast<std::uint64_t>(info.st_size) > bytes_max) {
        status = Error{ErrorCode::bad_file, text(path.string(), ": ", info.st_size,
                                                 " bytes, wanted at most ", bytes_max)};
    } else {
        content.resize(static_cast<std::size_t>(info.st_size));
        status = pread_all(fd, 0, std::as_writable_bytes(std::span(content)));
        if (!status.ok())
            status = Error{status.error().code, text(path.string(), ": ", status.error().message)};
    }

    ::close(fd);
    if (!status.ok()) return status.error();
    return content;
}

}  // namespace moex
