// The key that the hubs of a fleet share: 256 random bits in a file. Other keys are derived from
// it, one for each purpose (HKDF), so that a key which leaks in one place opens nothing elsewhere.
// It is never a client's key. Source: RFC 5869 (HKDF), NIST SP 800-38D (AES-GCM).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <string_view>

#include "protocol/bytes.h"
#include "protocol/result.h"

namespace moex {

class FleetKey {
  public:
    using Bits = std::array<std::byte, 32>;
    explicit FleetKey(const Bits& bits) : bits_(bits) {}
    FleetKey(const FleetKey&) = default;
    FleetKey& operator=(const FleetKey&) = default;
    ~FleetKey();

    // Reads a key file: one line of 64 hexadecimal digits. Errors: bad_file, also if other users of
    // this machine may read the file.
    static Result<FleetKey> read(const std::filesystem::path& file);
    // Writes a new key to `file` (0600), which must not exist.
    static Status make(const std::filesystem::path& file);

    // Returns the key for one purpose: "journal", "requests".
    Bits derive(std::string_view purpose, ByteView salt = {}) const;
    // Returns the code that shows that `words` come from a holder of this fleet key: an HMAC-SHA256
    // in hexadecimal digits.
    std::string code_of(std::string_view words) const;
    // True if `code` is the code of `words`. Takes constant time.
    bool is_code_of(std::string_view code, std::string_view words) const;

  private:
    Bits bits_;
};

// Encrypts what a store keeps (AES-256-GCM). Each Sealer has a key of its own, of the fleet key and
// of 16 random bytes that each sealed text begins with, and numbers its texts, so that no two texts
// have the same key and nonce. Thread-safe.
class Sealer {
  public:
    explicit Sealer(const FleetKey& key);
    // `place` is where the text is stored: it opens at no other place.
    Bytes seal(ByteView plain, std::string_view place);
    // Opens what any Sealer of the fleet key has sealed. Error bad_file: the text was changed, is
    // of another place, or of another key.
    Result<Bytes> open(ByteView sealed, std::string_view place) const;

  private:
    using Salt = std::array<std::byte, 16>;
    const FleetKey key_;
    Salt salt_{};
    FleetKey::Bits own_key_;
    std::atomic<std::uint64_t> counter_{0};
};

}  // namespace moex
