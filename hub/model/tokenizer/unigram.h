// UnigramModel: the segmentation of a text whose tokens have the highest sum of scores (log
// probabilities), found with Viterbi's algorithm. A UnigramModel is immutable. encode_piece() costs
// O(n * longest token). Source: Kudo, "Subword Regularization", 2018; SentencePiece.
#pragma once

#include <array>
#include <memory>

#include <nlohmann/json.hpp>

#include "hub/model/tokenizer/token_model.h"
#include "protocol/result.h"

namespace moex {

class UnigramModel : public TokenModel {
  public:
    // Loads a Unigram model. `model` is the object "model" of tokenizer.json.
    static Result<std::unique_ptr<UnigramModel>> load(const nlohmann::json& model);

    void encode_piece(std::string_view piece, std::vector<TokenId>& out) const override;
    const std::string* bytes_of(TokenId id) const override;
    std::optional<TokenId> find_token(std::string_view token) const override;
    std::size_t id_end() const override { return tokens_.size(); }
    void exclude(const std::set<TokenId>& ids) override;

  private:
    // The best segmentation that ends at a position of the text.
    struct Node {
        double score = 0;
        std::size_t begin = 0;  // where the last token of the segmentation begins
        TokenId id = 0;
        bool reached = false, known = false;
    };
    void offer_tokens(std::string_view piece, std::size_t begin, std::vector<Node>& nodes) const;
    void append_unknown(std::string_view text, std::vector<TokenId>& out) const;
    void index();

    std::vector<std::string> tokens_;  // by id
    std::vector<double> scores_;       // by id
    std::vector<TokenId> sorted_;      // ids of the tokens that a text may have, by their bytes
    std::array<std::size_t, 257>
        first_{};  // first_[b]: the first token in `sorted_` from byte b on
    std::set<TokenId> excluded_;
    std::optional<TokenId> unknown_id_;
    double unknown_score_ = 0;
    std::vector<std::optional<TokenId>> id_by_byte_;  // [256], or empty without byte_fallback
};

}  // namespace moex
