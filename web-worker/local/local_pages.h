// The pages of this device's one sequence, as bytes that leave its decoder and return to it
// (protocol/kv_page.h). A full page has kv_page_tokens tokens; the last page of a text has fewer.
//
// A model with a gated delta rule continues a text only behind a recurrent state. A state is large
// whatever the length of the text (66 MB of Qwen3.6-35B-A3B, whose page has 5 MB), so few states
// leave the decoder, at ends that the model chooses (local_model.h), each as bytes of its own
// (KvPart::state). Pages count once the state of a later end was taken; the tokens behind it are
// computed again.
//   pages 0, 1, 2 and the state after 256 tokens: the text continues after 256 tokens
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "hub/model/config.h"
#include "protocol/kv_page.h"
#include "protocol/life_guard.h"
#include "web-worker/decoder/kv_rows.h"
#include "web-worker/decoder/sequence_decoder.h"

namespace moex {

// A place outside of the decoder's memory that keeps pages; in a tab: the browser's files.
class PageShelf {
  public:
    // The device that computed a page: this one, or the hub that serves the model.
    enum class Origin { here, hub };
    enum class Taken { refused, partly, wholly };
    struct Found {
        // Takes one page. `before`: the SHA-256 of all tokens of the text before the page.
        std::function<Taken(Origin origin, const Sha256& before, ByteView page)> take;
        std::function<void()> done;  // called once, after the last page
    };
    virtual ~PageShelf() = default;
    // Gives the pages of the text `tokens` in order, from the page with the index `first_page` on.
    // The page after one that was not taken wholly is not given; another page with the same
    // `before` may be. `state_after` is set for a model with states: the shelf gives the pages
    // before the newest state that it has after more tokens than these, then that state; nothing
    // if it has none. `tokens` stay valid until `found.done`, which may be called at once.
    virtual void find(std::span<const std::uint32_t> tokens, std::uint32_t first_page,
                      std::optional<std::uint32_t> state_after, Found found) = 0;
    // Tells that the decoder holds `tokens`. The shelf reads the pages that it lacks by
    // LocalModel::read_page(), and the states of `states`, numbers of tokens at ends of pages, as
    // far as the decoder keeps them. `turn` names the text there. Both are valid during the call.
    virtual void keep(std::uint32_t turn, std::span<const std::uint32_t> tokens,
                      std::span<const std::uint32_t> states) = 0;
};

// Returns what determines the bits of a page that this device computes. `manifest` and `texts` are
// the hashes of KvSource.
KvSource local_kv_source(const ModelConfig& config, KvKind kind, const Sha256& manifest,
                         const Sha256& texts);

// Takes pages into the cache of a decoder, and reads them from there.
class LocalPages {
  public:
    // `decoder` outlives this object.
    LocalPages(SequenceDecoder& decoder, const KvSource& source);

    // Begins a text, of which the decoder holds the first `num_held` tokens already. `prompt` stays
    // valid until the last take().
    void begin(std::span<const std::uint32_t> prompt, std::uint32_t num_held);
    std::uint32_t first_page() const { return next_page_; }
    // Writes a page to the decoder, if its common beginning with the prompt is longer than what is
    // held; or the state at the end of a page that was written. Refuses a page that is not the next
    // one, or that another source computed. A page of the hub may be of another arithmetic and
    // another row type; the rest of its source must agree.
    PageShelf::Taken take(PageShelf::Origin origin, const Sha256& before, ByteView page);
    // Returns the number of the prompt's tokens whose keys and values the decoder holds.
    std::uint32_t num_held() const { return num_held_; }
    const KvSource& source() const { return source_; }
    // Returns how many of the first `num_tokens` tokens have rows that this device computed, in
    // whole pages where the hub computed what follows. Only these are kept on the shelf, because
    // rows behind a page of the hub depend on it.
    std::uint32_t num_own(std::uint32_t num_tokens) const {
        return std::min(num_tokens, handed_from_);
    }

    // Reads the page `index` of the text `tokens`, which the decoder holds, as the bytes of a
    // KvPage: its rows, or the state at its end. One call at a time. Error: not_found if that state
    // is not kept. Rows of a page that is not full are not_found then, too, as they are of no use.
    void read(std::span<const std::uint32_t> tokens, std::uint32_t index, KvPart part,
              const Sha256& before, std::function<void(Result<Bytes>)> done);

  private:
    Status check(PageShelf::Origin origin, const Sha256& before, const KvPage& page) const;
    bool has_states() const { return decoder_.state_bytes() > 0; }
    std::uint32_t common_tokens(const KvPage& page) const;
    PageShelf::Taken take_state(const KvPage& page);
    void read_state(KvPage page, std::function<void(Result<Bytes>)> done);
    void encode(KvPage page, std::function<void(Result<Bytes>)> done);

    SequenceDecoder& decoder_;
    KvSource source_;
    std::span<const std::uint32_t> prompt_;
    std::uint32_t num_held_ = 0;
    std::uint32_t num_written_ = 0;    // tokens that are held, or whose rows were written behind
    std::uint32_t next_page_ = 0;      // index of the page that take() takes
    std::uint32_t handed_from_ = ~0u;  // first position of the first page of the hub
    Bytes rows_;                       // of a full page, which take() writes or read() reads
    LifeGuard life_;
};

}  // namespace moex
