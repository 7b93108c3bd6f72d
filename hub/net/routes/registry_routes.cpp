// Routes of the registry: the history; and, for the operator, keys, the join link and the settings
// in force. Each handler runs on the disk thread, because the registry writes before it answers.
#include <algorithm>
#include <ctime>

#include "hub/base/log.h"
#include "hub/net/routes/history.h"
#include "hub/net/routes/host_bodies.h"
#include "hub/net/routes/routes.h"

namespace moex::net {
namespace {

using nlohmann::json;

constexpr std::int64_t day_s = 86'400;

json use_json(const TokenUse& use) {
    return {{"requests", use.requests},
            {"prompt_tokens", use.prompt_tokens},
            {"answer_tokens", use.answer_tokens}};
}

const char* state_of(const KeyInfo& key, std::int64_t now_s) {
    if (key.revoked_s > 0) return "revoked";
    return key.opens(now_s) ? "open" : "expired";
}

json key_json(const KeyInfo& key, std::int64_t now_s) {
    return {{"id", key.id},
            {"name", key.name},
            {"role", role_name(key.role)},
            {"state", state_of(key, now_s)},
            {"tokens_per_minute", key.tokens_per_minute},
            {"created_s", key.created_s},
            {"expires_s", key.expires_s},
            {"revoked_s", key.revoked_s}};
}

// The requests and tokens that one key has used: today (UTC), and in total.
struct Used {
    TokenUse today, all;
};

void add(TokenUse& sum, const TokenUse& use) {
    sum.requests += use.requests;
    sum.prompt_tokens += use.prompt_tokens;
    sum.answer_tokens += use.answer_tokens;
}

// The answer to a query of counts while the store that hubs share does not answer.
Refusal store_is_away() {
    return {503, "the store does not answer now; the hub serves on without it", "unavailable", ""};
}

json keys_json(const Registry& registry) {
    const std::int64_t now_s = std::time(nullptr);
    std::map<std::string, Used> used;
    for (const TokenUseOfDay& day : registry.token_use()) {
        Used& sums = used[day.key_id];
        add(sums.all, day);
        if (day.day_s == now_s - now_s % day_s) add(sums.today, day);
    }

    json keys = json::array();
    for (const KeyInfo& key : registry.keys()) {
        json row = key_json(key, now_s);
        row["today"] = use_json(used[key.id].today);
        row["all"] = use_json(used[key.id].all);
        keys.push_back(std::move(row));
    }
    return {{"keys", std::move(keys)},
            {"local",
             {{"today", use_json(used[local_key_id].today)},
              {"all", use_json(used[local_key_id].all)}}}};
}

Checked<KeyWish> wish_of(const json& body) {
    constexpr std::uint64_t tokens_max = 1'000'000'000, days_max = 36'500;
    MOEX_OR_REFUSE(name, string_field(body, "name"));
    MOEX_OR_REFUSE(role_text, string_field(body, "role"));
    const std::optional<Role> role = parse_role(role_text);
    if (!role) return Refusal{400, "'role' is api, join or admin", "invalid_value", "role"};
    MOEX_OR_REFUSE(tokens, number_field(body, "tokens_per_minute", tokens_max));
    MOEX_OR_REFUSE(days, number_field(body, "expires_days", days_max));

    return KeyWish{
        .role = *role,
        .name = std::move(name),
        .tokens_per_minute = tokens,
        .expires_s = days > 0 ? std::time(nullptr) + static_cast<std::int64_t>(days) * day_s : 0};
}

}  // namespace

// Runs `answer` on the disk thread, and sends its result as the answer of the request.
template <class Answer>
void Routes::answer_from_disk(Responder responder, Answer answer) const {
    asio::post(hub_.disk_thread, [responder = std::move(responder), answer = std::move(answer)] {
        Checked<HttpResponse> response = answer();
        if (!response.ok()) return responder->refuse(response.refusal());
        responder->respond(*std::move(response));
    });
}

void Routes::serve_history(HttpRequest request, Responder responder) const {
    const std::string_view query(request.query);
    const auto span = parse_history_span(
        query.starts_with("span=") ? query.substr(std::string_view("span=").size()) : "1h");
    if (!span) return responder->refuse({400, "span is 1h, 24h or 7d", "invalid_value", "span"});

    answer_from_disk(std::move(responder), [this, span = *span]() -> Checked<HttpResponse> {
        const std::int64_t now_s = std::time(nullptr);
        if (hub_.registry.store_is_away()) return store_is_away();
        return json_answer(history_json(hub_.registry.history(now_s - span.span_s), span, now_s));
    });
}

void Routes::list_keys(HttpRequest, Responder responder) const {
    answer_from_disk(std::move(responder), [this]() -> Checked<HttpResponse> {
        if (hub_.registry.store_is_away()) return store_is_away();
        return json_answer(keys_json(hub_.registry));
    });
}

void Routes::make_key(HttpRequest request, Responder responder) const {
    answer_from_disk(
        std::move(responder), [this, request = std::move(request)]() -> Checked<HttpResponse> {
            MOEX_OR_REFUSE(body, object_of(request));
            MOEX_OR_REFUSE(wish, wish_of(body));
            const auto made = hub_.registry.make_key(wish);
            if (!made.ok()) return refusal_to_host(made.error());

            log_info("http: key made", kv("key", made->info.id),
                     kv("role", role_name(made->info.role)), kv("request", request.id));
            json answer = key_json(made->info, std::time(nullptr));
            answer["key"] = made->key;
            return json_answer(answer);
        });
}

void Routes::revoke_key(HttpRequest request, Responder responder) const {
    answer_from_disk(
        std::move(responder), [this, request = std::move(request)]() -> Checked<HttpResponse> {
            MOEX_OR_REFUSE(body, object_of(request));
            MOEX_OR_REFUSE(id, string_field(body, "id"));
            const auto ended = hub_.registry.revoke_key(id);
            if (!ended.ok()) return refusal_to_host(ended.error());

            log_info("http: key revoked", kv("key", ended->id), kv("request", request.id));
            return json_answer({{"id", ended->id}});
        });
}

Checked<HttpResponse> Routes::join_answer() const {
    const auto url = hub_.join_url();
    if (!url.ok()) return refusal_to_host(url.error());
    json answer{{"url", *url}};
    if (hub_.options.qr_rows) answer["qr"] = hub_.options.qr_rows(*url);
    return json_answer(answer);
}

void Routes::show_join_link(HttpRequest, Responder responder) const {
    answer_from_disk(std::move(responder), [this] { return join_answer(); });
}

void Routes::rotate_join_link(HttpRequest request, Responder responder) const {
    answer_from_disk(std::move(responder),
                     [this, request = std::move(request)]() -> Checked<HttpResponse> {
                         const auto token = hub_.registry.rotate_join_token();
                         if (!token.ok()) return refusal_to_host(token.error());
                         log_info("http: join link rotated", kv("request", request.id));
                         return join_answer();
                     });
}

void Routes::show_settings(HttpRequest, Responder responder) const {
    answer_from_disk(std::move(responder), [this]() -> Checked<HttpResponse> {
        const auto& describe = hub_.options.describe_settings;
        return json_answer({{"settings", describe ? describe() : json::array()}});
    });
}

// Exchanges the one-time token of the link that `serve` printed for an admin key.
void Routes::claim_admin(HttpRequest request, Responder responder) const {
    answer_from_disk(
        std::move(responder), [this, request = std::move(request)]() -> Checked<HttpResponse> {
            const auto made = hub_.registry.make_claimed_key();
            if (!made.ok()) return refusal_to_host(made.error());
            log_info("http: admin link used", kv("key", made->info.id), kv("request", request.id));
            return json_answer({{"key", made->key}, {"id", made->info.id}});
        });
}

}  // namespace moex::net
