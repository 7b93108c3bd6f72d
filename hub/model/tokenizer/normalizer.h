// Normalizer: the steps that change a text before it is split into pre-tokens. A Normalizer is
// immutable and thread-safe. Source: the normalizers of the tokenizers library; SentencePiece's
// precompiled character map (charsmap.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model/strict_json.h"
#include "hub/model/tokenizer/charsmap.h"
#include "hub/model/tokenizer/split_pattern.h"
#include "hub/model/tokenizer/unicode.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/result.h"

namespace moex {

class Normalizer {
  public:
    struct Output {
        std::string text;
        // source[i] is the range of input bytes from which byte i of `text` was made. Nullopt if it
        // was not asked for, or if a Unicode normal form or a character map changed the text.
        std::optional<std::vector<TextRange>> source;
    };

    // Loads the member "normalizer" of tokenizer.json; null means no step.
    static Result<Normalizer> load(const nlohmann::json& normalizer);
    // Normalises `text`, which is valid UTF-8.
    Output apply(std::string_view text, bool with_source) const;
    bool empty() const { return steps_.empty(); }

  private:
    enum class Kind { normal_form, charsmap, prepend, replace, strip, strip_accents };
    struct Step {
        Kind kind = Kind::normal_form;
        NormalForm form = NormalForm::nfc;
        std::shared_ptr<const CharsMap> charsmap;
        std::optional<SplitPattern> pattern;  // replace: the text to replace
        std::string content;                  // replace: the new text; prepend: the text to add
        bool strip_left = false, strip_right = false;
    };
    Status add(const nlohmann::json& object, int depth);
    static void apply_step(const Step& step, Output& text);

    std::vector<Step> steps_;
};

}  // namespace moex
