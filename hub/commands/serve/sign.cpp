// moex-hub sign: prints the key with which a hub signs, signs a package, or changes a key.
#include "hub/base/signing_key.h"

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/serve/known_publishers.h"
#include "hub/commands/state_folder.h"
#include "hub/model/package/package.h"
#include "hub/model/package/verify.h"
#include "hub/registry/state_files.h"

namespace moex {
namespace {

constexpr unsigned signature_mode = 0644;

Status sign_package(const SigningKey& key, const std::filesystem::path& directory) {
    MOEX_TRY(verify_package(directory, {}));
    MOEX_ASSIGN(package, ModelPackage::open(directory));
    MOEX_ASSIGN(manifest, parse_sha256(package->manifest_sha256()));
    MOEX_ASSIGN(bytes, package->file(manifest));
    MOEX_ASSIGN(signature, key.sign_manifest(manifest, bytes.size()));
    return replace_file(directory / signature_file_name, signed_manifest_to_json(signature) + "\n",
                        signature_mode);
}

Result<std::filesystem::path> signer_file(const Invocation& invocation) {
    if (const std::string* chosen = invocation.argument("--key"))
        return std::filesystem::path(*chosen);
    MOEX_ASSIGN(directory, state_folder(invocation.settings));
    MOEX_TRY(secure_directory(directory));
    return signing_key_file(directory);
}

}  // namespace

int run_sign(const Invocation& invocation) {
    if (invocation.check_only) return exit_stopped;
    const auto file = signer_file(invocation);
    if (!file.ok()) return fail(file.error().message);
    auto key = SigningKey::open(*file);
    if (!key.ok()) return fail(key.error().message);

    if (invocation.argument("--renew")) {
        if (const Status renewed = key->renew(); !renewed.ok())
            return fail(renewed.error().message);
        (void)print_now(
            "The old key has signed the new one. A hub that runs uses the new key from its next "
            "start; packages that the old key signed want `moex-hub sign` again.\n");
    }
    if (const std::string* directory = invocation.argument("DIR")) {
        if (const Status is_signed = sign_package(*key, *directory); !is_signed.ok())
            return fail(is_signed.error().message);
        (void)print_now(text(one_line(*directory), ": every hash verified, ", signature_file_name,
                             " written\n"));
    }
    (void)print_now(text("key          ", to_hex(key->public_key()), "\nfingerprint  ",
                         fingerprint_of(key->public_key()), "\nfile         ",
                         one_line(file->string()), "  (mode 0600; keep it secret)\n"));
    return exit_stopped;
}

}  // namespace moex
