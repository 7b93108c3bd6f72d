// The journals of streams in a store that hubs share: which incarnation of which hub computes a
// stream, and what another hub needs to go on with it. All contents are sealed already. Only the
// incarnation that a row names may write to it. Another hub takes a row over by one statement that
// names the incarnation which it found there, so that one of several takers wins. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hub/base/clock.h"
#include "hub/registry/store.h"

namespace moex {

// An incarnation of a hub (membership.h).
struct Incarnation {
    std::string hub_id;
    std::int64_t fence = 0;
    friend bool operator==(const Incarnation&, const Incarnation&) = default;
};

struct StreamPiece {
    std::string stream_id;
    std::int64_t position = 0;  // number of the records before this piece
    Bytes records;              // sealed
};

// A row, as another hub finds it.
struct StoredStream {
    Incarnation owner;
    bool owner_lives = false;  // the owner is present, and its lease has not ended
    std::string owner_address;
};

class StreamTable {
  public:
    explicit StreamTable(Store& store) : store_(store) {}

    // Adds the row of a new stream of `owner`, which is deleted after `life` unless it is renewed.
    // It replaces a row of that id.
    Status insert(const Incarnation& owner, std::string_view stream_id, ByteView head,
                  Duration life);
    // Adds pieces of streams of `owner`. Those of streams that it does not own are left out; a
    // piece that is stored already stays as it is.
    Status append(const Incarnation& owner, std::span<const StreamPiece> pieces);
    // Returns those of `stream_ids` that `owner` owns.
    Result<std::vector<std::string>> owned(const Incarnation& owner,
                                           std::span<const std::string> stream_ids);
    // Moves the deletion of the running streams of `owner` to `life` from now.
    Status renew(const Incarnation& owner, Duration life);
    // Gives all streams of one incarnation to the next one of the same hub.
    Status move(const Incarnation& from, const Incarnation& to);
    Status end(const Incarnation& owner, std::string_view stream_id, Duration life);
    // Deletes the rows of all hubs whose time is over. Returns their number.
    Result<std::int64_t> sweep();

    // Finds a stream. Error not_found.
    Result<StoredStream> find(std::string_view stream_id);
    // Gives a stream of `from` to `to`. Error cancelled: its owner is not `from`, or, unless
    // `force`, the lease of `from` lasts.
    Status take(std::string_view stream_id, const Incarnation& from, const Incarnation& to,
                bool force, Duration life);
    Result<Bytes> head(std::string_view stream_id);
    // Returns all pieces in their order.
    Result<std::vector<StreamPiece>> pieces(std::string_view stream_id);

  private:
    Store& store_;
};

}  // namespace moex
