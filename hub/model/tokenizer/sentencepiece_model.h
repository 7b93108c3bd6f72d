// A vocabulary of SentencePiece, as its file (sentencepiece_model.proto) or the arrays of a GGUF
// file have it, and the tokenizer.json that is made of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/result.h"

namespace moex {

// The numbers are those of both formats.
enum class PieceType { normal = 1, unknown, control, user_defined, unused, byte };
struct SentencePiece {
    std::string text;  // UTF-8, with U+2581 for a space
    float score = 0;
    PieceType type = PieceType::normal;
};

struct SentencePieceModel {
    std::vector<SentencePiece> pieces;  // by token id
    std::uint64_t model_type = 1;       // 1: Unigram, 2: BPE
    bool byte_fallback = false;
    std::string charsmap;  // the precompiled normalisation; empty: none
    // a space before the first word; several spaces count as one
    bool dummy_prefix = true, removes_extra_spaces = true;

    bool is_bpe() const { return model_type == 2; }
    // Adds a piece. Refuses a piece that is empty, too long, no UTF-8, or has no finite score.
    Status add(SentencePiece piece);
};

// Reads a file of SentencePiece, a protocol buffer.
Result<SentencePieceModel> read_sentencepiece_file(std::string_view file);
// Makes a tokenizer.json. tokenizer_config.json, which may be empty, says which tokens are added to
// a prompt. Merges are in the order that transformers gives them (convert_slow_tokenizer.py): by
// the score of the merged piece.
Result<std::string> tokenizer_json_of_pieces(const SentencePieceModel& model,
                                             std::string_view tokenizer_config_json);

}  // namespace moex
