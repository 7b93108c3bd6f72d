#include "hub/commands/serve/host_keys.h"

#include <fstream>

namespace moex {
namespace {

// The first line of a key file, or the environment's value; empty when neither is given.
Result<std::string> read_key(const Settings& settings, const char* secret,
                             const char* file_setting) {
    std::string key = settings.text(secret);
    if (const std::string& path = settings.text(file_setting); key.empty() && !path.empty()) {
        std::ifstream file(path);
        if (!std::getline(file, key))
            return Error{ErrorCode::io_error,
                         text(path, ": cannot be read, or its first line is empty")};
        while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    }

    constexpr std::size_t key_bytes_min = 16;
    if (!key.empty() && key.size() < key_bytes_min)
        return Error{ErrorCode::invalid_argument,
                     text(file_setting, ": a key has at least ", key_bytes_min, " characters")};
    return key;
}

// The new key, or nothing when the registry has one of that role.
Result<std::string> make_missing(Registry& registry, Role role) {
    if (registry.has_key(role)) return std::string();
    return registry.create_key(role, "first start");
}

}  // namespace

Status keep_host_keys(const Settings& settings, Registry& registry) {
    MOEX_ASSIGN(api, read_key(settings, "api-key", "api-key-file"));
    MOEX_ASSIGN(admin, read_key(settings, "admin-key", "admin-key-file"));
    for (const auto& [role, key] : {std::pair{Role::api, api}, std::pair{Role::admin, admin}})
        if (!key.empty()) MOEX_TRY(registry.set_key(role, host_key_name, key));
    return {};
}

Result<MadeKeys> prepare_keys(const Settings& settings, Registry& registry, bool required) {
    MOEX_TRY(keep_host_keys(settings, registry));

    MadeKeys made;
    if (required) {
        MOEX_ASSIGN(api, make_missing(registry, Role::api));
        MOEX_ASSIGN(admin, make_missing(registry, Role::admin));
        made = {.api = std::move(api), .admin = std::move(admin)};
    }

    // As a key the token has a role, so that a client that sends it by mistake is told what it
    // sent. A new token ends the old one.
    MOEX_ASSIGN(join_token, registry.join_token());
    MOEX_TRY(registry.set_key(Role::join, join_link_name, join_token));
    return made;
}

}  // namespace moex
