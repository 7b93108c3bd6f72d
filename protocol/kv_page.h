// KvPage: the keys and values of a stretch of a text, as bytes that may leave the process that
// computed them. The header names everything that the bits of the rows follow from, so that a
// reader can refuse rows that it would not have computed itself. The bytes are in
// protocol/PROTOCOL.md, "Pages of keys and values".
//   text 5 9 2 7 7 1, pages of 4 tokens: page {first_position 0, tokens 5 9 2 7} and
//   page {first_position 4, tokens 7 1, before = SHA-256 of the tokens 5 9 2 7}
// The rows have one layout, whichever device computed them: for each layer, the keys, then the
// values, each [num_kv_heads, num_tokens] stored heads of kv_row_bytes().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/bytes.h"
#include "protocol/result.h"
#include "protocol/rope.h"
#include "protocol/sha256.h"

namespace moex {

// The stored form of one head of one token.
enum class KvRowType : std::uint8_t {
    f32 = 1,
    f16 = 2,   // padded to a multiple of 4 bytes
    int8 = 3,  // f32 scale for each 32 values; then s8 codes, padded to a multiple of 4 bytes
    u8 = 4,    // u8 codes, padded to a multiple of 4 bytes; then f16 scale, f16 zero
};

// The arithmetic that computed the rows. Rows of two arithmetics differ in their last bits.
enum class KvArithmetic : std::uint8_t {
    exact = 1,    // f32 on a hub's cores
    integer = 2,  // products of 8-bit integers on a hub's cores
    gpu = 3,      // the kernels of wgsl/decoder, in a hub or in a tab
};

// The form of the weights with which the hub's part of the model computed.
enum class KvWeights : std::uint8_t { package = 1, int8 = 2, int6 = 3, int4 = 4 };

// How the experts' inputs and answers were rounded. `f32` rounds neither, but fixes the order of
// sums, which `any` does not.
enum class KvRounding : std::uint8_t { any = 1, f16 = 2, bf16 = 3, int8 = 4, f32 = 5 };

// Everything, except the text, that determines the rows of a page. Pages with one equal KvSource
// are exchangeable.
struct KvSource {
    Sha256 model{};  // SHA-256 of manifest.json
    Sha256 texts{};  // SHA-256 of tokenizer.json, then tokenizer_config.json
    KvArithmetic arithmetic = KvArithmetic::exact;
    KvWeights weights = KvWeights::package;
    KvRounding rounding = KvRounding::any;
    KvRowType row_type = KvRowType::f32;
    // layers [first_layer, end_layer), counted among those with keys and values
    std::uint32_t first_layer = 0, end_layer = 0;
    std::uint32_t num_kv_heads = 0, head_dim = 0;
    std::uint32_t rotary_size = 0;  // values of a head that RoPE rotates
    double rope_base = 0;
    RopeScaling rope_scaling;
    double norm_epsilon = 0;
    std::uint32_t window = 0;       // positions that a layer attends to; 0: all
    std::uint32_t page_tokens = 0;  // tokens of a full page
};

// The layers of which a page has rows. Where some layers see a window only, a page may be kept in
// two parts, because rows behind all windows are of no use. `state`: the page has a recurrent state
// and no rows, so that the state can be kept, and leave, without the rows.
enum class KvPart : std::uint16_t { whole = 0, without_window = 1, with_window = 2, state = 3 };

struct KvPage {
    KvSource source;
    KvPart part = KvPart::whole;
    Sha256 before{};  // SHA-256 of all tokens before first_position, each as u32
    std::uint32_t first_position = 0;
    std::vector<std::uint32_t> tokens;  // 1 to page_tokens
    // Names of the workers that computed experts for the rows: their public keys or chosen keys.
    std::vector<std::string> workers;
    // Recurrent state after the last token of the page: for each layer with a gated delta rule, f32
    // [value_heads, key_dim, value_dim], then the latest inputs of its convolution, the oldest
    // first, [conv_taps - 1, channels]. Empty if the model has attention only, or if the state was
    // not kept: then the text goes on behind a later page.
    ByteView state;
    ByteView rows;  // borrowed
};

// Limits of a page; encode_kv_page() requires them and decode_kv_page() refuses what exceeds them.
inline constexpr std::uint32_t kv_page_tokens_max = 4096, kv_page_layers_max = 4096,
                               kv_page_heads_max = 4096, kv_page_head_dim_max = 4096,
                               kv_page_workers_max = 4096, kv_page_worker_bytes_max = 255;

// Returns the bytes of one stored head of one token.
std::uint64_t kv_row_bytes(KvRowType type, std::uint32_t head_dim);
// Returns the bytes of the rows of `num_tokens` tokens.
std::uint64_t kv_rows_bytes(const KvSource& source, std::uint32_t num_tokens);

Bytes encode_kv_page(const KvPage& page);
// Errors: bad_magic, unsupported_version, unknown_flags (another part than `part`), payload_size,
// bad_file (checksum), and bad_field, whose message names the field. The rows of a part are those
// of a whole number of layers; the caller compares their size. The result borrows from `bytes`.
Result<KvPage> decode_kv_page(ByteView bytes, KvPart part = KvPart::whole);

// Returns the fields of a source as a page has them: bytes 28 to 167.
Bytes kv_source_bytes(const KvSource& source);

// Returns an error that names the first field in which `found` differs from `wanted`, with both
// values. Error: bad_field.
Status require_source(const KvSource& found, const KvSource& wanted);

}  // namespace moex
