// Fuzzes chat templates. For any text, parsing and rendering must end within their bounds, and the
// output must be UTF-8.
#include <cstdint>
#include <string_view>

#include "hub/model/chat_template.h"
#include "hub/model/tokenizer/utf8.h"
#include "protocol/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace moex;
    static const nlohmann::ordered_json context = nlohmann::ordered_json::parse(R"({
        "messages": [{"role": "system", "content": "s"}, {"role": "user",
        "content": " \u00e4\n<|end|> "}, {"role": "assistant", "content": "<think>t</think>a",
        "tool_calls": []}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [1, 2.5,
        null, true]}}}], "add_generation_prompt": true, "n": -3, "bos_token": "<s>"})");
    const auto parsed = ChatTemplate::parse(
        std::string_view(reinterpret_cast<const char*>(data), size));
    if (!parsed.ok()) return 0;
    const TemplateLimits limits{.steps_max = 20'000,
                                .output_bytes_max = 64 * 1024,
                                .depth_max = 30,
                                .now_unix_s = 1'700'000'000};
    const auto rendered = (*parsed)->render(context, limits);
    if (!rendered.ok()) return 0;
    MOEX_CHECK(rendered->size() <= limits.output_bytes_max, "more output than allowed");
    MOEX_CHECK(utf8_is_valid(*rendered), "output is not UTF-8");
    return 0;
}
