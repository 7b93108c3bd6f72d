// The parts of a loaded Tokenizer. Only tokenizer.cpp (encoding, decoding) and tokenizer_load.cpp
// (reading the files) include this header.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hub/model/tokenizer/added_tokens.h"
#include "hub/model/tokenizer/normalizer.h"
#include "hub/model/tokenizer/piece_decoder.h"
#include "hub/model/tokenizer/pre_tokenizer.h"
#include "hub/model/tokenizer/token_model.h"
#include "hub/model/tokenizer/tokenizer_json.h"

namespace moex {

class BpeModel;

struct TokenizerState {
    std::unique_ptr<TokenModel> model;
    BpeModel* bpe = nullptr;  // `model` if it is a BPE model; used while loading
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    // The texts of all tokens, by id, where a decoder changes them; empty for byte-level tokens.
    std::vector<std::string> decoded;
    LeadingTrim trim;  // what decoding removes at the begin of a text
    tokenizer_json::AddedIds around_prompt;
    std::vector<AddedToken> added;
    std::map<TokenId, std::size_t> added_by_id;
    std::map<std::string, std::size_t, std::less<>> added_by_content;
    AddedTokenMatcher raw_matcher;         // before normalisation
    AddedTokenMatcher normalized_matcher;  // after it
    std::size_t id_end = 0;

    // Loading; the order is that of Tokenizer::load().
    Status load_model(const nlohmann::json& file);
    Status load_added(const nlohmann::json& list);
    Status add(AddedToken token);
    Status read_config(const nlohmann::json& config);
    Status add_ids_of_config(const nlohmann::json& config);
    Status load_unknown(const nlohmann::json& model);
    void finish_added();
    void decode_pieces(const PieceDecoder& decoder);

    std::optional<TokenId> token_id(std::string_view token) const;
    // Returns what a token adds to a text; nullptr for an unknown id.
    const std::string* bytes_of(TokenId id) const;

    template <class Accept, class OnText>
    void split_added(const AddedTokenMatcher& matcher, std::string_view text, const Accept& accept,
                     std::vector<TokenId>& out, const OnText& on_text) const;
    void encode_section(std::string_view text, bool first, std::vector<TokenId>& out) const;
    template <class Accept>
    std::vector<TokenId> encode(std::string_view text, bool control_in_normalized,
                                const Accept& accept) const;
};

}  // namespace moex
