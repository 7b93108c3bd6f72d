// The ids of ended sequences that later ones may take over. Others, such as a contributor that
// holds a span, know the keys and values of a sequence by its id. A new sequence that continues an
// ended one takes its id over, so that its keys and values need not be sent again.
// A sequence that took an id over may then differ from the one that had it. So each end has a
// number, and a page names the last end of a sequence that had the page.
//   sequence 7 ends with pages {3, 9, 4}      end 1: id 7; pages 3, 9 and 4 name it
//   sequence 8 ends with pages {3, 9, 5}      end 2: id 8; pages 3, 9 and 5 name it, 4 names end 1
//   a text that has the pages {3, 9, 4}       takes over 7
//   then one that has the pages {3, 9}        takes over 8
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace moex {

class EndedTexts {
  public:
    // Page numbers are below `num_pages`; 0: no id is taken over, so that nothing may be kept.
    explicit EndedTexts(std::uint32_t num_pages = 0) : end_of_page_(num_pages) {}
    bool is_on() const { return !end_of_page_.empty(); }
    // The number of kept ids: about two for each page at most.
    std::size_t size() const { return kept_.size(); }

    // Keeps the id of a sequence that has `num_pages` pages, of which `pages` can be taken over.
    void keep(std::uint64_t id, std::uint32_t num_pages, std::span<const std::uint32_t> pages);
    // The page will have other tokens, so that it names no end any more.
    void forget_page(std::uint32_t page) {
        if (is_on()) end_of_page_[page] = 0;
    }
    // Returns and forgets the id that the last of `pages` names, if no sequence has taken it over
    // and `pages` are at least half of its pages: a text that only begins with the same
    // instructions leaves it to one that goes on.
    std::optional<std::uint64_t> take(std::span<const std::uint32_t> pages);

  private:
    struct Kept {
        std::uint64_t id = 0;
        std::uint32_t num_pages = 0;
    };
    std::vector<std::uint64_t> end_of_page_;  // [num_pages]: 0: no end
    std::map<std::uint64_t, Kept> kept_;      // by the number of the end
    std::uint64_t num_ends_ = 0;
};

}  // namespace moex
