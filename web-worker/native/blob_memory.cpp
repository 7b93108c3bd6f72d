#include "web-worker/native/blob_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace moex::native {
namespace {
// The alignment that a GPU may require of memory that it reads: 4 KiB on most machines, and 64 KiB
// on machines with larger pages.
constexpr std::uint64_t page_bytes = 64u << 10;
constexpr std::uint64_t piece_bytes_wanted = 64u << 20;

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}
}  // namespace

struct BlobMemory::Piece {
    std::span<std::byte> memory;
    std::uint64_t place_bytes = 0, num_places = 0;
    std::vector<std::uint64_t> free;  // places

    Piece() = default;
    Piece(const Piece&) = delete;
    ~Piece() { munmap(memory.data(), memory.size()); }
};

struct BlobMemory::Place {
    std::shared_ptr<Piece> piece;
    std::uint64_t index = 0, size_bytes = 0;

    std::span<std::byte> bytes() const {
        return piece->memory.subspan(index * piece->place_bytes, size_bytes);
    }
    ~Place() { piece->free.push_back(index); }
};

BlobMemory::BlobMemory(std::uint64_t bytes_max, Notify notify)
    : bytes_max_(bytes_max),
      notify_(std::move(notify)) {}

BlobMemory::~BlobMemory() {
    for (const auto& piece : pieces_)
        if (notify_) notify_(piece->memory, false);
}

HeldBlob BlobMemory::find(const Sha256& hash) {
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) return {};
    newest_first_.splice(newest_first_.begin(), newest_first_, found->second);
    const std::shared_ptr<Place>& place = newest_first_.front().second;
    return {place->bytes(), place};
}

std::vector<ByteView> BlobMemory::pieces() const {
    std::vector<ByteView> all;
    for (const auto& piece : pieces_) all.emplace_back(piece->memory);
    return all;
}

void BlobMemory::keep(const Sha256& hash, ByteView blob) {
    if (blob.empty() || by_hash_.contains(hash)) return;
    const std::shared_ptr<Place> place = take_place(round_up(blob.size(), 64));
    if (!place) return;
    place->size_bytes = blob.size();
    std::memcpy(place->bytes().data(), blob.data(), blob.size());
    newest_first_.emplace_front(hash, place);
    by_hash_[hash] = newest_first_.begin();
}

// Returns a place for a blob: a free place, otherwise a place in a new piece of memory, otherwise
// the place of the least recently used blob. Returns null if the budget has no place of
// `place_bytes`.
std::shared_ptr<BlobMemory::Place> BlobMemory::take_place(std::uint64_t place_bytes) {
    if (round_up(place_bytes, page_bytes) > bytes_max_) return nullptr;
    for (;;) {
        for (const auto& piece : pieces_) {
            if (piece->place_bytes != place_bytes || piece->free.empty()) continue;
            auto place = std::make_shared<Place>();
            place->piece = piece;
            place->index = piece->free.back();
            piece->free.pop_back();
            return place;
        }
        if (add_piece(place_bytes)) continue;
        if (newest_first_.empty()) return nullptr;
        by_hash_.erase(newest_first_.back().first);
        newest_first_.pop_back();
        give_back_empty(place_bytes);
    }
}

bool BlobMemory::add_piece(std::uint64_t place_bytes) {
    const std::uint64_t wanted = round_up(std::max(piece_bytes_wanted, place_bytes), page_bytes),
                        left = (bytes_max_ - bytes_) / page_bytes * page_bytes,
                        size_bytes = std::min(wanted, left);
    if (size_bytes < place_bytes) return false;
    void* const memory = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;

    auto piece = std::make_shared<Piece>();
    piece->memory = {static_cast<std::byte*>(memory), size_bytes};
    piece->place_bytes = place_bytes;
    piece->num_places = size_bytes / place_bytes;
    for (std::uint64_t i = piece->num_places; i > 0; --i) piece->free.push_back(i - 1);
    pieces_.push_back(piece);
    bytes_ += size_bytes;
    if (notify_) notify_(piece->memory, true);
    return true;
}

// Frees the pieces that store no blob, except pieces with places of `but_of_bytes` bytes.
void BlobMemory::give_back_empty(std::uint64_t but_of_bytes) {
    std::erase_if(pieces_, [&](const std::shared_ptr<Piece>& piece) {
        if (piece->place_bytes == but_of_bytes || piece->free.size() < piece->num_places)
            return false;
        if (notify_) notify_(piece->memory, false);
        bytes_ -= piece->memory.size();
        return true;
    });
}

}  // namespace moex::native
