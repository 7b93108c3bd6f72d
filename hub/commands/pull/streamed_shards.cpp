#include "hub/commands/pull/streamed_shards.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "hub/model/pack/whole_file.h"
#include "protocol/text.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t copied_bytes = 8u << 20;
constexpr std::int64_t sparse_time_s = 946'684'800;  // 2000-01-01

// A file that is open for reading and writing.
class OpenFile {
  public:
    explicit OpenFile(fs::path path) : path_(std::move(path)) {
        fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd_ < 0) status_ = system_error(path_, errno);
    }
    ~OpenFile() {
        if (fd_ >= 0) ::close(fd_);
    }
    OpenFile(const OpenFile&) = delete;

    const Status& status() const { return status_; }
    Status read(std::uint64_t offset, std::span<std::byte> out) const {
        const Status done = pread_all(fd_, offset, out);
        if (done.ok()) return {};
        return Error{done.error().code, text(path_.string(), ": ", done.error().message)};
    }
    Status write(std::uint64_t offset, ByteView bytes) const {
        while (!bytes.empty()) {
            const ssize_t count = ::pwrite(fd_, bytes.data(), bytes.size(),
                                           static_cast<off_t>(offset));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) return system_error(path_, count < 0 ? errno : ENOSPC);
            bytes = bytes.subspan(static_cast<std::size_t>(count));
            offset += static_cast<std::uint64_t>(count);
        }
        return {};
    }
    // Makes a hole of the whole blocks in [begin, end). A file system without holes keeps the
    // bytes.
    void punch(std::uint64_t begin, std::uint64_t end) const {
        constexpr std::uint64_t block = 4096;
        begin = (begin + block - 1) / block * block;
        end = end / block * block;
        if (begin < end)
            (void)::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(begin), static_cast<off_t>(end - begin));
    }
    Status resize(std::uint64_t size_bytes) const {
        if (::ftruncate(fd_, static_cast<off_t>(size_bytes)) == 0) return {};
        return system_error(path_, errno);
    }
    // Writes the bytes to the disk, and sets the time of modification that sparse files have.
    Status finish() const {
        const timespec times[2] = {{sparse_time_s, 0}, {sparse_time_s, 0}};
        if (::fsync(fd_) == 0 && ::futimens(fd_, times) == 0) return {};
        return system_error(path_, errno);
    }

  private:
    fs::path path_;
    int fd_ = -1;
    Status status_;
};

}  // namespace

std::optional<std::uint32_t> layer_of_expert_tensor(std::string_view name) {
    constexpr std::string_view layers = "layers.", draft_head = "mtp.";
    // The packer reads the draft head's experts at its end.
    if (name.starts_with(draft_head)) return std::nullopt;
    const std::size_t at = name.find(layers);
    if (at == std::string_view::npos || name.find(".experts.") == std::string_view::npos)
        return std::nullopt;
    std::uint32_t layer = 0;
    const char* const begin = name.data() + at + layers.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), layer);
    if (error != std::errc() || end == begin) return std::nullopt;
    return layer;
}

Result<StreamedShards> StreamedShards::create(const fs::path& folder,
                                              const std::vector<RepositoryFile>& chosen,
                                              Source source) {
    StreamedShards all;
    all.folder_ = folder;
    all.directory_ = folder / ".stream";
    all.source_ = std::move(source);
    for (const RepositoryFile& file : chosen) {
        std::error_code failure;
        const fs::path beside = all.directory_ / file.path;
        fs::create_directories(beside.parent_path(), failure);
        if (failure)
            return Error{ErrorCode::io_error, text(beside.string(), ": ", failure.message())};
        if (file.path.ends_with(".safetensors")) {
            MOEX_TRY(all.add(file));
            continue;
        }
        fs::remove(beside, failure);
        fs::create_hard_link(folder / file.path, beside, failure);
        if (failure) fs::copy_file(folder / file.path, beside, failure);
        if (failure)
            return Error{ErrorCode::io_error, text(beside.string(), ": ", failure.message())};
    }
    return all;
}

// Reads the header of a shard from the endpoint, or from the sparse file of an interrupted stream.
Status StreamedShards::add(const RepositoryFile& file) {
    const std::string what = text(folder_.string(), '/', file.path);
    Shard shard{.file = file};
    std::error_code ignored;
    const bool has_arrived = fs::exists(mark_of(file), ignored);
    OpenFile sparse(directory_ / file.path);
    MOEX_TRY(sparse.status());
    const auto start_of = [&](std::uint64_t num_bytes) -> Result<Bytes> {
        if (!has_arrived) return source_.read_start(file, num_bytes);
        Bytes start(num_bytes);
        MOEX_TRY(sparse.read(0, start));
        return start;
    };

    if (file.size_bytes < 8) return Error{ErrorCode::bad_file, text(what, ": is no safetensors")};
    MOEX_ASSIGN(length, start_of(8));
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, length.data(), 8);
    if (header_bytes > safetensors_header_bytes_max || header_bytes > file.size_bytes - 8)
        return Error{ErrorCode::bad_file, text(what, ": says that its header has ", header_bytes,
                                               " bytes, and the file has ", file.size_bytes)};
    shard.header_bytes = 8 + header_bytes;
    MOEX_ASSIGN(start, start_of(shard.header_bytes));
    const std::string_view header(reinterpret_cast<const char*>(start.data()) + 8, header_bytes);
    MOEX_ASSIGN(tensors, parse_safetensors_header(header, file.size_bytes, what));
    shard.tensors = std::move(tensors);

    if (!has_arrived) {
        MOEX_TRY(sparse.resize(0));
        MOEX_TRY(sparse.write(0, start));
        MOEX_TRY(sparse.resize(file.size_bytes));
        MOEX_TRY(sparse.finish());
    }
    shards_.push_back(std::move(shard));
    return {};
}

// Downloads a shard and moves its bytes into the sparse file, piece by piece, so that the disk has
// them once.
Status StreamedShards::bring(const Shard& shard) {
    std::error_code failure;
    if (fs::exists(mark_of(shard.file), failure)) return {};
    MOEX_TRY(source_.fetch(shard.file));

    const fs::path arriving = directory_ / (shard.file.path + ".arriving");
    fs::rename(folder_ / shard.file.path, arriving, failure);
    if (failure)
        return Error{ErrorCode::io_error, text(arriving.string(), ": ", failure.message())};
    {
        const OpenFile from(arriving), to(directory_ / shard.file.path);
        MOEX_TRY(from.status());
        MOEX_TRY(to.status());
        Bytes before(shard.header_bytes), now(shard.header_bytes);
        MOEX_TRY(to.read(0, before));
        MOEX_TRY(from.read(0, now));
        if (before != now)
            return Error{ErrorCode::hash_mismatch,
                         text(shard.file.path, ": the endpoint sent another header before; remove ",
                              directory_.string(), " and start again")};

        Bytes piece;
        for (std::uint64_t at = 0; at < shard.file.size_bytes; at += piece.size()) {
            piece.resize(std::min(copied_bytes, shard.file.size_bytes - at));
            MOEX_TRY(from.read(at, piece));
            MOEX_TRY(to.write(at, piece));
            from.punch(at, at + piece.size());
        }
        MOEX_TRY(to.finish());
    }
    const OpenFile mark(mark_of(shard.file));
    MOEX_TRY(mark.status());
    sync_directory(directory_);
    fs::remove(arriving, failure);
    return {};
}

Status StreamedShards::bring_layer(std::uint32_t layer) {
    for (const Shard& shard : shards_)
        if (std::any_of(shard.tensors.begin(), shard.tensors.end(),
                        [&](const SafetensorsEntry& tensor) {
                            return layer_of_expert_tensor(tensor.name) == layer;
                        }))
            MOEX_TRY(bring(shard));
    return {};
}

Status StreamedShards::bring_all() {
    for (const Shard& shard : shards_) MOEX_TRY(bring(shard));
    return {};
}

Status StreamedShards::drop_layer(std::uint32_t layer) {
    for (const Shard& shard : shards_) {
        const OpenFile sparse(directory_ / shard.file.path);
        MOEX_TRY(sparse.status());
        for (const SafetensorsEntry& tensor : shard.tensors)
            if (layer_of_expert_tensor(tensor.name) == layer)
                sparse.punch(tensor.offset_bytes, tensor.offset_bytes + tensor.size_bytes);
        MOEX_TRY(sparse.finish());
    }
    return {};
}

Status StreamedShards::remove(const std::vector<RepositoryFile>& chosen) {
    std::error_code failure;
    fs::remove_all(directory_, failure);
    if (failure)
        return Error{ErrorCode::io_error, text(directory_.string(), ": ", failure.message())};
    for (const RepositoryFile& file : chosen) {
        fs::remove(folder_ / file.path, failure);
        // A folder with other files stays.
        for (fs::path above = fs::path(file.path).parent_path(); !above.empty();
             above = above.parent_path())
            fs::remove(folder_ / above, failure);
    }
    return {};
}

}  // namespace moex
