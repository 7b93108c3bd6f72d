#include "hub/model/package/verify.h"

#include <set>
#include <vector>

#include "hub/base/files.h"
#include "hub/base/sha256.h"
#include "hub/model/package/draft_head.h"
#include "hub/model/package/manifest.h"

namespace moex {
namespace {

struct Check {
    std::filesystem::path path;
    Sha256 wanted;
    std::uint64_t size_bytes = 0;
};

// Adds the files of an open package with the hashes that its manifest wants.
Status add_checks(const ModelPackage& package, std::vector<Check>& checks) {
    MOEX_TRY(package.require_all_blobs());
    const std::filesystem::path& directory = package.directory();
    MOEX_ASSIGN(manifest_text, read_text_file(directory / "manifest.json", manifest_bytes_max));
    MOEX_ASSIGN(manifest, parse_manifest(manifest_text, (directory / "manifest.json").string()));

    checks.push_back({directory / "hub.safetensors", manifest.hub.sha256, manifest.hub.size_bytes});
    for (const auto& [name, file] : manifest.files)
        checks.push_back({directory / name, file.sha256, file.size_bytes});
    for (const auto& [file, record] : manifest.side_files)
        checks.push_back({directory / side_file_name(file), record.sha256, record.size_bytes});

    std::set<Sha256> seen;
    for (const auto& layer : manifest.experts)
        for (const Sha256& hash : layer)
            if (seen.insert(hash).second)
                checks.push_back({package.blob_path(hash), hash, package.expert_blob_bytes()});
    return {};
}

}  // namespace

Status verify_package(const std::filesystem::path& directory,
                      const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
    MOEX_ASSIGN(package, ModelPackage::open(directory));
    std::vector<Check> checks;
    MOEX_TRY(add_checks(*package, checks));
    if (package->has_draft_head()) {
        MOEX_ASSIGN(head, open_draft_head(*package));
        MOEX_TRY(add_checks(*head, checks));
    }

    std::uint64_t total = 0, done = 0;
    for (const Check& check : checks) total += check.size_bytes;
    for (const Check& check : checks) {
        MOEX_ASSIGN(found, sha256_file(check.path));
        if (found != check.wanted)
            return Error{ErrorCode::hash_mismatch,
                         text(check.path.string(), ": SHA-256 is ", to_hex(found), ", wanted ",
                              to_hex(check.wanted), "; damaged, pack again")};
        done += check.size_bytes;
        if (progress) progress(done, total);
    }

    return {};
}

}  // namespace moex
