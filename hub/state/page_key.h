// The key that encrypts pages of keys and values on disk: 32 random bytes, stored as 64 hexadecimal
// digits. README.md says what each place of the key protects against.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>

#include "protocol/result.h"

namespace moex {

using PageKey = std::array<std::byte, 32>;

// The places of the key, in the order in which they are tried. An empty path is passed over.
struct PageKeyPlaces {
    std::filesystem::path file;        // chosen by the operator; an unreadable file is an error
    std::filesystem::path credential;  // from the service manager; skipped if missing
    std::filesystem::path made;        // in the state folder; created (0600) if it is missing
};

// Returns the key of the first place. Errors name the file, what was found and what was wanted.
Result<PageKey> load_page_key(const PageKeyPlaces& places);

}  // namespace moex
