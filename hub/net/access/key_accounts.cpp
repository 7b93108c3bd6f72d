#include "hub/net/access/key_accounts.h"

#include <atomic>
#include <vector>

namespace moex::net {

class KeyAccounts::Account : public RequestAccount {
  public:
    Account(KeyAccounts& accounts, const std::optional<KeyInfo>& key)
        : accounts_(accounts),
          key_(key) {}
    ~Account() override {
        settle(0);
        if (key_) accounts_.remove(this);
    }

    Checked<void> reserve(std::uint64_t tokens_max) override {
        if (!key_) return {};
        if (!accounts_.registry_.key_opens(key_->id))
            return Refusal{401, "The API key was revoked or has expired.", "invalid_api_key", ""};
        if (key_->tokens_per_minute == 0) return {};

        const TokenReservation taken = take(tokens_max);
        if (taken.wait > Duration{0})
            return refuse_for_now(429,
                                  text("this key may use ", key_->tokens_per_minute,
                                       " tokens a minute, prompts and answers together; a "
                                       "smaller max_tokens waits less"),
                                  "token_limit", taken.wait);
        reserved_ = taken.tokens;
        is_settled_ = false;
        return {};
    }

    void settle(std::uint64_t tokens) override {
        if (is_settled_.exchange(true)) return;
        if (of_store_) return accounts_.registry_.settle_tokens(key_->id, reserved_, tokens);
        accounts_.limits_.settle(now_steady(), key_->id, reserved_, tokens);
    }

    void count(std::uint64_t prompt_tokens, std::uint64_t answer_tokens) override {
        const bool is_first = !is_counted_.exchange(true);
        accounts_.registry_.add_token_use(key_ ? key_->id : local_key_id,
                                          {.requests = is_first ? 1u : 0u,
                                           .prompt_tokens = prompt_tokens,
                                           .answer_tokens = answer_tokens});
    }

    void on_key_ended(std::function<void()> handler) override {
        {
            const std::lock_guard lock(mutex_);
            handler_ = std::move(handler);
        }
        end_if_dead();  // the key may have become invalid before the handler was set
    }

    void end_if_dead() {
        if (!key_ || accounts_.registry_.key_opens(key_->id)) return;
        std::function<void()> handler;
        {
            const std::lock_guard lock(mutex_);
            handler.swap(handler_);
        }
        if (handler) handler();
    }

  private:
    // Reserves in the store that the hubs share; while it is away, or if the hub is alone, here.
    TokenReservation take(std::uint64_t tokens_max) {
        if (accounts_.registry_.is_shared()) {
            const auto taken = accounts_.registry_.reserve_tokens(key_->id, key_->tokens_per_minute,
                                                                  tokens_max);
            of_store_ = taken.ok();
            if (taken.ok()) return *taken;
        }
        const TokenLimits::Reservation taken = accounts_.limits_.reserve(
            now_steady(), key_->id, key_->tokens_per_minute, tokens_max);
        return {.wait = taken.wait, .tokens = taken.tokens};
    }

    KeyAccounts& accounts_;
    const std::optional<KeyInfo> key_;
    bool of_store_ = false;  // the tokens were reserved in the store
    std::uint64_t reserved_ = 0;
    std::atomic<bool> is_settled_{true}, is_counted_{false};
    std::mutex mutex_;
    std::function<void()> handler_;
};

std::shared_ptr<RequestAccount> KeyAccounts::open(const std::optional<KeyInfo>& key) {
    const auto account = std::make_shared<Account>(*this, key);
    if (key) {
        const std::lock_guard lock(mutex_);
        open_.emplace(account.get(), account);
    }
    return account;
}

void KeyAccounts::remove(const Account* account) {
    const std::lock_guard lock(mutex_);
    open_.erase(account);
}

void KeyAccounts::end_dead_keys() {
    std::vector<std::shared_ptr<Account>> accounts;
    {
        const std::lock_guard lock(mutex_);
        for (const auto& [address, weak] : open_)
            if (auto account = weak.lock()) accounts.push_back(std::move(account));
    }
    for (const auto& account : accounts) account->end_if_dead();
}

}  // namespace moex::net
