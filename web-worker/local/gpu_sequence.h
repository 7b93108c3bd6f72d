// The one sequence of a GpuDecoder behind the interface of the loops that answer. An adapter, so
// that only programs with such a loop have its functions (sequence_decoder.h).
//
// A model with a gated delta rule has a recurrent state, which cannot forget single tokens. The
// decoder computes such a sequence as it computes one of several (hub/engine/state_slots.h): rows
// that may be rolled back are kept in a journal, and a state is never changed once its step has
// ended. States at the ends of pages are kept, as many as `state_bytes_max` has room for, so that
// an edited text goes on from the last one before the edit, and some are kept outside, too.
//   300 tokens, states after 128 and 256: rewind(200) leaves 128 tokens, and 72 are fed again
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "hub/engine/state_slots.h"
#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/decoder/sequence_decoder.h"

namespace moex {

class GpuSequence final : public SequenceDecoder {
  public:
    // Most bytes of states at the ends of pages, and the number of them in any case.
    static constexpr std::uint64_t state_bytes_max = 256u << 20;
    static constexpr std::uint32_t states_min = 4, states_max = 32;
    // Returns the places that a decoder needs for the states of one sequence:
    // GpuDecoderOptions::state_slots and journals. Zeros for a model without a gated delta rule.
    static StateSlotSizes places_for(const DecoderModel& model);

    // `decoder` outlives the sequence, and was made with these places.
    explicit GpuSequence(GpuDecoder& decoder) : GpuSequence(decoder, places_for(decoder.model())) {}
    GpuSequence(GpuDecoder& decoder, const StateSlotSizes& places);

    std::uint32_t vocab_size() const override { return decoder_.vocab_size(); }
    std::uint32_t num_layers() const override { return decoder_.num_layers(); }
    bool goes_back() const override { return decoder_.goes_back(); }
    std::uint32_t context_tokens() const override { return decoder_.context_tokens(); }
    std::uint32_t num_tokens() const override { return decoder_.num_tokens(); }
    std::uint32_t rows_max() const override { return decoder_.rows_max(); }
    std::uint32_t logit_rows_max() const override { return decoder_.logit_rows_max(); }
    bool finds_likeliest() const override { return decoder_.finds_likeliest(); }
    bool is_paged() const override { return decoder_.is_paged(); }
    bool is_whole() const override { return decoder_.is_whole(); }
    bool reads_early() const override { return decoder_.reads_early(); }
    Status begin_early(TokenIds tokens, std::function<void(std::uint32_t)> on_layers) override;
    Status feed(TokenIds tokens, StepLogits logits) override;
    void read_logits(std::function<void(Result<std::span<const float>>)> done) override {
        decoder_.read_logits(std::move(done));
    }
    void read_likeliest(std::function<void(Result<std::span<const LikeliestList>>)> done) override {
        decoder_.read_likeliest(std::move(done));
    }
    void rewind(std::uint32_t num_tokens) override;
    void resume(std::uint32_t num_tokens) override;

    void read_page(std::uint32_t page, std::span<std::byte> rows,
                   std::function<void(Status)> done) override {
        decoder_.read_page(page, rows, std::move(done));
    }
    Status write_page(std::uint32_t page, ByteView rows) override {
        return decoder_.write_page(page, rows);
    }
    std::uint64_t state_bytes() const override { return places_.slot_bytes; }
    bool keeps_state(std::uint32_t num_tokens) const override {
        return slot_of(num_tokens) != nullptr;
    }
    void hold_state(std::uint32_t num_tokens) override { held_state_ = num_tokens; }
    void read_state(std::uint32_t num_tokens, std::span<std::byte> state,
                    std::function<void(Status)> done) override;
    Status write_state(std::uint32_t num_tokens, ByteView state) override;

  private:
    bool has_states() const { return places_.sequences_max > 0; }
    StateSlotPtr slot_of(std::uint32_t num_tokens) const;
    bool drop_state();
    DeltaRun begin_step(std::uint32_t num_rows);
    void commit();
    void end_early();
    void go_to(std::uint32_t num_tokens);

    GpuDecoder& decoder_;
    const StateSlotSizes places_;
    // Of a model with a gated delta rule; `slots_` outlives the others.
    std::unique_ptr<StateSlots> slots_;
    std::map<std::uint32_t, StateSlotPtr> kept_;  // by the tokens that a state has read
    std::unique_ptr<SlotState> state_;
    std::uint32_t held_state_ = 0;
    // Length of the text with the rows that are read while layers arrive; 0: there are none.
    std::uint32_t early_end_ = 0;
};

}  // namespace moex
