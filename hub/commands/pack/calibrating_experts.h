// The experts of a checkpoint, computed exactly, and quantised by what a calibration text sends to
// them, one layer at a time. The whole text is one step of the decoder, so that each layer is met
// once, with all of its rows: the experts of the layer are read from the checkpoint, computed,
// quantised and written.
#pragma once

#include <functional>
#include <memory>

#include "hub/base/thread_pool.h"
#include "hub/engine/expert_backend.h"
#include "hub/model/pack/calibrated_quantizer.h"
#include "hub/model/pack/pack_input.h"

namespace moex {

// Returns true if the package takes codes of the expert over from the checkpoint.
bool keeps_codes(const ExpertSource& source);

// Computes all rows with the experts of a checkpoint.
class CheckpointExperts : public ExpertBackend {
  public:
    // `input` and `threads` outlive this object.
    CheckpointExperts(const PackInput& input, ThreadPool& threads)
        : input_(input),
          threads_(threads) {}
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "checkpoint"; }

  private:
    const PackInput& input_;
    ThreadPool& threads_;
};

class CalibratingExperts : public ExpertBackend {
  public:
    // Takes the blob of a quantised expert; called on compute threads.
    using TakeBlob = std::function<Status(std::uint32_t layer, std::uint32_t expert, ByteView)>;
    using Progress = std::function<void(std::uint32_t layer, std::uint32_t experts_done)>;

    CalibratingExperts(const PackInput& input, const CalibratedOptions& options,
                       ThreadPool& threads, TakeBlob take_blob, Progress progress);
    std::unique_ptr<ExpertRound> submit(const ExpertBatch& batch) override;
    const char* name() const override { return "calibrating"; }

    const CalibratedError& error() const { return error_; }
    // number of experts that no row of the text has reached; plain rounding quantises them
    std::uint32_t num_unreached() const { return num_unreached_; }

  private:
    Status compute_layer(const ExpertBatch& batch);

    const PackInput& input_;
    CalibratedOptions options_;
    ThreadPool& threads_;
    TakeBlob take_blob_;
    Progress progress_;
    CalibratedError error_;
    std::uint32_t num_unreached_ = 0;
};

}  // namespace moex
