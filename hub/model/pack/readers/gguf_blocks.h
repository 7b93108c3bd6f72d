// The element types of GGUF files and their decoders. A row is a number of blocks; a block has its
// own scales.
// Source: the GGUF description and the block structures of ggml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moex {

struct GgufType {
    std::uint32_t id = 0;
    const char* name = "";
    // elements and bytes of a block; 0 elements: no decoder for this type
    std::uint32_t block_elements = 0, block_bytes = 0;
};
// Returns the type with this id, or nullptr if ggml has none.
const GgufType* find_gguf_type(std::uint32_t id);
// Returns the names of the types that can be read, with commas between them.
std::string readable_gguf_types();

// Decodes whole blocks to out, whose size is a multiple of type.block_elements.
void decode_gguf_blocks(const GgufType& type, const std::byte* blocks, std::span<float> out);

// Converts blocks of Q4_0 to the INT4 groups of an expert blob: codes [out / 8] words, and one word
// of scale and zero (8) per block.
void gguf_q4_0_to_int4(const std::byte* blocks, std::size_t num_blocks, std::uint32_t* codes,
                       std::uint32_t* scale_zero);
// Converts blocks of MXFP4 to those of an expert blob: 16 bytes of codes and one scale per block.
void gguf_mxfp4_to_rows(const std::byte* blocks, std::size_t num_blocks, std::byte* codes,
                        std::byte* scales);

}  // namespace moex
