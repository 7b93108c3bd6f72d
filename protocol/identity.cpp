#include "protocol/identity.h"

#include <algorithm>

#include "protocol/frame.h"
#include "protocol/payload.h"
#include "protocol/sha256.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint8_t flag_shows_nickname = 1;
constexpr std::size_t pad_bytes = 3;

template <std::size_t size>
Result<std::array<std::byte, size>> parse_hex(std::string_view hex, const char* what) {
    std::array<std::byte, size> bytes{};
    const auto value_of = [](char digit) -> unsigned {
        if (digit >= '0' && digit <= '9') return static_cast<unsigned>(digit - '0');
        if (digit >= 'a' && digit <= 'f') return static_cast<unsigned>(digit - 'a' + 10);
        return 16;
    };

    bool good = hex.size() == 2 * size;
    for (std::size_t i = 0; good && i < size; ++i) {
        const unsigned high = value_of(hex[2 * i]), low = value_of(hex[2 * i + 1]);
        good = high < 16 && low < 16;
        bytes[i] = static_cast<std::byte>((high << 4 | low) & 255u);
    }
    if (good) return bytes;
    return Error{ErrorCode::bad_field, text(what, " is ", 2 * size, " digits of 0-9 and a-f")};
}

}  // namespace

Bytes encode_identity(const Identity& message) {
    ByteWriter out(frame_header_bytes + identity_bytes);
    begin_frame(out, FrameType::identity, 0);
    out.raw(message.public_key);
    out.raw(message.signature);
    out.u8(message.shows_nickname ? flag_shows_nickname : 0);
    for (std::size_t i = 0; i < pad_bytes; ++i) out.u8(0);
    return finish_frame(std::move(out));
}

Result<Identity> decode_identity(ByteView frame) {
    MOEX_ASSIGN(header, decode_header_of(frame, FrameType::identity));
    if (header.payload_bytes != identity_bytes)
        return Error{ErrorCode::payload_size,
                     text("IDENTITY with ", header.payload_bytes, " bytes, want ", identity_bytes)};

    ByteReader in(frame.subspan(frame_header_bytes));
    Identity message;
    const ByteView key = in.take(message.public_key.size());
    std::copy(key.begin(), key.end(), message.public_key.begin());
    const ByteView signature = in.take(message.signature.size());
    std::copy(signature.begin(), signature.end(), message.signature.begin());

    const unsigned flags = in.u8();
    unsigned pad = 0;
    for (std::size_t i = 0; i < pad_bytes; ++i) pad |= in.u8();
    if (flags > flag_shows_nickname)
        return Error{ErrorCode::unknown_flags, text("flags ", flags, ", bit 0 is known")};
    if (pad != 0) return Error{ErrorCode::bad_field, "IDENTITY: pad bytes are not zero"};
    message.shows_nickname = flags == flag_shows_nickname;
    return message;
}

std::string identity_text(std::string_view nonce, std::string_view origin,
                          std::uint64_t worker_id) {
    return text("MoEx identity 1\n", nonce, '\n', origin, '\n', worker_id);
}

std::string forget_text(std::string_view challenge, std::string_view origin) {
    return text("MoEx forget 1\n", challenge, '\n', origin);
}

Result<PublicKey> parse_public_key(std::string_view hex) {
    return parse_hex<std::tuple_size_v<PublicKey>>(hex, "a public key");
}
Result<Signature> parse_signature(std::string_view hex) {
    return parse_hex<std::tuple_size_v<Signature>>(hex, "a signature");
}
std::string to_hex(const Signature& signature) {
    Sha256 part{};  // a signature has the bytes of two hashes
    std::string hex;
    for (std::size_t first = 0; first < signature.size(); first += part.size()) {
        std::copy_n(signature.begin() + static_cast<std::ptrdiff_t>(first), part.size(),
                    part.begin());
        hex += to_hex(part);
    }
    return hex;
}

}  // namespace moex
