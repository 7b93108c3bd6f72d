// The token of the join link, which the store keeps in plain text, since the link is shown at every
// start.
#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {

Result<std::string> RegistryState::load_join_token() {
    {
        const std::lock_guard lock(keys_mutex);
        if (!join_token.empty()) return join_token;
    }
    const std::lock_guard reading(token_mutex);
    MOEX_ASSIGN(fresh, random_key(""));
    MOEX_ASSIGN(token, store->first_join_token(fresh));
    const std::lock_guard lock(keys_mutex);
    return join_token = token;
}

// Reads the token again if it was read before.
Status RegistryState::read_join_token_again() {
    const std::lock_guard reading(token_mutex);
    {
        const std::lock_guard lock(keys_mutex);
        if (join_token.empty()) return {};
    }
    MOEX_ASSIGN(token, store->read_join_token());
    if (token.empty()) return {};
    const std::lock_guard lock(keys_mutex);
    join_token = std::move(token);
    return {};
}

Result<std::string> Registry::join_token() { return state_->load_join_token(); }

Result<std::string> Registry::rotate_join_token() {
    MOEX_ASSIGN(token, random_key(""));
    {
        const std::lock_guard writing(state_->token_mutex);
        MOEX_TRY(state_->store->write_join_token(token));
        const std::lock_guard lock(state_->keys_mutex);
        state_->join_token = token;
    }
    MOEX_TRY(set_key(Role::join, join_link_name, token));
    return token;
}

bool Registry::join_allowed(std::string_view token) const {
    const std::optional<Role> role = key_role(token);
    bool is_token = false;
    {
        const std::lock_guard lock(state_->keys_mutex);
        is_token = !state_->join_token.empty() && state_->keys_are_good() &&
                   hash_key(state_->join_token) == hash_key(token);
    }
    return is_token || role == Role::join || role == Role::admin;
}

}  // namespace moex
