#include "hub/commands/serve/known_publishers.h"

#include "hub/base/files.h"
#include "hub/base/log.h"
#include "hub/base/signing_key.h"

namespace moex {
namespace {

constexpr std::uint64_t known_bytes_max = 4u << 20;
constexpr unsigned known_mode = 0600;

Result<std::optional<SignedManifest>> read_signature(const ModelPackage& package) {
    const std::filesystem::path file = package.directory() / signature_file_name;
    const auto json = read_text_file(file, signature_json_bytes_max);
    if (!json.ok() && json.error().code == ErrorCode::not_found)
        return std::optional<SignedManifest>();
    if (!json.ok()) return json.error();
    MOEX_ASSIGN(parsed, parse_signed_manifest(*json, file.c_str()));
    if (to_hex(parsed.sha256) == package.manifest_sha256())
        return std::optional<SignedManifest>(std::move(parsed));
    return Error{ErrorCode::hash_mismatch,
                 text(file.string(), ": signs a manifest with SHA-256 ", to_hex(parsed.sha256),
                      ", and manifest.json has ", package.manifest_sha256(),
                      "; get the package again, or sign it with `moex-hub sign`")};
}

}  // namespace

std::filesystem::path signing_key_file(const std::filesystem::path& state_directory) {
    return state_directory / "signing-key";
}

Status check_publisher(const ModelPackage& package, const std::filesystem::path& state_directory) {
    const std::filesystem::path file = state_directory / "known-publishers";
    auto content = read_text_file(file, known_bytes_max);
    if (!content.ok() && content.error().code != ErrorCode::not_found) return content.error();
    MOEX_ASSIGN(known, KnownKeys::parse(content.ok() ? *content : std::string(), file.string()));
    MOEX_ASSIGN(signature, read_signature(package));
    if (!signature && !known.find(package.name())) return {};

    const auto judged = judge_signer(package.name(), signature ? &*signature : nullptr, known,
                                     signature_fits);
    if (!judged.ok())
        return Error{judged.error().code,
                     text(package.directory().string(), ": the publisher of ",
                          judged.error().message, "; to accept this package, delete the line \"",
                          package.name(), " ...\" of ", file.string())};
    if (*judged == SignerKey::known) return {};
    log_info(*judged == SignerKey::first ? "hub: pins the key of a publisher"
                                         : "hub: the key of a publisher has changed lawfully",
             kv("model", package.name()), kv("fingerprint", fingerprint_of(signature->key)));
    return replace_file(file, known.to_text(), known_mode);
}

}  // namespace moex
