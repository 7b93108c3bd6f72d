// The weights of a span in this machine's memory: the blobs of its layers (protocol/span_layer.h)
// and of their experts, while the GPU's decoder loads them.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "protocol/span_layer.h"
#include "web-worker/decoder/decoder_model.h"

namespace moex {

class SpanWeights : public WeightSource {
  public:
    // Takes the blobs of consecutive layers. Error bad_field: a blob belongs to another layer or
    // another model than its neighbours.
    static Result<SpanWeights> of_layers(std::vector<Bytes> blobs, std::uint32_t first_layer);

    // Describes the span for the decoder. Its layer 0 is the span's first layer.
    DecoderModel model(std::uint32_t context_tokens) const;
    const std::vector<SpanLayer>& layers() const { return layers_; }
    void add_expert(std::uint32_t index, std::uint32_t expert, Bytes blob);
    // Sets the function that placed() calls. The layers of the arenas count from the span's first.
    void on_placed(std::function<Status(const ExpertArena&)> placed) {
        placed_ = std::move(placed);
    }

    Status read(const WeightPart& part, const Append& append) override;
    Status placed(const ExpertArena& arena) override { return placed_ ? placed_(arena) : Status{}; }

  private:
    std::vector<Bytes> blobs_;
    std::vector<SpanLayer> layers_;  // borrow from blobs_
    std::map<std::pair<std::uint32_t, std::uint32_t>, Bytes> experts_;
    std::function<Status(const ExpertArena&)> placed_;
};

}  // namespace moex
