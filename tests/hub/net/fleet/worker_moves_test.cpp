// Tests which workers a hub asks to join another hub.
#include "hub/net/fleet/worker_moves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace moex::net {
namespace {

constexpr std::uint32_t num_units = 24;

// A hub whose workers hold all units, unless `missing` and `thin` say otherwise.
Member hub_of(const std::string& id, std::uint64_t workers, std::uint64_t missing = 0,
              std::uint64_t thin = 0) {
    return {.hub_id = id,
            .address = "http://" + id,
            .package_sha256 = "p",
            .workers = workers,
            .units = num_units,
            .missing = missing,
            .thin = thin,
            .left_ms = 9000};
}
Member gone(Member hub) {
    hub.left_ms = -1;
    return hub;
}
Member of_package(Member hub, const std::string& package) {
    hub.package_sha256 = package;
    return hub;
}

std::vector<WorkerView> workers_of(std::size_t count) {
    std::vector<WorkerView> workers(count);
    for (std::size_t i = 0; i < count; ++i) {
        workers[i].id = i + 1;
        workers[i].state = WorkerState::active;
        workers[i].reads_hubs = true;
        workers[i].joined_at = TimePoint{} + std::chrono::seconds(i + 1);
    }
    return workers;
}
// `count` workers of which each one can leave without a loss.
UnitCopies spare_copies(std::size_t count) {
    UnitCopies copies{.units = num_units, .wanted = 2};
    for (std::size_t i = 0; i < count; ++i) copies.shares[i + 1] = {};
    return copies;
}
// Each worker alone holds its part of the units, and has no memory for more.
UnitCopies single_copies(std::size_t count) {
    UnitCopies copies{.units = num_units, .wanted = 1};
    for (std::size_t i = 0; i < count; ++i)
        copies.shares[i + 1] = {.alone = static_cast<std::uint32_t>(num_units / count)};
    return copies;
}

MoveChoice choose(const Member& self, std::span<const Member> members, const UnitCopies& copies,
                  const std::set<WorkerId>& asked = {}, double uniform = 0,
                  bool computes_experts = false) {
    const auto workers = workers_of(self.workers);
    return choose_move({.self = self,
                        .members = members,
                        .workers = workers,
                        .copies = copies,
                        .asked = asked,
                        .computes_experts = computes_experts,
                        .uniform = uniform});
}

TEST(WorkerMovesTest, PlacesAreLivingHubsOfThePackageTheNeediestFirst) {
    const Member self = hub_of("aaaaaaaa", 1, 3);
    const Member members[] = {self,
                              hub_of("bbbbbbbb", 5),
                              gone(hub_of("cccccccc", 0)),
                              hub_of("dddddddd", 2),
                              of_package(hub_of("eeeeeeee", 0), "other"),
                              hub_of("ffffffff", 9, 12)};
    const FleetPlaces places = places_of(self, members);
    EXPECT_EQ(places.own, "aaaaaaaa");
    EXPECT_EQ(places.need, (HubNeed{.units = num_units, .missing = 3, .workers = 1}));
    ASSERT_EQ(places.others.size(), 3u);
    EXPECT_EQ(places.others[0], (HubPlace{"ffffffff",
                                          "http://ffffffff",
                                          {.units = num_units, .missing = 12, .workers = 9}}));
    EXPECT_EQ(places.others[1].id, "dddddddd") << "the fewest workers, among equals";
    EXPECT_EQ(places.others[2].id, "bbbbbbbb");
}

// A row of the store is not trusted: its numbers are those that a frame may have.
TEST(WorkerMovesTest, NumbersOfARowAreBounded) {
    Member wild = hub_of("aaaaaaaa", UINT64_MAX, 20, 20);
    const HubNeed need = need_of(wild);
    EXPECT_EQ(need.thin, 4u);
    EXPECT_EQ(need.workers, UINT32_MAX);
    EXPECT_LE(need.lack(), 1);
}

TEST(WorkerMovesTest, TheNewestWorkerGoesToTheNeediestHub) {
    const Member self = hub_of("aaaaaaaa", 4);
    const Member members[] = {self, hub_of("bbbbbbbb", 0, 0, 4), hub_of("cccccccc", 9, 12)};
    const auto move = choose(self, members, spare_copies(4)).move;
    ASSERT_TRUE(move);
    EXPECT_EQ(move->worker, 4u);
    EXPECT_EQ(move->hub.id, "cccccccc");
    EXPECT_EQ(choose(self, members, spare_copies(4), {4, 3}).move->worker, 2u);
}

TEST(WorkerMovesTest, AmongHubsOfLikeNeedTheFewestWorkersDecide) {
    const Member self = hub_of("aaaaaaaa", 4);
    const Member members[] = {self, hub_of("bbbbbbbb", 3, 0, 8), hub_of("cccccccc", 1)};
    EXPECT_EQ(choose(self, members, spare_copies(4)).move->hub.id, "cccccccc");
}

TEST(WorkerMovesTest, WorkersWithAReasonToStayAreNotAsked) {
    const Member self = hub_of("aaaaaaaa", 6);
    const Member members[] = {self, hub_of("bbbbbbbb", 0, num_units)};
    auto workers = workers_of(6);
    workers[5].reads_hubs = false;
    workers[4].pinned = true;
    workers[3].drained = true;
    workers[2].state = WorkerState::draining;
    UnitCopies copies = spare_copies(6);
    copies.shares[2].is_loading = true;
    std::set<WorkerId> asked;
    const auto moved = [&] {
        return choose_move({.self = self,
                            .members = members,
                            .workers = workers,
                            .copies = copies,
                            .asked = asked})
            .move;
    };
    EXPECT_EQ(moved()->worker, 1u);
    asked.insert(1);
    EXPECT_FALSE(moved());
}

TEST(WorkerMovesTest, AHubWithOneCopyOfEachUnitGivesNone) {
    const Member self = hub_of("aaaaaaaa", 4);
    const Member members[] = {self, hub_of("bbbbbbbb", 0, num_units)};
    UnitCopies copies = single_copies(4);
    MoveChoice choice = choose(self, members, copies);
    EXPECT_FALSE(choice.move);
    EXPECT_TRUE(choice.keeps_holders);

    // One worker whose units have a second copy may go, although the other units have one each.
    copies.shares[2].alone = 0;
    choice = choose(self, members, copies);
    ASSERT_TRUE(choice.move);
    EXPECT_EQ(choice.move->worker, 2u);
    const Member rich[] = {self, hub_of("bbbbbbbb", 4)};
    choice = choose(self, rich, single_copies(4));
    EXPECT_FALSE(choice.move || choice.keeps_holders) << "no hub needs a worker";
}

TEST(WorkerMovesTest, ALocalBackendBridgesTheTimeUntilOthersHaveLoaded) {
    const Member self = hub_of("aaaaaaaa", 4);
    const Member members[] = {self, hub_of("bbbbbbbb", 0, num_units)};
    UnitCopies copies = single_copies(4);
    EXPECT_FALSE(choose(self, members, copies, {}, 0, true).move) << "no memory for its units";
    copies.room = copies.shares[1].room = 6;
    EXPECT_FALSE(choose(self, members, copies).move) << "without a local backend";
    EXPECT_EQ(choose(self, members, copies, {}, 0, true).move->worker, 4u);
    copies.shares[1].room = 0, copies.shares[4].room = 6;
    EXPECT_EQ(choose(self, members, copies, {}, 0, true).move->worker, 3u)
        << "the room of the one that leaves does not count";
}

TEST(WorkerMovesTest, AMoveNeverTurnsTheNeedsAround) {
    const Member self = hub_of("aaaaaaaa", 2);
    UnitCopies copies = spare_copies(2);
    copies.shares[1].thinned = copies.shares[2].thinned = num_units;
    const auto moves = [&](std::uint64_t missing, std::uint64_t thin) {
        const Member members[] = {self, hub_of("bbbbbbbb", 1, missing, thin)};
        return choose(self, members, copies).move.has_value();
    };
    EXPECT_TRUE(moves(num_units, 0));
    EXPECT_FALSE(moves(0, num_units)) << "this hub would lack as much";
    EXPECT_FALSE(moves(11, 13)) << "less than a quarter more";
    EXPECT_TRUE(moves(12, 12));
}

// A hub that lacks a second copy of everything gives none for balance to a hub that lacks nothing:
// that hub would send it back.
TEST(WorkerMovesTest, AHubThatLacksClearlyMoreGivesNone) {
    const Member self = hub_of("aaaaaaaa", 4, 0, num_units), other = hub_of("bbbbbbbb", 2);
    UnitCopies copies = spare_copies(4);
    copies.wanted = 3;
    copies.thin = num_units;
    EXPECT_EQ(choose(self, std::vector{self, other}, copies).move, std::nullopt);
    // A hub that lacks as much is given one.
    EXPECT_NE(choose(self, std::vector{self, hub_of("bbbbbbbb", 2, 0, num_units)}, copies).move,
              std::nullopt);
}

// Two workers hold everything twice, and have room for more. Alone, neither can hold a unit twice.
TEST(WorkerMovesTest, RoomOfAHolderIsNoSecondCopy) {
    const Member self = hub_of("aaaaaaaa", 2), other = hub_of("bbbbbbbb", 0);
    UnitCopies copies = spare_copies(2);
    for (auto& [id, share] : copies.shares) {
        share.thinned = share.room = num_units;
        copies.room += num_units;
    }
    EXPECT_EQ(need_without(copies, 1, false).thin, num_units);
    EXPECT_EQ(choose(self, std::vector{self, other}, copies).move, std::nullopt);
    // A third worker has the room that counts.
    copies.shares[3] = {.room = num_units};
    copies.room += num_units;
    EXPECT_EQ(need_without(copies, 1, false).thin, 0u);
}

TEST(WorkerMovesTest, WorkersWithoutWholeLayersGoFirst) {
    const Member self = hub_of("aaaaaaaa", 4);
    const Member members[] = {self, hub_of("bbbbbbbb", 0, num_units)};
    UnitCopies copies = spare_copies(4);
    const auto moved = [&](const std::set<WorkerId>& asked = {}) {
        return choose(self, members, copies, asked).move->worker;
    };
    copies.shares[4].layers = 8;
    EXPECT_EQ(moved(), 3u);
    copies.shares[3].layers = copies.shares[3].layers_used = 8;
    EXPECT_EQ(moved(), 2u);
    EXPECT_EQ(moved({1, 2}), 4u) << "the standby before the one in use";
    EXPECT_EQ(moved({1, 2, 4}), 3u) << "a standby has its layers";
}

TEST(WorkerMovesTest, TheOnlyHolderOfLayersInUseStays) {
    const Member self = hub_of("aaaaaaaa", 2);
    const Member members[] = {self, hub_of("bbbbbbbb", 0, num_units)};
    UnitCopies copies = spare_copies(2);
    for (auto& [id, share] : copies.shares)
        share.layers = share.layers_used = share.layers_alone = 8;
    for (const bool computes_experts : {false, true}) {
        const MoveChoice choice = choose(self, members, copies, {}, 0, computes_experts);
        EXPECT_FALSE(choice.move);
        EXPECT_TRUE(choice.keeps_holders);
    }
    // Layers that no step uses, since the hub is faster, keep no worker.
    copies.shares[1].layers_used = copies.shares[1].layers_alone = 0;
    EXPECT_EQ(choose(self, members, copies).move->worker, 1u);
}

TEST(WorkerMovesTest, ADifferenceOfOneStaysAsItIs) {
    const auto moves = [](std::uint64_t own, std::uint64_t other) {
        const Member self = hub_of("aaaaaaaa", own);
        const Member members[] = {self, hub_of("bbbbbbbb", other)};
        return choose(self, members, spare_copies(own)).move.has_value();
    };
    EXPECT_FALSE(moves(1, 0));
    EXPECT_TRUE(moves(2, 0));
    EXPECT_FALSE(moves(5, 4));
    EXPECT_FALSE(moves(4, 5));
    EXPECT_FALSE(choose(hub_of("aaaaaaaa", 9), {}, spare_copies(9)).move) << "alone";
}

// A hub of `--backend local`, or of an earlier version, reports no units.
TEST(WorkerMovesTest, AHubThatReportsNoUnitsIsGivenNone) {
    const Member self = hub_of("aaaaaaaa", 4);
    Member other = hub_of("bbbbbbbb", 0);
    other.units = 0;
    const Member members[] = {self, other};
    EXPECT_FALSE(choose(self, members, spare_copies(4)).move);
}

TEST(WorkerMovesTest, APauseLastsUntilTheLastMoveIsSeen) {
    MovePause pause;
    const auto looks = [&](bool moving) {
        for (int look = 0;; ++look, pause.look(moving))
            if (pause.is_over()) return look;
    };
    EXPECT_EQ(looks(false), 10);
    pause.decided();
    for (int i = 0; i < 12; ++i) pause.look(true);
    EXPECT_FALSE(pause.is_over());
    EXPECT_EQ(looks(false), 7);
}

TEST(WorkerMovesTest, NewsAreSentWhenHubsOrNeedsChange) {
    HubNews news;
    std::vector<HubPlace> hubs;
    const auto at = [&](std::uint32_t look) { return news.changes(hubs, look); };
    EXPECT_FALSE(at(1));
    hubs = {{"aaaaaaaa", "http://a", {.units = 100, .missing = 50}}};
    EXPECT_TRUE(at(2));
    EXPECT_FALSE(at(30));
    hubs[0].need.missing = 74;
    EXPECT_FALSE(at(31)) << "nearly as much";
    hubs[0].need.missing = 75;
    EXPECT_FALSE(at(11)) << "too soon";
    EXPECT_TRUE(at(32));
    hubs.push_back({"bbbbbbbb", "http://b"});
    EXPECT_TRUE(at(33)) << "at once";
    hubs.erase(hubs.begin());
    EXPECT_TRUE(at(34));
}

// 20 hubs, each of which acts by itself on the members of the last look.
TEST(WorkerMovesTest, AFleetFindsItsBalanceAndKeepsIt) {
    std::vector<Member> members;
    for (int i = 0; i < 20; ++i) members.push_back(hub_of(text("hub", i), i == 0 ? 0 : 50));
    std::minstd_rand random(7);
    std::uint64_t moved = 0, least = 0, most = 0;
    for (int look = 0; look < 200; ++look) {
        std::vector<Member> next = members;
        for (std::size_t i = 0; i < members.size(); ++i) {
            const auto move = choose(members[i], members, spare_copies(members[i].workers), {},
                                     std::generate_canonical<double, 32>(random))
                                  .move;
            if (!move) continue;
            ++moved;
            --next[i].workers;
            ++std::ranges::find(next, move->hub.id, &Member::hub_id)->workers;
        }
        members = next;
        const auto [few, many] = std::ranges::minmax(members, {}, &Member::workers);
        least = few.workers;
        most = many.workers;
    }
    EXPECT_LE(most - least, 2u);
    EXPECT_LT(moved, 80u) << "48 workers have to move";
}

// Hubs with workers that hold units, load what is lacking, and move with what they hold. Hubs see
// each other as late as real ones do.
class FleetOfWorkers {
  public:
    struct Worker {
        WorkerId id = 0;
        std::uint32_t capacity = 0;
        std::set<std::uint32_t> units{};
        std::string moves_to{};
        int leaves_at = 0;
        int joined_at = 0;
        bool takes_spans = false;
        int span = -1;          // of the hub's spans, 0 to num_spans - 1
        int span_ready_at = 0;  // has loaded it
        bool is_proven(int now) const { return span >= 0 && now >= span_ready_at + prove_looks; }
    };
    static constexpr int num_spans = 2, load_span_looks = 5, prove_looks = 5;

    FleetOfWorkers(std::uint32_t seed, std::uint32_t replicas, bool computes_experts)
        : replicas_(replicas),
          computes_experts_(computes_experts),
          random_(seed) {}

    void add_hub(const std::string& id) { hubs_.push_back({.member = hub_of(id, 0)}); }
    void add_worker(std::size_t hub, std::uint32_t capacity, bool takes_spans = false) {
        hubs_[hub].workers.push_back(
            {.id = ++last_id_, .capacity = capacity, .takes_spans = takes_spans});
    }
    int span_moves() const { return span_moves_; }  // of workers that held layers
    // Times that a worker left whose layers were in use and that no other worker could compute.
    int layers_lost() const { return layers_lost_; }
    void run(int looks) {
        for (const int end = now_ + looks; now_ < end; ++now_) look();
    }
    int moves() const { return moves_; }
    int last_move_at() const { return last_move_at_; }
    int now() const { return now_; }
    std::size_t workers_at(std::size_t hub) const { return hubs_[hub].workers.size(); }
    UnitCopies copies_at(std::size_t hub) const { return copies_of(hubs_[hub]); }

  private:
    struct Hub {
        Member member;
        std::vector<Worker> workers{};
        std::set<WorkerId> asked{};
        MovePause pause{};
        std::vector<Member> seen{};
        std::array<WorkerId, num_spans> used{};  // 0: the hub computes the layers
    };

    static std::size_t holders(const Hub& hub, std::uint32_t unit) {
        return static_cast<std::size_t>(std::ranges::count_if(hub.workers, [&](const Worker& one) {
            return one.moves_to.empty() && one.units.contains(unit);
        }));
    }
    UnitCopies copies_of(const Hub& hub) const {
        UnitCopies copies{.units = num_units, .wanted = replicas_};
        for (const Worker& one : hub.workers) {
            if (!one.moves_to.empty()) continue;
            const auto room = one.capacity - static_cast<std::uint32_t>(one.units.size());
            copies.shares[one.id] = {.room = room};
            copies.room += room;
            count_layers(hub, one, copies.shares[one.id]);
        }
        for (std::uint32_t unit = 0; unit < num_units; ++unit) {
            const std::size_t count = holders(hub, unit);
            copies.missing += count == 0;
            copies.thin += count > 0 && count < replicas_;
            for (const Worker& one : hub.workers) {
                if (!one.moves_to.empty() || !one.units.contains(unit)) continue;
                copies.shares[one.id].alone += count == 1;
                copies.shares[one.id].thinned += count == replicas_ && replicas_ > 1;
            }
        }
        const std::uint32_t filled = std::min(copies.thin, copies.room);
        copies.thin -= filled, copies.room -= filled;
        return copies;
    }

    // Returns true if another worker that stays could compute the worker's span at once.
    bool has_standby(const Hub& hub, const Worker& one) const {
        return std::ranges::any_of(hub.workers, [&](const Worker& other) {
            return other.id != one.id && other.span == one.span && other.moves_to.empty() &&
                   other.is_proven(now_);
        });
    }
    void count_layers(const Hub& hub, const Worker& one, UnitCopies::Share& share) const {
        if (one.span < 0) return;
        share.is_loading = now_ < one.span_ready_at;
        share.layers = share.is_loading ? 0 : 4;
        share.layers_used = hub.used[static_cast<std::size_t>(one.span)] == one.id ? 4 : 0;
        share.layers_alone = has_standby(hub, one) ? 0 : share.layers_used;
    }
    // Gives each worker with room the span with the fewest holders, and uses those with a record.
    void load_spans(Hub& hub) const {
        std::array<int, num_spans> count{};
        for (const Worker& one : hub.workers)
            if (one.span >= 0) ++count[static_cast<std::size_t>(one.span)];
        for (Worker& one : hub.workers) {
            if (!one.takes_spans || one.span >= 0 || !one.moves_to.empty()) continue;
            const auto fewest = std::ranges::min_element(count);
            one.span = static_cast<int>(fewest - count.begin());
            one.span_ready_at = now_ + load_span_looks;
            ++*fewest;
        }
        for (std::size_t span = 0; span < num_spans; ++span) {
            // A worker that leaves is not taken into use.
            const auto holds = [&](const Worker& one) {
                return one.span == static_cast<int>(span) && one.is_proven(now_) &&
                       one.moves_to.empty();
            };
            const auto used = std::ranges::find(hub.workers, hub.used[span], &Worker::id);
            if (used != hub.workers.end() && holds(*used)) continue;
            const auto next = std::ranges::find_if(hub.workers, holds);
            if (next != hub.workers.end())
                hub.used[span] = next->id;
            else if (used == hub.workers.end())
                hub.used[span] = 0;
        }
    }
    // One copy a look: units without a holder first.
    void load(Hub& hub) const {
        for (std::size_t count = 0; count < replicas_; ++count)
            for (std::uint32_t unit = 0; unit < num_units; ++unit) {
                if (holders(hub, unit) > count) continue;
                for (Worker& one : hub.workers)
                    if (one.moves_to.empty() && one.units.size() < one.capacity &&
                        one.units.insert(unit).second)
                        return;
            }
    }
    // A worker brings what it holds; what has enough copies there is released.
    void arrive(Hub& hub, Worker worker) {
        worker.moves_to.clear();
        worker.joined_at = now_;
        worker.span = -1;
        std::erase_if(worker.units,
                      [&](std::uint32_t unit) { return holders(hub, unit) >= replicas_; });
        worker.id = ++last_id_;
        hub.workers.push_back(std::move(worker));
    }
    void leave(Hub& hub) {
        for (std::size_t i = 0; i < hub.workers.size(); ++i) {
            if (hub.workers[i].moves_to.empty() || hub.workers[i].leaves_at > now_) continue;
            const Worker worker = hub.workers[i];
            layers_lost_ += worker.span >= 0 &&
                            hub.used[static_cast<std::size_t>(worker.span)] == worker.id &&
                            !has_standby(hub, worker);
            hub.workers.erase(hub.workers.begin() + static_cast<std::ptrdiff_t>(i));
            for (Hub& other : hubs_)
                if (other.member.hub_id == worker.moves_to) arrive(other, worker);
            return;
        }
    }
    void publish(Hub& hub) const {
        const UnitCopies copies = copies_of(hub);
        hub.member.workers = hub.workers.size();
        hub.member.missing = copies.missing;
        hub.member.thin = copies.thin;
    }
    void decide(Hub& hub) {
        std::vector<WorkerView> views;
        bool moving = false;
        for (const Worker& one : hub.workers) {
            moving |= !one.moves_to.empty();
            views.push_back({.id = one.id, .state = WorkerState::active});
            views.back().reads_hubs = true;
            views.back().joined_at = TimePoint{} + std::chrono::seconds(one.joined_at);
        }
        hub.pause.look(moving);
        if (!hub.pause.is_over()) return;
        hub.pause.decided();
        const UnitCopies copies = copies_of(hub);
        const MoveChoice choice = choose_move(
            {.self = hub.member,
             .members = hub.seen,
             .workers = views,
             .copies = copies,
             .asked = hub.asked,
             .computes_experts = computes_experts_,
             .uniform = std::generate_canonical<double, 32>(random_)});
        if (!choice.move) return;
        hub.asked.insert(choice.move->worker);
        Worker& worker = *std::ranges::find(hub.workers, choice.move->worker, &Worker::id);
        worker.moves_to = choice.move->hub.id;
        worker.leaves_at = now_ + 1 + static_cast<int>(random_() % 10);
        ++moves_;
        span_moves_ += worker.span >= 0;
        last_move_at_ = now_;
        if (!computes_experts_)
            EXPECT_LE(copies_of(hub).missing, copies.missing) << "it had a unit alone";
    }
    void look() {
        for (std::size_t i = 0; i < hubs_.size(); ++i) {
            Hub& hub = hubs_[i];
            leave(hub);
            load(hub);
            load_spans(hub);
            if ((now_ + static_cast<int>(i)) % 3 != 0) continue;
            publish(hub);
            hub.seen.clear();
            for (const Hub& other : hubs_) hub.seen.push_back(other.member);
        }
        for (Hub& hub : hubs_) decide(hub);
    }

    std::vector<Hub> hubs_;
    std::uint32_t replicas_;
    bool computes_experts_;
    std::minstd_rand random_;
    WorkerId last_id_ = 0;
    int now_ = 0, moves_ = 0, last_move_at_ = -1, span_moves_ = 0, layers_lost_ = 0;
};

// Workers of any memory at two and at four hubs: there are at most two moves for each worker,
// mostly less than one, and then all stay.
TEST(WorkerMovesTest, WorkersSettleAfterFewMoves) {
    int all_moves = 0, all_workers = 0;
    for (std::uint32_t seed = 1; seed <= 120; ++seed) {
        std::minstd_rand random(seed);
        const std::size_t num_hubs = seed % 4 == 0 ? 4 : 2;
        const int num_workers = 2 + static_cast<int>(random() % 11);
        FleetOfWorkers fleet(seed, 1 + seed % 3, random() % 2 == 0);
        for (std::size_t i = 0; i < num_hubs; ++i) fleet.add_hub(text("hub", i));
        for (int i = 0; i < num_workers; ++i)
            fleet.add_worker(seed % 5 == 0 ? random() % num_hubs : 0,
                             num_units / 6 + random() % num_units);
        fleet.run(1000);
        EXPECT_LE(fleet.moves(), 2 * num_workers) << "seed " << seed;
        EXPECT_LT(fleet.last_move_at(), fleet.now() - 400) << "seed " << seed;
        all_moves += fleet.moves();
        all_workers += num_workers;
    }
    EXPECT_LT(all_moves, all_workers);
}

TEST(WorkerMovesTest, AHubWithoutWorkersGetsWhatAnotherOneCanSpare) {
    FleetOfWorkers fleet(3, 2, false);
    fleet.add_hub("hub0");
    fleet.add_hub("hub1");
    for (int i = 0; i < 6; ++i) fleet.add_worker(0, num_units);
    fleet.run(600);
    EXPECT_EQ(fleet.workers_at(0), 3u);
    EXPECT_EQ(fleet.workers_at(1), 3u);
    EXPECT_EQ(fleet.copies_at(0).missing + fleet.copies_at(1).missing, 0u);
    EXPECT_EQ(fleet.moves(), 3);
}

// Half of the workers compute layers whole. Hubs without workers get some of them, too.
TEST(WorkerMovesTest, LayersInUseKeepAHolderWhileWorkersMove) {
    int all_moves = 0, span_moves = 0;
    for (std::uint32_t seed = 1; seed <= 120; ++seed) {
        std::minstd_rand random(seed);
        const std::size_t num_hubs = seed % 4 == 0 ? 4 : 2;
        const int num_workers = 4 + static_cast<int>(random() % 9);
        FleetOfWorkers fleet(seed, 1 + seed % 2, seed % 3 != 0);
        for (std::size_t i = 0; i < num_hubs; ++i) fleet.add_hub(text("hub", i));
        for (int i = 0; i < num_workers; ++i)
            fleet.add_worker(0, num_units / 6 + random() % num_units, i % 2 == 0 || seed % 5 == 0);
        fleet.run(1000);
        EXPECT_EQ(fleet.layers_lost(), 0) << "seed " << seed;
        EXPECT_LE(fleet.moves(), 2 * num_workers) << "seed " << seed;
        EXPECT_LT(fleet.last_move_at(), fleet.now() - 400) << "seed " << seed;
        all_moves += fleet.moves();
        span_moves += fleet.span_moves();
    }
    EXPECT_GT(span_moves, 20) << "of " << all_moves;
}

// Two of four workers stand by with the layers of the others: these two go, and no other.
TEST(WorkerMovesTest, StandbysGoToAHubWithoutWorkers) {
    FleetOfWorkers fleet(3, 1, true);
    fleet.add_hub("hub0");
    fleet.add_hub("hub1");
    for (int i = 0; i < 4; ++i) fleet.add_worker(0, num_units, true);
    fleet.run(600);
    EXPECT_EQ(fleet.workers_at(0), 2u);
    EXPECT_EQ(fleet.workers_at(1), 2u);
    EXPECT_EQ(fleet.layers_lost(), 0);
}

}  // namespace
}  // namespace moex::net
