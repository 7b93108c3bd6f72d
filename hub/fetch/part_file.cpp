#include "hub/fetch/part_file.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "hub/base/sha256.h"
#include "protocol/text.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t ranges_max = 4096;

Error io_error_of(const fs::path& path) {
    const ErrorCode code = errno == ENOSPC || errno == EDQUOT ? ErrorCode::no_space
                                                              : ErrorCode::io_error;
    return {code, text(path.string(), ": ", std::strerror(errno))};
}

class Digest {
  public:
    explicit Digest(const EVP_MD* kind) : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
        MOEX_CHECK(context_ && EVP_DigestInit_ex(context_.get(), kind, nullptr) == 1,
                   "no memory for a hash");
    }
    void add(const void* data, std::size_t size) {
        MOEX_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1, "a hash failed");
    }
    std::string hex() {
        unsigned char bytes[EVP_MAX_MD_SIZE];
        unsigned size = 0;
        MOEX_CHECK(EVP_DigestFinal_ex(context_.get(), bytes, &size) == 1, "a hash failed");
        std::string out;
        for (unsigned i = 0; i < size; ++i) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
            out += digits;
        }
        return out;
    }

  private:
    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

// Both hashes of a file, and their comparison with those that the repository lists. A git object's
// id is the SHA-1 of "blob SIZE\0" and the content.
class FileDigest {
  public:
    FileDigest(const RepositoryFile& file, std::uint64_t size) : file_(file) {
        const std::string git_head = text("blob ", size);
        git_.add(git_head.c_str(), git_head.size() + 1);
    }
    void add(ByteView bytes) {
        sha256_.add(bytes.data(), bytes.size());
        if (!file_.git_sha1.empty()) git_.add(bytes.data(), bytes.size());
    }
    Result<FinishedFile> finish(std::uint64_t size) {
        if (size != file_.size_bytes)
            return Error{
                ErrorCode::hash_mismatch,
                text(file_.path, " has ", size, " bytes, the repository lists ", file_.size_bytes)};
        FinishedFile out{.path = file_.path, .size_bytes = size, .sha256 = sha256_.hex()};
        if (!file_.sha256.empty() && out.sha256 != file_.sha256)
            return mismatch("SHA-256", out.sha256, file_.sha256);
        if (file_.git_sha1.empty()) return out;
        if (const std::string found = git_.hex(); found != file_.git_sha1)
            return mismatch("git object id", found, file_.git_sha1);
        return out;
    }

  private:
    Error mismatch(const char* kind, const std::string& found, const std::string& wanted) const {
        return {ErrorCode::hash_mismatch,
                text(file_.path, " has the ", kind, " ", found, ", the repository lists ", wanted)};
    }
    const RepositoryFile& file_;
    Digest sha256_{EVP_sha256()}, git_{EVP_sha1()};
};

class Fd {
  public:
    explicit Fd(int fd) : fd_(fd) {}
    Fd(const Fd&) = delete;
    ~Fd() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }

  private:
    int fd_;
};

}  // namespace

Status check_bytes(ByteView bytes, const RepositoryFile& file) {
    FileDigest digest(file, bytes.size());
    digest.add(bytes);
    MOEX_ASSIGN(ignored, digest.finish(bytes.size()));
    (void)ignored;
    return {};
}

Result<FinishedFile> check_file(const fs::path& path, const RepositoryFile& file) {
    const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd.get() < 0) {
        if (errno == ENOENT) return Error{ErrorCode::not_found, text(path.string(), ": not there")};
        if (errno == ELOOP)
            return Error{ErrorCode::bad_file, text(path.string(), " is a link, which is refused")};
        return io_error_of(path);
    }
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
        return Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};

    const auto size = static_cast<std::uint64_t>(info.st_size);
    FileDigest digest(file, size);
    if (size != file.size_bytes) return digest.finish(size);
    std::vector<std::byte> window(1u << 20);
    for (std::uint64_t offset = 0; offset < size;) {
        const ssize_t count = ::pread(fd.get(), window.data(), window.size(),
                                      static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return io_error_of(path);
        if (count == 0) return Error{ErrorCode::io_error, text(path.string(), ": ends early")};
        digest.add(ByteView(window).first(static_cast<std::size_t>(count)));
        offset += static_cast<std::uint64_t>(count);
    }

    MOEX_ASSIGN(finished, digest.finish(size));
    finished.modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    return finished;
}

Status make_folders_of(const fs::path& folder, const std::string& path) {
    fs::path at = folder;
    const fs::path parent = fs::path(path).parent_path();
    for (const fs::path& part : parent) {
        at /= part;
        if (::mkdir(at.c_str(), 0777) != 0 && errno != EEXIST) return io_error_of(at);
        struct stat info {};
        if (::lstat(at.c_str(), &info) != 0) return io_error_of(at);
        if (!S_ISDIR(info.st_mode))
            return Error{ErrorCode::bad_file,
                         text(at.string(), " is a link or a file, wanted a folder")};
    }
    return {};
}

PartFile::PartFile(fs::path folder, RepositoryFile file, std::uint64_t range_bytes)
    : folder_(std::move(folder)),
      file_(std::move(file)) {
    part_ = folder_ / ".pull" / (to_hex(sha256(as_byte_view(file_.path))).substr(0, 32) + ".part");
    // The listed size is another machine's word, so the number of ranges has a bound.
    range_bytes = std::max(range_bytes, file_.size_bytes / ranges_max + 1);
    for (std::uint64_t begin = 0; begin < file_.size_bytes; begin += range_bytes)
        ranges.push_back({begin, std::min(begin + range_bytes, file_.size_bytes)});
}

PartFile::~PartFile() {
    if (fd_ >= 0) ::close(fd_);
}

std::uint64_t PartFile::done_bytes() const {
    std::uint64_t done = 0;
    for (const FileRange& range : ranges) done += range.done;
    return done;
}

nlohmann::json PartFile::to_json() const {
    auto done = nlohmann::json::array();
    for (const FileRange& range : ranges) done.push_back({range.begin, range.end, range.done});
    return {{"path", file_.path},
            {"size", file_.size_bytes},
            {"hash", file_.sha256.empty() ? file_.git_sha1 : file_.sha256},
            {"ranges", done}};
}

void PartFile::resume(const nlohmann::json& saved) {
    struct stat info {};
    if (::lstat(part_.c_str(), &info) != 0 || !S_ISREG(info.st_mode) ||
        static_cast<std::uint64_t>(info.st_size) != file_.size_bytes)
        return;
    const std::string& hash = file_.sha256.empty() ? file_.git_sha1 : file_.sha256;
    const auto is_equal = [&saved](const char* name, const nlohmann::json& wanted) {
        return saved.contains(name) && saved[name] == wanted;
    };
    if (hash.empty() || !is_equal("size", file_.size_bytes) || !is_equal("hash", hash) ||
        !saved.contains("ranges") || !saved["ranges"].is_array())
        return;

    // The stored ranges must cover the file without a gap.
    std::vector<FileRange> found;
    std::uint64_t at = 0;
    for (const auto& range : saved["ranges"]) {
        if (!range.is_array() || range.size() != 3) return;
        for (const auto& number : range)
            if (!number.is_number_unsigned()) return;
        const FileRange one{range[0].get<std::uint64_t>(), range[1].get<std::uint64_t>(),
                            range[2].get<std::uint64_t>()};
        if (one.begin != at || one.end <= one.begin || one.end > file_.size_bytes ||
            one.done > one.end - one.begin)
            return;
        at = one.end;
        found.push_back(one);
        if (found.size() > ranges_max) return;
    }
    if (at == file_.size_bytes) ranges = std::move(found);
}

std::uint64_t PartFile::allocated_bytes() const {
    struct stat info {};
    if (::lstat(part_.c_str(), &info) != 0) return 0;
    return std::min<std::uint64_t>(static_cast<std::uint64_t>(info.st_blocks) * 512,
                                   file_.size_bytes);
}

Status PartFile::open() {
    if (fd_ >= 0) return {};
    fd_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd_ < 0) return io_error_of(part_);

    // A file system that cannot reserve bytes gets a file with a hole; a full disk is then found by
    // a write.
    const auto size = static_cast<off_t>(file_.size_bytes);
    if (size > 0 && ::fallocate(fd_, 0, 0, size) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return io_error_of(part_);
    if (::ftruncate(fd_, size) != 0) return io_error_of(part_);
    return {};
}

Status PartFile::write(std::uint64_t offset, ByteView bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return io_error_of(part_);
        offset += static_cast<std::uint64_t>(count);
        bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
    return {};
}

void PartFile::restart() {
    for (FileRange& range : ranges) range.done = 0;
}

void PartFile::join_ranges() {
    if (ranges.size() > 1) ranges = {{0, file_.size_bytes}};
}

Result<FinishedFile> PartFile::finish() {
    MOEX_ASSIGN(checked, check_file(part_, file_));
    if (fd_ >= 0 && ::fdatasync(fd_) != 0) return io_error_of(part_);
    MOEX_TRY(make_folders_of(folder_, file_.path));
    const fs::path place = folder_ / file_.path;
    if (::rename(part_.c_str(), place.c_str()) != 0) return io_error_of(place);
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    return checked;
}

void PartFile::remove() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    ::unlink(part_.c_str());
}

}  // namespace moex
