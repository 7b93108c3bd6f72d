// The slot cache decides which of a worker's experts have a slot, and brings the others on demand.
//
// The problem: a worker may hold more experts than its slots take (GPU memory, or the memory that
// the processor computes from). A group computes only with experts that have slots. An expert
// without a slot must be read and copied first, and a group that waits for this stalls its token.
// A plain LRU cache would copy on a miss and wait. Here copies also overlap with computation:
//   - an expert that a hint (PREFETCH) predicts is brought before a group asks for it;
//   - the GPU copies an expert from this machine's memory while kernels run;
//   - an expert that a running group uses, or that a pending group waits for, is never evicted.
// A wrong prediction costs time, and changes no answer. Where all experts of the worker fit into
// slots, each gets one when it is assigned, and this class brings nothing.
//
// Three classes share the picture. ExpertLoader knows what the hub assigned; it downloads a blob
// and hands it over with keep(), or releases it with forget(). SlotCache knows the state of each
// expert that the worker holds. UnitStore owns the slots: it holds exactly the experts in a
// state with a slot (has_slot()).
//
//   state           where the expert's blob is          event -> next state
//   --------------  ----------------------------------  -------------------------------------------
//   absent          the worker does not hold it         keep -> stored
//   stored          Platform::find_blob() (memory) or   fetch -> fetching, put -> in_slot,
//                   fetch_blob() (a browser's cache)    copy -> copying
//   fetching        is being read by fetch_blob()       arrive -> fetched, fail -> stored,
//                                                       put -> in_slot, copy -> copying
//   fetched         Entry::blob; no slot is free        discard -> stored, put -> in_slot,
//                                                       copy -> copying
//   copying         the GPU copies it to its slot       copied -> in_slot, use -> copying_in_use,
//                                                       evict -> stored
//   in_slot         its slot; no group uses it          use -> in_use, evict -> stored
//   copying_in_use  the GPU copies it, then runs the    copied -> in_use, unuse -> copying,
//                   groups that use it                  evict -> stored
//   in_use          its slot; groups that use it run    unuse -> in_slot, evict -> stored
//   every state                                         forget -> absent; keep: no change if held
//
// Example: a hint predicts expert (3, 17) with a blob in a folder, and a group asks for it soon:
//   stored -fetch-> fetching -arrive-> fetched -put-> in_slot -use-> in_use -unuse-> in_slot
//
// Limits. `stored` does not say whether the blob is in memory: the platform may drop it from memory
// at any time, so the cache calls find_blob() each time. An expert in use loses its slot only if
// the memory limit shrinks (resize()) or the hub releases the expert (forget()). A copy may be over
// shortly before its `copied` event arrives: UnitStore::in_flight() knows.
// Owner: the worker's thread. A callback never runs inside the call that was given it.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/group_runner.h"
#include "web-worker/session/status_report.h"
#include "web-worker/slots/hint_judge.h"
#include "web-worker/slots/hint_trial.h"
#include "web-worker/slots/transfer_choice.h"
#include "web-worker/unit_store.h"

namespace moex {

// The state of an expert in a worker, see the table at the head of this file.
enum class ExpertState : std::uint8_t {
    absent,
    stored,
    fetching,
    fetched,
    copying,
    in_slot,
    copying_in_use,
    in_use
};
enum class ExpertEvent : std::uint8_t {
    keep,     // the loader hands over a verified blob
    fetch,    // fetch_blob() is called, for a group or for a hint
    arrive,   // fetch_blob() returned the blob
    fail,     // fetch_blob() failed, or the fetch was cancelled
    discard,  // the newest hints do not predict the expert any more
    put,      // the worker's thread has copied the blob to a slot
    copy,     // the expert has a slot, and the GPU copies the blob to it
    copied,   // the GPU's copy of the blob to the slot is over
    use,      // a group that uses the expert was submitted
    unuse,    // the last group that used the expert has ended
    evict,    // the expert was evicted: its slot is free again
    forget    // the loader releases the expert
};
inline constexpr std::size_t num_expert_states = 8, num_expert_events = 12;

struct ExpertTransition {
    ExpertState from;
    ExpertEvent event;
    ExpertState to;
};
// All state transitions except `keep` and `forget`, which are accepted in every state
// (next_state()).
inline constexpr std::array expert_transitions{
    ExpertTransition{ExpertState::stored, ExpertEvent::fetch, ExpertState::fetching},
    ExpertTransition{ExpertState::stored, ExpertEvent::put, ExpertState::in_slot},
    ExpertTransition{ExpertState::stored, ExpertEvent::copy, ExpertState::copying},

    // From `fetching` to `fetching`: a fetch for a hint is repeated with priority, because a group
    // waits for the expert.
    ExpertTransition{ExpertState::fetching, ExpertEvent::fetch, ExpertState::fetching},
    ExpertTransition{ExpertState::fetching, ExpertEvent::arrive, ExpertState::fetched},
    ExpertTransition{ExpertState::fetching, ExpertEvent::fail, ExpertState::stored},
    // The blob reached memory in another way while it was fetched; the result of the fetch will be
    // ignored.
    ExpertTransition{ExpertState::fetching, ExpertEvent::put, ExpertState::in_slot},
    ExpertTransition{ExpertState::fetching, ExpertEvent::copy, ExpertState::copying},

    ExpertTransition{ExpertState::fetched, ExpertEvent::discard, ExpertState::stored},
    ExpertTransition{ExpertState::fetched, ExpertEvent::put, ExpertState::in_slot},
    ExpertTransition{ExpertState::fetched, ExpertEvent::copy, ExpertState::copying},

    ExpertTransition{ExpertState::copying, ExpertEvent::copied, ExpertState::in_slot},
    ExpertTransition{ExpertState::copying, ExpertEvent::use, ExpertState::copying_in_use},
    ExpertTransition{ExpertState::copying, ExpertEvent::evict, ExpertState::stored},

    ExpertTransition{ExpertState::in_slot, ExpertEvent::use, ExpertState::in_use},
    ExpertTransition{ExpertState::in_slot, ExpertEvent::evict, ExpertState::stored},

    // Further groups may use the expert: Entry::num_users counts the groups.
    ExpertTransition{ExpertState::copying_in_use, ExpertEvent::use, ExpertState::copying_in_use},
    ExpertTransition{ExpertState::copying_in_use, ExpertEvent::copied, ExpertState::in_use},
    ExpertTransition{ExpertState::copying_in_use, ExpertEvent::unuse, ExpertState::copying},
    ExpertTransition{ExpertState::copying_in_use, ExpertEvent::evict, ExpertState::stored},

    ExpertTransition{ExpertState::in_use, ExpertEvent::use, ExpertState::in_use},
    ExpertTransition{ExpertState::in_use, ExpertEvent::unuse, ExpertState::in_slot},
    ExpertTransition{ExpertState::in_use, ExpertEvent::evict, ExpertState::stored},
};

// Returns the state that follows `state` after `event`; nullopt where `state` does not accept it.
// O(1).
std::optional<ExpertState> next_state(ExpertState state, ExpertEvent event);
const char* state_name(ExpertState state);

constexpr bool has_slot(ExpertState state) { return state >= ExpertState::copying; }
constexpr bool is_used(ExpertState state) { return state >= ExpertState::copying_in_use; }

class SlotCache {
  public:
    struct Options {
        // Bytes of experts to hold. If this is less than the bytes of all slots, the bytes of all
        // slots are used.
        std::uint64_t keep_bytes = 0;
        EvictionPolicy policy = EvictionPolicy::lru;
        // The device is lost or out of memory. The handler may destroy this object.
        std::function<void(const Error&)> lost;
    };
    SlotCache(Platform& platform, StatusReport& report, UnitStore& store, GroupRunner& runner,
              std::uint64_t blob_bytes, Options options)
        : platform_(platform),
          report_(report),
          store_(store),
          runner_(runner),
          blob_bytes_(blob_bytes),
          options_(std::move(options)) {}
    SlotCache(const SlotCache&) = delete;

    // The runner is ready: from this call on it binds each expert that gets a slot.
    void runner_ready() { runner_ready_ = true; }

    // ---- The following functions work on the held experts, with a slot or without.

    // Returns the number of experts that the worker may hold.
    std::uint32_t capacity() const { return capacity_of(store_.slots_max()); }
    // Returns the number of experts that the worker may hold if the budget for slots is
    // `budget_bytes`.
    std::uint32_t capacity_for(std::uint64_t budget_bytes) const {
        return capacity_of(store_.slots_for(budget_bytes));
    }
    std::uint64_t bytes_max() const {
        return std::max<std::uint64_t>(store_.bytes_max(), capacity() * blob_bytes_);
    }
    // Changes the bytes of experts to hold. The caller first releases experts beyond the new limit.
    void set_keep(std::uint64_t keep_bytes) { options_.keep_bytes = keep_bytes; }
    // Returns true if the worker may hold more experts than slots, or if an expert has no slot yet.
    bool on_demand() const {
        return capacity() > store_.slots_max() || num_units() != store_.num_units();
    }
    bool holds(Unit unit) const { return entries_.contains(unit); }
    // Returns the number of calls of keep() and forget(). If it has not changed, the same experts
    // are held.
    std::uint64_t num_changes() const { return num_changes_; }
    std::uint32_t num_units() const { return static_cast<std::uint32_t>(entries_.size()); }
    std::vector<Unit> units() const;
    // Returns all held experts in the order in which to release them: first those without a slot,
    // then those with a slot, by descending slot number.
    std::vector<Unit> units_from_the_end() const;

    // Takes over a verified blob. The expert gets a slot if one is free. Returns no_space if the
    // worker would hold more than capacity().
    Status keep(Unit unit, const Sha256& hash, ByteView blob);
    void forget(Unit unit);
    // Changes the budget for slots. Requires that capacity_for(budget_bytes) is at least
    // num_units().
    Status resize(std::uint64_t budget_bytes);
    // Does UnitStore::end_lending(). Returns the experts that are not held any more.
    std::vector<Unit> end_lending(std::uint64_t owner, bool is_readable);
    // Reports that the caller has called Platform::cancel_fetches(). A group that waits for experts
    // gets `cancelled`.
    void fetches_cancelled();

    // ---- The following functions work on a group's experts, which are distinct held units.

    bool in_slots(std::span<const Unit> units) const;
    std::uint32_t slots() const { return store_.slots_max(); }
    // Counts hits, late experts and misses when a group arrives (SlotCounters).
    void count(std::span<const Unit> units);
    // Brings `units` to slots and then calls `done`. Requires at most slots() units, and that no
    // other call of bring() is pending. Some units may still be in flight to their slots when
    // `done` is called; the GPU runs the group after the copies. `done` gets `unavailable` if a
    // blob cannot be read, or `cancelled`. Until begin_use() is called, the units lose their slots
    // if the memory limit shrinks.
    void bring(std::vector<Unit> units, std::function<void(Status)> done);
    bool bringing() const { return done_ != nullptr; }
    // Notes that a group was submitted: its `units` keep their slots until end_use().
    void begin_use(std::span<const Unit> units);
    void end_use(std::span<const Unit> units);

    // A hint: a group will soon ask for `units`, the most likely first. They are brought while no
    // group waits, if the copy is worth it (hint_judge.h) and hints pay (hint_trial.h). Units that
    // the worker does not hold are ignored. `deadlines_ms` has one entry for each unit, or is
    // empty. After that many milliseconds from now, the unit is dropped; 0: it is never dropped.
    void prefetch(std::span<const Unit> units, std::span<const std::uint16_t> deadlines_ms = {});
    // Brings a unit for which a caller has asked and will ask again. It is brought like a predicted
    // unit, and neither the judge nor the trial is consulted.
    void expect(Unit unit);
    // Returns the state of a unit that the worker holds, and its slot.
    UnitTier tier_of(Unit unit) const;

  private:
    // Key of the eviction order: the number of uses (LFU; otherwise 0), then the time of the last
    // use.
    using Rank = std::pair<std::uint64_t, std::uint64_t>;
    // The wait of a group for its experts, from bring() until its last expert is in its slot.
    struct Load {
        double asked_ms = 0;
        std::uint64_t transfers = 0;  // copies in flight
        bool placed = false;          // every expert of the group has a slot
    };
    // An expert that the worker holds.
    struct Entry {
        ExpertState state = ExpertState::absent;
        Sha256 hash{};
        std::uint64_t last_used = 0;  // value of clock_
        std::uint64_t uses = 0;
        std::uint32_t num_users = 0;  // running groups
        std::optional<Rank> rank;     // key in by_rank_; set while the expert has a slot

        bool for_group = false;  // while fetching: a group waits, so the fetch has priority
        Bytes blob;              // while fetched: the verified blob
        std::uint64_t copy = 0;  // while copying: number of the copy in flight; 0: none
        std::vector<std::shared_ptr<Load>> waiting;  // while copying: loads that wait for the copy

        bool prefetched = false;  // brought for a hint and not used since then
        // Number of the newest hint for the expert since its last use; 0: none.
        std::uint64_t hint = 0;
        std::uint64_t predicted_in = 0;        // number of the newest hint that justified its copy
        double hinted_ms = 0, expires_ms = 0;  // 0: never
    };
    std::uint32_t capacity_of(std::uint32_t slots) const {
        return std::max(slots, static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                   options_.keep_bytes / blob_bytes_, num_units_max)));
    }
    bool has_free_slot() const { return store_.num_units() < store_.slots_max(); }
    void change(Unit unit, Entry& entry, ExpertEvent event);
    bool is_copying(Unit unit, const Entry& entry) const;
    bool is_predicted(const Entry& entry) const;
    bool make_room(bool for_group);
    bool wanted(Unit unit) const;
    void take_hints(std::span<const Unit> units, std::span<const std::uint16_t> deadlines_ms);
    void discard_fetched();
    void count_lead(Entry& entry);
    void fetch(Unit unit, Entry& entry, bool urgent);
    void arrived(Unit unit, Result<Bytes> blob);
    Status place(Unit unit, Entry& entry, const HeldBlob& blob);
    Status place_from_memory(Unit unit, Entry& entry, const HeldBlob& blob);
    Status placed(Unit unit, Entry& entry, ExpertEvent event);
    void drop(Unit unit, Entry& entry);
    void rank(Unit unit, Entry& entry);
    void wait_for(Entry& entry, const std::shared_ptr<Load>& load);
    void copied(Unit unit, std::uint64_t copy);
    void end_copy(Entry& entry);
    void count_load(const Load& load);
    void go_on();
    void go_on_soon();
    Status place_fetched();
    Status place_group();
    Status begin_hints();
    bool has_expired(const Entry& entry);
    void count_hint(Entry& entry);
    void finish(Status status);

    static constexpr std::uint64_t num_units_max = 1u << 24;

    Platform& platform_;
    StatusReport& report_;
    UnitStore& store_;
    GroupRunner& runner_;
    std::uint64_t blob_bytes_;
    Options options_;

    bool runner_ready_ = false;
    // Every expert that the worker holds. change() keeps by_rank_, fetched_ and num_fetching_
    // consistent with the states.
    std::map<Unit, Entry> entries_;
    std::set<std::pair<Rank, Unit>> by_rank_;  // experts with a slot, in eviction order
    std::set<Unit> fetched_;                   // ExpertState::fetched
    std::size_t num_fetching_ = 0;             // ExpertState::fetching
    std::uint64_t num_changes_ = 0;
    std::uint64_t clock_ = 0;  // logical time: counts uses and placements of experts
    std::uint64_t num_copies_ = 0;
    std::uint64_t fetch_number_ = 0;  // number of times that all fetches were cancelled

    // The group that waits for its experts.
    std::vector<Unit> group_;
    std::function<void(Status)> done_;
    std::shared_ptr<Load> load_;

    std::vector<Unit> predicted_;       // units of the newest hint to bring, the most likely last
    std::uint64_t num_hints_ = 0;       // PREFETCH frames
    std::uint64_t hint_transfers_ = 0;  // number of copies in flight for hints
    HintJudge judge_;
    HintTrial trial_;

    bool goes_on_soon_ = false;  // a timer for go_on() is pending
    // Trial that chooses whether the GPU or the worker's thread copies experts to slots. It is made
    // at the first copy.
    std::optional<TransferChoice> transfers_;
    std::uint64_t brought_ = 0;  // value of SlotCounters::brought when the last group was answered
    LifeGuard life_;
};

}  // namespace moex
