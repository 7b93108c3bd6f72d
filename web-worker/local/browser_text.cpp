// The tab's implementation of hub/model/tokenizer/unicode.h and regex.h, over the browser's Unicode
// data and regular expressions.
#include <emscripten.h>

#include <cstring>

#include "hub/model/tokenizer/pattern_spelling.h"
#include "hub/model/tokenizer/regex.h"
#include "hub/model/tokenizer/unicode.h"
#include "protocol/bytes.h"
#include "protocol/text.h"
#include "web-worker/local/text_bridge.h"

namespace moex {
namespace {

// Returns the buffer for the answers of all calls to JavaScript. No call is made while the answer
// of an earlier call is still being read.
Bytes& room() {
    static Bytes bytes;
    return bytes;
}
std::string text_in_room(std::size_t size_bytes) {
    return std::string(reinterpret_cast<const char*>(room().data()), size_bytes);
}
int size_of(std::string_view text) { return static_cast<int>(text.size()); }

class BrowserRegex : public Regex {
  public:
    explicit BrowserRegex(int handle) : handle_(handle) {}
    BrowserRegex(const BrowserRegex&) = delete;
    ~BrowserRegex() override { mx_pattern_free(handle_); }

    void find(std::string_view text, std::vector<Range>& matches) const override {
        const int count = mx_pattern_find(handle_, text.data(), size_of(text));
        const auto* bounds = reinterpret_cast<const std::uint32_t*>(room().data());
        for (int i = 0; i < count; ++i) matches.push_back(Range(bounds[2 * i], bounds[2 * i + 1]));
    }

  private:
    int handle_;
};

}  // namespace

Result<std::unique_ptr<const Regex>> Regex::compile(std::string_view oniguruma) {
    MOEX_ASSIGN(spelling, ecmascript_spelling(oniguruma));
    const int handle = mx_pattern_compile(spelling.data(), size_of(spelling));
    if (handle <= 0)
        return Error{ErrorCode::unsupported,
                     text("pre-tokenizer pattern: ",
                          text_in_room(static_cast<std::size_t>(-handle)).substr(0, 300))};
    return std::unique_ptr<const Regex>(std::make_unique<BrowserRegex>(handle));
}

UnicodeCategory unicode_category(char32_t c) {
    return static_cast<UnicodeCategory>(mx_unicode_category(c));
}
char32_t unicode_upper(char32_t c) { return mx_unicode_case(c, 0); }
char32_t unicode_lower(char32_t c) { return mx_unicode_case(c, 1); }
char32_t unicode_title(char32_t c) { return mx_unicode_case(c, 2); }

std::string unicode_normal_form(std::string_view text, NormalForm form) {
    return text_in_room(static_cast<std::size_t>(
        mx_text_normal_form(text.data(), size_of(text), static_cast<int>(form))));
}

// Returns the buffer to which JavaScript writes an answer; its address is a multiple of 8.
extern "C" EMSCRIPTEN_KEEPALIVE std::byte* mx_text_room(std::uint32_t size_bytes) {
    if (room().size() < size_bytes) room().resize(size_bytes);
    return room().data();
}

}  // namespace moex
