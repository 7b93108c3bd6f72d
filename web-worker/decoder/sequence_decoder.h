// The interface of a decoder that computes a whole model for one sequence: on a GPU
// (web-worker/local/gpu_sequence.h) or on a processor (web-worker/processor). The loops that answer
// (answer_loop.h) cannot distinguish them. GpuDecoder itself does not implement it: the linker
// keeps all virtual functions of a class, and most users of GpuDecoder need a few of them.
//
// Calls issue work and return; the results follow in callbacks, which are never called inside the
// call that was given them. All calls are made on one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "web-worker/decoder/step_rows.h"

namespace moex {

// Computes the steps of one sequence.
//
// Example: feed(prompt, StepLogits::last); read_logits(done) gives the row from which the answer's
// first token is drawn; feed(token, StepLogits::last); ...
class SequenceDecoder {
  public:
    using TokenIds = std::span<const std::uint32_t>;
    virtual ~SequenceDecoder() = default;

    virtual std::uint32_t vocab_size() const = 0;
    virtual std::uint32_t num_layers() const = 0;
    // Returns true if rewind() can drop the rows of a step with drafts.
    virtual bool goes_back() const = 0;
    virtual std::uint32_t context_tokens() const = 0;
    virtual std::uint32_t num_tokens() const = 0;      // length of the cached sequence
    virtual std::uint32_t rows_max() const = 0;        // row limit of a step
    virtual std::uint32_t logit_rows_max() const = 0;  // of these, rows with logits
    virtual bool finds_likeliest() const { return false; }
    // Returns true if a part of the context's keys and values is outside of the device's memory.
    virtual bool is_paged() const { return false; }

    // Returns false while layers are still on their way. Steps require all layers; begin_early()
    // requires reads_early(), and is described at GpuDecoder.
    virtual bool is_whole() const = 0;
    virtual bool reads_early() const { return false; }
    virtual Status begin_early(TokenIds, std::function<void(std::uint32_t)>) {
        return Error{ErrorCode::unsupported, "this decoder reads a prompt when it has all layers"};
    }

    // Continues the sequence with `tokens`: 1 to rows_max() tokens, within the vocabulary and the
    // context. On an error, nothing has changed.
    virtual Status feed(TokenIds tokens, StepLogits logits) = 0;
    // Reads the last step's logits: [rows with logits, vocab_size].
    virtual void read_logits(std::function<void(Result<std::span<const float>>)> done) = 0;
    // Reads the lists of a feed() with StepLogits::likeliest (one) or every_likeliest (one for each
    // token).
    virtual void read_likeliest(
        std::function<void(Result<std::span<const LikeliestList>>)> done) = 0;
    // Drops the steps that have not begun, where steps wait for each other. A pending read_logits()
    // then ends with the error `cancelled`, and num_tokens() counts the tokens that were computed.
    virtual void drop_steps() {}
    // Shortens the sequence to its first `num_tokens` tokens. A model with a gated delta rule may
    // go back further, to the last state that is kept: see num_tokens().
    virtual void rewind(std::uint32_t num_tokens) = 0;
    // Continues after `num_tokens` tokens whose pages the cache holds: tokens of the sequence, or
    // pages that write_page() wrote. It may go back further, as rewind().
    virtual void resume(std::uint32_t num_tokens) = 0;

    // Copy the rows of a page out of the cache and into it, in the layout of protocol/kv_page.h.
    // `rows` has the bytes of a full page, and stays valid until `done`, which is called after the
    // steps so far have ended. Another size is an error: payload_size.
    virtual void read_page(std::uint32_t page, std::span<std::byte> rows,
                           std::function<void(Status)> done) = 0;
    virtual Status write_page(std::uint32_t page, ByteView rows) = 0;

    // The recurrent state of a model with a gated delta rule, in the layout of protocol/kv_page.h:
    // 0 bytes for other models. States are kept at some ends of pages and at the end of the
    // sequence. read_state() copies the state after `num_tokens` tokens; error not_found: it is not
    // kept. write_state() takes the state of a text whose pages were written.
    virtual std::uint64_t state_bytes() const { return 0; }
    virtual bool keeps_state(std::uint32_t num_tokens) const { return (void)num_tokens, false; }
    // Names an end of a page whose state is not dropped for lack of room while the text has it; 0:
    // none. The newest state is not dropped either.
    virtual void hold_state(std::uint32_t num_tokens) { (void)num_tokens; }
    virtual void read_state(std::uint32_t, std::span<std::byte>, std::function<void(Status)> done) {
        done(Error{ErrorCode::not_found, "this model has no recurrent state"});
    }
    virtual Status write_state(std::uint32_t, ByteView) {
        return Error{ErrorCode::unsupported, "this model has no recurrent state"};
    }
};

}  // namespace moex
