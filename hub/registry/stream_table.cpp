#include "hub/registry/stream_table.h"

#include "protocol/text.h"

namespace moex {
namespace {

// Milliseconds since 1970 by the clock of the store.
constexpr std::string_view now_ms = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";

std::int64_t ms_of(Duration life) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(life).count();
}

// Returns "PART, PART, PART".
std::string repeated(std::string_view part, std::size_t count) {
    std::string out;
    for (std::size_t i = 0; i < count; ++i) out += text(i == 0 ? "" : ", ", part);
    return out;
}

Statement& bind(Statement& statement, const Incarnation& one) {
    return statement.bind(std::string_view(one.hub_id)).bind(one.fence);
}

}  // namespace

Status StreamTable::insert(const Incarnation& owner, std::string_view stream_id, ByteView head,
                           Duration life) {
    MOEX_ASSIGN(session, store_.session());
    // A stream that begins anew, since no hub could go on with it, replaces what was stored of it.
    Statement insert(
        *session,
        text(
            "WITH forgotten AS (DELETE FROM stream_pieces WHERE stream_id = ?) INSERT INTO streams "
            "(stream_id, hub_id, fence, head, ended, delete_ms) VALUES (?, ?, ?, ?, FALSE, ",
            now_ms,
            " + ?) ON CONFLICT (stream_id) DO UPDATE SET hub_id = excluded.hub_id, fence = "
            "excluded.fence, head = excluded.head, ended = FALSE, delete_ms = "
            "excluded.delete_ms"));
    return bind(insert.bind(stream_id).bind(stream_id), owner).bind(head).bind(ms_of(life)).run();
}

// Lock the rows of the streams against a taker: it then reads every piece that is stored here, and
// pieces that are sent later find another owner.
Status StreamTable::append(const Incarnation& owner, std::span<const StreamPiece> pieces) {
    if (pieces.empty()) return {};
    MOEX_ASSIGN(session, store_.session());
    Statement append(
        *session,
        text("INSERT INTO stream_pieces (stream_id, position, records) SELECT given.stream_id, "
             "given.position, given.records FROM (VALUES ",
             repeated("(CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS BYTEA))", pieces.size()),
             ") AS given (stream_id, position, records) JOIN streams ON streams.stream_id = "
             "given.stream_id WHERE streams.hub_id = ? AND streams.fence = ? FOR SHARE OF streams "
             "ON CONFLICT DO NOTHING"));
    for (const StreamPiece& piece : pieces)
        append.bind(std::string_view(piece.stream_id))
            .bind(piece.position)
            .bind(ByteView(piece.records));
    return bind(append, owner).run();
}

Result<std::vector<std::string>> StreamTable::owned(const Incarnation& owner,
                                                    std::span<const std::string> stream_ids) {
    std::vector<std::string> found;
    if (stream_ids.empty()) return found;
    MOEX_ASSIGN(session, store_.session());
    Statement select(*session, text("SELECT stream_id FROM streams WHERE hub_id = ? AND fence = ? "
                                    "AND stream_id IN (",
                                    repeated("?", stream_ids.size()), ")"));
    bind(select, owner);
    for (const std::string& id : stream_ids) select.bind(std::string_view(id));
    while (select.step()) found.push_back(select.text_column(0));
    MOEX_TRY(select.status());
    return found;
}

Status StreamTable::renew(const Incarnation& owner, Duration life) {
    MOEX_ASSIGN(session, store_.session());
    Statement renew(*session, text("UPDATE streams SET delete_ms = ", now_ms,
                                   " + ? WHERE hub_id = ? AND fence = ? AND NOT ended"));
    return bind(renew.bind(ms_of(life)), owner).run();
}

Status StreamTable::move(const Incarnation& from, const Incarnation& to) {
    MOEX_ASSIGN(session, store_.session());
    Statement move(*session,
                   "UPDATE streams SET hub_id = ?, fence = ? WHERE hub_id = ? AND fence = ?");
    return bind(bind(move, to), from).run();
}

Status StreamTable::end(const Incarnation& owner, std::string_view stream_id, Duration life) {
    MOEX_ASSIGN(session, store_.session());
    Statement end(*session, text("UPDATE streams SET ended = TRUE, delete_ms = ", now_ms,
                                 " + ? WHERE stream_id = ? AND hub_id = ? AND fence = ?"));
    return bind(end.bind(ms_of(life)).bind(stream_id), owner).run();
}

Result<std::int64_t> StreamTable::sweep() {
    MOEX_ASSIGN(session, store_.session());
    Statement sweep(*session, text("DELETE FROM streams WHERE delete_ms <= ", now_ms));
    MOEX_TRY(sweep.run());
    return sweep.num_changed();
}

Result<StoredStream> StreamTable::find(std::string_view stream_id) {
    MOEX_ASSIGN(session, store_.session());
    Statement select(*session,
                     text("SELECT streams.hub_id, streams.fence, coalesce(hubs.address, ''), CASE "
                          "WHEN hubs.fence = streams.fence AND hubs.deadline_ms > ",
                          now_ms,
                          " THEN 1 ELSE 0 END FROM streams LEFT JOIN hubs ON hubs.hub_id = "
                          "streams.hub_id WHERE stream_id = ?"));
    if (select.bind(stream_id).step())
        return StoredStream{.owner = {select.text_column(0), select.integer(1)},
                            .owner_lives = select.integer(3) == 1,
                            .owner_address = select.text_column(2)};
    MOEX_TRY(select.status());
    return Error{ErrorCode::not_found, text("the store has no stream ", stream_id)};
}

Status StreamTable::take(std::string_view stream_id, const Incarnation& from, const Incarnation& to,
                         bool force, Duration life) {
    MOEX_ASSIGN(session, store_.session());
    Statement take(
        *session,
        text("UPDATE streams SET hub_id = ?, fence = ?, ended = FALSE, delete_ms = ", now_ms,
             " + ? WHERE stream_id = ? AND hub_id = ? AND fence = ? AND (? = 1 OR NOT EXISTS "
             "(SELECT 1 FROM hubs WHERE hubs.hub_id = streams.hub_id AND hubs.fence = "
             "streams.fence AND hubs.deadline_ms > ",
             now_ms, "))"));
    bind(bind(take, to).bind(ms_of(life)).bind(stream_id), from).bind(std::int64_t{force});
    MOEX_TRY(take.run());
    if (take.num_changed() == 1) return {};
    return Error{ErrorCode::cancelled, text("another hub has taken the stream ", stream_id,
                                            ", or the lease of its hub lasts")};
}

Result<Bytes> StreamTable::head(std::string_view stream_id) {
    MOEX_ASSIGN(session, store_.session());
    Statement select(*session, "SELECT head FROM streams WHERE stream_id = ?");
    if (select.bind(stream_id).step()) return select.blob(0);
    MOEX_TRY(select.status());
    return Error{ErrorCode::not_found, text("the store has no stream ", stream_id)};
}

Result<std::vector<StreamPiece>> StreamTable::pieces(std::string_view stream_id) {
    MOEX_ASSIGN(session, store_.session());
    Statement select(*session,
                     "SELECT position, records FROM stream_pieces WHERE stream_id = ? ORDER BY "
                     "position");
    std::vector<StreamPiece> pieces;
    select.bind(stream_id);
    while (select.step())
        pieces.push_back({std::string(stream_id), select.integer(0), select.blob(1)});
    MOEX_TRY(select.status());
    return pieces;
}

}  // namespace moex
