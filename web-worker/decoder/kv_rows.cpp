#include "web-worker/decoder/kv_rows.h"

#include <cstring>

#include "web-worker/decoder/step_rows.h"

namespace moex {
namespace {

constexpr std::size_t page_tokens = kv_page_tokens, scale_zero_bytes = 4;

// Calls `move(row_offset, gpu_offset, num_bytes)` for each piece that is contiguous in both.
template <class Move>
void for_each_piece(const KvPageShape& shape, Move move) {
    const bool has_codes = shape.kind == KvKind::u8;
    const std::size_t heads = shape.num_kv_heads, quads = shape.head_dim / 4,
                      quad_bytes = shape.kind == KvKind::f32   ? 16
                                   : shape.kind == KvKind::f16 ? 8
                                                               : 4,
                      head_bytes = quads * quad_bytes + (has_codes ? scale_zero_bytes : 0),
                      layer_bytes = 2 * heads * page_tokens * head_bytes;
    for (std::size_t layer = 0; layer < shape.num_layers; ++layer)
        for (std::size_t slot = 0; slot < 2 * heads; ++slot) {
            const bool is_v = slot >= heads;
            const std::size_t base = layer * layer_bytes,
                              run = base + slot * page_tokens * quads * quad_bytes,
                              scales = base + 2 * heads * page_tokens * quads * quad_bytes +
                                       slot * page_tokens * scale_zero_bytes;
            for (std::size_t token = 0; token < page_tokens; ++token) {
                const std::size_t row = base + (slot * page_tokens + token) * head_bytes;
                if (is_v)
                    move(row, run + token * quads * quad_bytes, quads * quad_bytes);
                else
                    for (std::size_t quad = 0; quad < quads; ++quad)
                        move(row + quad * quad_bytes,
                             run + (quad * page_tokens + token) * quad_bytes, quad_bytes);
                if (has_codes)
                    move(row + quads * quad_bytes, scales + token * scale_zero_bytes,
                         scale_zero_bytes);
            }
        }
}

}  // namespace

KvPageShape kv_page_shape(const DecoderModel& model, KvKind kind) {
    std::uint32_t num_layers = model.num_layers;
    for (std::uint32_t layer = 0; layer < model.num_layers; ++layer)
        if (model.is_delta(layer)) --num_layers;
    return {kind, num_layers, model.num_kv_heads, model.head_dim};
}

std::uint64_t kv_rows_of_page(const KvPageShape& shape) {
    const std::uint64_t head_bytes = shape.kind == KvKind::f32 ? shape.head_dim * 4
                                     : shape.kind == KvKind::f16
                                         ? shape.head_dim * 2
                                         : shape.head_dim + scale_zero_bytes;
    return 2 * head_bytes * page_tokens * shape.num_kv_heads * shape.num_layers;
}

void rows_of_gpu_page(const KvPageShape& shape, ByteView gpu, std::span<std::byte> rows) {
    for_each_piece(shape, [&](std::size_t row, std::size_t at, std::size_t bytes) {
        std::memcpy(rows.data() + row, gpu.data() + at, bytes);
    });
}

void gpu_page_of_rows(const KvPageShape& shape, ByteView rows, std::span<std::byte> gpu) {
    for_each_piece(shape, [&](std::size_t row, std::size_t at, std::size_t bytes) {
        std::memcpy(gpu.data() + at, rows.data() + row, bytes);
    });
}

}  // namespace moex
