// Where the registry keeps its state: the database of one hub (sqlite, in the state folder) or one
// that several hubs share (PostgreSQL). The registry's own code is the same over both; a Store is
// the part that differs. A Store is thread-safe, except for look(), which one thread calls.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "hub/base/clock.h"
#include "hub/registry/database.h"
#include "protocol/result.h"

namespace moex {

// Lends a connection to one thread until the Session is destroyed.
class Session {
  public:
    using GiveBack = std::function<void(Database&)>;
    Session(Database& database, GiveBack give_back)
        : database_(&database),
          give_back_(std::move(give_back)) {}
    Session(Session&& other) noexcept
        : database_(std::exchange(other.database_, nullptr)),
          give_back_(std::move(other.give_back_)) {}
    Session& operator=(Session&& other) noexcept {
        std::swap(database_, other.database_);
        std::swap(give_back_, other.give_back_);
        return *this;
    }
    ~Session() {
        if (database_) give_back_(*database_);
    }
    Database& operator*() const { return *database_; }

  private:
    Database* database_;
    GiveBack give_back_;
};

class Store {
  public:
    virtual ~Store() = default;

    // Lends a connection. Error unavailable, at once: the store does not answer now.
    virtual Result<Session> session() = 0;

    // Changes since the last call of look().
    struct Looked {
        bool changed = false;  // another process changed keys, bans, the join token or the hubs
        bool answers = true;   // false: the store is away
        // The store answers, but it is not the one that was opened: it lost its tables, or another
        // one is at its address. `answers` is false then.
        bool is_wiped = false;
    };
    // Looks for changes by others and, of a store that is away, whether it is back. It may wait for
    // two seconds. After a store was away, `changed` is true.
    virtual Looked look() = 0;
    // A descriptor that becomes readable when look() has something to find; -1: there is none.
    virtual int event_descriptor() const = 0;

    // True if the store may be away, and others write to it: the registry then answers from what
    // it read last, and writes what waits later.
    virtual bool is_shared() const = 0;

    // Called in the transaction that writes batch `number` of this process. Returns false if the
    // batch is already written: its commit had arrived, and only the answer was lost.
    virtual Result<bool> begin_batch(Database& database, std::int64_t number) = 0;

    // The join token in plain text; an empty text if there is none.
    virtual Result<std::string> read_join_token() = 0;
    // Stores `fresh` if there is no token, and returns the one that is stored then.
    virtual Result<std::string> first_join_token(const std::string& fresh) = 0;
    virtual Status write_join_token(const std::string& token) = 0;
};

}  // namespace moex
