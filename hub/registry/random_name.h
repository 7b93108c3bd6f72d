// Random names of processes and hubs.
#pragma once

#include <openssl/rand.h>

#include <string>

#include "protocol/result.h"

namespace moex {

// Returns `digits` random hexadecimal digits, an even number of them.
inline Result<std::string> random_name(std::size_t digits) {
    std::string raw(digits / 2, '\0'), name;
    if (RAND_bytes(reinterpret_cast<unsigned char*>(raw.data()), static_cast<int>(raw.size())) != 1)
        return Error{ErrorCode::internal, "no random numbers from OpenSSL"};
    for (const char byte : raw)
        for (const int shift : {4, 0}) name += "0123456789abcdef"[(byte >> shift) & 15];
    return name;
}

}  // namespace moex
