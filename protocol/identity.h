// IDENTITY: the signed identity of the contributor of a worker. The contributor keeps an Ed25519
// key and signs the nonce of WELCOME, so that a hub can add up the work of all workers of one
// person, whatever names the workers have. This file defines which bytes are signed. Hub and worker
// sign and verify with separate libraries. Source: RFC 8032 (Ed25519).
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
    bool shows_nickname = false;  // consent to show the nickname of HELLO to other contributors
};
Bytes encode_identity(const Identity& message);
Result<Identity> decode_identity(ByteView frame);

// Returns the text that a worker signs for IDENTITY. `origin` is the origin under which the worker
// reached the hub (RFC 6454, "https://hub:8443"). A hub therefore cannot pass on the nonce of
// another hub and use the signature there.
std::string identity_text(std::string_view nonce, std::string_view origin, std::uint64_t worker_id);
// Returns the text that a contributor signs to make a hub delete all data of the contributor's key.
// `challenge` was sent by the hub and is valid for a few minutes.
std::string forget_text(std::string_view challenge, std::string_view origin);

// These functions parse lower-case hexadecimal digits, the form that keys and signatures have in
// pages and JSON. The inverses are to_hex() here and in sha256.h.
Result<PublicKey> parse_public_key(std::string_view hex);
Result<Signature> parse_signature(std::string_view hex);
std::string to_hex(const Signature& signature);

}  // namespace moex
