// The one sequence of a GpuDecoder behind the interface of the loops that answer. An adapter, so
// that only programs with such a loop have its functions (sequence_decoder.h).
#pragma once

#include <functional>
#include <utility>

#include "web-worker/decoder/gpu_decoder.h"
#include "web-worker/decoder/sequence_decoder.h"

namespace moex {

class GpuSequence final : public SequenceDecoder {
  public:
    // `decoder` outlives the sequence.
    explicit GpuSequence(GpuDecoder& decoder) : decoder_(decoder) {}

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
    Status begin_early(TokenIds tokens, std::function<void(std::uint32_t)> on_layers) override {
        return decoder_.begin_early(tokens, std::move(on_layers));
    }

    Status feed(TokenIds tokens, StepLogits logits) override {
        return decoder_.feed(tokens, logits);
    }
    void read_logits(std::function<void(Result<std::span<const float>>)> done) override {
        decoder_.read_logits(std::move(done));
    }
    void read_likeliest(std::function<void(Result<std::span<const LikeliestList>>)> done) override {
        decoder_.read_likeliest(std::move(done));
    }
    void rewind(std::uint32_t num_tokens) override { decoder_.rewind(num_tokens); }
    void resume(std::uint32_t num_tokens) override { decoder_.resume(num_tokens); }

    void read_page(std::uint32_t page, std::span<std::byte> rows,
                   std::function<void(Status)> done) override {
        decoder_.read_page(page, rows, std::move(done));
    }
    Status write_page(std::uint32_t page, ByteView rows) override {
        return decoder_.write_page(page, rows);
    }

  private:
    GpuDecoder& decoder_;
};

}  // namespace moex
