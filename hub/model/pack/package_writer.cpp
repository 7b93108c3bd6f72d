#include "hub/model/pack/package_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/pack/checkpoint.h"
#include "hub/model/pack/whole_file.h"
#include "hub/model/strict_json.h"

namespace moex {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_in(const fs::path& directory) {
    std::uint64_t total = 0;
    std::error_code ignored;
    for (fs::recursive_directory_iterator it(directory, ignored), end; it != end;
         it.increment(ignored))
        if (it->is_regular_file(ignored)) total += it->file_size(ignored);
    return total;
}

Status check_space(const fs::path& directory, std::uint64_t wanted) {
    struct statvfs info {};
    if (::statvfs(directory.c_str(), &info) != 0) return system_error(directory, errno);
    const std::uint64_t free_bytes = std::uint64_t{info.f_bavail} * info.f_frsize;
    if (free_bytes < wanted)
        return Error{ErrorCode::no_space, text(directory.string(), ": the package takes ", wanted,
                                               " more bytes, the disk has ", free_bytes, " free")};
    return {};
}

// Returns true for file names that a packer writes. Only files with such names may be reused or
// removed.
bool is_ours(const std::string& name) {
    if (name == "weights" || name == "draft_head" || name == ".pack-state" ||
        name == "manifest.json" || name == "hub.safetensors" || name.starts_with(".tmp-"))
        return true;
    return std::find(std::begin(package_text_files), std::end(package_text_files), name) !=
           std::end(package_text_files);
}

// Removes the temporary files that a killed packer left in the folder.
void remove_temporaries(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder, error))
        if (entry.path().filename().string().starts_with(".tmp-")) found.push_back(entry.path());
    for (const fs::path& path : found) fs::remove_all(path, error);
}

// Returns true if the folder holds an unfinished package, and false if the folder is empty or
// missing. Any other contents of the folder are an error.
Result<bool> check_folder(const fs::path& directory) {
    std::error_code error;
    if (!fs::is_directory(directory, error))
        return Error{ErrorCode::invalid_argument,
                     text(directory.string(), ": is a file, wanted a folder for the package")};

    const bool unfinished = fs::is_directory(directory / ".pack-state", error);
    if (!unfinished && fs::exists(directory / "manifest.json", error)) {
        remove_temporaries(directory);
        return Error{ErrorCode::invalid_argument,
                     text(directory.string(),
                          ": holds a package already; remove it or choose another folder")};
    }

    for (const auto& entry : fs::directory_iterator(directory, error)) {
        const std::string name = entry.path().filename().string();
        if (!unfinished || !is_ours(name))
            return Error{ErrorCode::invalid_argument,
                         text(directory.string(), ": is not empty (", name.substr(0, 100),
                              "); choose another folder")};
    }

    if (error) return Error{ErrorCode::io_error, text(directory.string(), ": ", error.message())};
    return unfinished;
}

// Checks that the disk has free space for the package, then creates its folder.
Status make_folder(const fs::path& directory, std::uint64_t output_bytes) {
    std::error_code error;
    fs::path above = fs::absolute(directory, error).lexically_normal();
    while (above.has_relative_path() && !fs::exists(above, error)) above = above.parent_path();
    MOEX_TRY(check_space(above, output_bytes));

    fs::create_directories(directory, error);
    if (error) return Error{ErrorCode::io_error, text(directory.string(), ": ", error.message())};
    return {};
}

}  // namespace

PackageOutput::PackageOutput(PackageOutput&& other) noexcept
    : directory_(std::move(other.directory_)),
      made_directory_(other.made_directory_),
      lock_fd_(std::exchange(other.lock_fd_, -1)),
      written_bytes_(std::move(other.written_bytes_)),
      next_temporary_(std::move(other.next_temporary_)) {}

PackageOutput::~PackageOutput() {
    if (lock_fd_ >= 0) ::close(lock_fd_);  // releases the lock
}

Result<PackageOutput> PackageOutput::open(const fs::path& directory, std::string_view input,
                                          std::uint64_t output_bytes) {
    PackageOutput output;
    output.directory_ = directory;
    output.written_bytes_ = std::make_unique<std::atomic<std::uint64_t>>(0);
    output.next_temporary_ = std::make_unique<std::atomic<std::uint64_t>>(0);

    std::error_code error;
    const bool was_there = fs::exists(directory, error);
    bool resumes = false;
    if (was_there) {
        MOEX_ASSIGN(unfinished, check_folder(directory));
        resumes = unfinished;
        const std::uint64_t there = bytes_in(directory);
        MOEX_TRY(check_space(directory, output_bytes > there ? output_bytes - there : 0));
    } else {
        MOEX_TRY(make_folder(directory, output_bytes));
        output.made_directory_ = true;
    }

    MOEX_TRY(output.take_lock(resumes));
    MOEX_TRY(output.take_input(input));

    for (const fs::path& folder : {directory, directory / "weights", directory / ".pack-state"})
        remove_temporaries(folder);
    return output;
}

Status PackageOutput::take_lock(bool resumes) {
    const fs::path state = directory_ / ".pack-state";
    std::error_code error;
    fs::create_directories(state, error);
    fs::create_directories(directory_ / "weights", error);
    if (error) return Error{ErrorCode::io_error, text(directory_.string(), ": ", error.message())};

    lock_fd_ = ::open((state / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_fd_ < 0) return system_error(state / "lock", errno);
    if (::flock(lock_fd_, LOCK_EX | LOCK_NB) != 0)
        return Error{ErrorCode::unavailable,
                     text(directory_.string(), ": another packer is writing here")};

    if (resumes || !fs::exists(directory_ / "manifest.json", error)) return {};
    fs::remove_all(state, error);
    return Error{ErrorCode::unavailable,
                 text(directory_.string(), ": another packer has just finished a package here")};
}

Status PackageOutput::take_input(std::string_view input) {
    const fs::path state = directory_ / ".pack-state";
    if (const auto before = read_text_file(state / "input", 1u << 20); before.ok()) {
        if (*before == input) return {};
        return Error{ErrorCode::invalid_argument,
                     text(directory_.string(),
                          ": holds the unfinished package of another checkpoint or other "
                          "options; remove it or choose another folder")};
    }

    // There is no input file. Remove the records of finished layers before a new one is written. A
    // packer that was killed during its clean-up leaves records without an input file, and another
    // checkpoint must not use them.
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(state, error))
        if (entry.path().filename() != "lock") fs::remove_all(entry.path(), error);
    fs::remove(directory_ / "manifest.json", error);

    return write_file(state / "input", as_byte_view(input));
}

Status PackageOutput::write_file(const fs::path& path, ByteView content) {
    WholeFile file(path, path.parent_path() / text(".tmp-", next_temporary_->fetch_add(1)));
    MOEX_TRY(file.write(content));
    MOEX_TRY(file.finish());
    written_bytes_->fetch_add(content.size());
    return {};
}

std::optional<std::vector<Sha256>> PackageOutput::finished_layer(std::uint32_t layer,
                                                                 std::uint32_t num_experts,
                                                                 std::uint64_t blob_bytes) const {
    const auto record = read_text_file(directory_ / ".pack-state" / text("layer-", layer),
                                       1u << 20);
    if (!record.ok()) return std::nullopt;

    std::vector<Sha256> hashes;
    for (std::size_t at = 0; at + 65 <= record->size(); at += 65) {
        const auto hash = parse_sha256(std::string_view(*record).substr(at, 64));
        std::error_code error;
        if (!hash.ok() ||
            fs::file_size(directory_ / "weights" / to_hex(*hash), error) != blob_bytes || error)
            return std::nullopt;
        hashes.push_back(*hash);
    }

    if (hashes.size() != num_experts) return std::nullopt;
    return hashes;
}

std::optional<FileRecord> PackageOutput::finished_hub() const {
    const auto record = read_text_file(directory_ / ".pack-state" / "hub", 200);
    if (!record.ok() || record->size() != 65) return std::nullopt;
    const auto hash = parse_sha256(std::string_view(*record).substr(0, 64));
    std::error_code error;
    const std::uint64_t size = fs::file_size(directory_ / "hub.safetensors", error);
    if (!hash.ok() || error) return std::nullopt;
    return FileRecord{*hash, size};
}

Result<Sha256> PackageOutput::write_blob(ByteView blob) {
    const Sha256 hash = sha256(blob);
    const fs::path path = directory_ / "weights" / to_hex(hash);
    std::error_code error;
    // The blob exists already: another expert has equal weights, or the blob was written before an
    // interruption.
    if (fs::file_size(path, error) == blob.size() && !error) return hash;
    MOEX_TRY(write_file(path, blob));
    return hash;
}

Status PackageOutput::finish_layer(std::uint32_t layer, const std::vector<Sha256>& hashes) {
    std::string record;
    for (const Sha256& hash : hashes) record += to_hex(hash) + "\n";
    sync_directory(directory_ / "weights");
    MOEX_TRY(write_file(directory_ / ".pack-state" / text("layer-", layer), as_byte_view(record)));
    return {};
}

Result<FileRecord> PackageOutput::write_hub(
    std::vector<SafetensorsEntry>& tensors,
    const std::function<Status(std::size_t, const WriteBytes&)>& fill) {
    const std::string header = make_safetensors_header(tensors);
    GrowingSha256 hash;

    WholeFile file(directory_ / "hub.safetensors", directory_ / ".tmp-hub");
    FileRecord record;
    const WriteBytes write = [&](ByteView bytes) -> Status {
        hash.add(bytes);
        record.size_bytes += bytes.size();
        written_bytes_->fetch_add(bytes.size());
        return file.write(bytes);
    };

    MOEX_TRY(write(as_byte_view(header)));
    for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        MOEX_CHECK(record.size_bytes == tensors[tensor].offset_bytes,
                   text("hub.safetensors: ", tensors[tensor].name, " at ", record.size_bytes));
        MOEX_TRY(fill(tensor, write));
    }

    MOEX_TRY(file.finish());
    record.sha256 = hash.value();

    sync_directory(directory_);
    MOEX_TRY(
        write_file(directory_ / ".pack-state" / "hub", as_byte_view(to_hex(record.sha256) + "\n")));
    return record;
}

Result<FileRecord> PackageOutput::write_text(std::string_view file_name, std::string_view content) {
    MOEX_TRY(write_file(directory_ / file_name, as_byte_view(content)));
    return FileRecord{sha256(as_byte_view(content)), content.size()};
}

Status PackageOutput::finish(const PackageManifest& manifest) {
    sync_directory(directory_ / "weights");
    sync_directory(directory_);
    MOEX_TRY(write_file(directory_ / "manifest.json", as_byte_view(manifest_to_json(manifest))));

    sync_directory(directory_);
    // Rename the folder .pack-state in one step. If the packer is killed here, no records without
    // their input file are left beside a complete package.
    const fs::path spent = directory_ / text(".tmp-", next_temporary_->fetch_add(1));
    std::error_code error;
    fs::rename(directory_ / ".pack-state", spent, error);
    fs::remove_all(error ? directory_ / ".pack-state" : spent, error);

    return {};
}

void PackageOutput::discard() {
    std::error_code error;
    const fs::path state = directory_ / ".pack-state";
    for (const auto& entry : fs::directory_iterator(directory_, error))
        if (is_ours(entry.path().filename().string()) && entry.path() != state)
            fs::remove_all(entry.path(), error);
    // removed last, because .pack-state marks the folder as a packer's
    fs::remove_all(state, error);
    // Keep the output folder if it existed before this packer ran. It is then empty again.
    if (made_directory_) fs::remove(directory_, error);
}

}  // namespace moex
