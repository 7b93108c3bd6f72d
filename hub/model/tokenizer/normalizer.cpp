#include "hub/model/tokenizer/normalizer.h"

#include "hub/model/tokenizer/tokenizer_json.h"
#include "protocol/text.h"

namespace moex {
namespace {

using namespace tokenizer_json;

constexpr std::size_t added_text_bytes_max = 1024;  // above the values of all real files

std::optional<NormalForm> normal_form_of(std::string_view type) {
    if (type == "NFC") return NormalForm::nfc;
    if (type == "NFD") return NormalForm::nfd;
    if (type == "NFKC") return NormalForm::nfkc;
    if (type == "NFKD") return NormalForm::nfkd;
    return std::nullopt;
}

// Keeps the bytes [begin, end) of a text and their sources.
void cut(Normalizer::Output& text, std::size_t begin, std::size_t end) {
    if (text.source) {
        auto& source = *text.source;
        source.erase(source.begin() + static_cast<std::ptrdiff_t>(end), source.end());
        source.erase(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    text.text = text.text.substr(begin, end - begin);
}

void prepend(Normalizer::Output& text, const std::string& content) {
    text.text.insert(0, content);
    if (!text.source) return;
    const std::size_t begin = text.source->empty() ? 0 : text.source->front().begin;
    text.source->insert(text.source->begin(), content.size(), TextRange{begin, begin});
}

void replace(Normalizer::Output& text, const SplitPattern& pattern, const std::string& content) {
    std::vector<SplitPattern::Range> matches;
    pattern.find(text.text, matches);
    if (matches.empty()) return;

    Normalizer::Output out;
    if (text.source) out.source.emplace();
    std::size_t copied = 0;
    const auto copy_until = [&](std::size_t end) {
        out.text.append(text.text, copied, end - copied);
        if (text.source)
            out.source->insert(out.source->end(),
                               text.source->begin() + static_cast<std::ptrdiff_t>(copied),
                               text.source->begin() + static_cast<std::ptrdiff_t>(end));
        copied = end;
    };

    for (const auto& [begin, end] : matches) {
        copy_until(begin);
        out.text += content;
        if (text.source)
            out.source->insert(out.source->end(), content.size(),
                               TextRange{(*text.source)[begin].begin, (*text.source)[end - 1].end});
        copied = end;
    }

    copy_until(text.text.size());
    text = std::move(out);
}

std::string without_accents(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const Utf8Step step = utf8_step(text, at);
        const UnicodeCategory category = unicode_category(step.code_point);
        const bool mark = category == UnicodeCategory::mn || category == UnicodeCategory::mc ||
                          category == UnicodeCategory::me;
        if (!mark) out.append(text, at, step.num_bytes);
        at += step.num_bytes;
    }
    return out;
}

}  // namespace

Result<Normalizer> Normalizer::load(const nlohmann::json& normalizer) {
    Normalizer loaded;
    if (!normalizer.is_null()) MOEX_TRY(loaded.add(normalizer, 0));
    return loaded;
}

Status Normalizer::add(const nlohmann::json& object, int depth) {
    const std::string type = type_of(object);
    if (type == "Sequence" && depth < sequence_depth_max &&
        member(object, "normalizers").is_array()) {
        for (const nlohmann::json& part : object["normalizers"]) MOEX_TRY(add(part, depth + 1));
        return {};
    }

    if (steps_.size() >= steps_max)
        return unsupported(text("a normalizer of more than ", steps_max, " steps"));

    Step step;
    Fields fields = fields_of(object, text("normalizer ", type));
    if (const auto form = normal_form_of(type)) {
        step.kind = Kind::normal_form;
        step.form = *form;
    } else if (type == "Precompiled") {
        const nlohmann::json& map = member(object, "precompiled_charsmap");
        if (!map.is_string()) return bad_file("normalizer Precompiled has no precompiled_charsmap");
        MOEX_ASSIGN(loaded, CharsMap::from_base64(map.get_ref<const std::string&>()));
        step.kind = Kind::charsmap;
        step.charsmap = std::move(loaded);
    } else if (type == "Prepend") {
        step.kind = Kind::prepend;
        fields.string("prepend", step.content);
    } else if (type == "Replace") {
        step.kind = Kind::replace;
        fields.string("content", step.content);
        MOEX_ASSIGN(pattern, compile_pattern(member(object, "pattern"), "normalizer Replace"));
        step.pattern = std::move(pattern);
    } else if (type == "Strip") {
        step.kind = Kind::strip;
        fields.boolean("strip_left", step.strip_left);
        fields.boolean("strip_right", step.strip_right);
    } else if (type == "StripAccents") {
        step.kind = Kind::strip_accents;
    } else {
        return unsupported(text("normalizer \"", type, "\""));
    }

    if (fields.problem()) return *fields.problem();
    if (step.content.size() > added_text_bytes_max)
        return bad_file(text("normalizer ", type, " adds a text of ", step.content.size(),
                             " bytes, wanted at most ", added_text_bytes_max));
    steps_.push_back(std::move(step));
    return {};
}

void Normalizer::apply_step(const Step& step, Output& text) {
    const auto set = [&](std::string changed) {
        if (changed == text.text) return;
        text.text = std::move(changed);
        text.source.reset();
    };

    switch (step.kind) {
        case Kind::normal_form: return set(utf8_normal_form(text.text, step.form));
        case Kind::charsmap: return set(step.charsmap->apply(text.text));
        case Kind::strip_accents: return set(without_accents(text.text));
        case Kind::prepend: return prepend(text, step.content);
        case Kind::replace: return replace(text, *step.pattern, step.content);
        case Kind::strip: break;
    }

    std::string_view kept = text.text;
    if (step.strip_right) kept = utf8_trim_end(kept);
    const std::size_t end = kept.size();
    if (step.strip_left) kept = utf8_trim_start(kept);
    cut(text, end - kept.size(), end);
}

Normalizer::Output Normalizer::apply(std::string_view text, bool with_source) const {
    Output out{.text = std::string(text)};
    if (with_source) {
        out.source.emplace();
        out.source->reserve(text.size());
        for (std::size_t i = 0; i < text.size(); ++i) out.source->push_back({i, i + 1});
    }

    for (const Step& step : steps_) apply_step(step, out);
    return out;
}

}  // namespace moex
