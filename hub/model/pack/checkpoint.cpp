#include "hub/model/pack/checkpoint.h"

#include <cerrno>
#include <cstring>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

bool plain_file_name(const std::string& name) {
    return !name.empty() && name.size() <= 255 && name[0] != '.' &&
           name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

// Reads the index file {tensor name: shard file name} and subtracts its size from `bytes_left`, the
// limit for all headers.
Result<std::map<std::string, std::string>> read_index(const std::filesystem::path& path,
                                                      std::uint64_t& bytes_left) {
    MOEX_ASSIGN(index_text, read_text_file(path, bytes_left));
    bytes_left -= index_text.size();
    MOEX_ASSIGN(index, parse_strict_json(index_text, path.string(), {.depth_max = 8}));
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
        return Error{ErrorCode::bad_file,
                     text(path.string(), ": weight_map is missing, wanted {tensor: file}")};

    std::map<std::string, std::string> shard_of;
    for (const auto& [tensor, file] : index["weight_map"].items()) {
        if (!file.is_string() || !plain_file_name(file.get<std::string>()))
            return Error{ErrorCode::bad_file,
                         text(path.string(), ": tensor ", tensor.substr(0, 200), " is stored in ",
                              json_excerpt(file), ", wanted a file name in this folder")};
        shard_of.emplace_hint(shard_of.end(), tensor, file.get<std::string>());
    }

    if (shard_of.empty())
        return Error{ErrorCode::bad_file, text(path.string(), ": weight_map names no tensor")};
    return shard_of;
}

// Returns model.safetensors, or the only file with that ending: some quantised models have another
// name.
Result<std::filesystem::path> single_shard(const std::filesystem::path& directory) {
    const std::filesystem::path usual = directory / "model.safetensors";
    std::error_code ignored;
    if (std::filesystem::exists(usual, ignored)) return usual;
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(directory, ignored))
        if (entry.path().extension() == ".safetensors") found.push_back(entry.path());
    if (found.size() == 1) return found.front();
    return Error{ErrorCode::not_found,
                 text(directory.string(),
                      ": neither model.safetensors.index.json nor model.safetensors is there",
                      found.empty() ? "" : text(", and ", found.size(), " other .safetensors"))};
}

}  // namespace

Checkpoint::Fd::~Fd() {
    if (fd_ >= 0) ::close(fd_);
}

Status Checkpoint::add_shard(const std::filesystem::path& path) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (fd.get() < 0) {
        const ErrorCode code = errno == ENOENT ? ErrorCode::not_found : ErrorCode::io_error;
        return Error{code, text(path.string(), ": ", std::strerror(errno))};
    }

    struct stat info {};
    if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode))
        return Error{ErrorCode::bad_file, text(path.string(), ": not a regular file")};

    const auto file_bytes = static_cast<std::uint64_t>(info.st_size);

    const auto in_shard = [&](const Error& error) {
        return Error{error.code, text(path.string(), ": ", error.message)};
    };

    Bytes start(std::min<std::uint64_t>(8, file_bytes));
    if (auto status = pread_all(fd.get(), 0, start); !status.ok()) return in_shard(status.error());

    std::uint64_t header_bytes = ByteReader(start).u64();
    if (start.size() < 8 || header_bytes > safetensors_header_bytes_max ||
        header_bytes > file_bytes - 8) {
        if (start.size() == 8 && header_bytes <= safetensors_header_bytes_max)
            return Error{ErrorCode::bad_file,
                         text(path.string(), ": header of ", header_bytes, " bytes, but only ",
                              file_bytes - 8, " follow; truncated?")};
        // returns the error that describes the bad header
        MOEX_TRY(safetensors_header_of(start, path.string()));
    }

    if (header_bytes > header_bytes_left_)
        return Error{ErrorCode::bad_file, text(path.string(), ": header of ", header_bytes,
                                               " bytes; the headers of all shards may take ",
                                               safetensors_header_bytes_max, " together")};

    header_bytes_left_ -= header_bytes;
    Bytes header(header_bytes);
    if (auto status = pread_all(fd.get(), 8, header); !status.ok()) return in_shard(status.error());

    MOEX_ASSIGN(entries, parse_safetensors_header(as_text_view(header), file_bytes, path.string()));

    for (SafetensorsEntry& entry : entries) {
        const std::string name = entry.name;
        const auto [other, fresh] = tensors_.try_emplace(name,
                                                         Tensor{std::move(entry), shards_.size()});
        if (!fresh)
            return Error{ErrorCode::bad_file,
                         text(path.string(), ": tensor ", name.substr(0, 200), " is also in ",
                              shards_[other->second.shard_index].path.filename().string())};
    }

    const std::int64_t modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 +
                                     info.st_mtim.tv_nsec;
    shards_.push_back(Shard{path, std::make_shared<const std::string>(path.string()), std::move(fd),
                            file_bytes, modified_ns, sha256(header)});
    return {};
}

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& directory) {
    Checkpoint checkpoint;
    checkpoint.directory_ = directory;
    const std::filesystem::path index_path = directory / "model.safetensors.index.json";

    std::error_code ignored;
    if (!std::filesystem::exists(index_path, ignored)) {
        MOEX_ASSIGN(path, single_shard(directory));
        MOEX_TRY(checkpoint.add_shard(path));
        return checkpoint;
    }

    MOEX_ASSIGN(shard_of, read_index(index_path, checkpoint.header_bytes_left_));
    std::set<std::string> files;
    for (const auto& [tensor, file] : shard_of) files.insert(file);
    for (const std::string& file : files) MOEX_TRY(checkpoint.add_shard(directory / file));

    for (const auto& [tensor, file] : shard_of) {
        const Tensor* found = checkpoint.find(tensor);
        if (found == nullptr || checkpoint.shards_[found->shard_index].path.filename() != file)
            return Error{ErrorCode::bad_file,
                         text((directory / file).string(), ": tensor ", tensor.substr(0, 200),
                              " is missing, but model.safetensors.index.json puts it there")};
    }

    return checkpoint;
}

const Checkpoint::Tensor* Checkpoint::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

std::string Checkpoint::where(const Tensor& tensor) const {
    return text(shards_[tensor.shard_index].path.string(), ": tensor ",
                tensor.entry.name.substr(0, 200));
}

Status Checkpoint::read_bytes(const Tensor& tensor, std::uint64_t first_byte,
                              std::span<std::byte> out) const {
    MOEX_CHECK(first_byte + out.size() <= tensor.entry.size_bytes,
               text("read past the end of ", tensor.entry.name));
    const Status status = pread_all(shards_[tensor.shard_index].fd.get(),
                                    tensor.entry.offset_bytes + first_byte, out);
    if (!status.ok())
        return Error{status.error().code, text(where(tensor), ": ", status.error().message)};
    return {};
}

Status Checkpoint::read_floats(const Tensor& tensor, std::uint64_t first, std::span<float> out,
                               Bytes& scratch) const {
    const std::uint32_t element_bytes = tensor_dtype_bytes(*tensor.entry.dtype);
    scratch.resize(out.size() * element_bytes);
    MOEX_TRY(read_bytes(tensor, first * element_bytes, scratch));

    elements_to_float(*tensor.entry.dtype, scratch.data(), out);
    return {};
}

std::uint64_t Checkpoint::tensor_bytes() const {
    std::uint64_t total = 0;
    for (const auto& [name, tensor] : tensors_) total += tensor.entry.size_bytes;
    return total;
}

std::string Checkpoint::fingerprint() const {
    std::string parts;
    for (const Shard& shard : shards_)
        parts += text(shard.path.filename().string(), ' ', shard.file_bytes, ' ', shard.modified_ns,
                      ' ', to_hex(shard.header_hash), '\n');
    return parts;
}

}  // namespace moex
