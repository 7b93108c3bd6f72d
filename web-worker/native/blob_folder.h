// A cache of blobs by hash in a folder of this machine, limited to `limit_bytes`. A new blob
// without room evicts blobs of other models first, the least recently used of them first; then
// blobs of the present model that were used less often than the new one. If these do not free
// enough room, the new blob is not kept. The file `uses` beside the blobs stores how often and when
// each was used, for later runs. The caller verifies the blobs that it reads: this class does not.
// Its methods may be called on any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/sha256.h"

namespace moex::native {

class BlobFolder {
  public:
    struct Options {
        std::filesystem::path folder;   // an existing folder; empty: no blob is kept
        std::uint64_t limit_bytes = 0;  // limit of the folder; 0: as many bytes as the disk takes
        // Receives a sentence for the operator, once for each kind of problem.
        std::function<void(const std::string&)> report;
    };
    explicit BlobFolder(Options options);
    ~BlobFolder();
    BlobFolder(const BlobFolder&) = delete;

    // Sets the served model: blobs that are used from this call on belong to `model`.
    void serves_model(std::string_view model);
    // Returns the blob; nullopt if it is not in the folder, or has another size. This counts as a
    // use of the blob.
    std::optional<Bytes> read(const Sha256& hash, std::uint64_t size_bytes);
    void write(const Sha256& hash, ByteView bytes);
    void drop(const Sha256& hash);
    std::uint64_t bytes_kept() const;
    void save();  // writes the file `uses`; the destructor and every 1,024th use write it, too

  private:
    struct Use {
        std::uint64_t bytes = 0, uses = 0, at_ms = 0;
        std::string model;
    };
    // Blobs by name; bytes = 0: the blob is not in the folder.
    using Uses = std::map<std::string, Use>;
    std::filesystem::path path_of(const std::string& name) const { return options_.folder / name; }
    void open();
    Uses read_uses() const;
    void use(const std::string& name);
    bool make_room(const std::string& name, std::uint64_t size_bytes);
    const std::string* next_to_evict(const std::string& newcomer) const;
    void forget(const std::string& name);
    void report_once(bool& reported, const std::string& sentence) const;
    void failed(const std::string& name, int error);
    void count(Use& one, std::uint64_t size_bytes);

    const Options options_;
    mutable std::mutex mutex_;
    Uses uses_;
    std::string model_;
    std::uint64_t bytes_ = 0;
    std::uint64_t num_unsaved_ = 0;
    // The disk is full: nothing is written until a blob is evicted.
    bool full_ = false;
    bool reported_full_ = false, reported_limit_ = false;
};

}  // namespace moex::native
