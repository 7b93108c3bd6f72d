// What those who lend are told, behind the join token: what the hub lacks, whose work it was, and
// the way to be forgotten.
#include <algorithm>
#include <ctime>

#include "hub/base/log.h"
#include "hub/net/routes.h"

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

HttpResponse json_answer(const json& body) {
    HttpResponse response;
    response.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
    return response;
}

// The layers that want the most copies of experts, beside those that workers hold.
json scarce_json(const ModelConfig& config, const std::vector<std::uint16_t>& replicas,
                 std::uint32_t wanted) {
    struct Layer {
        std::uint32_t layer, missing, copies;
    };
    std::vector<Layer> layers;
    for (std::uint32_t layer = 0; layer < config.num_layers; ++layer) {
        if (!config.is_moe(layer)) continue;
        Layer row{layer, 0, 0};
        for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) {
            const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
            const std::uint32_t held = unit < replicas.size() ? replicas[unit] : 0;
            row.missing += held == 0;
            row.copies += wanted - std::min(wanted, held);
        }
        if (row.copies > 0) layers.push_back(row);
    }
    std::sort(layers.begin(), layers.end(), [](const Layer& a, const Layer& b) {
        return std::tuple(b.copies, a.layer) < std::tuple(a.copies, b.layer);
    });

    json scarce = json::array();
    for (const Layer& row : layers) {
        if (scarce.size() == scarce_layers_max) break;
        scarce.push_back({{"layer", row.layer}, {"missing", row.missing}, {"copies", row.copies}});
    }
    return scarce;
}

}  // namespace

void Routes::serve_lend(HttpRequest, Responder responder) const {
    asio::post(hub_.swarm_strand, [this, responder = std::move(responder)] {
        SwarmBackend* swarm = hub_.swarm;
        if (!swarm) return responder->refuse({503, "Loading model", "unavailable", ""});

        const SwarmCore& core = swarm->core();
        const ModelConfig& config = hub_.package->config();
        const std::vector<std::uint16_t> replicas = core.replicas();
        const std::uint32_t wanted = core.options().replicas;
        const json scarce = scarce_json(config, replicas, wanted);

        std::uint64_t units = 0, held = 0;
        for (std::uint32_t layer = 0; layer < config.num_layers; ++layer)
            for (std::uint32_t expert = 0; config.is_moe(layer) && expert < config.num_experts;
                 ++expert) {
                const std::size_t unit = std::size_t{layer} * config.num_experts + expert;
                ++units;
                held += unit < replicas.size() && replicas[unit] > 0;
            }
        std::uint64_t workers = 0;
        for (const WorkerView& worker : core.workers())
            workers += worker.state == WorkerState::active;

        responder->respond(json_answer({{"model", hub_.package->name()},
                                        {"workers", workers},
                                        {"units", units},
                                        {"held", held},
                                        {"replicas", wanted},
                                        {"expert_blob_bytes", hub_.package->expert_blob_bytes()},
                                        {"computes_itself", core.options().local_fallback},
                                        {"scarce", scarce}}));
    });
}

// ?key=: of whose totals are wanted, in hexadecimal digits. Nobody is shown another's.
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
        return responder->refuse({409, "the challenge is of another time; ask for a new one",
                                  "stale_challenge", "challenge"});
    if (!signature_fits(*key, *signature, forget_text(challenge, own_origin(request))))
        return responder->refuse({403, "the signature is not that key's, or not for this hub",
                                  "wrong_signature", "signature"});

    // First its workers, so that nothing of theirs comes in afterwards.
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
