#include "hub/model/tokenizer/unigram.h"

#include <algorithm>
#include <cmath>

#include "hub/model/tokenizer/tokenizer_json.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

using namespace tokenizer_json;

constexpr std::size_t token_bytes_max = 1024;
// An unknown character scores so much less than the worst token.
constexpr double unknown_penalty = 10;

}  // namespace

Result<std::unique_ptr<UnigramModel>> UnigramModel::load(const nlohmann::json& model) {
    const nlohmann::json& vocab = member(model, "vocab");
    if (!vocab.is_array() || vocab.empty())
        return bad_file("model.vocab of a Unigram model is not a list of pairs");
    if (vocab.size() > vocab_tokens_max)
        return bad_file(
            text("model.vocab has ", vocab.size(), " tokens, wanted at most ", vocab_tokens_max));

    auto unigram = std::make_unique<UnigramModel>();
    for (const nlohmann::json& entry : vocab) {
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
            !entry[1].is_number() || !std::isfinite(entry[1].get<double>()))
            return bad_file(
                text("model.vocab has ", json_excerpt(entry), ", wanted a token and its score"));
        unigram->tokens_.push_back(entry[0].get<std::string>());
        unigram->scores_.push_back(entry[1].get<double>());
        if (unigram->tokens_.back().size() > token_bytes_max)
            return bad_file(text("model.vocab has a token of ", unigram->tokens_.back().size(),
                                 " bytes, wanted at most ", token_bytes_max));
    }

    Fields fields = fields_of(model, "model");
    std::int64_t unk_id = -1;
    bool byte_fallback = false;
    fields.whole("unk_id", 0, static_cast<std::int64_t>(vocab.size()) - 1, unk_id);
    fields.boolean("byte_fallback", byte_fallback);
    if (fields.problem()) return *fields.problem();

    if (unk_id >= 0) unigram->unknown_id_ = static_cast<TokenId>(unk_id);
    unigram->unknown_score_ = *std::min_element(unigram->scores_.begin(), unigram->scores_.end()) -
                              unknown_penalty;
    if (byte_fallback) {
        unigram->id_by_byte_.resize(256);
        for (TokenId id = 0; id < unigram->tokens_.size(); ++id)
            if (const auto byte = byte_of_token(unigram->tokens_[id]))
                unigram->id_by_byte_[*byte] = id;
    }

    unigram->index();
    return unigram;
}

// Sorts the tokens that a text may have. The tokens of bytes are for unknown characters alone.
void UnigramModel::index() {
    sorted_.clear();
    for (TokenId id = 0; id < tokens_.size(); ++id) {
        const bool is_byte = !id_by_byte_.empty() && byte_of_token(tokens_[id]).has_value();
        if (!tokens_[id].empty() && !is_byte && id != unknown_id_ && !excluded_.contains(id))
            sorted_.push_back(id);
    }

    // Of equal tokens the last one counts, as in a map that is filled in this order.
    std::sort(sorted_.begin(), sorted_.end(), [&](TokenId a, TokenId b) {
        return tokens_[a] != tokens_[b] ? tokens_[a] < tokens_[b] : a > b;
    });
    sorted_.erase(std::unique(sorted_.begin(), sorted_.end(),
                              [&](TokenId a, TokenId b) { return tokens_[a] == tokens_[b]; }),
                  sorted_.end());
    for (std::size_t byte = 0; byte <= 256; ++byte)
        first_[byte] = static_cast<std::size_t>(
            std::partition_point(
                sorted_.begin(), sorted_.end(),
                [&](TokenId id) { return static_cast<std::uint8_t>(tokens_[id][0]) < byte; }) -
            sorted_.begin());
}

void UnigramModel::exclude(const std::set<TokenId>& ids) {
    excluded_ = ids;
    index();
}

const std::string* UnigramModel::bytes_of(TokenId id) const {
    return id < tokens_.size() ? &tokens_[id] : nullptr;
}

std::optional<TokenId> UnigramModel::find_token(std::string_view token) const {
    const auto found = std::partition_point(sorted_.begin(), sorted_.end(),
                                            [&](TokenId id) { return tokens_[id] < token; });
    if (found != sorted_.end() && tokens_[*found] == token) return *found;

    // Control tokens and bytes are not in the sorted list.
    const auto listed = std::find(tokens_.begin(), tokens_.end(), token);
    if (listed == tokens_.end()) return std::nullopt;
    return static_cast<TokenId>(listed - tokens_.begin());
}

// Offers every token that begins at `begin` to the position where it ends.
void UnigramModel::offer_tokens(std::string_view piece, std::size_t begin,
                                std::vector<Node>& nodes) const {
    const auto offer = [&](std::size_t end, double score, TokenId id, bool known) {
        Node& node = nodes[end];
        const double sum = nodes[begin].score + score;
        // Of equal sums the one whose last token begins first counts.
        if (!node.reached || sum > node.score) node = {sum, begin, id, true, known};
    };

    // [low, high) are the tokens that begin with the bytes from `begin` to `at`.
    const std::size_t character = utf8_step(piece, begin).num_bytes;
    const auto first = static_cast<std::uint8_t>(piece[begin]);
    auto low = sorted_.begin() + static_cast<std::ptrdiff_t>(first_[first]);
    auto high = sorted_.begin() + static_cast<std::ptrdiff_t>(first_[first + std::size_t{1}]);
    bool has_character = false;
    for (std::size_t length = 1; low != high; ++length) {
        if (tokens_[*low].size() == length) {
            offer(begin + length, scores_[*low], *low, true);
            has_character |= length == character;
            ++low;
        }
        if (begin + length == piece.size()) break;
        const auto next = static_cast<std::uint8_t>(piece[begin + length]);
        const auto byte_of = [&](TokenId id) {
            return static_cast<std::uint8_t>(tokens_[id][length]);
        };
        low = std::partition_point(low, high, [&](TokenId id) { return byte_of(id) < next; });
        high = std::partition_point(low, high, [&](TokenId id) { return byte_of(id) == next; });
    }

    if (!has_character) offer(begin + character, unknown_score_, 0, false);
}

void UnigramModel::append_unknown(std::string_view text, std::vector<TokenId>& out) const {
    const auto known = [&](char c) {
        return id_by_byte_[static_cast<std::uint8_t>(c)].has_value();
    };
    if (!id_by_byte_.empty() && std::all_of(text.begin(), text.end(), known)) {
        for (const char c : text) out.push_back(*id_by_byte_[static_cast<std::uint8_t>(c)]);
    } else if (unknown_id_) {
        out.push_back(*unknown_id_);
    }
}

void UnigramModel::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
    if (piece.empty()) return;
    std::vector<Node> nodes(piece.size() + 1);
    nodes[0].reached = true;
    for (std::size_t at = 0; at < piece.size(); at += utf8_step(piece, at).num_bytes)
        offer_tokens(piece, at, nodes);

    // Walk from the end to the begin; `path` has the ends of the tokens.
    std::vector<std::size_t> path;
    for (std::size_t end = piece.size(); end > 0; end = nodes[end].begin) path.push_back(end);
    for (auto end = path.rbegin(); end != path.rend(); ++end) {
        if (nodes[*end].known) {
            out.push_back(nodes[*end].id);
            continue;
        }
        // Join a run of unknown characters.
        const std::size_t begin = nodes[*end].begin;
        while (std::next(end) != path.rend() && !nodes[*std::next(end)].known) ++end;
        append_unknown(piece.substr(begin, *end - begin), out);
    }
}

}  // namespace moex
