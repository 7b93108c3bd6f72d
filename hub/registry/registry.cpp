#include "hub/registry/registry.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <map>
#include <mutex>
#include <thread>

#include "hub/base/log.h"
#include "hub/base/sha256.h"
#include "hub/registry/database.h"
#include "hub/registry/migrations.h"

namespace moex {

namespace {

constexpr std::int64_t workers_stored_max = 10'000;
// between two commits; further ones wait for the next visit
constexpr std::size_t pending_workers_max = 4'096;
namespace fs = std::filesystem;

// What is kept and compared of a key. All have one length, and the only comparison there is takes
// the same time wherever they differ.
struct KeyHash {
    Sha256 bytes;
    friend bool operator==(const KeyHash& a, const KeyHash& b) {
        return CRYPTO_memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0;
    }
};
struct StoredKey {
    KeyHash hash;
    Role role;
};

KeyHash hash_key(std::string_view key) { return {sha256(as_byte_view(key))}; }

// 192 random bits in URL-safe letters: fits a header, a fragment and a QR code.
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

std::optional<Role> parse_role(std::string_view name) {
    for (const Role role : {Role::join, Role::api, Role::admin})
        if (name == role_name(role)) return role;
    return std::nullopt;
}

// The folder belongs to its user alone. One that holds other people's files is not ours to close.
Status secure_directory(const fs::path& directory) {
    std::error_code error;
    const bool made = fs::create_directories(directory, error);
    if (error)
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": cannot make the state folder: ", error.message())};

    struct stat info {};
    if (::stat(directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode))
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": the state folder is not a folder")};
    if (!made && (info.st_mode & 077) != 0 && !fs::is_empty(directory, error) &&
        !fs::exists(directory / "moex.sqlite", error))
        return Error{ErrorCode::invalid_argument,
                     text(directory.string(),
                          ": holds other files and is open to other users; give the hub a state "
                          "folder of its own")};
    if ((info.st_mode & 0777) != 0700 && ::chmod(directory.c_str(), 0700) != 0)
        return Error{ErrorCode::io_error,
                     text(directory.string(), ": cannot make the state folder private (0700)")};

    return {};
}

// sqlite gives its -wal and -shm files the mode of the database, so the mode is set before it
// opens.
Status secure_file(const fs::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0)
        return Error{
            ErrorCode::io_error,
            text(file.string(), ": cannot open: ", std::generic_category().message(errno))};

    const bool ok = ::fchmod(descriptor, 0600) == 0;
    ::close(descriptor);
    if (!ok)
        return Error{ErrorCode::io_error, text(file.string(), ": cannot make it private (0600)")};

    return {};
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

struct Registry::State {
    fs::path directory;

    mutable std::mutex keys_mutex;
    std::vector<StoredKey> keys;
    std::string join_token;

    std::mutex database_mutex;  // held for each statement or transaction
    std::unique_ptr<Database> database;

    std::mutex pending_mutex;
    std::condition_variable wake;
    bool stopping = false;
    std::map<std::string, std::uint64_t, std::less<>> pending_counters;
    std::map<std::string, WorkerRecord> pending_workers;
    std::thread thread;

    Status prepare();
    Status load_keys();
    Status insert_key(const KeyHash& hash, Role role, std::string_view name);
    void commit_pending();
    void serve();
};

Status Registry::State::prepare() {
    MOEX_TRY(
        database->execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA "
                          "foreign_keys=ON; PRAGMA trusted_schema=OFF;"));

    MOEX_TRY(migrate(*database, registry_migrations()));
    return load_keys();
}

Status Registry::State::load_keys() {
    const std::lock_guard lock(keys_mutex);
    keys.clear();
    Statement select(*database, "SELECT key_sha256, role FROM keys");
    while (select.step()) {
        const Bytes hash = select.blob(0);
        const std::optional<Role> role = parse_role(select.text_column(1));
        if (hash.size() != 32 || !role) continue;
        StoredKey key{{}, *role};
        std::copy(hash.begin(), hash.end(), key.hash.bytes.begin());
        keys.push_back(key);
    }

    return select.status();
}

Status Registry::State::insert_key(const KeyHash& hash, Role role, std::string_view name) {
    {
        const std::lock_guard lock(database_mutex);
        Statement insert(*database,
                         "INSERT INTO keys VALUES (?, ?, ?, ?) ON CONFLICT (key_sha256) DO UPDATE "
                         "SET role = excluded.role, name = excluded.name");
        MOEX_TRY(insert.bind(ByteView(hash.bytes))
                     .bind(std::string_view(role_name(role)))
                     .bind(name)
                     .bind(std::int64_t{std::time(nullptr)})
                     .run());
    }

    const std::lock_guard lock(keys_mutex);
    for (StoredKey& key : keys)
        if (key.hash == hash) {
            key.role = role;
            return {};
        }

    keys.push_back({hash, role});
    return {};
}

void Registry::State::commit_pending() {
    const std::lock_guard database_lock(database_mutex);
    std::map<std::string, std::uint64_t, std::less<>> counters;
    std::map<std::string, WorkerRecord> workers;
    {
        const std::lock_guard lock(pending_mutex);
        counters.swap(pending_counters);
        workers.swap(pending_workers);
    }

    if (counters.empty() && workers.empty()) return;
    const auto write = [&]() -> Status {
        Transaction transaction(*database);
        for (const auto& [name, delta] : counters) {
            Statement add(*database,
                          "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET "
                          "value = value + excluded.value");
            MOEX_TRY(add.bind(std::string_view(name)).bind(static_cast<std::int64_t>(delta)).run());
        }

        for (const auto& [key, delta] : workers) {
            Statement add(*database,
                          "INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT "
                          "(worker_key) DO UPDATE SET nickname = excluded.nickname, "
                          "description = excluded.description, pairs_answered = pairs_answered + "
                          "excluded.pairs_answered, "
                          "bytes_sent = bytes_sent + excluded.bytes_sent, bad_answers = "
                          "bad_answers + excluded.bad_answers, "
                          "last_seen_s = max(last_seen_s, excluded.last_seen_s)");

            add.bind(std::string_view(key))
                .bind(std::string_view(delta.nickname))
                .bind(std::string_view(delta.description));
            add.bind(static_cast<std::int64_t>(delta.pairs_answered))
                .bind(static_cast<std::int64_t>(delta.bytes_sent));
            MOEX_TRY(add.bind(static_cast<std::int64_t>(delta.bad_answers))
                         .bind(delta.first_seen_s)
                         .bind(delta.last_seen_s)
                         .run());
        }

        if (!workers.empty()) {
            Statement forget(*database,
                             "DELETE FROM workers WHERE worker_key IN (SELECT worker_key FROM "
                             "workers ORDER BY last_seen_s DESC LIMIT -1 OFFSET ?)");
            MOEX_TRY(forget.bind(workers_stored_max).run());
        }

        return transaction.commit();
    };

    // A full disk must not stop the hub: this second of counts is lost, and said so.
    if (const Status written = write(); !written)
        log_error("registry: counts of the last second lost", kv("error", written.error().message));
}

void Registry::State::serve() {
    std::unique_lock lock(pending_mutex);
    while (!stopping) {
        wake.wait_for(lock, std::chrono::seconds(1), [&] { return stopping; });
        lock.unlock();
        commit_pending();
        lock.lock();
    }
}

Registry::Registry() : state_(std::make_unique<State>()) {}

Registry::~Registry() {
    if (state_->thread.joinable()) {
        {
            const std::lock_guard lock(state_->pending_mutex);
            state_->stopping = true;
        }
        state_->wake.notify_all();
        state_->thread.join();
        state_->commit_pending();
    }
}

Result<std::unique_ptr<Registry>> Registry::open(const fs::path& directory) {
    MOEX_TRY(secure_directory(directory));
    MOEX_TRY(secure_file(directory / "moex.sqlite"));

    MOEX_ASSIGN(database, Database::open(directory / "moex.sqlite"));
    std::unique_ptr<Registry> registry(new Registry());
    State& state = *registry->state_;
    state.directory = directory;
    state.database = std::move(database);
    if (const Status prepared = state.prepare(); !prepared)
        return Error{prepared.error().code,
                     text((directory / "moex.sqlite").string(), ": ", prepared.error().message)};

    state.thread = std::thread([&state] { state.serve(); });
    return registry;
}

Result<std::string> Registry::create_key(Role role, std::string_view name) {
    MOEX_ASSIGN(key, random_key(text("moex-", role_name(role), "-")));
    MOEX_TRY(state_->insert_key(hash_key(key), role, name));
    return key;
}

Status Registry::add_key(Role role, std::string_view name, std::string_view key) {
    if (key.size() < 16)
        return Error{ErrorCode::invalid_argument,
                     text("the ", role_name(role), " key has ", key.size(),
                          " characters, at least 16 are wanted")};
    return state_->insert_key(hash_key(key), role, name);
}

Status Registry::set_key(Role role, std::string_view name, std::string_view key) {
    MOEX_TRY(add_key(role, name, key));
    const KeyHash hash = hash_key(key);
    const std::lock_guard lock(state_->database_mutex);
    {
        Statement remove(*state_->database,
                         "DELETE FROM keys WHERE role = ? AND name = ? AND key_sha256 <> ?");
        MOEX_TRY(remove.bind(std::string_view(role_name(role)))
                     .bind(name)
                     .bind(ByteView(hash.bytes))
                     .run());
    }

    return state_->load_keys();
}

std::optional<Role> Registry::key_role(std::string_view key) const {
    const KeyHash hash = hash_key(key);
    std::optional<Role> role;
    const std::lock_guard lock(state_->keys_mutex);
    for (const StoredKey& stored : state_->keys)  // no early exit: the time tells nothing
        if (stored.hash == hash) role = stored.role;
    return role;
}

bool Registry::has_key(Role role) const {
    const std::lock_guard lock(state_->keys_mutex);
    for (const StoredKey& stored : state_->keys)
        if (stored.role == role) return true;
    return false;
}

Result<std::string> Registry::join_token() {
    const std::lock_guard lock(state_->keys_mutex);
    if (!state_->join_token.empty()) return state_->join_token;

    const fs::path file = state_->directory / "join_token";
    if (const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC); descriptor >= 0) {
        char buffer[256];
        const ssize_t size = ::read(descriptor, buffer, sizeof buffer);
        ::close(descriptor);

        std::string token(buffer, size > 0 ? static_cast<std::size_t>(size) : 0);
        while (!token.empty() &&
               (token.back() == '\n' || token.back() == '\r' || token.back() == ' '))
            token.pop_back();

        if (token.size() < 16)
            return Error{
                ErrorCode::bad_file,
                text(file.string(), ": holds ", token.size(),
                     " characters, a token of at least 16 is wanted; delete it for a new one")};

        ::chmod(file.c_str(), 0600);
        return state_->join_token = token;
    }

    MOEX_ASSIGN(token, random_key(""));
    // Written beside and renamed: a crash leaves no half token.
    const fs::path fresh = state_->directory / "join_token.new";
    const int descriptor = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const std::string line = token + "\n";
    bool ok = descriptor >= 0 && ::fchmod(descriptor, 0600) == 0 &&
              ::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size());

    if (descriptor >= 0) {
        ok = ::fsync(descriptor) == 0 && ok;
        ::close(descriptor);
    }

    if (!ok || ::rename(fresh.c_str(), file.c_str()) != 0)
        return Error{ErrorCode::io_error, text(file.string(), ": cannot write the join token")};
    return state_->join_token = token;
}

bool Registry::join_allowed(std::string_view token) const {
    const std::optional<Role> role = key_role(token);
    bool is_token = false;
    {
        const std::lock_guard lock(state_->keys_mutex);
        is_token = !state_->join_token.empty() && hash_key(state_->join_token) == hash_key(token);
    }
    return is_token || role == Role::join || role == Role::admin;
}

void Registry::add_to_counter(std::string_view name, std::uint64_t delta) {
    if (delta == 0) return;
    const std::lock_guard lock(state_->pending_mutex);
    const auto found = state_->pending_counters.find(name);
    if (found != state_->pending_counters.end())
        found->second += delta;
    else
        state_->pending_counters.emplace(std::string(name), delta);
}

std::vector<std::pair<std::string, std::uint64_t>> Registry::counters() const {
    state_->commit_pending();
    const std::lock_guard lock(state_->database_mutex);
    std::vector<std::pair<std::string, std::uint64_t>> counters;
    Statement select(*state_->database, "SELECT name, value FROM counters ORDER BY name");
    while (select.step())
        counters.emplace_back(select.text_column(0), static_cast<std::uint64_t>(select.integer(1)));
    return counters;
}

void Registry::record_worker(const WorkerRecord& delta) {
    if (delta.worker_key.empty()) return;
    const std::lock_guard lock(state_->pending_mutex);
    const auto found = state_->pending_workers.find(delta.worker_key);
    if (found == state_->pending_workers.end()) {
        if (state_->pending_workers.size() < pending_workers_max)
            state_->pending_workers.emplace(delta.worker_key, delta);
        return;
    }

    WorkerRecord& record = found->second;
    record.nickname = delta.nickname;
    record.description = delta.description;
    record.pairs_answered += delta.pairs_answered;
    record.bytes_sent += delta.bytes_sent;
    record.bad_answers += delta.bad_answers;
    record.first_seen_s = std::min(record.first_seen_s, delta.first_seen_s);

    record.last_seen_s = std::max(record.last_seen_s, delta.last_seen_s);
}

std::vector<WorkerRecord> Registry::workers() const {
    state_->commit_pending();
    const std::lock_guard lock(state_->database_mutex);
    std::vector<WorkerRecord> workers;
    Statement select(*state_->database,
                     "SELECT worker_key, nickname, description, pairs_answered, bytes_sent, "
                     "bad_answers, first_seen_s, last_seen_s FROM workers ORDER BY worker_key");

    while (select.step())
        workers.push_back({select.text_column(0), select.text_column(1), select.text_column(2),
                           static_cast<std::uint64_t>(select.integer(3)),
                           static_cast<std::uint64_t>(select.integer(4)),
                           static_cast<std::uint64_t>(select.integer(5)), select.integer(6),
                           select.integer(7)});

    return workers;
}

void Registry::flush() { state_->commit_pending(); }

fs::path default_state_directory() {
    const char* xdg = std::getenv("XDG_STATE_HOME");
    if (xdg && xdg[0] == '/') return fs::path(xdg) / "moex";
    const char* home = std::getenv("HOME");
    return fs::path(home && home[0] ? home : "/") / ".local" / "state" / "moex";
}

}  // namespace moex
