#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "hub/model/tokenizer/pattern_spelling.h"
#include "hub/model/tokenizer/regex.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/text.h"

namespace moex {
namespace {

// limit for the steps of one match; the patterns of real models need a few steps per byte
constexpr std::uint32_t match_limit = 10'000'000;
constexpr std::uint32_t depth_limit = 100'000;
constexpr std::uint32_t heap_limit_kib = 64 * 1024;

struct MatchDataFree {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

struct Pcre2Regex : Regex {
    pcre2_code* code = nullptr;
    pcre2_match_context* context = nullptr;

    ~Pcre2Regex() override {
        pcre2_match_context_free(context);
        pcre2_code_free(code);
    }
    void find(std::string_view subject, std::vector<Range>& matches) const override;
};

void Pcre2Regex::find(std::string_view subject, std::vector<Range>& matches) const {
    const std::unique_ptr<pcre2_match_data, MatchDataFree> data(
        pcre2_match_data_create_from_pattern(code, nullptr));
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(subject.data());
    for (std::size_t at = 0; at < subject.size();) {
        int found = pcre2_match(code, bytes, subject.size(), at, PCRE2_NO_UTF_CHECK, data.get(),
                                context);
        if (found == PCRE2_ERROR_JIT_STACKLIMIT)
            found = pcre2_match(code, bytes, subject.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                                data.get(), context);

        // Stop if there is no further match or if a limit was reached. The remaining text then
        // counts as one gap, so a hostile pattern costs the limit only once.
        if (found < 0) return;

        const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
        if (range[1] > range[0]) matches.emplace_back(range[0], range[1]);
        at = range[1] > at ? range[1] : at + utf8_step(subject, at).num_bytes;
    }
}

}  // namespace

Result<std::unique_ptr<const Regex>> Regex::compile(std::string_view oniguruma) {
    MOEX_ASSIGN(spelling, pcre2_spelling(oniguruma));
    auto regex = std::make_unique<Pcre2Regex>();
    pcre2_compile_context* compile = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(compile, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    regex->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelling.data()), spelling.size(),
                                PCRE2_UTF | PCRE2_UCP, &code, &offset, compile);

    pcre2_compile_context_free(compile);
    if (regex->code == nullptr) {
        PCRE2_UCHAR message[160] = {};
        pcre2_get_error_message(code, message, sizeof message);
        return Error{ErrorCode::unsupported,
                     text("pre-tokenizer pattern: ", reinterpret_cast<const char*>(message), " at ",
                          offset, " of ", spelling.substr(0, 200))};
    }

    // Ignore the result of the JIT compiler: without JIT the interpreter gives the same matches.
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    regex->context = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(regex->context, match_limit);
    pcre2_set_depth_limit(regex->context, depth_limit);
    pcre2_set_heap_limit(regex->context, heap_limit_kib);

    return std::unique_ptr<const Regex>(std::move(regex));
}

}  // namespace moex
