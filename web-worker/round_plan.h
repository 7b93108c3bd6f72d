// The plan of a grouped round on the GPU, made before the GPU is used: the tables of the upload,
// and which kernels run over how many rows. The plan is a pure function: the same group and slots
// give the same plan.
//
// A round with experts in one arena and with few rows each takes two dispatches: gate_up reads
// x in its wire form; down adds the pairs of an answer and writes the wire form. Every other round
// unpacks x, computes tiles arena by arena, and packs the answers. A tile is up to eight rows of
// one expert, so that each weight is read once for all these rows. Both kinds of rounds give the
// same bits. A software adapter uses tiles for all rounds: the two dispatches need barriers, which
// are slow there.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "protocol/messages.h"
#include "web-worker/expert_store.h"
#include "web-worker/gpu/round_layout.h"

namespace moex {

struct RoundPlan {
    // Makes plan() use tiles for every round, also where each expert has a single row, and unpack x
    // for them. Set this once, before plan().
    bool tiles_only = false;

    // The contents of the upload buffer: header, places, tables, x. It views `words`, or the memory
    // around the group's x.
    ByteView upload;
    std::vector<std::uint32_t> words;
    struct Tiles {  // the number of tiles of one place, (arena, family)
        std::uint32_t arena = 0, family = 0, num_tiles = 0;
    };
    std::vector<Tiles> tiles;
    std::uint32_t num_answers = 0;
    // Two dispatches suffice: all tiles have the same arena and one row each.
    bool two_dispatches = false;
    bool unpack = false;  // x is unpacked first, since a tile reads rows of f32
    bool pack = true;     // answers are packed, since they are complete

    // Returns the number of the place (arena, family). Uniforms and bind groups are made per place.
    static std::uint32_t place_of(std::uint32_t arena, std::uint32_t family) {
        return arena * gpu::tile_families + family;
    }
    // The most words that a group of `num_tokens` rows and `num_pairs` pairs takes besides x.
    static std::uint64_t table_words_max(std::uint64_t num_arenas, std::uint64_t num_tokens,
                                         std::uint64_t num_pairs);

    // Plans `group` for a store of `num_arenas`; Returns unknown_expert if `find` does not find one
    // of the group's experts. Reuses the memory of earlier plans. `around_x`: memory that ends with
    // the group's x and may be overwritten up to x. The tables are written before x if they fit
    // there, so that x is not copied.
    Status plan(const GroupDispatchView& group, std::size_t num_arenas,
                const std::function<std::optional<ExpertSlot>(Unit)>& find,
                std::span<std::byte> around_x = {});
    // Plans one pass of a group that is computed in passes: only the tiles of the experts at the
    // indices `experts` of its table. `is_first`: x is uploaded and unpacked, and stays on the GPU
    // for the later passes. `is_last`: the answers are packed. The upload has at most
    // table_words_max() words for ExpertStore::arenas_max, and x starts after that number of words.
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

    // By expert of the group: true if this plan includes it.
    std::vector<bool> chosen_;
    // Slot of each expert of the group that is planned.
    std::vector<ExpertSlot> slots_;
    std::vector<std::vector<gpu::RoundTile>> by_place_;  // reused
};

}  // namespace moex
