// Blobs by hash in a folder of this machine, at most so many bytes of them. Where there is no room,
// other models' blobs leave first, the longest unused ahead, then those of the model that is served
// that were used less often than the one that comes; else that one is not kept. Who was used how
// often and when stands beside them ("uses") for later runs. Nothing here is verified: whoever
// reads does. Any thread.
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
        std::filesystem::path folder;   // exists; empty: nothing is kept
        std::uint64_t limit_bytes = 0;  // 0: as many as the disk takes
        // A sentence for people, once for each kind of trouble.
        std::function<void(const std::string&)> tell;
    };
    explicit BlobFolder(Options options);
    ~BlobFolder();
    BlobFolder(const BlobFolder&) = delete;

    // Blobs that are used from here on are of this model.
    void serves_model(std::string_view model);
    // nullopt: not here, or of another size. Counts as a use.
    std::optional<Bytes> read(const Sha256& hash, std::uint64_t size_bytes);
    void write(const Sha256& hash, ByteView bytes);
    void drop(const Sha256& hash);
    std::uint64_t bytes_kept() const;
    void save();  // who was used; also at the end, and now and then

  private:
    struct Use {
        std::uint64_t bytes = 0, uses = 0, at_ms = 0;
        std::string model;
    };
    using Uses = std::map<std::string, Use>;  // by name; bytes 0: not here
    std::filesystem::path path_of(const std::string& name) const { return options_.folder / name; }
    void open();
    Uses read_uses() const;
    void use(const std::string& name);
    bool make_room(const std::string& name, std::uint64_t size_bytes);
    const std::string* next_to_leave(const std::string& comer) const;
    void forget(const std::string& name);
    void tell_once(bool& told, const std::string& sentence) const;
    void failed(const std::string& name, int error);
    void count(Use& one, std::uint64_t size_bytes);

    const Options options_;
    mutable std::mutex mutex_;
    Uses uses_;
    std::string model_;
    std::uint64_t bytes_ = 0;
    std::uint64_t num_unsaved_ = 0;
    // The disk took no more: nothing is written until a blob has left.
    bool full_ = false;
    bool told_full_ = false, told_limit_ = false;
};

}  // namespace moex::native
