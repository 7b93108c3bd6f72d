// The weights of a span in this machine's memory, while the GPU's decoder loads them: the blobs of
// its layers (protocol/span_layer.h), and of the experts of one layer at a time.
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
    // Sets the function that gets the experts of a layer, counted from the span's first, and then
    // calls prepared(). Without it all experts are here.
    void on_prepare(std::function<void(std::uint32_t index)> get) { get_ = std::move(get); }
    void add_expert(std::uint32_t index, std::uint32_t expert, Bytes blob);
    // The experts of the layer are here: the load goes on. Its end may destroy this object.
    void prepared();
    // True while the decoder waits for prepared(). The buffers that it has made are destroyed with
    // this object then.
    bool waits() const { return then_ != nullptr; }
    // Sets the function that placed() calls. The layers of the arenas count from the span's first.
    void on_placed(std::function<Status(const ExpertArena&)> placed) {
        placed_ = std::move(placed);
    }

    void prepare(std::uint32_t layer, std::function<void()> then) override;
    Status read(const WeightPart& part, const Append& append) override;
    Status placed(const ExpertArena& arena) override { return placed_ ? placed_(arena) : Status{}; }

  private:
    std::vector<Bytes> blobs_;
    std::vector<SpanLayer> layers_;  // borrow from blobs_
    std::map<std::pair<std::uint32_t, std::uint32_t>, Bytes> experts_;
    std::function<Status(const ExpertArena&)> placed_;
    std::function<void(std::uint32_t)> get_;
    std::function<void()> then_;
};

}  // namespace moex
