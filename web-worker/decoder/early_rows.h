// Rows of a prompt that are computed while the last layers of the model are still on their way.
//   layers 0 and 1 of 4 are loaded: begin(5 rows), advance(2) computes these layers; later
//   advance(3) and advance(4) compute one layer each, and advance(4) returns 5
// The caller learns from `on_layers` how far the GPU is: a few bytes that the last submitted layer
// has written are read back. One read is in flight at a time, so that layers that arrive quickly
// are reported together. Owner: the decoder, on its device's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "protocol/life_guard.h"
#include "web-worker/decoder/decoder_memory.h"
#include "web-worker/decoder/decoder_ops.h"
#include "web-worker/gpu/device.h"

namespace moex {

class EarlyRows {
  public:
    // All references outlive this object. `ops` are those of the only lane.
    EarlyRows(gpu::Device& device, const DecoderMemory& memory, const DecoderOps& ops)
        : device_(device),
          memory_(memory),
          ops_(ops) {}
    ~EarlyRows();
    EarlyRows(const EarlyRows&) = delete;
    Status create();  // makes the buffer of the reads; call it once

    // Begins with rows that are written and embedded; rows before them are dropped. `num_pages`:
    // pages of their sequence. on_layers(n) is called when the GPU has computed the first n layers.
    void begin(std::uint32_t num_rows, std::uint32_t num_pages,
               std::function<void(std::uint32_t)> on_layers);
    // Computes the layers up to `num_loaded` that are not computed yet. Returns the number of rows
    // if these were the last of `num_layers` layers, otherwise 0.
    std::uint32_t advance(std::uint32_t num_loaded, std::uint32_t num_layers);
    void drop() { now_.reset(); }

  private:
    void read();

    struct Now {
        std::uint32_t turn = 0, rows = 0, pages = 0, next_layer = 0;
        std::uint32_t num_told = 0;  // layers that on_layers() has been called with
        std::function<void(std::uint32_t)> on_layers;
    };

    gpu::Device& device_;
    const DecoderMemory& memory_;
    const DecoderOps& ops_;
    std::optional<Now> now_;
    std::uint32_t turns_ = 0;  // number of calls of begin()
    gpu::BufferId readback_;
    bool is_read_ = false;  // readback_ is being read
    std::vector<gpu::Command> commands_;
    LifeGuard life_;
};

}  // namespace moex
