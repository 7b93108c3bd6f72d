// The lock of a state folder: one `serve` uses a folder at a time, because two would count and ban
// past each other. `key`, `ban` and `backup` work beside it and do not take the lock.
//
// The lock is a lock of the open file serve.lock (fcntl(2), F_OFD_SETLK), which the system releases
// when the process ends in any way. The file stays, and its two lines are for other processes:
//   process 4711 started 1790000000
//   keys 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8
// `keys` identifies the keys that the holder uses (keys_digest()), so that `key revoke` can wait
// until the holder has seen its change.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "protocol/result.h"
#include "protocol/sha256.h"

namespace moex {

class StateLock {
  public:
    struct Holder {
        std::int64_t process_id = 0;
        std::int64_t started_s = 0;  // Unix time
        std::optional<Sha256> keys;  // nullopt: the holder has not read any keys yet
    };

    // Makes `directory` private as Registry::open() does and takes its lock. Error unavailable: a
    // running process has the lock; the sentence names the process and its start.
    static Result<StateLock> take(const std::filesystem::path& directory);
    // Returns the process that has the lock, or nullopt if no process has it.
    static std::optional<Holder> holder(const std::filesystem::path& directory);

    StateLock(StateLock&& other) noexcept;
    StateLock& operator=(StateLock&& other) noexcept;
    ~StateLock();

    // Publishes which keys this process uses from now on.
    void confirm_keys(const Sha256& digest) const;

  private:
    explicit StateLock(int descriptor) : descriptor_(descriptor) {}
    int descriptor_ = -1;
};

}  // namespace moex
