// Makes, finds and revokes keys. Only their SHA-256 is stored.
#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "hub/base/log.h"
#include "hub/registry/registry.h"
#include "hub/registry/registry_state.h"

namespace moex {
namespace {

constexpr std::size_t key_bytes_min = 16, name_bytes_max = 64, id_digits = 8;

std::string id_of(const KeyHash& hash) { return to_hex(hash.bytes).substr(0, id_digits); }

// Checks a name, which is printed in lists, logs and CSV.
Status check_name(std::string_view name) {
    const bool is_plain = std::none_of(name.begin(), name.end(),
                                       [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (!name.empty() && name.size() <= name_bytes_max && is_plain) return {};
    return Error{ErrorCode::invalid_argument,
                 text("a key's name has 1 to ", name_bytes_max,
                      " bytes and no control characters; found ", name.size(), " bytes")};
}

}  // namespace

const char* role_name(Role role) {
    switch (role) {
        case Role::join: return "join";
        case Role::api: return "api";
        case Role::admin: return "admin";
    }
    return "unknown";
}

std::optional<Role> parse_role(std::string_view name) {
    for (const Role role : {Role::join, Role::api, Role::admin})
        if (name == role_name(role)) return role;
    return std::nullopt;
}

KeyHash hash_key(std::string_view key) { return {sha256(as_byte_view(key))}; }

Result<std::string> random_key(std::string_view prefix) {
    std::array<unsigned char, 24> raw;
    if (RAND_bytes(raw.data(), static_cast<int>(raw.size())) != 1)
        return Error{ErrorCode::internal, "no random numbers from OpenSSL"};

    static constexpr char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    std::string key(prefix);
    for (std::size_t i = 0; i < raw.size(); i += 3) {
        const unsigned bits = (raw[i] << 16) | (raw[i + 1] << 8) | raw[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6) key += letters[(bits >> shift) & 63];
    }
    return key;
}

Status RegistryState::load_keys(Database& database) {
    std::vector<StoredKey> loaded;
    Statement select(database,
                     "SELECT key_sha256, role, name, created_s, tokens_per_minute, expires_s, "
                     "revoked_s FROM keys ORDER BY created_s, key_sha256");
    while (select.step()) {
        const Bytes hash = select.blob(0);
        const std::optional<Role> role = parse_role(select.text_column(1));
        if (hash.size() != 32 || !role) continue;

        StoredKey key;
        std::copy(hash.begin(), hash.end(), key.hash.bytes.begin());
        key.info.id = id_of(key.hash);
        key.info.role = *role;
        key.info.name = select.text_column(2);
        key.info.created_s = select.integer(3);
        key.info.tokens_per_minute = static_cast<std::uint64_t>(select.integer(4));
        key.info.expires_s = select.integer(5);
        key.info.revoked_s = select.integer(6);
        loaded.push_back(std::move(key));
    }
    MOEX_TRY(select.status());

    const std::lock_guard lock(keys_mutex);
    keys = std::move(loaded);
    return {};
}

void RegistryState::say_keys_changed() {
    {
        const std::lock_guard lock(pending_mutex);
        keys_changed = true;
    }
    wake.set();
}

Status RegistryState::insert_key(const KeyHash& hash, const KeyWish& wish) {
    MOEX_TRY(check_name(wish.name));
    {
        MOEX_ASSIGN(session, store->session());
        {
            Statement insert(*session,
                             "INSERT INTO keys (key_sha256, role, name, created_s, "
                             "tokens_per_minute, expires_s) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT "
                             "(key_sha256) DO UPDATE SET role = excluded.role, name = "
                             "excluded.name, expires_s = excluded.expires_s, revoked_s = 0");
            insert.bind(ByteView(hash.bytes))
                .bind(std::string_view(role_name(wish.role)))
                .bind(std::string_view(wish.name))
                .bind(unix_now_s());
            insert.bind(static_cast<std::int64_t>(wish.tokens_per_minute)).bind(wish.expires_s);
            MOEX_TRY(insert.run());
        }
        MOEX_TRY(load_keys(*session));
    }
    say_keys_changed();
    return {};
}

// Revokes all keys of this role and name except the key with the hash `hash`.
Status RegistryState::end_others(const KeyHash& hash, Role role, std::string_view name) {
    {
        MOEX_ASSIGN(session, store->session());
        {
            Statement end(*session,
                          "UPDATE keys SET revoked_s = ? WHERE role = ? AND name = ? AND "
                          "key_sha256 <> ? AND revoked_s = 0");
            MOEX_TRY(end.bind(unix_now_s())
                         .bind(std::string_view(role_name(role)))
                         .bind(name)
                         .bind(ByteView(hash.bytes))
                         .run());
        }
        MOEX_TRY(load_keys(*session));
    }
    say_keys_changed();
    return {};
}

Result<MadeKey> Registry::make_key(const KeyWish& wish) {
    for (const char* own : {join_link_name, host_key_name, claimed_key_name})
        if (wish.name == own)
            return Error{ErrorCode::invalid_argument,
                         text("\"", wish.name, "\" is a reserved name; choose another")};
    return state_->make_key(wish);
}

Result<MadeKey> RegistryState::make_key(const KeyWish& wish) {
    for (;;) {
        MOEX_ASSIGN(key, random_key(text("moex-", role_name(wish.role), "-")));
        const KeyHash hash = hash_key(key);
        const std::string id = id_of(hash);
        {
            const std::lock_guard lock(keys_mutex);
            const bool is_taken = std::any_of(
                keys.begin(), keys.end(),
                [&](const StoredKey& other) { return other.info.id == id; });
            if (is_taken) continue;
        }

        MOEX_TRY(insert_key(hash, wish));
        KeyInfo info{wish};
        info.id = id;
        info.created_s = unix_now_s();
        return MadeKey{key, std::move(info)};
    }
}

Result<std::string> Registry::create_key(Role role, std::string_view name) {
    MOEX_ASSIGN(made, make_key({.role = role, .name = std::string(name)}));
    return made.key;
}

Status Registry::add_key(Role role, std::string_view name, std::string_view key) {
    if (key.size() < key_bytes_min)
        return Error{ErrorCode::invalid_argument,
                     text("the ", role_name(role), " key has ", key.size(),
                          " characters, at least ", key_bytes_min, " are wanted")};
    return state_->insert_key(hash_key(key), {.role = role, .name = std::string(name)});
}

Status Registry::set_key(Role role, std::string_view name, std::string_view key) {
    MOEX_TRY(add_key(role, name, key));
    return state_->end_others(hash_key(key), role, name);
}

Result<KeyInfo> Registry::revoke_key(std::string_view id_or_name) {
    {
        // Reads the stored keys again, since another process may just have made the key.
        MOEX_ASSIGN(session, state_->store->session());
        MOEX_TRY(state_->load_keys(*session));
    }
    std::vector<KeyInfo> meant;
    for (const KeyInfo& key : keys()) {
        const bool opens = key.opens(unix_now_s());
        if (key.id == id_or_name && !opens)
            return Error{ErrorCode::not_found, text("key ", key.id, " is no longer valid")};
        if (key.id == id_or_name) {
            meant = {key};
            break;
        }
        if (key.name == id_or_name && opens) meant.push_back(key);
    }
    if (meant.empty())
        return Error{ErrorCode::not_found,
                     text("no valid key has the id or the name \"", id_or_name, "\"")};
    if (meant.size() > 1)
        return Error{ErrorCode::invalid_argument, text(meant.size(), " keys have the name \"",
                                                       id_or_name, "\": name one by id")};

    const KeyInfo& key = meant.front();
    if (key.role == Role::join && key.name == join_link_name) {
        MOEX_TRY(rotate_join_token());
        return key;
    }
    {
        const std::optional<KeyHash> hash = state_->hash_of(key.id);
        MOEX_ASSIGN(session, state_->store->session());
        {
            Statement end(*session,
                          "UPDATE keys SET revoked_s = ? WHERE key_sha256 = ? AND revoked_s = 0");
            MOEX_TRY(end.bind(unix_now_s()).bind(ByteView(hash.value().bytes)).run());
        }
        MOEX_TRY(state_->load_keys(*session));
    }
    state_->say_keys_changed();
    return key;
}

std::optional<KeyHash> RegistryState::hash_of(std::string_view id) const {
    const std::lock_guard lock(keys_mutex);
    for (const StoredKey& stored : keys)
        if (stored.info.id == id) return stored.hash;
    return std::nullopt;
}

std::vector<KeyInfo> Registry::keys() const {
    const std::lock_guard lock(state_->keys_mutex);
    std::vector<KeyInfo> infos;
    for (const StoredKey& stored : state_->keys) infos.push_back(stored.info);
    return infos;
}

std::optional<KeyInfo> Registry::find_key(std::string_view key) const {
    const KeyHash hash = hash_key(key);
    const std::int64_t now_s = unix_now_s();
    const StoredKey* found = nullptr;
    const std::lock_guard lock(state_->keys_mutex);
    // Compare with all keys without an early exit: constant time.
    for (const StoredKey& stored : state_->keys)
        if (stored.hash == hash) found = &stored;
    if (!found || !found->info.opens(now_s) || !state_->keys_are_good()) return std::nullopt;
    return found->info;
}

std::optional<Role> Registry::key_role(std::string_view key) const {
    const std::optional<KeyInfo> found = find_key(key);
    return found ? std::optional(found->role) : std::nullopt;
}

bool Registry::key_opens(std::string_view id) const {
    if (!state_->keys_are_good()) return false;
    const std::int64_t now_s = unix_now_s();
    const std::lock_guard lock(state_->keys_mutex);
    return std::any_of(state_->keys.begin(), state_->keys.end(), [&](const StoredKey& stored) {
        return stored.info.id == id && stored.info.opens(now_s);
    });
}

bool Registry::has_key(Role role) const {
    const std::int64_t now_s = unix_now_s();
    const std::lock_guard lock(state_->keys_mutex);
    return std::any_of(state_->keys.begin(), state_->keys.end(), [&](const StoredKey& stored) {
        return stored.info.role == role && stored.info.opens(now_s) &&
               stored.info.name != claimed_key_name;
    });
}

Result<std::string> Registry::make_claim() {
    MOEX_ASSIGN(token, random_key(""));
    const std::lock_guard lock(state_->keys_mutex);
    state_->claim = hash_key(token);
    return token;
}

bool Registry::take_claim(std::string_view token) {
    const KeyHash hash = hash_key(token);
    const std::lock_guard lock(state_->keys_mutex);
    if (!state_->claim || !(*state_->claim == hash)) return false;
    state_->claim.reset();
    return true;
}

Result<MadeKey> Registry::make_claimed_key() {
    constexpr std::int64_t week_s = 7 * 86'400;
    const KeyWish wish{
        .role = Role::admin, .name = claimed_key_name, .expires_s = unix_now_s() + week_s};
    MOEX_ASSIGN(made, state_->make_key(wish));
    MOEX_TRY(state_->end_others(hash_key(made.key), wish.role, wish.name));
    return made;
}

void Registry::watch_keys(std::function<void()> watcher) {
    const std::lock_guard lock(state_->watcher_mutex);
    state_->watcher = std::move(watcher);
}

Status RegistryState::read_again() {
    MOEX_ASSIGN(session, store->session());
    if (shared_bans) MOEX_TRY(shared_bans->read(*session));
    return load_keys(*session);
}

// Looks for changes of keys by other processes, and for keys that expired since the last look;
// calls the watcher if a key has changed or expired.
void RegistryState::look_at_store() {
    const Store::Looked looked = store->look();
    is_away = !looked.answers;
    is_wiped = looked.is_wiped;
    if (looked.answers && store->is_shared()) keys_good_until = now_steady() + keys_good_for;
    if (shared_bans && looked.answers)
        if (const Status written = shared_bans->write_waiting(); !written.ok())
            log_rarely(LogLevel::error, "registry: a ban waits for the store",
                       kv("error", written.error().message));

    bool changed = looked.changed || must_read;
    if (changed) {
        const Status read = read_again();
        must_read = !read.ok();
        if (!read.ok())
            log_rarely(LogLevel::error, "registry: keys not read again",
                       kv("error", read.error().message));
        // Another process may have replaced the join token, too.
        if (const Status token = read_join_token_again(); !token.ok())
            log_rarely(LogLevel::error, "registry: join token not read",
                       kv("error", token.error().message));
    }

    const std::int64_t now_s = unix_now_s();
    {
        const std::lock_guard lock(keys_mutex);
        for (const StoredKey& key : keys) {
            const std::int64_t expires_s = key.info.expires_s;
            changed |= expires_s > expiries_seen_s && expires_s <= now_s;
        }
        expiries_seen_s = now_s;
    }
    {
        const std::lock_guard lock(pending_mutex);
        changed |= std::exchange(keys_changed, false);
    }

    if (!changed) return;
    {
        const std::lock_guard watching(watcher_mutex);
        if (watcher) watcher();
        // Confirm the keys to other processes only after the watcher has ended the streams of
        // revoked keys.
        if (lock) lock->confirm_keys(keys_digest());
    }
    renew_membership(true);
}

Sha256 RegistryState::keys_digest() const {
    std::string rows;
    const std::lock_guard guard(keys_mutex);
    for (const StoredKey& key : keys)
        rows += text(to_hex(key.hash.bytes), ' ', role_name(key.info.role), ' ', key.info.expires_s,
                     ' ', key.info.tokens_per_minute, ' ', key.info.revoked_s, '\n');
    return sha256(as_byte_view(rows));
}

void Registry::keep(StateLock lock) {
    const std::lock_guard watching(state_->watcher_mutex);
    lock.confirm_keys(state_->keys_digest());
    state_->lock = std::move(lock);
}

// Returns true if every hub that uses this store uses the keys as this process read them.
bool RegistryState::keys_are_seen() {
    {
        const auto session = store->session();
        if (!session.ok() || !load_keys(**session).ok()) return false;
    }
    const Sha256 digest = keys_digest();
    if (!membership) {
        const auto holder = StateLock::holder(directory);
        return !holder || holder->keys == digest;
    }
    const auto members = membership->watch();
    return members.ok() && std::ranges::all_of(*members, [&](const Member& member) {
               return member.left_ms <= 0 || member.keys_seen == to_hex(digest);
           });
}

bool Registry::wait_until_seen(Duration within) {
    // There is no event for a change of another process's memory; a hub publishes within a tenth of
    // a second.
    constexpr auto pause = 5ms;
    const TimePoint end = now_steady() + within;
    while (!state_->keys_are_seen()) {
        if (now_steady() >= end) return false;
        std::this_thread::sleep_for(pause);
    }
    return true;
}

}  // namespace moex
