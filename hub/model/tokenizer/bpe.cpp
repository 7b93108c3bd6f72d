#include "hub/model/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <mutex>
#include <queue>
#include <shared_mutex>

#include "hub/model/tokenizer/utf8.h"

namespace moex {
namespace {

// for pieces up to this length, a scan for the next merge is faster than a heap
constexpr std::size_t short_piece_bytes = 48;
constexpr std::size_t cached_piece_bytes_max = 64;
constexpr std::string_view word_begin = "\u2581";  // SentencePiece's sign for a space
constexpr std::size_t cache_shards = 16;
constexpr std::size_t cache_shard_entries_max = 2048;

// GPT-2's byte alphabet, which writes each byte as a character. A byte that is a printable Latin-1
// character represents itself. The other bytes have the characters from U+0100 on.
struct ByteAlphabet {
    std::array<int, 512> byte_of{};
    std::array<char32_t, 256> character_of{};
    ByteAlphabet() {
        byte_of.fill(-1);
        int next = 256;
        for (int byte = 0; byte < 256; ++byte) {
            const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                                   (byte >= 0xAE && byte <= 0xFF);
            const int character = printable ? byte : next++;
            byte_of[static_cast<std::size_t>(character)] = byte;
            character_of[static_cast<std::size_t>(byte)] = static_cast<char32_t>(character);
        }
    }
};

std::uint64_t pair_key(TokenId left, TokenId right) { return (std::uint64_t{left} << 32) | right; }

// Returns true if a token has a "▁" after another character.
bool begins_word_inside(std::string_view token) {
    for (std::size_t at = 1; (at = token.find(word_begin, at)) != std::string_view::npos; ++at)
        if (!token.substr(0, at).ends_with(word_begin)) return true;
    return false;
}

Error bad_model(const std::string& message) {
    return {ErrorCode::bad_file,
            text("tokenizer.json: ", std::string_view(message).substr(0, 300))};
}

}  // namespace

std::optional<std::string> byte_level_to_bytes(std::string_view token) {
    static const ByteAlphabet alphabet;
    std::string bytes;
    for (std::size_t at = 0; at < token.size();) {
        const Utf8Step step = utf8_step(token, at);
        at += step.num_bytes;
        if (!step.valid || step.code_point >= alphabet.byte_of.size() ||
            alphabet.byte_of[step.code_point] < 0)
            return std::nullopt;
        bytes += static_cast<char>(alphabet.byte_of[step.code_point]);
    }

    return bytes;
}

std::string bytes_to_byte_level(std::string_view bytes) {
    static const ByteAlphabet alphabet;
    std::string token;
    for (const char byte : bytes)
        utf8_append(token, alphabet.character_of[static_cast<std::uint8_t>(byte)]);
    return token;
}

// A cache that maps recently used pieces of text to their token ids. When a shard of the cache is
// full, it is cleared completely. Pieces follow Zipf's law, so the frequent pieces are cached again
// soon.
struct BpeModel::Cache {
    struct Shard {
        std::shared_mutex mutex;
        std::unordered_map<std::string, std::vector<TokenId>> ids;
    };
    std::array<Shard, cache_shards> shards;

    Shard& shard_of(const std::string& piece) {
        return shards[std::hash<std::string>{}(piece) % cache_shards];
    }
    bool find(const std::string& piece, std::vector<TokenId>& out) {
        Shard& shard = shard_of(piece);
        const std::shared_lock lock(shard.mutex);
        const auto found = shard.ids.find(piece);
        if (found == shard.ids.end()) return false;
        out.insert(out.end(), found->second.begin(), found->second.end());
        return true;
    }
    void put(const std::string& piece, std::vector<TokenId> ids) {
        Shard& shard = shard_of(piece);
        const std::unique_lock lock(shard.mutex);
        if (shard.ids.size() >= cache_shard_entries_max) shard.ids.clear();
        shard.ids.insert_or_assign(piece, std::move(ids));
    }
};

BpeModel::BpeModel(BpeAlphabet alphabet) : alphabet_(alphabet), cache_(std::make_unique<Cache>()) {}
BpeModel::~BpeModel() = default;

Result<std::unique_ptr<BpeModel>> BpeModel::load(const nlohmann::json& model,
                                                 BpeAlphabet alphabet) {
    for (const char* key : {"dropout", "continuing_subword_prefix", "continuing_subword_suffix",
                            "end_of_word_suffix", "byte_fallback"}) {
        if (alphabet == BpeAlphabet::characters && key == std::string_view("byte_fallback"))
            continue;
        const auto value = model.find(key);
        if (value != model.end() && !value->is_null() && *value != "" && *value != 0 &&
            *value != false)
            return Error{ErrorCode::unsupported,
                         text("tokenizer.json: model.", key,
                              " is not supported; wanted byte-level BPE without it")};
    }

    if (!model.contains("vocab") || !model["vocab"].is_object())
        return bad_model("model.vocab is not an object");
    if (!model.contains("merges") || !model["merges"].is_array())
        return bad_model("model.merges is not a list");

    std::unique_ptr<BpeModel> bpe(new BpeModel(alphabet));
    bpe->ignore_merges_ = model.contains("ignore_merges") && model["ignore_merges"] == true;
    bpe->byte_fallback_ = model.contains("byte_fallback") && model["byte_fallback"] == true;
    MOEX_TRY(bpe->load_vocab(model["vocab"]));
    bpe->words_are_separate_ = !bpe->ignore_merges_ && bpe->id_by_character_.contains(U'\u2581');
    MOEX_TRY(bpe->load_merges(model["merges"]));

    return bpe;
}

Status BpeModel::load_vocab(const nlohmann::json& vocab) {
    if (vocab.size() > vocab_tokens_max)
        return bad_model(
            text("model.vocab has ", vocab.size(), " tokens, wanted at most ", vocab_tokens_max));

    id_by_byte_.resize(256);
    for (const auto& [token, id_json] : vocab.items()) {
        if (!id_json.is_number_unsigned() || id_json.get<std::uint64_t>() > token_id_max)
            return bad_model(
                text("the id of \"", token, "\" is not a number from 0 to ", token_id_max));

        const TokenId id = id_json.get<TokenId>();
        if (bytes_by_id_.size() <= id) bytes_by_id_.resize(id + 1);
        if (bytes_by_id_[id]) return bad_model(text("two tokens have the id ", id));

        index_token(token, id);
        id_by_token_.emplace(token, id);
    }

    return {};
}

void BpeModel::index_token(const std::string& token, TokenId id) {
    if (alphabet_ == BpeAlphabet::characters) {
        const Utf8Step step = utf8_step(token, 0);
        if (step.valid && step.num_bytes > 0 && step.num_bytes == token.size())
            id_by_character_.emplace(step.code_point, id);
        if (const auto byte = byte_of_token(token); byte && byte_fallback_) id_by_byte_[*byte] = id;
        bytes_by_id_[id] = token;
        return;
    }

    std::optional<std::string> bytes = byte_level_to_bytes(token);
    if (bytes) {
        id_by_bytes_.emplace(*bytes, id);
        if (bytes->size() == 1) id_by_byte_[static_cast<std::uint8_t>((*bytes)[0])] = id;
    }

    // A token with characters outside the byte alphabet (a control token in the vocabulary)
    // represents its own text.
    bytes_by_id_[id] = std::move(bytes).value_or(token);
}

Status BpeModel::load_merges(const nlohmann::json& merges) {
    std::uint32_t rank = 0;
    for (const nlohmann::json& entry : merges) {
        std::string left, right;
        if (entry.is_string()) {
            const std::string& line = entry.get_ref<const std::string&>();
            const std::size_t space = line.find(' ');
            if (space == std::string::npos)
                return bad_model(text("merge ", rank, " is not a pair"));
            left = line.substr(0, space), right = line.substr(space + 1);
        } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() &&
                   entry[1].is_string()) {
            left = entry[0].get<std::string>(), right = entry[1].get<std::string>();
        } else {
            return bad_model(text("merge ", rank, " is not a pair of strings"));
        }

        const auto left_id = find_token(left), right_id = find_token(right),
                   merged_id = find_token(left + right);
        if (!left_id || !right_id || !merged_id)
            return bad_model(text("merge ", rank, " (\"", left, "\", \"", right,
                                  "\") names a token that the vocabulary lacks"));

        merges_.insert_or_assign(pair_key(*left_id, *right_id), Merge{rank, *merged_id});
        if (words_are_separate_ && right.find(word_begin) != std::string::npos &&
            begins_word_inside(left + right))
            words_are_separate_ = false;
        ++rank;
    }

    return {};
}

bool BpeModel::has_every_byte() const {
    return std::all_of(id_by_byte_.begin(), id_by_byte_.end(),
                       [](const std::optional<TokenId>& id) { return id.has_value(); });
}

const std::string* BpeModel::bytes_of(TokenId id) const {
    return id < bytes_by_id_.size() && bytes_by_id_[id] ? &*bytes_by_id_[id] : nullptr;
}

std::optional<TokenId> BpeModel::find_token(std::string_view token) const {
    const auto found = id_by_token_.find(std::string(token));
    return found == id_by_token_.end() ? std::nullopt : std::optional(found->second);
}

const BpeModel::Merge* BpeModel::find_merge(TokenId left, TokenId right) const {
    const auto found = merges_.find(pair_key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
}

void BpeModel::exclude(const std::set<TokenId>& ids) {
    // With a byte alphabet the ids of all existing models stay as they are: their control tokens
    // are no results of merges.
    if (alphabet_ == BpeAlphabet::bytes) return;
    std::erase_if(merges_, [&](const auto& entry) { return ids.contains(entry.second.merged); });
    std::erase_if(id_by_character_, [&](const auto& entry) { return ids.contains(entry.second); });
    if (!ignore_merges_) return;
    for (TokenId id = 0; id < bytes_by_id_.size(); ++id)
        if (bytes_by_id_[id] && !ids.contains(id)) id_by_bytes_.emplace(*bytes_by_id_[id], id);
}

void BpeModel::encode_piece(std::string_view piece, std::vector<TokenId>& out) const {
    if (!words_are_separate_) return encode_word(piece, out);

    std::size_t start = 0;
    for (std::size_t at = 0; (at = piece.find(word_begin, at)) != std::string_view::npos;) {
        if (at > start && !piece.substr(start, at - start).ends_with(word_begin)) {
            encode_word(piece.substr(start, at - start), out);
            start = at;
        }
        at += word_begin.size();
    }
    encode_word(piece.substr(start), out);
}

void BpeModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
    if (word.empty()) return;
    const std::string piece(word);
    const bool cacheable = word.size() > 1 && word.size() <= cached_piece_bytes_max;
    if (cacheable && cache_->find(piece, out)) return;

    std::vector<TokenId> symbols;
    const auto whole = ignore_merges_ ? id_by_bytes_.find(piece) : id_by_bytes_.end();
    if (whole != id_by_bytes_.end())
        symbols.push_back(whole->second);
    else
        symbols = alphabet_ == BpeAlphabet::bytes ? ids_of_bytes(word) : ids_of_characters(word);

    out.insert(out.end(), symbols.begin(), symbols.end());
    if (cacheable) cache_->put(piece, std::move(symbols));
}

std::vector<TokenId> BpeModel::ids_of_bytes(std::string_view piece) const {
    std::vector<TokenId> symbols;
    symbols.reserve(piece.size());
    for (const char c : piece) {
        const auto& id = id_by_byte_[static_cast<std::uint8_t>(c)];
        if (id) {
            symbols.push_back(*id);
        } else if (unknown_id_) {
            symbols.push_back(*unknown_id_);
        }
    }
    merge(symbols);
    return symbols;
}

std::vector<TokenId> BpeModel::ids_of_characters(std::string_view piece) const {
    std::vector<TokenId> ids, symbols;
    symbols.reserve(piece.size());
    const auto merge_symbols = [&] {
        merge(symbols);
        ids.insert(ids.end(), symbols.begin(), symbols.end());
        symbols.clear();
    };

    bool behind_unknown = false;
    for (std::size_t at = 0; at < piece.size();) {
        const Utf8Step step = utf8_step(piece, at);
        const auto known = id_by_character_.find(step.code_point);
        if (known != id_by_character_.end()) {
            symbols.push_back(known->second);
            behind_unknown = false;
        } else {
            // No merge reaches over a character that the vocabulary lacks.
            merge_symbols();
            if (!append_bytes(piece.substr(at, step.num_bytes), ids)) {
                if (unknown_id_ && !(fuses_unknown_ && behind_unknown)) ids.push_back(*unknown_id_);
                behind_unknown = true;
            } else {
                behind_unknown = false;
            }
        }
        at += step.num_bytes;
    }

    merge_symbols();
    return ids;
}

// Appends the tokens of the bytes of a character. Returns false if the vocabulary lacks one.
bool BpeModel::append_bytes(std::string_view character, std::vector<TokenId>& out) const {
    const auto id_of = [&](char c) { return id_by_byte_[static_cast<std::uint8_t>(c)]; };
    if (!byte_fallback_ || !std::all_of(character.begin(), character.end(),
                                        [&](char c) { return id_of(c).has_value(); }))
        return false;
    for (const char c : character) out.push_back(*id_of(c));
    return true;
}

void BpeModel::merge(std::vector<TokenId>& symbols) const {
    if (symbols.size() <= short_piece_bytes)
        merge_short(symbols);
    else
        merge_long(symbols);
}

void BpeModel::merge_short(std::vector<TokenId>& symbols) const {
    constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
    if (symbols.size() < 2) return;

    // merges[i] joins symbols i and i + 1 of the piece
    std::array<Merge, short_piece_bytes> merges;
    const auto look = [&](std::size_t i) {
        const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
        merges[i] = merge ? *merge : Merge{none, 0};
    };

    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) look(i);
    while (symbols.size() > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < symbols.size(); ++i)
            if (merges[i].rank < merges[best].rank) best = i;
        if (merges[best].rank == none) return;

        symbols[best] = merges[best].merged;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
        for (std::size_t i = best + 1; i + 1 < symbols.size(); ++i) merges[i] = merges[i + 1];
        if (best + 1 < symbols.size()) look(best);
        if (best > 0) look(best - 1);
    }
}

void BpeModel::merge_long(std::vector<TokenId>& symbols) const {
    constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
    struct Link {
        std::uint32_t previous, next;
    };
    struct Candidate {
        std::uint32_t rank, at;
        TokenId left, right, merged;
        // The order of merge candidates in the heap: lowest rank first, then leftmost.
        bool operator<(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : at > other.at;
        }
    };

    const auto num_symbols = static_cast<std::uint32_t>(symbols.size());
    std::vector<Link> links(num_symbols);
    std::vector<bool> gone(num_symbols);

    std::priority_queue<Candidate> queue;
    const auto offer = [&](std::uint32_t at) {
        const std::uint32_t next = links[at].next;
        if (next == none) return;
        if (const Merge* merge = find_merge(symbols[at], symbols[next]))
            queue.push({merge->rank, at, symbols[at], symbols[next], merge->merged});
    };

    for (std::uint32_t i = 0; i < num_symbols; ++i)
        links[i] = {i == 0 ? none : i - 1, i + 1 == num_symbols ? none : i + 1};
    for (std::uint32_t i = 0; i < num_symbols; ++i) offer(i);
    while (!queue.empty()) {
        const Candidate best = queue.top();
        queue.pop();
        const std::uint32_t next = gone[best.at] ? none : links[best.at].next;

        // Skip a stale candidate, of which one symbol was merged since it was added.
        if (next == none || symbols[best.at] != best.left || symbols[next] != best.right) continue;

        symbols[best.at] = best.merged;
        gone[next] = true;
        links[best.at].next = links[next].next;
        if (links[next].next != none) links[links[next].next].previous = best.at;
        offer(best.at);
        if (links[best.at].previous != none) offer(links[best.at].previous);
    }

    std::size_t kept = 0;
    for (std::uint32_t i = 0; i < num_symbols; ++i)
        if (!gone[i]) symbols[kept++] = symbols[i];
    symbols.resize(kept);
}

}  // namespace moex
