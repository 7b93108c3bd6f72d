#include "hub/model/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "hub/model/tokenizer/tokenizer_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

using namespace tokenizer_json;

// GPT-2's own split pattern, which the ByteLevel pre-tokenizer applies if use_regex is set.
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::size_t metaspace_bytes_max = 64;

}  // namespace

Result<PreTokenizer> PreTokenizer::load(const nlohmann::json& pre_tokenizer) {
    PreTokenizer loaded;
    if (!pre_tokenizer.is_null()) MOEX_TRY(loaded.add(pre_tokenizer, 0));
    return loaded;
}

Status PreTokenizer::add(const nlohmann::json& object, int depth) {
    const std::string type = type_of(object);
    if (byte_level_) return unsupported(text("pre_tokenizer \"", type, "\" after ByteLevel"));
    if (steps_.size() >= steps_max)
        return unsupported(text("a pre_tokenizer of more than ", steps_max, " steps"));

    if (type == "Sequence" && depth < sequence_depth_max &&
        member(object, "pretokenizers").is_array()) {
        for (const nlohmann::json& part : object["pretokenizers"]) MOEX_TRY(add(part, depth + 1));
        return {};
    }

    if (type == "Split") return add_split(object);
    if (type == "Digits") return add_digits(object);
    if (type == "ByteLevel") return add_byte_level(object);
    if (type == "Metaspace") return add_metaspace(object);
    if (type == "WhitespaceSplit") {
        MOEX_ASSIGN(compiled, SplitPattern::compile_regex("\\s+"));
        steps_.push_back({.pattern = std::move(compiled), .keep = Keep::gaps});
        return {};
    }

    return unsupported(text("pre_tokenizer \"", type, "\""));
}

Status PreTokenizer::add_split(const nlohmann::json& split) {
    Step step;
    MOEX_ASSIGN(pattern, compile_pattern(member(split, "pattern"), "pre_tokenizer Split"));
    step.pattern = std::move(pattern);

    Fields fields = fields_of(split, "pre_tokenizer Split");
    std::string behavior = "?";
    bool invert = false;
    fields.string("behavior", behavior);
    fields.boolean("invert", invert);
    if (fields.problem()) return *fields.problem();

    if (behavior == "Removed")
        step.keep = invert ? Keep::matches : Keep::gaps;
    else if (behavior == "MergedWithPrevious" && !invert)
        step.keep = Keep::merged_with_previous;
    else if (behavior != "Isolated")
        return unsupported(text("pre_tokenizer Split with behavior \"", behavior, "\""));

    steps_.push_back(std::move(step));
    return {};
}

Status PreTokenizer::add_digits(const nlohmann::json& object) {
    Fields fields = fields_of(object, "pre_tokenizer Digits");
    bool individual = false;
    fields.boolean("individual_digits", individual);
    if (fields.problem()) return *fields.problem();

    MOEX_ASSIGN(compiled, SplitPattern::compile_regex(individual ? "\\p{N}" : "\\p{N}+"));
    steps_.push_back({.pattern = std::move(compiled)});
    return {};
}

Status PreTokenizer::add_byte_level(const nlohmann::json& object) {
    byte_level_ = true;
    Fields fields = fields_of(object, "pre_tokenizer ByteLevel");
    Step step;
    bool use_regex = true;
    step.add_prefix_space = true;
    fields.boolean("add_prefix_space", step.add_prefix_space);
    fields.boolean("use_regex", use_regex);
    if (fields.problem()) return *fields.problem();

    if (use_regex) {
        MOEX_ASSIGN(compiled, SplitPattern::compile_regex(gpt2_pattern));
        step.pattern = std::move(compiled);
    }

    if (step.pattern || step.add_prefix_space) steps_.push_back(std::move(step));
    return {};
}

// Loads Metaspace. Its "split" is not needed: a model with such a vocabulary has no token that goes
// on behind a replaced space, so that the pieces between spaces have the same tokens.
Status PreTokenizer::add_metaspace(const nlohmann::json& object) {
    Fields fields = fields_of(object, "pre_tokenizer Metaspace");
    Step step;
    step.space = "\u2581";
    bool add_prefix_space = true;  // older files have this member
    std::string scheme;
    fields.string("replacement", step.space);
    fields.boolean("add_prefix_space", add_prefix_space);
    fields.string("prepend_scheme", scheme);
    if (fields.problem()) return *fields.problem();
    if (step.space.empty() || step.space.size() > metaspace_bytes_max)
        return bad_file(text("pre_tokenizer Metaspace: replacement is ", json_excerpt(step.space),
                             ", wanted a character"));

    if (scheme.empty()) scheme = add_prefix_space ? "always" : "never";
    if (scheme == "first")
        step.prepend = Prepend::first;
    else if (scheme == "never")
        step.prepend = Prepend::never;
    else if (scheme != "always")
        return unsupported(
            text("pre_tokenizer Metaspace with prepend_scheme ", json_excerpt(scheme)));

    steps_.push_back(std::move(step));
    return {};
}

void PreTokenizer::add_prefix(const Step& step, Pieces& pieces, bool first) {
    for (std::string_view& piece : pieces.views) {
        if (step.space.empty()) {
            if (piece.starts_with(' ')) continue;
            pieces.owned.emplace_back(1, ' ').append(piece);
        } else {
            const bool prepends = step.prepend == Prepend::always ||
                                  (step.prepend == Prepend::first && first);
            std::string& changed = pieces.owned.emplace_back();
            if (prepends && !piece.starts_with(' ') && !piece.starts_with(step.space))
                changed = step.space;
            for (const char c : piece)
                if (c == ' ')
                    changed += step.space;
                else
                    changed += c;
        }
        piece = pieces.owned.back();
    }
}

void PreTokenizer::split_by(const Step& step, Pieces& pieces) {
    std::vector<std::string_view> next;
    std::vector<SplitPattern::Range> matches;
    for (const std::string_view piece : pieces.views) {
        step.pattern->find(piece, matches);
        std::size_t start = 0;
        for (const auto& [begin, end] : matches) {
            if (step.keep == Keep::merged_with_previous) {
                next.push_back(piece.substr(start, end - start));
                start = end;
                continue;
            }
            if (begin > start && step.keep != Keep::matches)
                next.push_back(piece.substr(start, begin - start));
            if (step.keep != Keep::gaps) next.push_back(piece.substr(begin, end - begin));
            start = end;
        }

        if (start < piece.size() && step.keep != Keep::matches) next.push_back(piece.substr(start));
    }
    pieces.views.swap(next);
}

PreTokenizer::Pieces PreTokenizer::split(std::string_view text, bool first) const {
    Pieces pieces{.views = {text}, .owned = {}};
    for (const Step& step : steps_) {
        if (step.add_prefix_space || !step.space.empty()) add_prefix(step, pieces, first);
        if (step.pattern) split_by(step, pieces);
    }
    return pieces;
}

}  // namespace moex
