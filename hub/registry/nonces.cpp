#include "hub/registry/nonces.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <stdexcept>

#include "protocol/sha256.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::int64_t forget_window_s = 300;

}  // namespace

Nonces::Nonces() : secret_(32, '\0') {
    if (RAND_bytes(reinterpret_cast<unsigned char*>(secret_.data()),
                   static_cast<int>(secret_.size())) != 1)
        throw std::runtime_error("no random numbers from OpenSSL");
}

std::string Nonces::of(std::string_view purpose, std::uint64_t number) const {
    const std::string message = text(purpose, ' ', number);
    Sha256 mac{};
    unsigned size = 0;
    HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
         reinterpret_cast<const unsigned char*>(message.data()), message.size(),
         reinterpret_cast<unsigned char*>(mac.data()), &size);
    return to_hex(mac);
}

std::string Nonces::for_worker(std::uint64_t worker_id) const { return of("worker", worker_id); }
std::string Nonces::to_forget(std::int64_t now_s) const {
    return of("forget", static_cast<std::uint64_t>(now_s / forget_window_s));
}
bool Nonces::fits_to_forget(std::string_view challenge, std::int64_t now_s) const {
    const std::string now = to_forget(now_s), before = to_forget(now_s - forget_window_s);
    return challenge == now || challenge == before;
}

}  // namespace moex
