#include "hub/commands/self_signed.h"

#include <arpa/inet.h>

#include <memory>

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include "protocol/text.h"

namespace moex {
namespace {

template <auto Free>
struct Freer {
    template <class T>
    void operator()(T* object) const {
        Free(object);
    }
};
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;
using X509Ptr = std::unique_ptr<X509, Freer<X509_free>>;
using Bio = std::unique_ptr<BIO, Freer<BIO_free_all>>;

Error openssl_error(const char* what) {
    char reason[256] = "unknown";
    if (const unsigned long code = ERR_get_error()) ERR_error_string_n(code, reason, sizeof reason);
    return {ErrorCode::internal, text(what, ": ", reason)};
}

bool is_address(const std::string& name) {
    unsigned char buffer[16];
    return inet_pton(AF_INET, name.c_str(), buffer) == 1 ||
           inet_pton(AF_INET6, name.c_str(), buffer) == 1;
}

bool add_extension(X509* certificate, int nid, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    if (!extension) return false;

    const bool added = X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

std::string bio_text(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    return {data, static_cast<std::size_t>(size)};
}

Status check_names(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        const bool is_plain = !name.empty() && name.find_first_of(",:\n ") == std::string::npos;
        if (!is_plain && !is_address(name))
            return Error{ErrorCode::invalid_argument,
                         text("\"", name, "\" is no host name or address")};
    }
    return {};
}

// Fills in version 3, a random serial number, and a validity that begins one hour ago, because the
// clocks of other machines may differ.
bool fill(X509* certificate, EVP_PKEY* key, int days) {
    unsigned char serial[16];
    if (RAND_bytes(serial, sizeof serial) != 1) return false;
    serial[0] &= 0x7f;
    BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
    BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));
    BN_free(number);

    constexpr long version_3 = 2, hour_s = 3600;
    X509_set_version(certificate, version_3);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -hour_s);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * hour_s * days);
    X509_set_pubkey(certificate, key);

    X509_NAME* subject = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                               reinterpret_cast<const unsigned char*>("MoEx hub"), -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    return true;
}

bool add_extensions(X509* certificate, const std::vector<std::string>& names) {
    std::string alternatives;
    for (const std::string& name : names)
        alternatives += text(alternatives.empty() ? "" : ",",
                             is_address(name) ? "IP:" : "DNS:", name);

    return add_extension(certificate, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(certificate, NID_key_usage, "critical,digitalSignature") &&
           add_extension(certificate, NID_ext_key_usage, "serverAuth") &&
           add_extension(certificate, NID_subject_alt_name, alternatives);
}

std::string fingerprint(const X509* certificate) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int digest_bytes = 0;
    X509_digest(certificate, EVP_sha256(), digest, &digest_bytes);

    std::string out;
    for (unsigned int i = 0; i < digest_bytes; ++i) {
        char hex[4];
        std::snprintf(hex, sizeof hex, i == 0 ? "%02X" : ":%02X", digest[i]);
        out += hex;
    }
    return out;
}

}  // namespace

Result<Certificate> make_self_signed(const std::vector<std::string>& names, int days) {
    MOEX_TRY(check_names(names));

    const Key key(EVP_EC_gen("P-256"));
    const X509Ptr certificate(X509_new());
    if (!key || !certificate) return openssl_error("making an ECDSA P-256 key");
    if (!fill(certificate.get(), key.get(), days)) return openssl_error("random serial");
    if (!add_extensions(certificate.get(), names)) return openssl_error("certificate extensions");
    if (X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0) return openssl_error("signing");

    const Bio certificate_bio(BIO_new(BIO_s_mem())), key_bio(BIO_new(BIO_s_mem()));
    if (PEM_write_bio_X509(certificate_bio.get(), certificate.get()) != 1 ||
        PEM_write_bio_PKCS8PrivateKey(key_bio.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                      nullptr) != 1)
        return openssl_error("writing PEM");

    return Certificate{.certificate_pem = bio_text(certificate_bio.get()),
                       .key_pem = bio_text(key_bio.get()),
                       .sha256_fingerprint = fingerprint(certificate.get())};
}

}  // namespace moex
