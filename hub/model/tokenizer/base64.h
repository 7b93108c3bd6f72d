// Base64, in which tokenizer files store bytes inside text. Source: RFC 4648, section 4.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moex {

// Returns the bytes of a base64 text with padding; nullopt if the text is not base64.
std::optional<std::string> base64_bytes(std::string_view base64);
std::string base64_text(std::string_view bytes);

}  // namespace moex
