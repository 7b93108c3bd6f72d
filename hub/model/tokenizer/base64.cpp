#include "hub/model/tokenizer/base64.h"

#include <cstdint>

namespace moex {
namespace {

constexpr std::string_view alphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::optional<std::string> base64_bytes(std::string_view base64) {
    if (base64.size() % 4 != 0) return std::nullopt;
    for (int padding = 0; padding < 2 && base64.ends_with('='); ++padding) base64.remove_suffix(1);

    std::string bytes;
    bytes.reserve(base64.size() / 4 * 3 + 2);
    std::uint32_t bits = 0;
    int num_bits = 0;
    for (const char c : base64) {
        const std::size_t value = alphabet.find(c);
        if (value == std::string_view::npos) return std::nullopt;
        bits = (bits << 6) | static_cast<std::uint32_t>(value);
        num_bits += 6;
        if (num_bits < 8) continue;
        num_bits -= 8;
        bytes += static_cast<char>(bits >> num_bits & 0xFF);
    }

    return bytes;
}

std::string base64_text(std::string_view bytes) {
    std::string base64;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
        std::uint32_t bits = 0;
        for (std::size_t i = 0; i < 3; ++i)
            bits = bits << 8 |
                   (at + i < bytes.size() ? static_cast<std::uint8_t>(bytes[at + i]) : 0);
        for (std::size_t i = 0; i < 4; ++i)
            base64 += at + i <= bytes.size() ? alphabet[bits >> (18 - 6 * i) & 63] : '=';
    }
    return base64;
}

}  // namespace moex
