// An LRU cache of verified blobs in this machine's memory, up to a budget. The blobs are stored in
// a few large, page-aligned pieces of memory. All places of a piece have the same size. A GPU can
// therefore map each piece once (Device::share_memory()) and read the blobs itself. A blob that a
// caller still holds (HeldBlob) keeps its place after it is evicted. The class belongs to one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/sha256.h"
#include "web-worker/held_blob.h"

namespace moex::native {

class BlobMemory {
  public:
    // Called with each piece of memory: `begins` is true before the piece stores its first blob,
    // and false before the piece is freed.
    using Notify = std::function<void(ByteView piece, bool begins)>;

    // `bytes_max`: the most bytes of all pieces together. A budget smaller than one place keeps
    // nothing.
    explicit BlobMemory(std::uint64_t bytes_max, Notify notify = {});
    ~BlobMemory();
    BlobMemory(const BlobMemory&) = delete;

    // Returns the blob; an empty HeldBlob if it is not in memory.
    HeldBlob find(const Sha256& hash);
    // Copies `blob` into this cache, unless it is stored already or no place can be freed.
    void keep(const Sha256& hash, ByteView blob);
    std::vector<ByteView> pieces() const;

  private:
    struct Piece;
    struct Place;
    using Entry = std::pair<Sha256, std::shared_ptr<Place>>;
    std::shared_ptr<Place> take_place(std::uint64_t place_bytes);
    bool add_piece(std::uint64_t place_bytes);
    void give_back_empty(std::uint64_t but_of_bytes);

    const std::uint64_t bytes_max_;
    const Notify notify_;
    std::uint64_t bytes_ = 0;  // total size of all pieces
    std::vector<std::shared_ptr<Piece>> pieces_;
    std::list<Entry> newest_first_;
    std::map<Sha256, std::list<Entry>::iterator> by_hash_;
};

}  // namespace moex::native
