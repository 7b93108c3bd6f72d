#include "web-worker/native/known_hub.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>

#include "web-worker/native/http_client.h"

namespace moex::native {
namespace {

constexpr unsigned status_ok = 200, status_errors = 500, status_too_many = 429;

// Verifies with OpenSSL directly: hub/base/signing_key.h belongs to the hub.
bool fits(const PublicKey& key, const Signature& signature, std::string_view text) {
    const auto raw = [](const auto& bytes) {
        return reinterpret_cast<const unsigned char*>(bytes.data());
    };
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> verifier(
        EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw(key), key.size()),
        EVP_PKEY_free);
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          EVP_MD_CTX_free);
    return verifier && context &&
           EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, verifier.get()) == 1 &&
           EVP_DigestVerify(context.get(), raw(signature), signature.size(), raw(text),
                            text.size()) == 1;
}

Sha256 hash_of(ByteView bytes) {
    Sha256 hash{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           reinterpret_cast<unsigned char*>(hash.data()));
    return hash;
}

// Fetches a whole file of at most `bytes_max` bytes. Returns nullopt if the hub has no such file.
Result<std::optional<Bytes>> fetch(HttpClient& client, std::string_view path,
                                   std::size_t bytes_max) {
    Bytes bytes;
    unsigned status = 0;
    bool is_long = false;
    const Status got = client.get(path, 0,
                                  {.begin =
                                       [&](unsigned code) {
                                           status = code;
                                           return code == status_ok;
                                       },
                                   .take =
                                       [&](ByteView piece) {
                                           is_long = piece.size() > bytes_max - bytes.size();
                                           if (!is_long)
                                               bytes.insert(bytes.end(), piece.begin(),
                                                            piece.end());
                                           return !is_long;
                                       }});
    if (!got.ok()) return got.error();
    if (is_long)
        return Error{ErrorCode::payload_size,
                     text(path, " of the hub has more than ", bytes_max, " bytes")};
    if (status >= status_errors || status == status_too_many)
        return Error{ErrorCode::unavailable, text("the hub answered ", status, " for ", path)};
    if (status != status_ok) return std::optional<Bytes>();
    return std::optional<Bytes>(std::move(bytes));
}

std::string_view chars_of(const Bytes& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool SignedHub::has_signed_layer(const Sha256& blob, const Signature& signature) const {
    const auto manifest = parse_sha256(package_sha256);
    return manifest.ok() && fits(key, signature, layer_text(*manifest, blob));
}

KnownHub::KnownHub(std::filesystem::path file, std::optional<PublicKey> wanted)
    : file_(std::move(file)),
      wanted_(wanted) {}

Status KnownHub::load() {
    if (std::exchange(loaded_, true)) return {};
    if (std::ifstream in(file_); !file_.empty() && in) {
        std::ostringstream content;
        content << in.rdbuf();
        auto known = KnownKeys::parse(content.str(), file_.string());
        if (!known.ok()) {
            loaded_ = false;
            return Error{ErrorCode::unauthorized, known.error().message};
        }
        known_ = *std::move(known);
    }
    return {};
}

Result<SignedHub> KnownHub::check(const HubAddress& hub) {
    HttpClient client(hub, &stopping_);
    MOEX_ASSIGN(json, fetch(client, hub.url.path + "/api/signature", signature_json_bytes_max));
    std::optional<SignedManifest> signature;
    if (json) {
        MOEX_ASSIGN(parsed, parse_signed_manifest(chars_of(*json), "the hub's signature"));
        signature = std::move(parsed);
    }

    Bytes manifest;
    bool is_new = signature.has_value();
    if (signature) {
        const std::lock_guard lock(mutex_);
        is_new = newest_.package_sha256 != to_hex(signature->sha256);
    }
    if (is_new) {
        MOEX_ASSIGN(fetched, fetch(client, hub.url.path + "/api/manifest", signature->size_bytes));
        if (fetched) manifest = *std::move(fetched);
    }
    // The name of the pinned key: a proxy may serve several hubs below paths of one host.
    return judge(hub.url.authority() + hub.url.path, signature, std::move(manifest));
}

// `manifest` is empty if it is the newest one, which need not be fetched again.
Result<SignedHub> KnownHub::judge(const std::string& name,
                                  const std::optional<SignedManifest>& signature, Bytes manifest) {
    const std::lock_guard lock(mutex_);
    MOEX_TRY(load());
    if (wanted_ && given_.insert(name).second) known_.pin(name, *wanted_);
    if (!signature && !known_.find(name)) return SignedHub{};

    KnownKeys after = known_;
    const auto judged = judge_signer(name, signature ? &*signature : nullptr, after, fits);
    if (!judged.ok()) {
        const std::string how =
            file_.empty()
                ? std::string("start with --hub-key to accept another key")
                : text("to accept another key, give it as --hub-key, or delete the line \"", name,
                       " ...\" of ", file_.string());
        return Error{judged.error().code, text("The hub ", judged.error().message, "; ", how)};
    }

    if (!manifest.empty()) {
        if (hash_of(manifest) != signature->sha256)
            return Error{ErrorCode::hash_mismatch,
                         text("the manifest ", to_hex(signature->sha256).substr(0, 12),
                              " from the hub does not match its hash")};
        MOEX_ASSIGN(blobs, blobs_of_manifest(chars_of(manifest)));
        newest_ = {true, to_hex(signature->sha256), std::move(blobs), signature->key};
    }
    if (newest_.package_sha256 != to_hex(signature->sha256))
        return Error{ErrorCode::unavailable, "the hub does not send the manifest that it signs"};

    newest_.key = signature->key;
    known_ = std::move(after);
    if (*judged == SignerKey::known && !wanted_) return newest_;
    if (*judged != SignerKey::known)
        std::cerr << text("worker: hub ", name,
                          *judged == SignerKey::first ? " has the key " : " changed its key to ",
                          fingerprint_of(signature->key),
                          *judged == SignerKey::first ? ", which is pinned from now on\n"
                                                      : ", which its old key signed\n");
    if (const Status kept = keep(); !kept.ok())
        std::cerr << text(
            "worker: the hub's key is pinned for this run only: ", kept.error().message, '\n');
    return newest_;
}

// Writes the file under another name and renames it, so that a crash leaves the old or the new one.
Status KnownHub::keep() const {
    if (file_.empty()) return {};
    const std::string content = known_.to_text(), part = file_.string() + ".part";
    const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool is_written = file >= 0 && ::write(file, content.data(), content.size()) ==
                                       static_cast<ssize_t>(content.size());
    if (file >= 0) is_written = ::close(file) == 0 && is_written;
    if (is_written && ::rename(part.c_str(), file_.c_str()) == 0) return {};
    return Error{ErrorCode::io_error,
                 text("cannot write ", file_.string(), ": ", std::strerror(errno))};
}

}  // namespace moex::native
