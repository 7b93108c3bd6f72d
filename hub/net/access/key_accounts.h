// The accounts of keys: what requests took goes to the registry, limits hold them back, and those
// that run end when their key does. Thread-safe; outlives the requests that it opened accounts for.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "hub/api/request_account.h"
#include "hub/net/access/token_limits.h"
#include "hub/registry/registry.h"

namespace moex::net {

class KeyAccounts {
  public:
    explicit KeyAccounts(Registry& registry) : registry_(registry) {}
    // For one request with `key`, or without one: then it counts as `local_key_id`.
    std::shared_ptr<RequestAccount> open(const std::optional<KeyInfo>& key);
    // Ends the requests whose keys open nothing any more.
    void end_dead_keys();

  private:
    class Account;
    void remove(const Account* account);

    Registry& registry_;
    TokenLimits limits_;
    std::mutex mutex_;
    std::map<const Account*, std::weak_ptr<Account>> open_;  // of keys
};

}  // namespace moex::net
