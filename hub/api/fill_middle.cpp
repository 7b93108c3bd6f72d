#include "hub/api/fill_middle.h"

#include <algorithm>

#include "protocol/text.h"

namespace moex {
namespace {

struct Family {
    const char *name, *prefix, *suffix;
    const char* middle;  // null: the prompt ends with the prefix
    const char *repository, *file;
};
constexpr Family families[] = {
    {"qwen", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"deepseek", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", nullptr, nullptr},
    {"starcoder", "<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"},
    {"santacoder", "<fim-prefix>", "<fim-suffix>", "<fim-middle>", nullptr, nullptr},
    {"glm", "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", nullptr, nullptr},
    {"codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", nullptr, nullptr},
    {"codestral", "[PREFIX]", "[SUFFIX]", nullptr, nullptr, nullptr},
};
// Tokens behind the text in the middle: ends of a text or of a file, and padding.
constexpr const char* other_stops[] = {"▁<EOT>",    "<EOT>",     "<|endoftext|>",     "<|fim_pad|>",
                                       "<fim_pad>", "<fim-pad>", "<|file_separator|>"};

// Begins a file, as llama.cpp's server does, if the family has no tokens for files.
constexpr const char* snippet_mark = "\n\n--- snippet ---\n\n";
constexpr const char* project_name = "project";

void append(std::vector<TokenId>& to, const std::vector<TokenId>& more) {
    to.insert(to.end(), more.begin(), more.end());
}

std::vector<TokenId> file_ids(const FillMiddle& marks, const Tokenizer& tokenizer,
                              const ContextFile& file) {
    std::vector<TokenId> ids;
    if (marks.file) {
        ids.push_back(*marks.file);
        append(ids, encode_inside(tokenizer, text(file.name.empty() ? "file" : file.name, "\n")));
    } else {
        append(ids, encode_inside(tokenizer, snippet_mark));
    }
    append(ids, encode_inside(tokenizer, file.text));
    return ids;
}

// Cuts prefix and suffix to `room` tokens together. A part that is shorter than its share leaves
// the rest of the share to the other part.
bool cut_parts(MiddleParts& parts, std::size_t room) {
    if (parts.prefix.size() + parts.suffix.size() <= room) return false;
    const std::size_t for_suffix = std::min(parts.suffix.size(), room / 4);
    const std::size_t for_prefix = std::min(parts.prefix.size(), room - for_suffix);
    parts.suffix.resize(std::min(parts.suffix.size(), room - for_prefix));
    parts.prefix.erase(parts.prefix.begin(),
                       parts.prefix.end() - static_cast<std::ptrdiff_t>(for_prefix));
    return true;
}

// Returns the project's files as far as `room` allows. The last file is nearest to the prompt.
std::vector<TokenId> files_before(const FillMiddle& marks, const Tokenizer& tokenizer,
                                  const std::vector<ContextFile>& files, std::size_t room,
                                  bool& was_cut) {
    if (files.empty()) return {};
    std::vector<TokenId> begin, end;
    if (marks.repository) {
        begin.push_back(*marks.repository);
        append(begin, encode_inside(tokenizer, text(project_name, "\n")));
    }
    if (marks.file) end = file_ids(marks, tokenizer, {.name = "edited", .text = ""});
    const std::size_t least = begin.size() + end.size();

    std::vector<std::vector<TokenId>> kept;
    std::size_t size = least;
    for (auto file = files.rbegin(); file != files.rend(); ++file) {
        std::vector<TokenId> ids = file_ids(marks, tokenizer, *file);
        if (size + ids.size() > room) {
            was_cut = true;
            break;
        }
        size += ids.size();
        kept.push_back(std::move(ids));
    }
    if (kept.empty()) return {};
    std::vector<TokenId> out = std::move(begin);
    for (auto ids = kept.rbegin(); ids != kept.rend(); ++ids) append(out, *ids);
    append(out, end);
    return out;
}

}  // namespace

std::optional<FillMiddle> find_fill_middle(const Tokenizer& tokenizer) {
    const auto find = [&](const char* name) {
        return name ? tokenizer.token_id(name) : std::optional<TokenId>();
    };
    for (const Family& one : families) {
        const auto prefix = find(one.prefix), suffix = find(one.suffix), middle = find(one.middle);
        if (!prefix || !suffix || (one.middle && !middle)) continue;
        FillMiddle found{.family = one.name,
                         .prefix = *prefix,
                         .suffix = *suffix,
                         .middle = middle,
                         .suffix_first = !one.middle,
                         .repository = find(one.repository),
                         .file = find(one.file)};
        for (const auto& id : {prefix, suffix, middle, found.repository, found.file})
            if (id) found.stops.push_back(*id);
        for (const char* name : other_stops)
            if (const auto id = find(name)) found.stops.push_back(*id);
        return found;
    }
    return std::nullopt;
}

std::vector<TokenId> encode_inside(const Tokenizer& tokenizer, const std::string& words) {
    const bool adds_space = tokenizer.leading_trim().count > 0;
    if (!adds_space) return tokenizer.encode(words, SpecialTokens::as_text);
    // Encode the text behind a sign that joins no token, and take the tokens of the sign away.
    const std::string sign = "\u263a";
    const std::vector<TokenId> before = tokenizer.encode(sign, SpecialTokens::as_text);
    std::vector<TokenId> ids = tokenizer.encode(sign + words, SpecialTokens::as_text);
    const bool is_apart = ids.size() >= before.size() &&
                          std::equal(before.begin(), before.end(), ids.begin());
    if (!is_apart) return tokenizer.encode(words, SpecialTokens::as_text);
    ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(before.size()));
    return ids;
}

MiddlePrompt make_middle_prompt(const FillMiddle& marks, const Tokenizer& tokenizer,
                                MiddleParts parts, std::size_t tokens_max) {
    const std::vector<TokenId> begin = tokenizer.encode_prompt("");
    const std::size_t num_marks = begin.size() + (marks.middle ? 3 : 2);
    const std::size_t room = tokens_max > num_marks ? tokens_max - num_marks : 0;

    MiddlePrompt prompt;
    prompt.was_cut = cut_parts(parts, room);
    const std::size_t left = room - std::min(room, parts.prefix.size() + parts.suffix.size());
    prompt.ids = begin;
    append(prompt.ids, files_before(marks, tokenizer, parts.files, left, prompt.was_cut));
    const auto add_part = [&](TokenId mark, const std::vector<TokenId>& part) {
        prompt.ids.push_back(mark);
        append(prompt.ids, part);
    };
    if (marks.suffix_first) add_part(marks.suffix, parts.suffix);
    add_part(marks.prefix, parts.prefix);
    if (!marks.suffix_first) add_part(marks.suffix, parts.suffix);
    if (marks.middle) prompt.ids.push_back(*marks.middle);
    return prompt;
}

}  // namespace moex
