#include "hub/model/tokenizer/split_pattern.h"

#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {

Result<SplitPattern> SplitPattern::compile_literal(std::string_view literal) {
    if (literal.empty())
        return Error{ErrorCode::unsupported, "pre-tokenizer pattern is an empty string"};
    SplitPattern pattern;
    pattern.literal_ = literal;
    return pattern;
}

Result<SplitPattern> SplitPattern::compile_regex(std::string_view oniguruma) {
    if (!utf8_is_valid(oniguruma))
        return Error{ErrorCode::bad_file, "pre-tokenizer pattern is not UTF-8"};

    SplitPattern pattern;
    MOEX_ASSIGN(regex, Regex::compile(oniguruma));
    pattern.regex_ = std::move(regex);
    return pattern;
}

void SplitPattern::find(std::string_view subject, std::vector<Range>& matches) const {
    matches.clear();
    if (regex_) return regex_->find(subject, matches);
    for (std::size_t at = 0; (at = subject.find(literal_, at)) != std::string_view::npos;
         at += literal_.size())
        matches.emplace_back(at, at + literal_.size());
}

}  // namespace moex
