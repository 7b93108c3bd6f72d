#include "protocol/signed_package.h"

#include <algorithm>

#include "protocol/json.h"
#include "protocol/text.h"

namespace moex {
namespace {

constexpr std::uint64_t signed_manifest_bytes_max = 64u << 20;
constexpr std::size_t hex_digits_max = 128;

Result<PublicKey> read_key_field(const Json& object, const char* name) {
    std::string hex;
    MOEX_TRY(read_text(hex, object, name, hex_digits_max, Presence::required));
    return parse_public_key(hex);
}

Result<Signature> read_signature_field(const Json& object) {
    std::string hex;
    MOEX_TRY(read_text(hex, object, "signature", hex_digits_max, Presence::required));
    return parse_signature(hex);
}

Result<KeyChange> parse_key_change(const Json& object) {
    KeyChange change;
    MOEX_ASSIGN(from, read_key_field(object, "from"));
    MOEX_ASSIGN(to, read_key_field(object, "to"));
    MOEX_ASSIGN(signature, read_signature_field(object));
    return KeyChange{from, to, signature};
}

Result<SignedManifest> read_signed_manifest(const Json& object) {
    SignedManifest read;
    MOEX_ASSIGN(key, read_key_field(object, "key"));
    read.key = key;
    const Json* changes = find_member(object, "changes");
    if (changes == nullptr || !changes->is_array() || changes->size() > key_changes_max)
        return Error{ErrorCode::bad_field,
                     text("\"changes\" is not a list of at most ", key_changes_max)};
    for (const Json& one : *changes) {
        MOEX_ASSIGN(change, parse_key_change(one));
        read.changes.push_back(change);
    }

    const Json* manifest = find_member(object, "manifest");
    if (manifest == nullptr) return Error{ErrorCode::bad_field, "\"manifest\" is missing"};
    std::string hex;
    MOEX_TRY(read_text(hex, *manifest, "sha256", hex_digits_max, Presence::required));
    MOEX_ASSIGN(sha256, parse_sha256(hex));
    read.sha256 = sha256;
    MOEX_TRY(read_integer(read.size_bytes, *manifest, "bytes", 1, signed_manifest_bytes_max,
                          Presence::required));
    MOEX_ASSIGN(signature, read_signature_field(*manifest));
    read.signature = signature;
    return read;
}

Error refuse_signer(std::string_view name, const auto&... why) {
    return Error{ErrorCode::unauthorized, text(name, why...)};
}

}  // namespace

std::string manifest_text(const Sha256& manifest, std::uint64_t size_bytes) {
    return text("MoEx manifest 1\n", to_hex(manifest), '\n', size_bytes);
}
std::string pages_text(std::string_view lines) { return text("MoEx pages 1\n", lines); }
std::string layer_text(const Sha256& manifest, const Sha256& layer) {
    return text("MoEx layer 1\n", to_hex(manifest), '\n', to_hex(layer));
}

std::string key_change_text(const PublicKey& from, const PublicKey& to) {
    return text("MoEx key 1\n", to_hex(from), '\n', to_hex(to));
}

std::string fingerprint_of(const PublicKey& key) {
    constexpr std::size_t shown_digits = 32, group_digits = 4;
    const std::string hex = to_hex(key);
    std::string shown;
    for (std::size_t i = 0; i < shown_digits; i += group_digits)
        shown += (i == 0 ? "" : " ") + hex.substr(i, group_digits);
    return shown;
}

std::string signed_manifest_to_json(const SignedManifest& signed_manifest) {
    Json changes = Json::array();
    for (const KeyChange& change : signed_manifest.changes)
        changes.push_back({{"from", to_hex(change.from)},
                           {"to", to_hex(change.to)},
                           {"signature", to_hex(change.signature)}});
    const Json object = {{"key", to_hex(signed_manifest.key)},
                         {"changes", std::move(changes)},
                         {"manifest",
                          {{"sha256", to_hex(signed_manifest.sha256)},
                           {"bytes", signed_manifest.size_bytes},
                           {"signature", to_hex(signed_manifest.signature)}}}};
    return dump_json(object);
}

Result<SignedManifest> parse_signed_manifest(std::string_view json, const char* what) {
    MOEX_ASSIGN(object, parse_json_object(json, signature_json_bytes_max, what));
    auto read = read_signed_manifest(object);
    if (read.ok()) return read;
    return Error{read.error().code, text(what, ": ", read.error().message)};
}

Status check_signature(const SignedManifest& signed_manifest, const SignatureFits& fits) {
    const std::string signed_text = manifest_text(signed_manifest.sha256,
                                                  signed_manifest.size_bytes);
    if (fits(signed_manifest.key, signed_manifest.signature, signed_text)) return {};
    return Error{ErrorCode::hash_mismatch,
                 text("the signature of the manifest does not fit the key ",
                      fingerprint_of(signed_manifest.key))};
}

bool is_successor(const PublicKey& pinned, const SignedManifest& signed_manifest,
                  const SignatureFits& fits) {
    PublicKey key = pinned;
    // A change that did not take effect, because the program ended before it stored the new key,
    // has a later change of the same key behind it. The last one counts.
    for (std::size_t steps = 0; key != signed_manifest.key; ++steps) {
        if (steps == key_changes_max) return false;
        const auto& changes = signed_manifest.changes;
        const auto change = std::find_if(changes.rbegin(), changes.rend(),
                                         [&](const KeyChange& one) { return one.from == key; });
        if (change == changes.rend() ||
            !fits(key, change->signature, key_change_text(key, change->to)))
            return false;
        key = change->to;
    }
    return true;
}

Result<std::set<Sha256>> blobs_of_manifest(std::string_view manifest_json) {
    MOEX_ASSIGN(object,
                parse_json_object(manifest_json, signed_manifest_bytes_max, "manifest.json"));
    const Error wrong{ErrorCode::bad_field,
                      "manifest.json: \"experts\" is no list of lists of hashes"};
    const Json* experts = find_member(object, "experts");
    if (experts == nullptr || !experts->is_array()) return wrong;

    std::set<Sha256> blobs;
    for (const Json& layer : *experts) {
        if (layer.is_null()) continue;  // a dense layer
        if (!layer.is_array()) return wrong;
        for (const Json& hex : layer) {
            if (!hex.is_string()) return wrong;
            MOEX_ASSIGN(hash, parse_sha256(hex.get_ref<const std::string&>()));
            blobs.insert(hash);
        }
    }
    return blobs;
}

Result<KnownKeys> KnownKeys::parse(std::string_view content, std::string_view what) {
    KnownKeys known;
    std::size_t number = 0;
    while (!content.empty()) {
        std::string_view line = content.substr(0, content.find('\n'));
        content.remove_prefix(std::min(content.size(), line.size() + 1));
        ++number;
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        if (line.empty() || line.front() == '#') continue;

        const std::size_t blank = line.find(' ');
        const auto key = parse_public_key(blank == std::string_view::npos ? std::string_view()
                                                                          : line.substr(blank + 1));
        if (blank == 0 || !key.ok())
            return Error{ErrorCode::bad_file,
                         text(what, ", line ", number,
                              ": wanted a name, a blank and a key of 64 digits 0-9 and a-f; "
                              "correct or delete the line")};
        known.keys_[std::string(line.substr(0, blank))] = *key;
    }
    return known;
}

std::string KnownKeys::to_text() const {
    std::string content =
        "# Keys that were pinned at first use. Delete a line to accept another key.\n";
    for (const auto& [name, key] : keys_) content += text(name, ' ', to_hex(key), '\n');
    return content;
}

std::optional<PublicKey> KnownKeys::find(std::string_view name) const {
    const auto found = keys_.find(name);
    if (found == keys_.end()) return std::nullopt;
    return found->second;
}

void KnownKeys::pin(std::string_view name, const PublicKey& key) { keys_[std::string(name)] = key; }

Result<SignerKey> judge_signer(std::string_view name, const SignedManifest* signed_manifest,
                               KnownKeys& known, const SignatureFits& fits) {
    const std::optional<PublicKey> pinned = known.find(name);
    if (signed_manifest == nullptr)
        return refuse_signer(name, " sent no signature, wanted one by the known key ",
                             pinned ? fingerprint_of(*pinned) : "none");
    if (const Status fit = check_signature(*signed_manifest, fits); !fit.ok())
        return refuse_signer(name, ": ", fit.error().message);
    if (pinned == signed_manifest->key) return SignerKey::known;
    if (pinned && !is_successor(*pinned, *signed_manifest, fits))
        return refuse_signer(name, " has the key ", fingerprint_of(signed_manifest->key),
                             ", wanted the known key ", fingerprint_of(*pinned),
                             " or a key that it signed");
    known.pin(name, signed_manifest->key);
    return pinned ? SignerKey::changed : SignerKey::first;
}

}  // namespace moex
