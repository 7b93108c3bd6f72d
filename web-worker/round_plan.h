// What a grouped round asks of the GPU, decided before anything of it is touched: the upload's
// tables, and which kernels run over how much. Pure: the same group and slots give the same plan.
//
// A round whose experts lie in one arena and have few rows each takes two dispatches: gate_up
// reads x as it is on the wire, down adds the pairs of an answer and writes the wire's form.
// Any other unpacks x, computes tiles of up to eight rows of one expert, so that a weight is read
// once for all of them, arena by arena, and packs the answers. Both give the same bits. A software
// adapter takes tiles for all: what lanes add in two dispatches needs barriers.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "protocol/messages.h"
#include "web-worker/expert_store.h"
#include "web-worker/gpu/round_layout.h"

namespace moex {

struct RoundPlan {
    // All rounds are tiles, also of one row, and x is unpacked for them: set once, before plan().
    bool tiles_only = false;

    // What the upload buffer gets: header, places, tables, x. Lies in `words`, or around the
    // group's x.
    ByteView upload;
    std::vector<std::uint32_t> words;
    struct Tiles {  // of one place, in the order of the places
        std::uint32_t arena = 0, family = 0, num_tiles = 0;
    };
    std::vector<Tiles> tiles;
    std::uint32_t num_answers = 0;
    bool two_dispatches = false;  // all tiles are of one arena and of one row
    bool unpack = false;          // some tile reads rows of f32
    bool pack = true;             // the answers are complete

    // The place of an arena's tiles of one family: uniforms and bind groups are made by it.
    static std::uint32_t place_of(std::uint32_t arena, std::uint32_t family) {
        return arena * gpu::tile_families + family;
    }
    // The most words a group of so many rows and pairs takes beside its x, with `num_arenas`.
    static std::uint64_t table_words_max(std::uint64_t num_arenas, std::uint64_t num_tokens,
                                         std::uint64_t num_pairs);

    // Plans `group` for a store of `num_arenas`; unknown_expert when `find` does not know one of
    // its experts. Keeps the capacity of what was planned before.
    // `around_x`: memory that ends with the group's x, to be overwritten up to there; the tables
    // are written before x where they fit, so that it is not copied.
    Status plan(const GroupDispatchView& group, std::size_t num_arenas,
                const std::function<std::optional<ExpertSlot>(Unit)>& find,
                std::span<std::byte> around_x = {});
    // One pass of a group that is computed in several: tiles of the experts at these places in its
    // table alone. `is_first`: x comes with it, to be unpacked, and stays for those behind it;
    // `is_last`: the answers are packed. The upload is at most table_words_max() for
    // ExpertStore::arenas_max, and x, which lies behind that much.
    Status plan_pass(const GroupDispatchView& group, std::size_t num_arenas,
                     const std::function<std::optional<ExpertSlot>(Unit)>& find,
                     std::span<const std::uint32_t> experts, bool is_first, bool is_last);

  private:
    Status find_slots(const GroupDispatchView& group,
                      const std::function<std::optional<ExpertSlot>(Unit)>& find);
    void begin_tables(const GroupDispatchView& group, std::size_t num_arenas,
                      gpu::RoundHeader& header);
    void cut_tiles(const GroupDispatchView& group);
    void write_tiles(std::size_t num_arenas);
    void write_pairs(const GroupDispatchView& group, gpu::RoundHeader& header);
    void write_answers(const GroupDispatchView& group, gpu::RoundHeader& header);
    void join_x(ByteView x, std::span<std::byte> around_x);

    std::vector<bool> chosen_;                           // by expert of the group: it is computed
    std::vector<ExpertSlot> slots_;                      // the same; of those chosen
    std::vector<std::vector<gpu::RoundTile>> by_place_;  // reused
};

}  // namespace moex
