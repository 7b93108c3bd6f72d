// Routes for contributors, which need the join token: the experts that the hub lacks, the work of
// each contributor, and the deletion of a contributor's data.
#include <algorithm>
#include <charconv>
#include <ctime>
#include <functional>

#include "hub/base/log.h"
#include "hub/base/signing_key.h"
#include "hub/net/routes/routes.h"

namespace moex::net {
namespace {

using nlohmann::json;

constexpr std::size_t scarce_layers_max = 3;

json work_json(const LentWork& work) {
    return {{"pairs", work.pairs}, {"verified", work.verified}};
}

json board_json(const std::vector<BoardRow>& rows) {
    json board = json::array();
    for (const BoardRow& row : rows) {
        json shown = work_json(row);
        shown["rank"] = row.rank;
        shown["nickname"] = row.nickname;
        shown["mine"] = row.is_mine;
        board.push_back(std::move(shown));
    }
    return board;
}

json totals_json(const ContributorTotals& totals) {
    json days = json::array();
    for (const WorkOfDay& day : totals.days) {
        json shown = work_json(day);
        shown["day_s"] = day.day_s;
        days.push_back(std::move(shown));
    }
    json shown = work_json(totals);
    shown["nickname"] = totals.nickname;
    shown["rank"] = totals.rank;
    shown["first_seen_s"] = totals.first_seen_s;
    shown["streak_days"] = totals.streak_days;
    shown["today"] = work_json(totals.today);
    shown["days"] = std::move(days);
    return shown;
}

// For one MoE layer: the experts that no worker holds, and the total number of copies that are
// missing.
struct LayerNeed {
    std::uint32_t layer = 0, missing = 0, copies = 0;
};

std::vector<LayerNeed> needs_of(const ModelConfig& config,
                                const std::vector<std::uint16_t>& replicas, std::uint32_t wanted) {
    std::vector<LayerNeed> needs;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;
        LayerNeed need{.layer = layer};
        for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) {
            const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
            const std::uint32_t held = unit < replicas.size() ? replicas[unit] : 0;
            need.missing += held == 0;
            need.copies += wanted - std::min(wanted, held);
        }
        needs.push_back(need);
    }
    return needs;
}

// Returns the layers that lack the most copies of experts, in descending order.
json scarce_json(std::vector<LayerNeed> needs) {
    std::erase_if(needs, [](const LayerNeed& need) { return need.copies == 0; });
    std::ranges::stable_sort(needs, std::greater<>(), &LayerNeed::copies);
    if (needs.size() > scarce_layers_max) needs.resize(scarce_layers_max);

    json scarce = json::array();
    for (const LayerNeed& need : needs)
        scarce.push_back(
            {{"layer", need.layer}, {"missing", need.missing}, {"copies", need.copies}});
    return scarce;
}

// Returns the number in the query "worker=17"; nullopt if the query is another one.
std::optional<WorkerId> worker_named_in(std::string_view query) {
    constexpr std::string_view name = "worker=";
    if (!query.starts_with(name)) return std::nullopt;
    query.remove_prefix(name.size());
    WorkerId id = 0;
    const auto [end, failed] = std::from_chars(query.data(), query.data() + query.size(), id);
    if (failed != std::errc() || end != query.data() + query.size()) return std::nullopt;
    return id;
}

}  // namespace

// Reads ?worker=, the id of a worker that asks for the hub's view of its own state.
void Routes::serve_lend(HttpRequest request, Responder responder) const {
    std::optional<WorkerId> asked;
    if (!request.query.empty()) {
        const std::string_view query(request.query);
        asked = worker_named_in(query);
        if (!asked)
            return responder->refuse({400, text("\"", query, "\": want worker= and its number"),
                                      "invalid_value", "worker"});
    }

    asio::post(hub_.swarm_strand, [this, asked, responder = std::move(responder)] {
        SwarmBackend* swarm = hub_.swarm;
        if (!swarm) return responder->refuse({503, "Loading model", "unavailable", ""});

        const SwarmCore& core = swarm->core();
        const ModelConfig& config = hub_.package->config();
        const std::uint32_t wanted = core.options().replicas;
        const std::vector<LayerNeed> needs = needs_of(config, core.replicas(), wanted);
        const std::uint64_t units = std::uint64_t{needs.size()} * config.num_experts;
        std::uint64_t held = units;
        for (const LayerNeed& need : needs) held -= need.missing;
        std::uint64_t workers = 0;
        for (const WorkerView& worker : core.workers()) workers += could_serve(worker.state);

        const std::optional<WorkerView> own = asked ? core.worker(*asked) : std::nullopt;
        responder->respond(
            json_answer({{"model", hub_.package->name()},
                         {"workers", workers},
                         {"units", units},
                         {"held", held},
                         {"replicas", wanted},
                         {"calls_per_token", needs.size() * config.top_k},
                         {"expert_blob_bytes", hub_.package->expert_blob_bytes()},
                         {"computes_itself", core.options().local_fallback},
                         {"scarce", scarce_json(needs)},
                         {"worker_state", own ? json(worker_state_name(own->state)) : json()}}));
    });
}

// Reads ?key=, the public key of a contributor in hexadecimal digits. The answer has the totals of
// only this contributor.
void Routes::serve_contributors(HttpRequest request, Responder responder) const {
    std::optional<PublicKey> mine;
    if (!request.query.empty()) {
        constexpr std::string_view name = "key=";
        const std::string_view query(request.query);
        const auto key = parse_public_key(query.starts_with(name) ? query.substr(name.size()) : "");
        if (!key.ok()) return responder->refuse({400, key.error().message, "invalid_value", "key"});
        mine = *key;
    }

    asio::post(hub_.swarm_strand, [this, mine, responder = std::move(responder)] {
        SwarmBackend* swarm = hub_.swarm;
        const bool verifies = swarm != nullptr && swarm->core().options().checks.on;
        asio::post(hub_.disk_thread, [this, mine, verifies, responder] {
            const std::int64_t now_s = std::time(nullptr);
            const Contributions found = hub_.registry.contributions(mine, now_s);
            json answer{{"now_s", now_s},
                        {"contributors", found.contributors},
                        {"verifies", verifies},
                        {"today", work_json(found.today)},
                        {"board", board_json(found.board)},
                        {"mine", found.mine ? totals_json(*found.mine) : json()},
                        {"challenge", hub_.registry.nonces().to_forget(now_s)}};
            responder->respond(json_answer(answer));
        });
    });
}

void Routes::forget_contributor(HttpRequest request, Responder responder) const {
    const json body = json::parse(request.body, nullptr, false);
    const auto field = [&](const char* name) {
        const auto* value = body.is_object() && body.contains(name)
                                ? body[name].get_ptr<const json::string_t*>()
                                : nullptr;
        return value == nullptr ? std::string() : *value;
    };
    const auto key = parse_public_key(field("key"));
    const auto signature = parse_signature(field("signature"));
    for (const Error* error :
         {key.ok() ? nullptr : &key.error(), signature.ok() ? nullptr : &signature.error()})
        if (error) return responder->refuse({400, error->message, "invalid_value", ""});

    const std::string challenge = field("challenge");
    if (!hub_.registry.nonces().fits_to_forget(challenge, std::time(nullptr)))
        return responder->refuse(
            {409, "the challenge has expired; request a new one", "stale_challenge", "challenge"});
    if (!signature_fits(*key, *signature, forget_text(challenge, own_origin(request))))
        return responder->refuse({403, "the signature is not of that key, or not for this hub",
                                  "wrong_signature", "signature"});

    // Detach the contributor from its connected workers first, so that none of their later work is
    // recorded.
    asio::post(hub_.swarm_strand, [this, key = *key, responder = std::move(responder)] {
        hub_.contributors.forget(key);
        asio::post(hub_.disk_thread, [this, key, responder] {
            if (const Status gone = hub_.registry.forget_contributor(key); !gone.ok())
                return responder->refuse({500, gone.error().message, "io_error", ""});
            log_info("http: a contributor was forgotten");
            responder->respond(json_answer({{"forgotten", true}}));
        });
    });
}

}  // namespace moex::net
