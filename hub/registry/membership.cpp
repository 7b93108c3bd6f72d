#include "hub/registry/membership.h"

#include "hub/registry/store.h"

namespace moex {
namespace {

// Milliseconds since 1970 by the clock of the store.
constexpr std::string_view now_ms = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)";
constexpr std::int64_t kept_ms = 86'400'000;

std::int64_t ms_of(Duration life) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(life).count();
}

class StoredMembership : public Membership {
  public:
    explicit StoredMembership(Store& store) : store_(store) {}

    Result<std::int64_t> enter(const Member& member, Duration life) override {
        MOEX_ASSIGN(session, store_.session());
        {
            Statement forget(*session,
                             text("DELETE FROM hubs WHERE deadline_ms < ", now_ms, " - ?"));
            MOEX_TRY(forget.bind(kept_ms).run());
        }
        Statement enter(
            *session,
            text("INSERT INTO hubs (hub_id, fence, deadline_ms, address, model, package, version, "
                 "streams, workers, keys_seen, units, missing, thin) VALUES (?, "
                 "nextval('hub_fences'), ",
                 now_ms,
                 " + ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (hub_id) DO UPDATE SET fence = "
                 "excluded.fence, deadline_ms = excluded.deadline_ms, address = excluded.address, "
                 "model = excluded.model, package = excluded.package, version = excluded.version, "
                 "streams = excluded.streams, workers = excluded.workers, keys_seen = "
                 "excluded.keys_seen, units = excluded.units, missing = excluded.missing, thin = "
                 "excluded.thin RETURNING fence"));
        enter.bind(std::string_view(member.hub_id)).bind(ms_of(life));
        bind_words(enter, member);
        const std::int64_t fence = enter.step() ? enter.integer(0) : 0;
        MOEX_TRY(enter.status());
        return fence;
    }

    Status renew(const Member& member, Duration life) override {
        MOEX_ASSIGN(session, store_.session());
        {
            Statement renew(
                *session,
                text("UPDATE hubs SET deadline_ms = ", now_ms,
                     " + ?, address = ?, model = ?, package = ?, version = ?, streams = ?, "
                     "workers = ?, keys_seen = ?, units = ?, missing = ?, thin = ? WHERE hub_id = "
                     "? AND fence = ?"));
            renew.bind(ms_of(life));
            bind_words(renew, member);
            MOEX_TRY(renew.bind(std::string_view(member.hub_id)).bind(member.fence).run());
            if (renew.num_changed() == 1) return {};
        }
        Statement present(*session, "SELECT fence FROM hubs WHERE hub_id = ?");
        const bool exists = present.bind(std::string_view(member.hub_id)).step();
        MOEX_TRY(present.status());
        if (!exists)
            return Error{ErrorCode::not_found, text("the store has no row of hub ", member.hub_id)};
        return Error{ErrorCode::cancelled,
                     text("hub ", member.hub_id, " has entered again as incarnation ",
                          present.integer(0), "; this one is ", member.fence)};
    }

    Result<std::vector<Member>> watch() override {
        MOEX_ASSIGN(session, store_.session());
        Statement select(*session,
                         text("SELECT hub_id, fence, address, model, package, version, streams, "
                              "workers, keys_seen, units, missing, thin, deadline_ms - ",
                              now_ms, " FROM hubs ORDER BY hub_id"));
        std::vector<Member> members;
        while (select.step())
            members.push_back({.hub_id = select.text_column(0),
                               .fence = select.integer(1),
                               .address = select.text_column(2),
                               .model = select.text_column(3),
                               .package_sha256 = select.text_column(4),
                               .version = select.text_column(5),
                               .streams = static_cast<std::uint64_t>(select.integer(6)),
                               .workers = static_cast<std::uint64_t>(select.integer(7)),
                               .units = static_cast<std::uint64_t>(select.integer(9)),
                               .missing = static_cast<std::uint64_t>(select.integer(10)),
                               .thin = static_cast<std::uint64_t>(select.integer(11)),
                               .keys_seen = select.text_column(8),
                               .left_ms = select.integer(12)});
        MOEX_TRY(select.status());
        return members;
    }

    Result<bool> fence(std::string_view hub_id, std::int64_t fence) override {
        MOEX_ASSIGN(session, store_.session());
        Statement select(*session, "SELECT 1 FROM hubs WHERE hub_id = ? AND fence = ?");
        const bool found = select.bind(hub_id).bind(fence).step();
        MOEX_TRY(select.status());
        return found;
    }

  private:
    static void bind_words(Statement& statement, const Member& member) {
        statement.bind(std::string_view(member.address))
            .bind(std::string_view(member.model))
            .bind(std::string_view(member.package_sha256))
            .bind(std::string_view(member.version));
        statement.bind(static_cast<std::int64_t>(member.streams))
            .bind(static_cast<std::int64_t>(member.workers))
            .bind(std::string_view(member.keys_seen))
            .bind(static_cast<std::int64_t>(member.units))
            .bind(static_cast<std::int64_t>(member.missing))
            .bind(static_cast<std::int64_t>(member.thin));
    }
    Store& store_;
};

}  // namespace

std::unique_ptr<Membership> make_membership(Store& store) {
    return std::make_unique<StoredMembership>(store);
}

}  // namespace moex
