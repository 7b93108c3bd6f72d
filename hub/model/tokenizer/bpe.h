// BpeModel: byte-pair merges over the raw bytes of a pre-token, and the vocabulary of the resulting
// tokens. A BpeModel is immutable except for a bounded cache, which has its own locks.
// encode_piece() is thread-safe and costs O(n log n). Source: Sennrich et al., "Neural Machine
// Translation of Rare Words with Subword Units", 2016; GPT-2's byte alphabet.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/token_id.h"
#include "protocol/result.h"

namespace moex {

// Converts a token from the byte alphabet to raw bytes: "Ġhello" becomes " hello". Returns nullopt
// if a character is not in the byte alphabet.
std::optional<std::string> byte_level_to_bytes(std::string_view token);

class BpeModel {
  public:
    // Loads a BPE model. `model` is the object "model" of tokenizer.json.
    static Result<BpeModel> load(const nlohmann::json& model);
    BpeModel(BpeModel&&) noexcept;
    BpeModel& operator=(BpeModel&&) noexcept;
    ~BpeModel();

    // Appends the token ids of a pre-token to `out`. `bytes` are the raw bytes of the pre-token.
    void encode_piece(std::string_view bytes, std::vector<TokenId>& out) const;

    // Returns the raw bytes of a token id; nullptr for an id that is not in the vocabulary.
    const std::string* bytes_of(TokenId id) const;
    // Returns the id of a token that is spelled as in tokenizer.json.
    std::optional<TokenId> find_token(std::string_view token) const;
    std::size_t id_end() const { return bytes_by_id_.size(); }
    bool has_every_byte() const;
    // Sets the token that replaces a byte which the vocabulary lacks. If no token was set, such a
    // byte is omitted.
    void set_unknown(TokenId id) { unknown_id_ = id; }

  private:
    struct Merge {
        std::uint32_t rank;
        TokenId merged;
    };
    struct Cache;
    BpeModel();
    Status load_vocab(const nlohmann::json& vocab);
    Status load_merges(const nlohmann::json& merges);
    const Merge* find_merge(TokenId left, TokenId right) const;
    void merge_short(std::vector<TokenId>& symbols) const;
    void merge_long(std::vector<TokenId>& symbols) const;

    std::unordered_map<std::string, TokenId> id_by_token_;
    std::unordered_map<std::string, TokenId> id_by_bytes_;
    std::vector<std::optional<std::string>> bytes_by_id_;
    std::vector<std::optional<TokenId>> id_by_byte_;   // [256]
    std::unordered_map<std::uint64_t, Merge> merges_;  // key: left token id << 32 | right token id
    std::optional<TokenId> unknown_id_;
    bool ignore_merges_ = false;
    std::unique_ptr<Cache> cache_;
};

}  // namespace moex
