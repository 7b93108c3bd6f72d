// BpeModel: byte-pair merges over a pre-token, and the vocabulary of the resulting tokens. The
// first symbols are the raw bytes of the pre-token (GPT-2's byte alphabet), or its characters
// (SentencePiece), where a character that the vocabulary lacks becomes the tokens of its bytes. A
// BpeModel is immutable except for a bounded cache, which has its own locks. encode_piece() is
// thread-safe and costs O(n log n). Source: Sennrich et al., "Neural Machine Translation of Rare
// Words with Subword Units", 2016; Kudo and Richardson, "SentencePiece", 2018.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/token_id.h"
#include "hub/model/tokenizer/token_model.h"
#include "protocol/result.h"

namespace moex {

// Converts a token from the byte alphabet to raw bytes: "Ġhello" becomes " hello". Returns nullopt
// if a character is not in the byte alphabet.
std::optional<std::string> byte_level_to_bytes(std::string_view token);
// Converts raw bytes to a token in the byte alphabet: " hello" becomes "Ġhello".
std::string bytes_to_byte_level(std::string_view bytes);

enum class BpeAlphabet { bytes, characters };

class BpeModel : public TokenModel {
  public:
    // Loads a BPE model. `model` is the object "model" of tokenizer.json.
    static Result<std::unique_ptr<BpeModel>> load(const nlohmann::json& model,
                                                  BpeAlphabet alphabet);
    ~BpeModel() override;

    void encode_piece(std::string_view piece, std::vector<TokenId>& out) const override;
    const std::string* bytes_of(TokenId id) const override;
    std::optional<TokenId> find_token(std::string_view token) const override;
    std::size_t id_end() const override { return bytes_by_id_.size(); }
    void exclude(const std::set<TokenId>& ids) override;
    // Returns true if the vocabulary has a token for every byte, so that any text has tokens.
    bool has_every_byte() const;
    // Sets the token that replaces a byte or a character which the vocabulary lacks. If no token
    // was set, it is omitted. `fuse`: a run of unknown characters becomes one such token.
    void set_unknown(TokenId id, bool fuse) { unknown_id_ = id, fuses_unknown_ = fuse; }

  private:
    struct Merge {
        std::uint32_t rank;
        TokenId merged;
    };
    struct Cache;
    explicit BpeModel(BpeAlphabet alphabet);
    Status load_vocab(const nlohmann::json& vocab);
    void index_token(const std::string& token, TokenId id);
    Status load_merges(const nlohmann::json& merges);
    const Merge* find_merge(TokenId left, TokenId right) const;
    std::vector<TokenId> ids_of_bytes(std::string_view piece) const;
    std::vector<TokenId> ids_of_characters(std::string_view piece) const;
    bool append_bytes(std::string_view character, std::vector<TokenId>& out) const;
    void encode_word(std::string_view word, std::vector<TokenId>& out) const;
    void merge(std::vector<TokenId>& symbols) const;
    void merge_short(std::vector<TokenId>& symbols) const;
    void merge_long(std::vector<TokenId>& symbols) const;

    std::unordered_map<std::string, TokenId> id_by_token_;
    std::unordered_map<std::string, TokenId> id_by_bytes_;
    std::vector<std::optional<std::string>> bytes_by_id_;
    // [256]; in the alphabet of characters these are the tokens "<0x00>" to "<0xFF>"
    std::vector<std::optional<TokenId>> id_by_byte_;
    std::unordered_map<char32_t, TokenId> id_by_character_;
    std::unordered_map<std::uint64_t, Merge> merges_;  // key: left token id << 32 | right token id
    std::optional<TokenId> unknown_id_;
    BpeAlphabet alphabet_;
    bool ignore_merges_ = false, byte_fallback_ = false, fuses_unknown_ = false;
    // true: no token goes on behind a "▁" that follows another character, so that the words of a
    // text can be encoded one by one
    bool words_are_separate_ = false;
    std::unique_ptr<Cache> cache_;
};

}  // namespace moex
