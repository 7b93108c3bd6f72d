// PreTokenizer: splits normalised text into pre-tokens, within which a model finds its tokens. A
// PreTokenizer is immutable and thread-safe. Source: tokenizers' "ByteLevel", "Split", "Digits",
// "Metaspace" and "WhitespaceSplit".
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/split_pattern.h"
#include "protocol/result.h"

namespace moex {

class PreTokenizer {
  public:
    // Loads the member "pre_tokenizer" of tokenizer.json; null means that a text is one pre-token.
    static Result<PreTokenizer> load(const nlohmann::json& pre_tokenizer);
    // true: the model sees the bytes of a pre-token; false: it sees the characters
    bool byte_level() const { return byte_level_; }

    struct Pieces {
        std::vector<std::string_view> views;  // views of the text given to split(), or of `owned`
        std::deque<std::string> owned;        // texts of pieces that a step changed
    };
    // Splits `text`. `first` is true if `text` is the beginning of the text that the caller
    // encodes, so that no added token precedes it.
    Pieces split(std::string_view text, bool first) const;

  private:
    enum class Keep { all, matches, gaps, merged_with_previous };
    enum class Prepend { always, first, never };
    struct Step {
        std::optional<SplitPattern> pattern;
        Keep keep = Keep::all;
        bool add_prefix_space = false;  // a space is added before the pattern is applied
        std::string space;  // Metaspace: the character that replaces " "; empty in other steps
        Prepend prepend = Prepend::always;  // Metaspace: whether `space` begins a text
    };
    Status add(const nlohmann::json& object, int depth);
    Status add_split(const nlohmann::json& split);
    Status add_digits(const nlohmann::json& object);
    Status add_byte_level(const nlohmann::json& object);
    Status add_metaspace(const nlohmann::json& object);
    static void add_prefix(const Step& step, Pieces& pieces, bool first);
    static void split_by(const Step& step, Pieces& pieces);

    std::vector<Step> steps_;
    bool byte_level_ = false;
};

}  // namespace moex
