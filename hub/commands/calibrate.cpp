#include "hub/commands/calibrate.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "hub/engine/local_experts.h"

namespace moex {

Result<std::vector<TokenId>> tokens_of_file(const std::string& path, const Tokenizer& tokenizer,
                                            std::uint64_t tokens_max) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return Error{ErrorCode::not_found, text(path, ": cannot be read")};
    const std::string content{std::istreambuf_iterator<char>(file), {}};

    std::vector<TokenId> tokens = tokenizer.encode(content, SpecialTokens::as_text);
    if (tokens.size() > tokens_max) tokens.resize(tokens_max);
    return tokens;
}

std::function<void(std::uint32_t, std::uint32_t)> window_progress(ProgressLine& line,
                                                                  std::string what) {
    return [&line, what = std::move(what)](std::uint32_t done, std::uint32_t total) {
        line.show(static_cast<double>(done) / total, text(what, ": window ", done, "/", total));
    };
}

Result<std::shared_ptr<const ExpertProfile>> calibrate_on(const CalibrationText& source,
                                                          const Tokenizer& tokenizer,
                                                          Decoder& decoder, LocalExperts& experts,
                                                          KvDtype kv_dtype, bool progress_lines) {
    if (!decoder.config().has_experts())
        return Error{ErrorCode::unsupported, "a dense model has no experts to calibrate"};
    MOEX_ASSIGN(tokens, tokens_of_file(source.path, tokenizer, source.tokens_max));
    const auto num_tokens = static_cast<std::uint32_t>(
        std::min<std::size_t>(tokens.size(), decoder.config().context_tokens));
    const WindowOptions options{.window_tokens = std::min(source.window_tokens, num_tokens),
                                .kv_dtype = kv_dtype};

    ProgressLine line(progress_lines);
    MOEX_ASSIGN(profile, calibrate_experts(decoder, experts, experts, tokens, options,
                                           window_progress(line, "calibrating")));
    return std::make_shared<const ExpertProfile>(std::move(profile));
}

}  // namespace moex
