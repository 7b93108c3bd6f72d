// The page table of a sequence whose keys and values do not all fit into the GPU's memory: which
// pages are in a slot there (the working set), and which ones a store outside keeps (evicted).
// Pure: it decides, and the caller moves the bytes.
//   6 pages, 4 slots, of which 1 stages evicted pages:  slots 0 1 2 hold pages 3 4 5;
//   pages 0 1 2 are evicted, and pass through slot 3 in each layer
// Every step reads all pages of the text, so it does not matter for speed which ones are evicted.
// The first ones are: an edit of an early message then frees slots, and pages before it return.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels_constants.h"

namespace moex {

class WorkingSet {
  public:
    // Entry of a page table for a page that attention leaves out.
    static constexpr std::uint32_t absent = gpu::kernels::attend_page::absent_page;

    // `num_pages`: page limit of the sequence. The last `num_staging` of the `num_slots` slots hold
    // evicted pages for the time of one part of attention.
    WorkingSet(std::uint32_t num_pages, std::uint32_t num_slots, std::uint32_t num_staging);

    std::uint32_t num_staging() const { return num_slots_ - num_resident_; }
    std::uint32_t staging_slot(std::uint32_t index) const { return num_resident_ + index; }
    std::optional<std::uint32_t> slot_of(std::uint32_t page) const;
    // Returns true if the store has the present bytes of the page.
    bool is_stored(std::uint32_t page) const { return pages_[page].is_stored; }
    void set_stored(std::uint32_t page) { pages_[page].is_stored = true; }

    // Forgets the pages from `num_pages` on.
    void shorten(std::uint32_t num_pages);

    // A page that has to get or leave its slot.
    struct Move {
        std::uint32_t page = 0, slot = 0;
        bool is_eviction = false;
    };
    // Returns the next move before pages [first, end) may be written, in which all of them have to
    // be in slots; nullopt when they are. Evictions come before the page that takes their slot.
    std::optional<Move> next_move(std::uint32_t first, std::uint32_t end) const;
    // Notes that the bytes of a move were moved.
    void moved(const Move& move);
    // Gives a page a free slot without bytes. Returns nullopt if no slot is free.
    std::optional<std::uint32_t> take_slot(std::uint32_t page);
    // Notes that pages [first, end) are written: what the store has of them is old.
    void write(std::uint32_t first, std::uint32_t end);
    // Returns the move that brings an evicted page back to a free slot; nullopt if there is none.
    std::optional<Move> next_return(std::uint32_t num_pages) const;

    // Returns the slots of pages [0, num_pages), absent for evicted pages.
    std::vector<std::uint32_t> table(std::uint32_t num_pages) const;
    // Returns the evicted pages among [first, num_pages), in ascending order.
    std::vector<std::uint32_t> evicted(std::uint32_t first, std::uint32_t num_pages) const;

  private:
    struct Page {
        std::optional<std::uint32_t> slot;
        bool is_stored = false;
    };
    std::optional<std::uint32_t> free_slot() const;

    std::vector<Page> pages_;
    std::uint32_t num_slots_, num_resident_;
    std::vector<std::uint8_t> is_taken_;  // [num_resident_]
};

}  // namespace moex
