#include "protocol/checksum.h"

namespace moex {
namespace {

constexpr std::uint64_t prime_1 = 0x9E3779B185EBCA87, prime_2 = 0xC2B2AE3D27D4EB4F,
                        prime_3 = 0x165667B19E3779F9, prime_4 = 0x85EBCA77C2B2AE63,
                        prime_5 = 0x27D4EB2F165667C5;

std::uint64_t rotate(std::uint64_t value, int bits) { return value << bits | value >> (64 - bits); }

std::uint64_t mix(std::uint64_t sum, std::uint64_t word) {
    return rotate(sum + word * prime_2, 31) * prime_1;
}

std::uint64_t merge(std::uint64_t sum, std::uint64_t lane) {
    return (sum ^ mix(0, lane)) * prime_1 + prime_4;
}

}  // namespace

std::uint64_t checksum64(ByteView bytes) {
    ByteReader in(bytes);
    std::uint64_t sum = prime_5;
    if (bytes.size() >= 32) {
        std::uint64_t a = prime_1 + prime_2, b = prime_2, c = 0, d = 0 - prime_1;
        while (in.remaining_bytes() >= 32) {
            a = mix(a, in.u64());
            b = mix(b, in.u64());
            c = mix(c, in.u64());
            d = mix(d, in.u64());
        }
        sum = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        for (const std::uint64_t lane : {a, b, c, d}) sum = merge(sum, lane);
    }
    sum += bytes.size();

    // Add the bytes after the last block of 32.
    while (in.remaining_bytes() >= 8) sum = rotate(sum ^ mix(0, in.u64()), 27) * prime_1 + prime_4;
    if (in.remaining_bytes() >= 4) sum = rotate(sum ^ in.u32() * prime_1, 23) * prime_2 + prime_3;
    while (in.remaining_bytes() > 0) sum = rotate(sum ^ in.u8() * prime_5, 11) * prime_1;

    sum = (sum ^ sum >> 33) * prime_2;
    sum = (sum ^ sum >> 29) * prime_3;
    return sum ^ sum >> 32;
}

}  // namespace moex
