// The accounts of keys: reports the tokens that requests used to the registry, enforces the limits
// of keys (over all hubs that share a store), and ends running requests when their key ends.
// Thread-safe; outlives the requests that have an account.
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
    // Opens the account of one request. The tokens of a request without a key are counted for
    // `local_key_id`.
    std::shared_ptr<RequestAccount> open(const std::optional<KeyInfo>& key);
    // Ends the running requests whose keys are no longer valid.
    void end_dead_keys();

  private:
    class Account;
    void remove(const Account* account);

    Registry& registry_;
    TokenLimits limits_;
    std::mutex mutex_;
    std::map<const Account*, std::weak_ptr<Account>> open_;  // running requests that have a key
};

}  // namespace moex::net
