// The access log: one line for each answer, off unless a file is named.
//   time=2026-11-21T18:44:12.123Z method=POST target=/v1/completions status=200 bytes=5123
//   ms=834.2 end=whole id=req-4f… peer=198.51.100.0/24 key=1a2b3c4d
// A line has no bodies, queries or headers. It has the public id of a key, and the network of a
// peer. Thread-safe: one mutex around one write.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "hub/base/clock.h"

namespace moex::net {

struct AccessLine {
    // `raw_target` is the request's target, whose query the log omits; empty: not known.
    std::string_view method, raw_target;
    unsigned status = 0;           // HTTP status; 0: the client disconnected before the answer
    std::uint64_t body_bytes = 0;  // bytes of the answer's body
    Duration took{};
    bool whole = true;  // false: the answer was cut short
    std::string_view id, peer_address;
    std::string_view key_id = {};  // id of the key that the tokens count for
};

class AccessLog {
  public:
    // An empty file name turns the log off, and "-" means stdout. Throws std::runtime_error with a
    // sentence. `json`: one object per line, with the same field names.
    explicit AccessLog(std::filesystem::path file, bool json = false);
    void write(const AccessLine& line);
    // Opens the log file again, after another program has moved it. Throws as the constructor does;
    // the old file then stays in use.
    void reopen();
    bool is_on() const { return !path_.empty(); }

  private:
    struct Close {
        void operator()(std::FILE* file) const;
    };
    using File = std::unique_ptr<std::FILE, Close>;
    static File open(const std::filesystem::path& path);

    const std::filesystem::path path_;
    const bool json_;
    std::mutex mutex_;
    File file_;
};

// Shortens an IP address to its network: 203.0.113.9 becomes 203.0.113.0/24, 2001:db8:1:2::3
// becomes 2001:db8:1::/48.
std::string peer_network(std::string_view address);

// These functions return one line of the log: in the text format without the time, and in the JSON
// format with the time.
std::string access_text(const AccessLine& line);
std::string access_json(const AccessLine& line, std::string_view time);

}  // namespace moex::net
