#include "hub/commands/serve/host_keys.h"

#include <fstream>

namespace moex {
namespace {

// Returns `key`, or the first line of the file `path` if `key` is empty. The result is empty when
// neither is given. An error message contains `file_setting`, the name of the file's setting.
Result<std::string> read_key(std::string key, const std::filesystem::path& path,
                             const char* file_setting) {
    if (key.empty() && !path.empty()) {
        std::ifstream file(path);
        if (!std::getline(file, key))
            return Error{ErrorCode::io_error,
                         text(path.string(), ": cannot be read, or its first line is empty")};
        while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    }

    constexpr std::size_t key_bytes_min = 16;
    if (!key.empty() && key.size() < key_bytes_min)
        return Error{ErrorCode::invalid_argument,
                     text(file_setting, ": a key has at least ", key_bytes_min, " characters")};
    return key;
}

// Makes a key of a role and returns it. Returns an empty text when the registry already has a key
// of that role.
Result<std::string> make_missing(Registry& registry, Role role) {
    if (registry.has_key(role)) return std::string();
    return registry.create_key(role, "first start");
}

}  // namespace

Status keep_host_keys(const KeySettings& keys, Registry& registry) {
    MOEX_ASSIGN(api, read_key(keys.api_key, keys.api_key_file, "api-key-file"));
    MOEX_ASSIGN(admin, read_key(keys.admin_key, keys.admin_key_file, "admin-key-file"));
    for (const auto& [role, key] : {std::pair{Role::api, api}, std::pair{Role::admin, admin}})
        if (!key.empty()) MOEX_TRY(registry.set_key(role, host_key_name, key));
    return {};
}

Result<MadeKeys> prepare_keys(const KeySettings& keys, Registry& registry, bool required) {
    MOEX_TRY(keep_host_keys(keys, registry));

    MadeKeys made;
    if (required) {
        MOEX_ASSIGN(api, make_missing(registry, Role::api));
        MOEX_ASSIGN(admin, make_missing(registry, Role::admin));
        made = {.api = std::move(api), .admin = std::move(admin)};
    }

    // Store the join token as a key of role join. A client that sends the token as its API key by
    // mistake then gets an error that names the role. A new token replaces the old one.
    MOEX_ASSIGN(join_token, registry.join_token());
    MOEX_TRY(registry.set_key(Role::join, join_link_name, join_token));
    return made;
}

}  // namespace moex
