// Keys and values of all sequences, in pages of fixed size. A sequence owns a list of pages; a
// rollback returns the pages that it no longer needs.
//   page_tokens 16, 40 tokens in pages() = {3, 9, 4}:  position 20 is row 4 of page 9
// Full pages may be published: a later sequence of the same scope that begins with the same tokens
// takes them over instead of computing them. Published pages that no sequence holds stay in the
// cache until room is needed, and are evicted in LRU order.
// Layers with a gated delta rule have no keys and values. A sequence has a RecurrentState for them
// (hub/engine/recurrent_state.h). Of such a model a sequence takes over pages only up to a page at
// whose end a copy of the state was kept.
// Layers with a window do not look at rows before it. So a page has two parts in memory: the rows
// of layers without a window, and those of layers with one. A sequence that has passed a page lets
// its second part go (forget_unseen()). That part is then dropped, or kept for later sequences as
// long as there is room, and the budget counts it as free. A sequence takes over pages only where
// the windows before their end are still there.
//   window 128, page_tokens 16, 1,000 tokens:  63 first parts, and the second parts of pages 54-62
// Layout of a part: for each of its layers, k then v, each [num_kv_heads, page_tokens] heads of
// kv_head_bytes(). So the rows that attention reads for one kv head are contiguous.
// Where a device stores the rows, it has places for first parts, which have the page's number, and
// slots for second parts (KvPageMover::num_window_slots). A page names its slot.
//   page 9 of a sequence has its first part at place 9, its second part in slot 2, and once the
//   sequence has passed the page, slot 2 has the second part of another page
// Owner: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/engine/ended_texts.h"
#include "hub/engine/kv_dtype.h"
#include "hub/engine/kv_head.h"
#include "hub/engine/prefix_index.h"
#include "hub/engine/recurrent_snapshots.h"
#include "hub/engine/recurrent_state.h"
#include "hub/engine/state_slots.h"
#include "hub/model/config.h"
#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

// Functions of a device that stores the rows in its own memory, under the cache's page numbers. All
// are set, or none.
struct KvPageMover {
    // A part of a page: the rows of layers with a window, in the slot `number`; or those of all
    // other layers of page `number`. Without slots a page has one part.
    struct Part {
        std::uint32_t number = 0;
        bool is_window = false;
    };
    // Slots for rows of layers with a window; 0: no layer has one, or pages are whole.
    std::uint32_t num_window_slots = 0;
    // Copies the rows of `from` to `to`, of the same kind.
    std::function<void(Part from, Part to)> copy;
    // Copy the rows of a part out of the device, and into it, in the layout of protocol/kv_page.h.
    // Error: device_lost.
    std::function<Status(Part part, std::span<std::byte> rows)> read;
    std::function<Status(Part part, ByteView rows)> write;
};

struct KvCacheOptions {
    std::uint32_t page_tokens = 16;
    std::uint32_t num_pages = 0;  // the budget
    KvDtype dtype = KvDtype::f32;
    // If set, a device stores the rows (hub/engine/step_device.h), and the cache only records which
    // sequence holds each page. In that case the cache itself stores and reads no rows.
    KvPageMover mover = {};
    // Set if a device stores the recurrent states, too; the cache then only numbers them.
    StateSlotSizes slots = {};
    std::uint64_t snapshot_bytes_max = 0;  // of copies of recurrent states, with their companions
    std::uint64_t companion_bytes = 0;     // most bytes of a companion of such a copy
    // Called with the id of a sequence when it ends: `kept` if another one may take the id over,
    // `ended` if none will. Then with an id that was taken over, together with the first
    // `num_tokens` tokens: others that know the kept one know these tokens of the new one. Without
    // `kept` and `resumed` no id is taken over, nor where layers have windows: the rows behind a
    // window may have been sent as zeros.
    std::function<void(std::uint64_t id)> ended = {}, kept = {};
    std::function<void(std::uint64_t id, std::uint32_t num_tokens)> resumed = {};
};

// Bytes in memory; where a device stores the rows, they and the states are in its memory.
struct KvMemory {
    std::uint64_t pages = 0;         // of sequences, and kept for later ones
    std::uint64_t states = 0;        // recurrent states of sequences and of the current step
    std::uint64_t spare_states = 0;  // memory of states that no sequence has now
    std::uint64_t state_copies = 0;  // with what is kept beside them
};

struct UnmapMemory {
    std::size_t size_bytes = 0;
    void operator()(std::byte* memory) const;
};

// Whole pages, or first parts of pages and slots for the second ones where a device has slots.
struct KvRoom {
    std::uint32_t pages = 0, slots = 0;
};

class KvCache {
  public:
    // Reserves address space for the whole budget; the system provides memory page by page, on
    // first use. Throws std::runtime_error when the system refuses the addresses.
    KvCache(const ModelConfig& config, KvCacheOptions options);

    // Number of whole pages for which there is room, if everything leaves that no sequence needs.
    // Where a device has slots for windows, this counts first parts.
    std::uint32_t pages_free() const;
    // Returns true if a further sequence of `num_tokens` tokens may be admitted, which has `shared`
    // tokens in common with another one, and `kept` is to stay free.
    bool has_room(std::uint32_t num_tokens, std::uint32_t shared, std::uint32_t rows_max,
                  KvRoom kept) const;
    // Bytes of all parts for which there is room.
    std::uint64_t bytes_max() const;
    std::uint32_t pages_cached() const;  // number of published pages that no sequence holds
    std::uint32_t pages_for(std::uint32_t num_tokens) const;
    std::uint64_t page_bytes() const { return main_bytes_ + window_bytes_; }
    // Bytes of a page's rows of layers with a window; 0 if there are none, or if a device keeps
    // pages whole.
    std::uint64_t window_bytes() const { return window_bytes_; }
    // The room in whole pages that a sequence of `num_tokens` tokens needs at most, if steps add at
    // most `rows_max` rows and it forgets what it does not see after each. Without windows this is
    // pages_for().
    std::uint32_t room_for(std::uint32_t num_tokens, std::uint32_t rows_max) const;
    // Returns true if a sequence may let parts of its pages go.
    bool has_windows() const { return window_ > 0; }
    // The most tokens that one sequence may have in the whole budget, with such steps.
    std::uint64_t tokens_max(std::uint32_t rows_max) const;
    // Bytes of all rows in memory: those that sequences need, and those kept for later sequences.
    std::uint64_t used_bytes() const { return used_bytes_; }
    KvMemory memory() const;
    // Returns how many ids of ended sequences may be taken over: about two for each page at most.
    std::size_t kept_texts() const { return ended_texts_.size(); }
    // Frees the memory of spare recurrent states, as long as there are more than `states_max` in
    // all.
    void trim_states(std::uint32_t states_max) { blocks_.trim(states_max); }
    // Unpublishes every page with rows whose experts `worker` computed, and all pages that continue
    // such a page. A sequence that holds such a page publishes no further pages after it.
    void forget_worker(std::uint64_t worker);

    // The cached keys and values of one sequence. The destructor returns the sequence's pages to
    // the cache.
    class Sequence {
      public:
        // `scope` limits sharing: the sequence takes over only pages published in the same scope,
        // and only sequences of this scope may take over its pages.
        explicit Sequence(KvCache& cache, std::string scope = {});
        Sequence(Sequence&& other) noexcept;
        Sequence& operator=(Sequence&& other) noexcept;
        ~Sequence();
        // A number that no other living sequence of this process has. A sequence that takes over
        // at least half of the pages of an ended one may have the number of that one.
        std::uint64_t id() const { return id_; }
        std::uint32_t num_tokens() const { return num_tokens_; }
        // The page numbers of the sequence, in the order of positions: the first page has the
        // positions [0, page_tokens). The pages cover at least num_tokens() positions.
        std::span<const std::uint32_t> pages() const { return pages_; }
        std::uint32_t page_tokens() const { return cache_->options_.page_tokens; }
        // Reserves room for `num_tokens` tokens in total. If the budget does not suffice, returns
        // false and changes nothing. After this call the rows from num_tokens() on may be written:
        // a page that other sequences read is copied first.
        bool reserve(std::uint32_t num_tokens);
        // Adds `num_tokens` tokens to num_tokens(), after their rows were written in all layers.
        void commit(std::uint32_t num_tokens);
        // Removes all tokens from position `num_tokens` on. A sequence becomes empty if its
        // recurrent state cannot go back to this position, or if rows were dropped that a window
        // sees there. Its tokens must then be computed again.
        void roll_back(std::uint32_t num_tokens);
        // Lets the rows go that no window sees from num_tokens() on, of the first `pages_max` pages
        // at most. The sequence may then not be rolled back to an earlier position.
        void forget_unseen(std::uint32_t pages_max = ~0u);
        // The state of layers with a gated delta rule, for a model that has such layers.
        RecurrentState& recurrent() const { return *recurrent_; }
        // The same where a device stores the states.
        SlotState& slot_state() const { return *slot_state_; }
        // Begins a step of `num_rows` rows after num_tokens(); required for models with a recurrent
        // state, and without effect for others.
        void begin_step(std::uint32_t num_rows);
        void abandon_step();  // ends a step that failed

        // Publishes the full pages of this sequence, so that later sequences can take them over.
        // `tokens` are the tokens of all positions; `page_workers[i]` are the workers that computed
        // experts for the rows of page i. If another sequence published an equal page before, this
        // sequence takes that page and drops its own.
        void publish(std::span<const TokenId> tokens,
                     std::span<const std::vector<std::uint64_t>> page_workers);
        // Takes over published pages that continue this sequence. `tokens` are the tokens of all
        // positions. All pages that the sequence already has must be published. num_tokens() grows
        // by whole pages. For each page, `heard` is called with the workers that computed it.
        // Returns the companion of the copy of the recurrent state that was taken over; may be
        // null.
        CompanionPtr adopt(
            std::span<const TokenId> tokens,
            const std::function<void(const std::vector<std::uint64_t>& workers)>& heard = {});

        // Keeps a copy of the recurrent state at the end of a page that is published already. Does
        // nothing for a model without a recurrent state, or where the state is at no such end.
        // `make` makes the copy's companion.
        void keep_state(const MakeCompanion& make = {});

        // Stores keys and values of a position, each [num_kv_heads, head_dim], rounded to the
        // cache's dtype. Here and below, the caller has reserved the position with reserve().
        void store(std::uint32_t layer, std::uint32_t position, std::span<const float> k,
                   std::span<const float> v);
        // Stores the key and the value of one kv head at a position, each [head_dim].
        void store_head(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t position,
                        std::span<const float> k, std::span<const float> v);
        // Copies the positions [first, end) from another cache of the same shape, page size and
        // dtype. Both sequences have reserved these positions. During the copy no other thread
        // may use the other cache.
        void copy_rows(const Sequence& from, std::uint32_t first, std::uint32_t end);
        // For benches: fills the positions [0, num_tokens) with noise, the same in every page,
        // instead of computed keys and values. Returns false when the budget is spent. Requires an
        // empty sequence.
        bool fill_with_noise(std::uint32_t num_tokens);
        // The cached keys (or values) of one kv head, for the positions from `first` to the end of
        // that position's page.
        KvRows k_rows(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t first) const;
        KvRows v_rows(std::uint32_t layer, std::uint32_t kv_head, std::uint32_t first) const;
        // A copy of the keys (or values) of one position as f32, [num_kv_heads, head_dim].
        std::vector<float> k(std::uint32_t layer, std::uint32_t position) const;
        std::vector<float> v(std::uint32_t layer, std::uint32_t position) const;
        // Copies the rows of the full page with number `index` of this sequence, in the layout of
        // protocol/kv_page.h: to `window_rows`, of window_bytes(), those of layers with a window,
        // and to `rows` the others. An empty `window_rows` gets none.
        // Error: not_found if `window_rows` wants rows that are no longer in memory.
        Status read_page(std::uint32_t index, std::span<std::byte> rows,
                         std::span<std::byte> window_rows = {}) const;
        // Returns true if the rows of layers with a window are in memory for this page.
        bool has_window_rows(std::uint32_t index) const {
            return cache_->has_window_[pages_[index]] != 0;
        }
        // Where a device has slots: appends to `slots` the slot of each of pages(). It is any slot
        // for a page whose rows of layers with a window are gone.
        void list_window_slots(std::vector<std::uint32_t>& slots) const;
        // Appends a full page with such rows. num_tokens() is a multiple of page_tokens(), and
        // grows by it. Without `window_rows`, the sequence lets the rows of layers with a window of
        // all its pages go; it needs pages with them before it may go on (can_go_on()).
        // Errors: payload_size; overloaded if the budget does not suffice; and those of the device.
        // After an error num_tokens() is the same.
        Status append_page(ByteView rows, ByteView window_rows = {});
        // Writes the rows of the page `index` ahead of commit(), which counts them. Rows of tokens
        // that the sequence has are the same. roll_back(num_tokens()) drops the others. Requires
        // rows in memory here, and no windows. Errors as append_page().
        Status write_ahead(std::uint32_t index, ByteView rows);
        // Returns true if all rows are there that a window sees from num_tokens() on.
        bool can_go_on() const { return first_window_ <= first_seen_page(num_tokens_); }
        // Returns the room that this sequence does not hold yet and needs until it has `num_tokens`
        // tokens, as room_for(). `coming` are tokens whose pages it takes over from another one.
        KvRoom missing_for(std::uint32_t num_tokens, std::uint32_t coming,
                           std::uint32_t rows_max) const;
        // number of published pages, counted from the first page
        std::uint32_t num_published() const { return num_published_; }

      private:
        friend class KvCache;
        std::byte* head(std::uint32_t layer, bool is_v, std::uint32_t kv_head,
                        std::uint32_t position) const;
        std::vector<float> copy(std::uint32_t layer, bool is_v, std::uint32_t position) const;
        std::uint32_t first_seen_page(std::uint32_t num_tokens) const;
        void let_go(std::uint32_t index);
        void take_over(std::uint32_t index, std::uint32_t page);
        bool can_end_at(std::span<const PrefixIndex::Node* const> nodes) const;
        bool has_state() const { return cache_->blocks_.shape().num_layers > 0; }
        bool is_behind_state(std::uint32_t num_tokens) const;
        void make_state();
        std::optional<PrefixIndex::NodeId> published_end() const;
        void end();
        void resume_text();
        KvCache* cache_;
        std::string scope_;
        std::vector<std::uint32_t> pages_;
        // number of published pages of this sequence, counted from the first page
        std::uint32_t num_published_ = 0;
        std::uint32_t num_tokens_ = 0;
        // This sequence needs the windows' part of its pages from this one on.
        std::uint32_t first_window_ = 0;
        // Made by begin_step(): one of them, if the model has a recurrent state.
        std::unique_ptr<RecurrentState> recurrent_;
        std::unique_ptr<SlotState> slot_state_;
        std::uint64_t id_ = 0;  // 0 after the sequence was moved to another object
    };

  private:
    // A part of a page that no sequence needs.
    struct IdlePart {
        std::uint32_t page = 0;
        bool is_window = false;  // the part of layers with a window; false: the page itself
    };
    std::uint32_t take_page();
    void evict_oldest();
    void evict_oldest_window();
    bool has_slots() const { return options_.mover.num_window_slots > 0; }
    // The most pages of a sequence of `num_tokens` tokens that have the rows of windows.
    std::uint32_t pages_seen(std::uint32_t num_tokens, std::uint32_t rows_max) const {
        return std::min(pages_for(num_tokens), pages_for(window_ + rows_max) + 1);
    }
    std::uint32_t window_slots_free() const {
        return static_cast<std::uint32_t>(free_slots_.size()) + windows_idle_;
    }
    void hold(std::uint32_t page);
    void release(std::uint32_t page);
    void hold_window(std::uint32_t page);
    void release_window(std::uint32_t page);
    void drop_window(std::uint32_t page);
    void give_window(std::uint32_t from, std::uint32_t to);
    void free_page(std::uint32_t page);
    void unpublish(std::uint32_t page);
    void copy_page(std::uint32_t from, std::uint32_t to);
    void set_idle(std::uint64_t& since, IdlePart part);
    void end_idle(std::uint64_t since);
    std::uint64_t part_bytes(bool is_window) const {
        return is_window ? window_bytes_ : main_bytes_;
    }

    std::uint32_t lay_out();
    Status check_parts(std::size_t bytes, std::size_t window_bytes) const;
    std::byte* page_data(std::uint32_t page) const;
    std::size_t head_bytes() const { return kv_head_bytes(options_.dtype, config_.head_dim); }
    std::size_t row_bytes() const { return config_.num_kv_heads * head_bytes(); }
    std::size_t layer_bytes() const { return 2 * options_.page_tokens * row_bytes(); }

    ModelConfig config_;
    KvCacheOptions options_;
    // The largest window of a layer; 0 if there is none, or if a device keeps pages whole.
    std::uint32_t window_ = 0;
    // [num_layers]: offset of a layer's rows in a page's memory; unused for layers without keys
    std::vector<std::size_t> layer_at_;
    std::uint64_t main_bytes_ = 0, window_bytes_ = 0;  // of a page's two parts
    // offset of the windows' part, and distance of two pages in memory: multiples of the system's
    // page size
    std::size_t window_at_ = 0, stride_bytes_ = 0;
    std::uint32_t num_numbers_ = 0;  // page numbers; more than num_pages if there are windows
    std::uint64_t used_bytes_ = 0;   // of all parts in memory
    std::uint64_t idle_bytes_ = 0;   // of the idle ones among them
    std::unique_ptr<std::byte, UnmapMemory> memory_;

    PrefixIndex index_;
    // For each page, the number of sequences that hold it, and of those that need its windows' part
    std::vector<std::uint32_t> holders_, window_holders_;
    std::vector<std::uint8_t> has_window_;  // for each page: its windows' part is in memory
    // per page: the values of releases_ when the last holder released its parts
    std::vector<std::uint64_t> released_, window_released_;
    // parts of published pages that no sequence needs, keyed by release time (LRU order)
    std::map<std::uint64_t, IdlePart> idle_;
    std::uint32_t pages_idle_ = 0;  // whole pages among them
    std::uint32_t windows_idle_ = 0;
    // Where a device has slots: the slot of each page that has a second part, and the unused ones.
    std::vector<std::uint32_t> window_slot_, free_slots_;
    std::uint64_t releases_ = 0;
    std::vector<std::uint32_t> free_;
    EndedTexts ended_texts_;
    RecurrentBlocks blocks_;
    std::unique_ptr<StateSlots> slots_;  // null: the states are in memory here
    RecurrentSnapshots snapshots_;
};

}  // namespace moex
