#include "hub/model/pack/readers/gguf_tokenizer.h"

#include <optional>

#include "hub/model/json_fields.h"
#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/sentencepiece_model.h"
#include "protocol/text.h"

namespace moex {
namespace {

using Values = std::map<std::string, nlohmann::json, std::less<>>;

// How a byte-level BPE tokenizer splits a text before it merges. tokenizer.ggml.pre names it.
struct PreKind {
    std::string_view name;
    bool is_nfc = false;          // the text is normalised first
    bool ignores_merges = false;  // a word that is a token is not built by merges
    bool adds_bos = false;        // unless tokenizer.ggml.add_bos_token says otherwise
    bool splits_digits = false;
    std::string_view pattern;  // empty: the pattern of GPT-2, which ByteLevel has itself
};
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr PreKind pre_kinds[] = {
    {"qwen2", true, false, false, false, qwen2_pattern},
    {"deepseek-r1-qwen", true, false, false, false, qwen2_pattern},
    {"llama-bpe", false, true, true, false, llama3_pattern},
    {"llama3", false, true, true, false, llama3_pattern},
    {"llama-v3", false, true, true, false, llama3_pattern},
    {"gpt-2", false, false, false, false, ""},
    {"default", false, false, false, false, ""},
    {"smollm", false, false, false, true, ""},
};

// types of tokens in tokenizer.ggml.token_type
constexpr std::int64_t token_control = 3, token_user_defined = 4, token_unused = 5;

const nlohmann::json* find_value(const Values& values, std::string_view name) {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : &found->second;
}

std::string string_of(const Values& values, std::string_view name) {
    const nlohmann::json* const value = find_value(values, name);
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// Returns the token with the id that the metadata gives under `name`.
std::optional<std::string> token_of(const Values& values, std::string_view name) {
    const nlohmann::json *const id = find_value(values, name), *const tokens = find_value(
                                                                   values, "tokenizer.ggml.tokens");
    if (id == nullptr || !id->is_number_unsigned() || tokens == nullptr || !tokens->is_array() ||
        id->get<std::uint64_t>() >= tokens->size())
        return std::nullopt;
    const auto& token = (*tokens)[id->get<std::uint64_t>()];
    if (!token.is_string()) return std::nullopt;
    return token.get<std::string>();
}

OrderedJson byte_level(bool use_regex) {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"trim_offsets", false},
            {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_of(const PreKind& kind) {
    OrderedJson steps = OrderedJson::array();
    if (kind.splits_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
    if (!kind.pattern.empty())
        steps.push_back({{"type", "Split"},
                         {"pattern", {{"Regex", kind.pattern}}},
                         {"behavior", "Isolated"},
                         {"invert", false}});
    steps.push_back(byte_level(kind.pattern.empty()));
    return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// Writes the begin-of-text token in front of every text, as transformers' files do.
OrderedJson post_processor_of(const std::string& bos, std::uint64_t id) {
    OrderedJson token{{"id", bos}, {"type_id", 0}}, text_part{{"id", "A"}, {"type_id", 0}};
    OrderedJson special;
    special[bos] = {
        {"id", bos}, {"ids", OrderedJson::array({id})}, {"tokens", OrderedJson::array({bos})}};
    return {{"type", "TemplateProcessing"},
            {"single", OrderedJson::array({OrderedJson{{"SpecialToken", token}},
                                           OrderedJson{{"Sequence", text_part}}})},
            {"pair", OrderedJson::array()},
            {"special_tokens", special}};
}

class TokenizerBuilder {
  public:
    TokenizerBuilder(const Values& values, ModelSource& source)
        : values_(values),
          source_(source) {}

    // Returns the reason if the arrays cannot be a tokenizer of this kind.
    std::optional<std::string> build() {
        const std::string model = string_of(values_, "tokenizer.ggml.model"),
                          pre = string_of(values_, "tokenizer.ggml.pre");
        if (model.empty()) return "has no tokenizer";
        if (model == "llama" || model == "t5") return write_pieces(model == "llama");
        if (model != "gpt2") return text("has a tokenizer of kind ", json_excerpt(model));
        for (const PreKind& kind : pre_kinds)
            if (pre == kind.name || (pre.empty() && kind.name == "default")) return write(kind);
        return text("has a tokenizer with the split pattern ", json_excerpt(pre));
    }

  private:
    std::optional<std::string> write(const PreKind& kind) {
        const nlohmann::json *const tokens = find_value(values_, "tokenizer.ggml.tokens"),
                                    *const types = find_value(values_, "tokenizer.ggml.token_type"),
                                    *const merges = find_value(values_, "tokenizer.ggml.merges");
        if (tokens == nullptr || !tokens->is_array() || merges == nullptr || !merges->is_array())
            return "has a tokenizer without tokens or merges";
        if (types != nullptr && (!types->is_array() || types->size() != tokens->size()))
            return text("has ", tokens->size(), " tokens, but not as many token types");

        nlohmann::json vocab = nlohmann::json::object();
        OrderedJson added = OrderedJson::array();
        for (std::uint64_t id = 0; id < tokens->size(); ++id) {
            const auto& token = (*tokens)[id];
            if (!token.is_string()) return text("has a token ", id, " that is no text");
            const auto type = types == nullptr || !(*types)[id].is_number_integer()
                                  ? 1
                                  : (*types)[id].get<std::int64_t>();
            if (type == token_unused) continue;
            if (type == token_control || type == token_user_defined)
                added.push_back({{"id", id},
                                 {"content", token.get<std::string>()},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", type == token_control}});
            else
                vocab[token.get<std::string>()] = id;
        }

        const bool adds_bos = flag("tokenizer.ggml.add_bos_token").value_or(kind.adds_bos);
        const auto bos = token_of(values_, "tokenizer.ggml.bos_token_id");
        OrderedJson out{
            {"version", "1.0"},
            {"added_tokens", std::move(added)},
            {"normalizer", kind.is_nfc ? OrderedJson{{"type", "NFC"}} : OrderedJson()},
            {"pre_tokenizer", pre_tokenizer_of(kind)},
            {"post_processor",
             adds_bos && bos
                 ? post_processor_of(
                       *bos,
                       find_value(values_, "tokenizer.ggml.bos_token_id")->get<std::uint64_t>())
                 : byte_level(true)},
            {"decoder", byte_level(true)}};
        out["model"] = {{"type", "BPE"}, {"ignore_merges", kind.ignores_merges}};
        std::string model_text = out.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
        // The vocabulary is large: append its text, instead of copying it into a JSON object.
        const auto dump = [](const nlohmann::json& part) {
            return part.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
        };
        model_text.resize(model_text.size() - 2);
        source_.texts["tokenizer.json"] = text(model_text, ",\"vocab\":", dump(vocab),
                                               ",\"merges\":", dump(*merges), "}}\n");
        write_config("PreTrainedTokenizerFast");
        return std::nullopt;
    }

    // Makes a tokenizer of SentencePiece's arrays: BPE by scores ("llama"), or Unigram ("t5").
    std::optional<std::string> write_pieces(bool is_bpe) {
        const nlohmann::json *const tokens = find_value(values_, "tokenizer.ggml.tokens"),
                                    *const types = find_value(values_, "tokenizer.ggml.token_type"),
                                    *const scores = find_value(values_, "tokenizer.ggml.scores");
        const auto is_list = [&](const nlohmann::json* values) {
            return values != nullptr && values->is_array() && values->size() == tokens->size();
        };
        if (tokens == nullptr || !tokens->is_array() || tokens->empty() || !is_list(types) ||
            !is_list(scores))
            return "has a SentencePiece tokenizer without a score and a type for each token";

        SentencePieceModel model;
        model.model_type = is_bpe ? 2 : 1;
        model.dummy_prefix = flag("tokenizer.ggml.add_space_prefix").value_or(true);
        model.removes_extra_spaces =
            flag("tokenizer.ggml.remove_extra_whitespaces").value_or(!is_bpe);
        if (const auto* const map = find_value(values_, "tokenizer.ggml.precompiled_charsmap");
            map != nullptr && map->is_array())
            for (const auto& byte : *map)
                model.charsmap += static_cast<char>(byte.is_number() ? byte.get<int>() : 0);

        for (std::uint64_t id = 0; id < tokens->size(); ++id) {
            const auto &token = (*tokens)[id], &type = (*types)[id], &score = (*scores)[id];
            if (!token.is_string() || !score.is_number() || !type.is_number_integer() ||
                type.get<std::int64_t>() < 1 || type.get<std::int64_t>() > 6)
                return text("has a token ", id, " without a text, a score or a known type");
            const auto kind = static_cast<PieceType>(type.get<int>());
            model.byte_fallback |= kind == PieceType::byte;
            if (const Status added = model.add(
                    {token.get<std::string>(), score.get<float>(), kind});
                !added.ok())
                return text("has a tokenizer that cannot be read: ", added.error().message);
        }

        write_config(is_bpe ? "LlamaTokenizer" : "T5Tokenizer");
        auto made = tokenizer_json_of_pieces(model, source_.texts["tokenizer_config.json"]);
        if (!made.ok()) return text("has a tokenizer that cannot be read: ", made.error().message);
        source_.texts["tokenizer.json"] = *std::move(made);
        return std::nullopt;
    }

    void write_config(const char* tokenizer_class) {
        OrderedJson config{{"tokenizer_class", tokenizer_class}};
        for (const char* name : {"add_bos_token", "add_eos_token"})
            if (const auto adds = flag(text("tokenizer.ggml.", name))) config[name] = *adds;
        for (const auto& [name, key] : {std::pair("tokenizer.ggml.bos_token_id", "bos_token"),
                                        {"tokenizer.ggml.eos_token_id", "eos_token"},
                                        {"tokenizer.ggml.padding_token_id", "pad_token"}})
            if (const auto token = token_of(values_, name)) config[key] = *token;
        if (const std::string chat = string_of(values_, "tokenizer.chat_template"); !chat.empty())
            config["chat_template"] = chat;
        source_.texts["tokenizer_config.json"] =
            config.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
    }

    std::optional<bool> flag(std::string_view name) const {
        const nlohmann::json* const value = find_value(values_, name);
        if (value == nullptr || !value->is_boolean()) return std::nullopt;
        return value->get<bool>();
    }

    const Values& values_;
    ModelSource& source_;
};

}  // namespace

void add_gguf_tokenizer(const GgufFile& file, ModelSource& source) {
    if (const auto reason = TokenizerBuilder(file.metadata(), source).build())
        source.warnings.push_back(text(file.path().filename().string(), " ", *reason,
                                       "; readable: SentencePiece (llama, t5), and byte-level BPE "
                                       "(gpt2) split as by qwen2, llama-bpe, gpt-2 or smollm"));
}

}  // namespace moex
