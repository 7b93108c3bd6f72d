// Converts a page of keys and values between the layout of a GPU's cache (wgsl/decoder/
// rope_store.wgsl) and the layout that leaves a process (protocol/kv_page.h). Both have the same
// values, so no bit is lost.
//   f32, f16  GPU: keys with the token innermost: four values of 128 tokens, then the next four;
//             values token by token. Rows: both token by token.
//   u8        GPU: codes in that order, then a word of f16 scale and zero for each head and token.
//             Rows: the word behind the codes of its head.
#pragma once

#include <cstdint>
#include <span>

#include "protocol/bytes.h"
#include "web-worker/decoder/decoder_model.h"

namespace moex {

struct KvPageShape {
    KvKind kind = KvKind::f32;
    std::uint32_t num_layers = 0, num_kv_heads = 0, head_dim = 0;
};
KvPageShape kv_page_shape(const DecoderModel& model, KvKind kind);

// Returns the bytes of a page's rows; the GPU's page, of all layers with keys, has as many.
std::uint64_t kv_rows_of_page(const KvPageShape& shape);

// Convert a page. `gpu` has the page of layer 0, then that of layer 1 and so on; both spans have
// kv_rows_of_page() bytes.
void rows_of_gpu_page(const KvPageShape& shape, ByteView gpu, std::span<std::byte> rows);
void gpu_page_of_rows(const KvPageShape& shape, ByteView rows, std::span<std::byte> gpu);

}  // namespace moex
