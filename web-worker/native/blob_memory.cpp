#include "web-worker/native/blob_memory.h"

namespace moex::native {

const Bytes* BlobMemory::find(const Sha256& hash) {
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) return nullptr;
    newest_first_.splice(newest_first_.begin(), newest_first_, found->second);
    return &newest_first_.front().second;
}

void BlobMemory::keep(const Sha256& hash, ByteView blob) {
    if (blob.size() > bytes_max_ || by_hash_.contains(hash)) return;
    newest_first_.emplace_front(hash, Bytes(blob.begin(), blob.end()));
    by_hash_[hash] = newest_first_.begin();

    for (bytes_ += blob.size(); bytes_ > bytes_max_; newest_first_.pop_back()) {
        bytes_ -= newest_first_.back().second.size();
        by_hash_.erase(newest_first_.back().first);
    }
}

}  // namespace moex::native
