#include "hub/base/signing_key.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <unistd.h>

#include "hub/base/files.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t pem_bytes_max = 16u << 10;
constexpr unsigned private_mode = 0600;

const unsigned char* raw(const auto& bytes) {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}
EVP_PKEY* key_in(const auto& key) { return static_cast<EVP_PKEY*>(key.get()); }

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;

// Returns null if the text holds no private key without a passphrase.
EVP_PKEY* key_of_pem(std::string_view pem) {
    const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
    const auto no_passphrase = [](char*, int, int, void*) { return 0; };
    return bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr) : nullptr;
}

std::string pem_of_key(EVP_PKEY* key) {
    const Bio bio(BIO_new(BIO_s_mem()), BIO_free);
    char* content = nullptr;
    if (key == nullptr || !bio ||
        PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
        return {};
    const long size_bytes = BIO_get_mem_data(bio.get(), &content);
    return {content, static_cast<std::size_t>(size_bytes)};
}

}  // namespace

void SigningKey::FreeKey::operator()(void* key) const {
    EVP_PKEY_free(static_cast<EVP_PKEY*>(key));
}

Status replace_file(const std::filesystem::path& file, std::string_view content, unsigned mode) {
    const std::string part = file.string() + ".part";
    ::unlink(part.c_str());  // a file left by an interrupted start, with any mode
    const int descriptor = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    bool is_written = descriptor >= 0 && ::write(descriptor, content.data(), content.size()) ==
                                             static_cast<ssize_t>(content.size());
    is_written = is_written && ::fsync(descriptor) == 0;
    const int cause = errno;
    if (descriptor >= 0) ::close(descriptor);
    if (is_written && ::rename(part.c_str(), file.c_str()) == 0) return {};
    const int last_cause = is_written ? errno : cause;
    if (descriptor >= 0) ::unlink(part.c_str());
    return Error{ErrorCode::io_error,
                 text(file.string(), ": cannot be written: ", std::strerror(last_cause))};
}

Status SigningKey::take(Key key) {
    std::size_t size = public_key_.size();
    PublicKey public_key{};
    if (!key || EVP_PKEY_get_id(key_in(key)) != EVP_PKEY_ED25519 ||
        EVP_PKEY_get_raw_public_key(
            key_in(key), reinterpret_cast<unsigned char*>(public_key.data()), &size) != 1)
        return Error{ErrorCode::bad_file,
                     text(file_.string(),
                          ": holds no Ed25519 key in PEM without a passphrase; "
                          "`openssl genpkey -algorithm ed25519` makes one")};
    key_ = std::move(key);
    public_key_ = public_key;
    return {};
}

Status SigningKey::read_changes() {
    const auto content = read_text_file(changes_file(), signature_json_bytes_max);
    if (!content.ok() && content.error().code == ErrorCode::not_found) return {};
    if (!content.ok()) return content.error();
    MOEX_ASSIGN(before, parse_signed_manifest(*content, changes_file().c_str()));
    changes_ = std::move(before.changes);
    return {};
}

Result<SigningKey> SigningKey::open(const std::filesystem::path& file) {
    SigningKey opened(file);
    const auto pem = read_text_file(file, pem_bytes_max);
    if (!pem.ok() && pem.error().code != ErrorCode::not_found) return pem.error();
    if (pem.ok()) {
        MOEX_TRY(opened.take(Key(key_of_pem(*pem))));
        MOEX_TRY(opened.read_changes());
        return opened;
    }

    Key made(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
    MOEX_TRY(replace_file(file, pem_of_key(key_in(made)), private_mode));
    MOEX_TRY(opened.take(std::move(made)));
    MOEX_TRY(opened.read_changes());
    return opened;
}

Result<Signature> SigningKey::sign(std::string_view text) const {
    Signature signature{};
    std::size_t size = signature.size();
    const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                          EVP_MD_CTX_free);
    const bool is_signed =
        context &&
        EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key_in(key_)) == 1 &&
        EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                       raw(text), text.size()) == 1;
    if (!is_signed) return Error{ErrorCode::internal, "OpenSSL did not sign"};
    return signature;
}

Result<SignedManifest> SigningKey::sign_manifest(const Sha256& manifest,
                                                 std::uint64_t size_bytes) const {
    MOEX_ASSIGN(signature, sign(manifest_text(manifest, size_bytes)));
    return SignedManifest{.key = public_key_,
                          .changes = changes_,
                          .sha256 = manifest,
                          .size_bytes = size_bytes,
                          .signature = signature};
}

// The list of changes is written first. A crash behind it leaves a change to a key that does not
// exist, and is_successor() passes over such a change.
Status SigningKey::renew() {
    Key made(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
    const std::string pem = pem_of_key(key_in(made));
    SigningKey next(file_);
    MOEX_TRY(next.take(std::move(made)));
    next.changes_ = changes_;
    if (next.changes_.size() == key_changes_max) next.changes_.erase(next.changes_.begin());
    MOEX_ASSIGN(signature, sign(key_change_text(public_key_, next.public_key_)));
    next.changes_.push_back({public_key_, next.public_key_, signature});

    // The file of changes has the form of a signature, of which only the changes are read.
    MOEX_ASSIGN(list, next.sign_manifest({}, 1));
    MOEX_TRY(replace_file(changes_file(), signed_manifest_to_json(list) + "\n", private_mode));
    MOEX_TRY(replace_file(file_, pem, private_mode));
    *this = std::move(next);
    return {};
}

bool signature_fits(const PublicKey& key, const Signature& signature, std::string_view text) {
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

}  // namespace moex
