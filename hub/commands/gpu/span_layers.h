// The layers of a package in the form in which workers load them for spans
// (protocol/span_layer.h). A layer's blob is made from the mapped files when it is requested; only
// its hash, size and signature are kept. A thread of this object hashes all layers after the start.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "hub/model/package/package.h"
#include "protocol/span_layer.h"
#include "protocol/span_messages.h"
#include "web-worker/decoder/decoder_model.h"

namespace moex {

class SpanLayers {
  public:
    // Signs a text (protocol/signed_package.h, layer_text). Called on the thread of this object.
    using Sign = std::function<Result<Signature>(std::string_view text)>;
    // `sign` is empty if the hub signs nothing. Error unsupported: no worker can compute a layer of
    // this model whole; the message says why.
    static Result<std::unique_ptr<SpanLayers>> open(std::shared_ptr<const ModelPackage> package,
                                                    Sign sign);
    ~SpanLayers();

    // Returns the newest version of a layer's blob that a worker must know to hold any layer.
    std::uint16_t version() const;
    // Returns the hash and the size of a layer's blob; nullopt until the layer was hashed, and for
    // a dense layer. Thread-safe.
    std::optional<SpanAssign::Layer> layer(std::uint32_t index) const;
    // Makes the blob with this hash; null if no layer has it. Thread-safe.
    std::shared_ptr<const Bytes> find(const Sha256& hash) const;

  private:
    SpanLayers(std::shared_ptr<const ModelPackage> package, DecoderModel model, Sign sign);
    Result<SpanAssign::Layer> describe(std::uint32_t index) const;
    SpanLayer shape_of(std::uint32_t index) const;
    Result<Bytes> make(std::uint32_t index) const;
    void hash_all();

    std::shared_ptr<const ModelPackage> package_;
    DecoderModel model_;
    const Sign sign_;
    std::vector<SpanAssign::Layer> layers_;      // [num_layers]
    std::atomic<std::uint32_t> num_hashed_ = 0;  // the layers before this number are hashed
    std::atomic<bool> stops_ = false;
    std::thread thread_;
};

}  // namespace moex
