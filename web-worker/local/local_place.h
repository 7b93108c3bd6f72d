// The place in a browser where a whole model is computed: its GPU, or its processor. Each WASM
// module of "this device" has one of them (gpu_place.cpp in moex-local, processor_place.cpp in
// moex-processor), so that a browser loads the code of its own place only. The rest of
// web-worker/local is in both modules.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hub/route/route.h"
#include "protocol/kv_page.h"
#include "web-worker/decoder/answer_loop.h"
#include "web-worker/decoder/evicted_pages.h"
#include "web-worker/decoder/sequence_decoder.h"
#include "web-worker/package/named_weights.h"

namespace moex {

// The memory that a model may take.
struct LocalMemory {
    std::uint32_t context_tokens_max = 0;
    // On a GPU: one of this number of pages has room in its memory; the others are in `evicted`,
    // which outlives the model. 1: all pages.
    std::uint32_t kv_share = 1;
    EvictedPages* evicted = nullptr;
    // On a processor: the most bytes of weights, keys and values.
    std::uint64_t bytes_max = 0;
};

// The facts of a place that the page shows.
struct PlaceFacts {
    std::string adapter;
    bool is_software = false;  // a GPU in name only
    bool is_processor = false;
    bool is_short = false;  // the context is smaller than asked for, because memory is short
    ModelSpeed speed;       // measured before the first answer; 0: not measured
};

// Holds the decoder of one model.
class LocalPlace {
  public:
    virtual ~LocalPlace() = default;
    virtual SequenceDecoder& decoder() = 0;
    // Loads the experts of a layer, whose files are open by now; layers are loaded in order.
    virtual Status load_layer(std::uint32_t layer) = 0;
    // Returns what determines the bits of a page that is computed here, except the hashes.
    virtual KvSource kv_source() const = 0;
    virtual PlaceFacts facts() const = 0;
    // Returns a loop that lets the place itself choose the likeliest tokens, so that a step need
    // not wait for the one before it; null if each step waits.
    virtual std::unique_ptr<AnswerLoop> greedy_loop(std::uint32_t max_tokens,
                                                    const std::vector<std::uint32_t>& stop_ids,
                                                    TokenDrafts* drafts,
                                                    AnswerLoop::Events events) {
        (void)max_tokens, (void)stop_ids, (void)drafts, (void)events;
        return nullptr;
    }
};

// A model whose files are open in a tab.
struct TabModel {
    std::string manifest_sha256;
    const PackageFiles* files = nullptr;  // valid until the decoder is whole
    LocalMemory memory;
    WeightProgress progress;
    std::function<void(Error)> on_lost;  // the place is gone, and with it the model
};
// Opens the place of this module for a model, without the layers whose experts are not here.
// Errors: no_space if its memory is too small.
void open_place(const TabModel& model,
                std::function<void(Result<std::unique_ptr<LocalPlace>>)> done);

}  // namespace moex
