// Reads SentencePiece's protocol buffer. The reader knows the few fields that decide the tokens.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/added_tokens.h"
#include "hub/model/tokenizer/base64.h"
#include "hub/model/tokenizer/sentencepiece_model.h"
#include "hub/model/tokenizer/token_model.h"
#include "hub/model/tokenizer/tokenizer_files.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::size_t piece_bytes_max = 1024;
constexpr std::string_view piece_space = "\u2581";

Error bad_proto(std::string_view why) {
    return {ErrorCode::bad_file, text("the SentencePiece model ", why)};
}

// Reads the fields of one message. Source: the encoding of protocol buffers.
class ProtoReader {
  public:
    explicit ProtoReader(std::string_view bytes) : rest_(bytes) {}

    struct Field {
        std::uint64_t number = 0;
        std::uint64_t value = 0;   // a number, or the bits of a float
        std::string_view content;  // a text, bytes or a message
        bool has_content = false;
    };
    // Returns the next field, or nullopt at the end of the message or where it is broken.
    std::optional<Field> next() {
        if (rest_.empty()) return std::nullopt;
        const std::uint64_t key = varint();
        Field field{.number = key >> 3};
        switch (key & 7) {
            case 0: field.value = varint(); break;
            case 1: field.value = fixed(8); break;
            case 2: {
                const std::uint64_t size = varint();
                if (size > rest_.size()) return fail();
                field.content = rest_.substr(0, size);
                field.has_content = true;
                rest_.remove_prefix(size);
                break;
            }
            case 5: field.value = fixed(4); break;
            default: return fail();
        }
        if (broken_) return std::nullopt;
        return field;
    }
    bool broken() const { return broken_; }

  private:
    std::optional<Field> fail() {
        broken_ = true;
        return std::nullopt;
    }
    std::uint64_t varint() {
        std::uint64_t value = 0;
        for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
            const auto byte = static_cast<std::uint8_t>(rest_.front());
            rest_.remove_prefix(1);
            value |= std::uint64_t{byte & 0x7Fu} << shift;
            if (byte < 0x80) return value;
        }
        broken_ = true;
        return 0;
    }
    std::uint64_t fixed(std::size_t num_bytes) {
        if (rest_.size() < num_bytes) {
            broken_ = true;
            return 0;
        }
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < num_bytes; ++i)
            value |= std::uint64_t{static_cast<std::uint8_t>(rest_[i])} << (8 * i);
        rest_.remove_prefix(num_bytes);
        return value;
    }

    std::string_view rest_;
    bool broken_ = false;
};

Status read_piece(SentencePieceModel& model, std::string_view message) {
    ProtoReader reader(message);
    SentencePiece piece;
    while (const auto field = reader.next()) {
        if (field->number == 1) piece.text = field->content;
        if (field->number == 2)
            piece.score = __builtin_bit_cast(float, static_cast<std::uint32_t>(field->value));
        if (field->number == 3) {
            if (field->value < 1 || field->value > 6)
                return bad_proto(text("has a piece of the type ", field->value));
            piece.type = static_cast<PieceType>(field->value);
        }
    }
    if (reader.broken()) return bad_proto(text("has a damaged piece ", model.pieces.size()));
    return model.add(std::move(piece));
}

Status read_trainer(SentencePieceModel& model, std::string_view message) {
    ProtoReader reader(message);
    while (const auto field = reader.next()) {
        if (field->number == 3) model.model_type = field->value;
        if (field->number == 35) model.byte_fallback = field->value != 0;
        if (field->number == 24 && field->value != 0)
            return Error{ErrorCode::unsupported,
                         "the SentencePiece model has treat_whitespace_as_suffix, which is not "
                         "supported"};
    }
    if (reader.broken()) return bad_proto("has a damaged trainer_spec");
    return {};
}

Status read_normalizer(SentencePieceModel& model, std::string_view message) {
    ProtoReader reader(message);
    while (const auto field = reader.next()) {
        if (field->number == 2) model.charsmap = field->content;
        if (field->number == 3) model.dummy_prefix = field->value != 0;
        if (field->number == 4) model.removes_extra_spaces = field->value != 0;
        if (field->number == 5 && field->value == 0)
            return Error{ErrorCode::unsupported,
                         "the SentencePiece model lacks escape_whitespaces, which is not "
                         "supported"};
    }
    if (reader.broken()) return bad_proto("has a damaged normalizer_spec");
    return {};
}

using Json = nlohmann::json;

Json replace_step(std::string_view kind, std::string_view pattern, std::string_view content) {
    return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

bool is_text(PieceType type) {
    return type == PieceType::normal || type == PieceType::user_defined;
}

// Returns the pairs of pieces that BPE merges, in order: the merged piece with the highest score
// first. Pieces that a text does not produce (control tokens, bytes) are no results.
Result<Json> merges_of(const std::vector<SentencePiece>& pieces) {
    std::unordered_map<std::string_view, std::size_t> ids;
    for (std::size_t id = 0; id < pieces.size(); ++id)
        if (!ids.emplace(pieces[id].text, id).second)
            return bad_proto(text("has the piece \"", pieces[id].text, "\" twice"));

    struct Pair {
        std::size_t left, right, merged;
    };
    std::vector<Pair> pairs;
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        if (!is_text(pieces[id].type)) continue;
        const std::string_view merged = pieces[id].text;
        const std::size_t first = pairs.size();
        for (std::size_t at = utf8_step(merged, 0).num_bytes; at < merged.size();
             at += utf8_step(merged, at).num_bytes) {
            const auto left = ids.find(merged.substr(0, at)), right = ids.find(merged.substr(at));
            if (left != ids.end() && right != ids.end())
                pairs.push_back({left->second, right->second, id});
        }
        std::sort(pairs.begin() + static_cast<std::ptrdiff_t>(first), pairs.end(),
                  [](const Pair& a, const Pair& b) {
                      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
                  });
    }

    const auto order = [&](const Pair& pair) {
        return std::tuple(pieces[pair.merged].score, utf8_count(pieces[pair.left].text),
                          utf8_count(pieces[pair.right].text));
    };
    std::stable_sort(pairs.begin(), pairs.end(),
                     [&](const Pair& a, const Pair& b) { return order(a) > order(b); });
    Json merges = Json::array();
    for (const Pair& pair : pairs)
        merges.push_back({pieces[pair.left].text, pieces[pair.right].text});
    return merges;
}

Result<Json> model_object(const SentencePieceModel& model) {
    const auto unknown = std::find_if(
        model.pieces.begin(), model.pieces.end(),
        [](const SentencePiece& p) { return p.type == PieceType::unknown; });
    if (model.is_bpe()) {
        MOEX_ASSIGN(merges, merges_of(model.pieces));
        Json vocab = Json::object();
        for (std::size_t id = 0; id < model.pieces.size(); ++id) vocab[model.pieces[id].text] = id;
        Json object = {{"type", "BPE"},
                       {"fuse_unk", true},
                       {"byte_fallback", model.byte_fallback},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(merges)}};
        if (unknown != model.pieces.end()) object["unk_token"] = unknown->text;
        return object;
    }

    // SentencePiece takes a user-defined piece wherever the text has it, by a high score.
    float best = -std::numeric_limits<float>::max();
    for (const SentencePiece& piece : model.pieces)
        if (piece.type == PieceType::normal) best = std::max(best, piece.score);
    Json vocab = Json::array();
    for (const SentencePiece& piece : model.pieces) {
        const bool user_defined = piece.type == PieceType::user_defined;
        const float bonus = static_cast<float>(piece.text.size()) * best - 0.1f;
        vocab.push_back({piece.text, user_defined ? bonus : piece.score});
    }
    Json object = {
        {"type", "Unigram"}, {"byte_fallback", model.byte_fallback}, {"vocab", std::move(vocab)}};
    if (unknown != model.pieces.end()) object["unk_id"] = unknown - model.pieces.begin();
    return object;
}

// Returns the added tokens: control tokens, and user-defined pieces unless a Unigram model finds
// them itself. Markers such as "<|user|>" are added tokens, because messages must not produce them.
Json added_tokens_of(const SentencePieceModel& model) {
    const std::vector<SentencePiece>& pieces = model.pieces;
    Json added = Json::array();
    for (std::size_t id = 0; id < pieces.size(); ++id) {
        const PieceType type = pieces[id].type;
        const bool special = type == PieceType::control || type == PieceType::unknown;
        const bool found_by_text = !model.is_bpe() &&
                                   !AddedToken{.content = pieces[id].text}.is_control();
        if (special || (type == PieceType::user_defined && !found_by_text))
            added.push_back({{"id", id},
                             {"content", pieces[id].text},
                             {"special", special},
                             {"normalized", false}});
    }
    return added;
}

// Adds normalizer and pre-tokenizer. `legacy`: every text between two added tokens gets the space
// before its first word; else only the text that begins the prompt.
void add_normalizer(const SentencePieceModel& model, bool legacy, Json& file) {
    Json steps = Json::array();
    if (!model.charsmap.empty())
        steps.push_back(
            {{"type", "Precompiled"}, {"precompiled_charsmap", base64_text(model.charsmap)}});

    if (model.removes_extra_spaces) {
        steps.push_back(replace_step("Regex", R"(\A +| +\z)", ""));
        steps.push_back(replace_step("Regex", " {2,}", " "));
    }
    if (model.removes_extra_spaces || (model.dummy_prefix && !legacy)) {
        const char* scheme = !model.dummy_prefix ? "never" : legacy ? "always" : "first";
        file["pre_tokenizer"] = {{"type", "Metaspace"},
                                 {"replacement", piece_space},
                                 {"prepend_scheme", scheme},
                                 {"split", false}};
    } else {
        if (model.dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", piece_space}});
        steps.push_back(replace_step("String", " ", piece_space));
    }
    file["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

// Adds the tokens around a prompt. transformers adds BOS to prompts of LlamaTokenizer and
// GemmaTokenizer unless the file says otherwise, and EOS to those of T5Tokenizer.
void add_post_processor(const SentencePieceModel& model, const Json& config, Json& file) {
    const Json& name = member(config, "tokenizer_class");
    const bool is_t5 = name.is_string() && name.get<std::string>().starts_with("T5");
    const auto flag = [&](const char* key, bool otherwise) {
        const Json& value = member(config, key);
        return value.is_boolean() ? value.get<bool>() : otherwise;
    };

    Json single = Json::array(), special = Json::object();
    const auto add = [&](const char* key, std::string_view otherwise) {
        const Json& value = member(config, key);
        const Json& content = value.is_object() ? member(value, "content") : value;
        const std::string token = content.is_string() ? content.get<std::string>()
                                                      : std::string(otherwise);
        const auto found = std::find_if(
            model.pieces.begin(), model.pieces.end(),
            [&](const SentencePiece& piece) { return piece.text == token; });
        if (found == model.pieces.end()) return;
        single.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
        special[token] = {
            {"id", token}, {"ids", {found - model.pieces.begin()}}, {"tokens", {token}}};
    };

    if (flag("add_bos_token", model.is_bpe())) add("bos_token", "<s>");
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (flag("add_eos_token", is_t5)) add("eos_token", "</s>");
    file["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", std::move(single)},
                              {"pair", Json::array()},
                              {"special_tokens", std::move(special)}};
}

}  // namespace

Status SentencePieceModel::add(SentencePiece piece) {
    if (piece.text.empty() || piece.text.size() > piece_bytes_max || !utf8_is_valid(piece.text))
        return bad_proto(text("has a piece ", pieces.size(), " of ", piece.text.size(),
                              " bytes, wanted UTF-8 of 1 to ", piece_bytes_max));
    if (!std::isfinite(piece.score))
        return bad_proto(text("has a piece ", pieces.size(), " without a finite score"));
    if (pieces.size() >= vocab_tokens_max)
        return bad_proto(text("has more than ", vocab_tokens_max, " pieces"));
    pieces.push_back(std::move(piece));
    return {};
}

Result<SentencePieceModel> read_sentencepiece_file(std::string_view file) {
    SentencePieceModel model;
    ProtoReader reader(file);
    while (const auto field = reader.next()) {
        if (!field->has_content) continue;
        if (field->number == 1) MOEX_TRY(read_piece(model, field->content));
        if (field->number == 2) MOEX_TRY(read_trainer(model, field->content));
        if (field->number == 3) MOEX_TRY(read_normalizer(model, field->content));
    }
    if (reader.broken()) return bad_proto("is damaged or cut short");
    if (model.pieces.empty()) return bad_proto("has no pieces");
    if (model.model_type != 1 && model.model_type != 2)
        return Error{ErrorCode::unsupported,
                     text("the SentencePiece model has the type ", model.model_type,
                          ", wanted 1 (Unigram) or 2 (BPE)")};
    return model;
}

Result<std::string> tokenizer_json_of_sentencepiece(std::string_view model_file,
                                                    std::string_view tokenizer_config_json) {
    MOEX_ASSIGN(model, read_sentencepiece_file(model_file));
    return tokenizer_json_of_pieces(model, tokenizer_config_json);
}

Result<std::string> tokenizer_json_of_pieces(const SentencePieceModel& model,
                                             std::string_view tokenizer_config_json) {
    Json config;
    if (!tokenizer_config_json.empty()) {
        MOEX_ASSIGN(parsed, parse_strict_json(tokenizer_config_json, "tokenizer_config.json"));
        config = std::move(parsed);
    }

    Json file = {{"version", "1.0"}, {"pre_tokenizer", nullptr}};
    MOEX_ASSIGN(object, model_object(model));
    file["model"] = std::move(object);
    file["added_tokens"] = added_tokens_of(model);
    add_normalizer(model, member(config, "legacy") != false, file);
    add_post_processor(model, config, file);

    Json decoders = Json::array({replace_step("String", piece_space, " ")});
    if (model.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
    decoders.push_back({{"type", "Fuse"}});
    if (model.dummy_prefix)
        decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    file["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
    return file.dump();
}

}  // namespace moex
