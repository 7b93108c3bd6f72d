// IDENTITY: whose worker this is. Its owner keeps an Ed25519 key and signs what WELCOME gave to
// sign, so that a hub adds up what all of one person's workers did, whatever their names.
// This room names the bytes; hub and worker sign and verify with what they have.
// Source: RFC 8032 (Ed25519).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

using PublicKey = std::array<std::byte, 32>;
using Signature = std::array<std::byte, 64>;

inline constexpr std::uint32_t identity_bytes = 100;  // of the payload

struct Identity {
    PublicKey public_key{};
    Signature signature{};
    bool shows_nickname = false;  // its owner wants HELLO's nickname to be seen by other workers
};
Bytes encode_identity(const Identity& message);
Result<Identity> decode_identity(ByteView frame);

// What is signed. `origin` is the hub's as the worker reached it (RFC 6454, "https://hub:8443"):
// a hub cannot hand another's nonce on and use the answer there.
std::string identity_text(std::string_view nonce, std::string_view origin, std::uint64_t worker_id);
// What a contributor signs who wants a hub to drop what it knows of this key; `challenge` is the
// hub's, and of a few minutes.
std::string forget_text(std::string_view challenge, std::string_view origin);

// From lower-case hexadecimal digits, as pages and JSON have them; to_hex() is that of sha256.h.
Result<PublicKey> parse_public_key(std::string_view hex);
Result<Signature> parse_signature(std::string_view hex);

}  // namespace moex
