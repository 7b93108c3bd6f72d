#include "web-worker/native/blob_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <tuple>

#include "protocol/result.h"

namespace moex::native {
namespace {

constexpr const char* uses_name = "uses";
constexpr std::uint64_t unsaved_max = 1024;  // most recorded uses of blobs that a crash may lose
constexpr std::size_t name_digits = 2 * std::tuple_size_v<Sha256>;

bool is_blob_name(const std::string& name) {
    return name.size() == name_digits &&
           name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::uint64_t now_ms() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                          std::chrono::system_clock::now().time_since_epoch())
                                          .count());
}

// Writes `bytes` to `path`. The file gets its name only when it is complete. Returns 0 or an errno.
int write_file(const std::filesystem::path& path, ByteView bytes) {
    const std::string part = path.string() + ".part";
    const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int error = file < 0 ? errno : 0;
    while (error == 0 && !bytes.empty()) {
        const ssize_t written = ::write(file, bytes.data(), bytes.size());
        if (written >= 0)
            bytes = bytes.subspan(static_cast<std::size_t>(written));
        else if (errno != EINTR)
            error = errno;
    }
    if (file >= 0 && ::close(file) != 0 && error == 0) error = errno;
    if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
    if (error != 0) ::unlink(part.c_str());
    return error;
}

}  // namespace

BlobFolder::BlobFolder(Options options) : options_(std::move(options)) {
    if (!options_.folder.empty()) open();
}

BlobFolder::~BlobFolder() { save(); }

// Lists the blobs in the folder. A blob that the file `uses` does not list counts as never used.
void BlobFolder::open() {
    uses_ = read_uses();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(options_.folder, error)) {
        const std::string name = entry.path().filename().string();
        if (!is_blob_name(name)) continue;
        const std::uint64_t size_bytes = entry.file_size(error);
        if (error) continue;
        uses_[name].bytes = size_bytes;
        bytes_ += size_bytes;
    }
}

BlobFolder::Uses BlobFolder::read_uses() const {
    Uses known;
    std::ifstream in(path_of(uses_name));
    Use one;
    for (std::string name; in >> name >> one.uses >> one.at_ms >> one.model;)
        if (is_blob_name(name)) known[name] = one;
    return known;
}

void BlobFolder::save() {
    const std::lock_guard lock(mutex_);
    num_unsaved_ = 0;
    if (options_.folder.empty()) return;
    std::string lines;
    for (const auto& [name, one] : uses_)
        if (one.bytes > 0 || one.model == model_)
            lines += text(name, ' ', one.uses, ' ', one.at_ms, ' ',
                          one.model.empty() ? "-" : one.model, '\n');
    // If the disk is full, the older file `uses` stays.
    (void)write_file(path_of(uses_name), std::as_bytes(std::span(lines)));
}

void BlobFolder::serves_model(std::string_view model) {
    const std::lock_guard lock(mutex_);
    model_ = model;
    std::replace_if(
        model_.begin(), model_.end(), [](char c) { return std::isspace(c) != 0; }, '_');
}

std::uint64_t BlobFolder::bytes_kept() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

void BlobFolder::use(const std::string& name) {
    Use& one = uses_[name];
    ++one.uses;
    one.at_ms = now_ms();
    one.model = model_;
    ++num_unsaved_;
}

std::optional<Bytes> BlobFolder::read(const Sha256& hash, std::uint64_t size_bytes) {
    if (options_.folder.empty()) return std::nullopt;
    const std::string name = to_hex(hash);
    bool saves = false;
    {
        const std::lock_guard lock(mutex_);
        use(name);
        saves = num_unsaved_ >= unsaved_max;
    }
    if (saves) save();

    std::error_code ignored;
    if (std::filesystem::file_size(path_of(name), ignored) != size_bytes) return std::nullopt;
    std::ifstream in(path_of(name), std::ios::binary);
    Bytes bytes(size_bytes);
    if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size_bytes)))
        return std::nullopt;
    const std::lock_guard lock(mutex_);
    count(uses_[name], size_bytes);  // another worker may have written this blob's file
    return bytes;
}

void BlobFolder::count(Use& one, std::uint64_t size_bytes) {
    bytes_ += size_bytes - one.bytes;
    one.bytes = size_bytes;
}

void BlobFolder::drop(const Sha256& hash) {
    if (options_.folder.empty()) return;
    const std::lock_guard lock(mutex_);
    forget(to_hex(hash));
}

// Removes the blob's file. The count of its uses stays known in this run, since the blob may be
// stored again.
void BlobFolder::forget(const std::string& name) {
    std::error_code ignored;
    if (std::filesystem::remove(path_of(name), ignored)) full_ = false;
    count(uses_[name], 0);
}

// Returns the blob to evict for the blob `newcomer`; null if no stored blob may be evicted for it.
const std::string* BlobFolder::next_to_evict(const std::string& newcomer) const {
    const auto found = uses_.find(newcomer);
    const std::uint64_t newcomer_uses = found == uses_.end() ? 0 : found->second.uses;
    const auto order = [this](const Use& one) {
        const bool own = one.model == model_;
        return own ? std::tuple(own, one.uses, one.at_ms) : std::tuple(own, one.at_ms, one.uses);
    };
    const Uses::value_type* least = nullptr;
    for (const auto& one : uses_)
        if (one.second.bytes > 0 && one.first != newcomer &&
            (least == nullptr || order(one.second) < order(least->second)))
            least = &one;
    if (least == nullptr) return nullptr;
    const bool stays = least->second.model == model_ && least->second.uses >= newcomer_uses;
    return stays ? nullptr : &least->first;
}

bool BlobFolder::make_room(const std::string& name, std::uint64_t size_bytes) {
    if (options_.limit_bytes == 0) return true;
    if (size_bytes > options_.limit_bytes) return false;
    while (bytes_ + size_bytes > options_.limit_bytes) {
        const std::string* least = next_to_evict(name);
        if (least == nullptr) return false;
        forget(std::string(*least));
    }
    return true;
}

void BlobFolder::write(const Sha256& hash, ByteView bytes) {
    if (options_.folder.empty()) return;
    const std::string name = to_hex(hash);
    {
        const std::lock_guard lock(mutex_);
        if (full_ || uses_[name].bytes > 0) return;
        if (!make_room(name, bytes.size()))
            return report_once(reported_limit_, text("the limit of ", options_.limit_bytes >> 20,
                                                     " MB for ", options_.folder.string(),
                                                     " is reached: experts beyond it are fetched "
                                                     "again when they are requested"));
        count(uses_[name], bytes.size());
    }
    int error = write_file(path_of(name), bytes);
    // Blobs of other models are evicted also when the disk is full.
    while (error == ENOSPC || error == EDQUOT) {
        const std::lock_guard lock(mutex_);
        const std::string* least = next_to_evict(name);
        if (least == nullptr || uses_[*least].model == model_) break;
        forget(std::string(*least));
        error = write_file(path_of(name), bytes);
    }
    if (error != 0) failed(name, error);
}

void BlobFolder::failed(const std::string& name, int error) {
    const std::lock_guard lock(mutex_);
    count(uses_[name], 0);
    full_ = true;
    report_once(reported_full_,
                text("experts can no longer be kept in ", options_.folder.string(), ": ",
                     std::strerror(error), "; the worker continues to serve without it"));
}

void BlobFolder::report_once(bool& reported, const std::string& sentence) const {
    if (!reported && options_.report) options_.report(sentence);
    reported = true;
}

}  // namespace moex::native
