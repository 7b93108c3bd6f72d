// Verified blobs that stay in this machine's memory, up to a budget: what was asked for least
// recently goes first. They lie in a few large pieces of memory, on pages, each of places of one
// size, so that a GPU can be told of the pieces once and read the blobs itself. What is held
// elsewhere (HeldBlob) keeps its place when it goes. One thread's.
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
    // Called with each piece of memory when blobs begin to lie in it, and before it is given back.
    using Told = std::function<void(ByteView piece, bool begins)>;

    // `bytes_max`: of all pieces. A budget that holds no place keeps nothing.
    explicit BlobMemory(std::uint64_t bytes_max, Told told = {});
    ~BlobMemory();
    BlobMemory(const BlobMemory&) = delete;

    // None where it is not here.
    HeldBlob find(const Sha256& hash);
    // A copy of it, unless it is here or finds no place.
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
    const Told told_;
    std::uint64_t bytes_ = 0;  // of the pieces
    std::vector<std::shared_ptr<Piece>> pieces_;
    std::list<Entry> newest_first_;
    std::map<Sha256, std::list<Entry>::iterator> by_hash_;
};

}  // namespace moex::native
