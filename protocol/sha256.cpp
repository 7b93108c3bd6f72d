#include "protocol/sha256.h"

#include "protocol/text.h"

namespace moex {

std::string to_hex(const Sha256& hash) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string hex;
    hex.reserve(2 * hash.size());
    for (const std::byte byte : hash) {
        hex += digits[std::to_integer<unsigned>(byte) >> 4];
        hex += digits[std::to_integer<unsigned>(byte) & 15];
    }
    return hex;
}

Result<Sha256> parse_sha256(std::string_view hex) {
    Sha256 hash{};
    bool good = hex.size() == 2 * hash.size();
    for (std::size_t i = 0; good && i < hex.size(); ++i) {
        const char digit = hex[i];
        good = (digit >= '0' && digit <= '9') || (digit >= 'a' && digit <= 'f');
        const unsigned value = digit <= '9' ? static_cast<unsigned>(digit - '0')
                                            : static_cast<unsigned>(digit - 'a' + 10);
        hash[i / 2] |= static_cast<std::byte>((value & 15u) << (i % 2 == 0 ? 4 : 0));
    }
    if (!good) return Error{ErrorCode::bad_field, "a SHA-256 is 64 digits of 0-9 and a-f"};
    return hash;
}

}  // namespace moex
