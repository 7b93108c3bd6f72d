// What one simulated worker holds of spans: layers that it computes whole, and the keys of their
// sequences. The layers are a formula of the rows and of the keys of all positions up to the row's,
// so that a worker that lacks a key, or holds another sequence's, gives another answer:
//   x' = x + layer + 1 + sum of span_key(sequence, layer, position) over the positions
// All of these are small whole numbers, which f32 and f16 represent exactly.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "protocol/span_messages.h"

namespace moex::sim {

inline constexpr std::uint32_t sim_kv_size = 4;  // values of a key, and of a value vector
// size of the tensors of a layer besides its experts
inline constexpr std::uint64_t sim_layer_bytes = 1'000'000;

// Each number of the key of a position; each number of its value vector is larger by one.
float span_key(std::uint64_t sequence, std::uint32_t layer, std::uint32_t position);
// Appends key and value of a position, as halves.
void append_span_kv(Bytes& to, float key);

// How a worker lies about the layers that it computes.
enum class SpanLie : std::uint8_t { none, rows, keys, values };

class SimSpanHolder {
  public:
    SpanLie lie = SpanLie::none;
    double lie_share = 1;
    bool fails = false;  // answers every step with the verdict `failed`

    bool holds_any() const { return !spans_.empty(); }
    void assign(const SpanAssign& assign);
    void release(std::uint32_t span) { spans_.erase(span); }
    void bring(const SpanKv& kv);
    void end(const std::vector<std::uint64_t>& sequences);
    std::uint32_t num_layers(std::uint32_t span) const;
    // `lies`: this answer is false.
    SpanAnswer step(const SpanStep& step, std::uint32_t hidden_size, bool lies);

  private:
    using Keys = std::vector<std::vector<float>>;  // [tokens][layers]
    struct Span {
        std::uint32_t first_layer = 0, end_layer = 0;
        std::map<std::uint64_t, Keys> keys;  // by sequence
    };
    std::map<std::uint32_t, Span> spans_;
};

}  // namespace moex::sim
