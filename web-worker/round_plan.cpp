#include "web-worker/round_plan.h"

#include <algorithm>
#include <cstring>

namespace moex {
namespace {

std::uint32_t family_of(std::uint32_t rows) {
    std::uint32_t family = 0;
    while (gpu::tile_rows[family] < rows) ++family;
    return family;
}

constexpr std::uint32_t rows_max = gpu::tile_rows[gpu::tile_families - 1];
// If a round has more pairs per expert than this, tiles pay: reading a weight once for several rows
// saves more than two further dispatches cost.
constexpr std::uint32_t pairs_per_expert = 2;

}  // namespace

std::uint64_t RoundPlan::table_words_max(std::uint64_t num_arenas, std::uint64_t num_tokens,
                                         std::uint64_t num_pairs) {
    // In the tables a pair takes at most the words of one tile, of its row and gate, of its entry
    // in an answer, and of the start of an answer.
    return gpu::round_header_words + num_arenas * gpu::tile_families + num_pairs * (4 + 2 + 4 + 1) +
           num_tokens + 1;
}

Status RoundPlan::plan(const GroupDispatchView& group, std::size_t num_arenas,
                       const std::function<std::optional<ExpertSlot>(Unit)>& find,
                       std::span<std::byte> around_x) {
    const GroupShape& shape = group.shape;
    chosen_.assign(group.experts.size(), true);
    MOEX_TRY(find_slots(group, find));

    const bool one_arena = std::all_of(slots_.begin(), slots_.end(), [&](const ExpertSlot& slot) {
        return slot.arena == slots_[0].arena;
    });
    two_dispatches = !tiles_only && one_arena && !slots_.empty() && shape.dtype != Dtype::int8 &&
                     shape.num_pairs <= pairs_per_expert * group.experts.size();
    pack = true;

    gpu::RoundHeader header;
    begin_tables(group, num_arenas, header);
    header.x_word = static_cast<std::uint32_t>(words.size());
    std::memcpy(words.data(), &header, sizeof header);
    join_x(group.x_bytes, around_x);
    return {};
}

Status RoundPlan::plan_pass(const GroupDispatchView& group, std::size_t num_arenas,
                            const std::function<std::optional<ExpertSlot>(Unit)>& find,
                            std::span<const std::uint32_t> experts, bool is_first, bool is_last) {
    const GroupShape& shape = group.shape;
    chosen_.assign(group.experts.size(), false);
    for (const std::uint32_t expert : experts) chosen_[expert] = true;
    MOEX_TRY(find_slots(group, find));
    two_dispatches = false;

    gpu::RoundHeader header;
    begin_tables(group, num_arenas, header);
    unpack = is_first;
    pack = is_last;
    header.x_word = static_cast<std::uint32_t>(
        table_words_max(ExpertStore::arenas_max, shape.num_tokens, shape.num_pairs));
    std::memcpy(words.data(), &header, sizeof header);
    if (is_first) {
        words.resize(header.x_word + (group.x_bytes.size() + 3) / 4);
        std::memcpy(words.data() + header.x_word, group.x_bytes.data(), group.x_bytes.size());
    }
    upload = std::as_bytes(std::span(words));
    return {};
}

// Writes all words of the upload that precede x.
void RoundPlan::begin_tables(const GroupDispatchView& group, std::size_t num_arenas,
                             gpu::RoundHeader& header) {
    const GroupShape& shape = group.shape;
    by_place_.resize(num_arenas * gpu::tile_families);
    for (auto& place : by_place_) place.clear();
    cut_tiles(group);

    num_answers = shape.unsummed ? shape.num_pairs : shape.num_tokens;
    header.num_tokens = shape.num_tokens;
    header.num_answers = num_answers;
    header.dtype = static_cast<std::uint32_t>(shape.dtype);
    header.x_dtype = static_cast<std::uint32_t>(group.x_dtype());

    words.assign(gpu::round_header_words + by_place_.size(), 0);
    write_tiles(num_arenas);
    write_pairs(group, header);
    write_answers(group, header);
}

// Makes the upload contiguous: copies the tables, which are small, in front of x if there is room;
// otherwise copies x after the tables.
void RoundPlan::join_x(ByteView x, std::span<std::byte> around_x) {
    const std::size_t table_bytes = 4 * words.size(), upload_bytes = table_bytes + x.size();
    if (upload_bytes % 4 == 0 && around_x.size() >= upload_bytes &&
        around_x.data() + around_x.size() == x.data() + x.size()) {
        const std::span<std::byte> joined = around_x.last(upload_bytes);
        std::memcpy(joined.data(), words.data(), table_bytes);
        upload = joined;
        return;
    }
    const std::size_t x_word = words.size();
    words.resize(x_word + (x.size() + 3) / 4);
    std::memcpy(words.data() + x_word, x.data(), x.size());
    upload = std::as_bytes(std::span(words));
}

Status RoundPlan::find_slots(const GroupDispatchView& group,
                             const std::function<std::optional<ExpertSlot>(Unit)>& find) {
    slots_.assign(group.experts.size(), {});
    for (std::size_t i = 0; i < group.experts.size(); ++i) {
        if (!chosen_[i]) continue;
        const std::uint16_t expert = group.experts[i].expert;
        const auto slot = find(Unit{group.shape.layer, expert});
        if (!slot)
            return Error{ErrorCode::unknown_expert, text("layer ", group.shape.layer, " expert ",
                                                         expert, " is not held here")};
        slots_[i] = *slot;
    }
    return {};
}

// Cuts the rows of each expert into tiles of eight rows and one smaller tile. A round with two
// dispatches gets tiles of one row.
void RoundPlan::cut_tiles(const GroupDispatchView& group) {
    std::uint32_t pair = 0;
    for (std::size_t i = 0; i < group.experts.size(); ++i) {
        const std::uint32_t end = pair + group.experts[i].num_rows;
        while (chosen_[i] && pair < end) {
            const std::uint32_t rows = two_dispatches ? 1 : std::min(rows_max, end - pair);
            by_place_[place_of(slots_[i].arena, family_of(rows))].push_back(
                {slots_[i].blob_word, pair, rows, group.rows[pair]});
            pair += rows;
        }
        pair = end;
    }
}

void RoundPlan::write_tiles(std::size_t num_arenas) {
    tiles.clear();
    unpack = false;
    for (std::uint32_t arena = 0; arena < num_arenas; ++arena)
        for (std::uint32_t family = 0; family < gpu::tile_families; ++family) {
            const std::uint32_t place = place_of(arena, family);
            words[gpu::round_header_words + place] = static_cast<std::uint32_t>(words.size());
            if (by_place_[place].empty()) continue;
            tiles.push_back({arena, family, static_cast<std::uint32_t>(by_place_[place].size())});
            unpack = unpack || tiles_only || family > 0;
            for (const gpu::RoundTile& tile : by_place_[place])
                words.insert(words.end(),
                             {tile.blob_word, tile.first_pair, tile.num_pairs, tile.row});
        }
}

void RoundPlan::write_pairs(const GroupDispatchView& group, gpu::RoundHeader& header) {
    header.pairs_word = static_cast<std::uint32_t>(words.size());
    for (std::uint32_t i = 0; i < group.shape.num_pairs; ++i) {
        words.push_back(group.rows[i]);
        words.push_back(detail::bits_of_float(half_to_float(group.gates[i])));
    }
}

// Lists the pairs of each answer in the order of the group, which has its experts in ascending
// order.
void RoundPlan::write_answers(const GroupDispatchView& group, gpu::RoundHeader& header) {
    const bool unsummed = group.shape.unsummed;
    header.answer_starts_word = static_cast<std::uint32_t>(words.size());
    words.resize(words.size() + num_answers + 1, 0);
    header.answer_pairs_word = static_cast<std::uint32_t>(words.size());
    words.resize(words.size() + 4 * std::size_t{group.shape.num_pairs}, 0);
    std::uint32_t* starts = words.data() + header.answer_starts_word;
    std::uint32_t* list = words.data() + header.answer_pairs_word;
    const std::uint32_t* pairs = words.data() + header.pairs_word;
    const auto answer_of = [&](std::uint32_t pair) {
        return unsummed ? pair : std::uint32_t{group.rows[pair]};
    };

    for (std::uint32_t i = 0; i < group.shape.num_pairs; ++i) ++starts[answer_of(i) + 1];
    for (std::uint32_t i = 0; i < num_answers; ++i) starts[i + 1] += starts[i];

    // Putting a pair into the table advances the start of its answer, so the starts are set back
    // afterwards.
    std::uint32_t pair = 0;
    for (std::size_t i = 0; i < group.experts.size(); ++i)
        for (std::uint32_t end = pair + group.experts[i].num_rows; pair < end; ++pair) {
            const gpu::AnswerPair entry{slots_[i].blob_word, pair, pairs[2 * pair + 1], 0};
            std::memcpy(list + 4 * starts[answer_of(pair)]++, &entry, sizeof entry);
        }
    for (std::uint32_t i = num_answers; i > 0; --i) starts[i] = starts[i - 1];
    starts[0] = 0;
}

}  // namespace moex
