#include "hub/net/fleet/fleet_proof.h"

#include <charconv>

#include "protocol/text.h"

namespace moex::net {
namespace {

constexpr std::int64_t good_for_s = 60;
constexpr const char* proof_header = "x-moex-fleet";

std::string_view find(const HeaderList& headers, std::string_view name) {
    for (const auto& [own, value] : headers)
        if (own == name) return value;
    return {};
}

std::string words_of(std::string_view method, std::string_view target, const HeaderList& headers,
                     std::int64_t now_s) {
    return text(method, '\n', target, '\n', now_s, '\n', find(headers, "x-moex-stream"), '\n',
                find(headers, "x-forwarded-for"), '\n', find(headers, "x-moex-passed"));
}

}  // namespace

void prove_fleet(const FleetKey& key, std::string_view method, std::string_view target,
                 HeaderList& headers, std::int64_t now_s) {
    headers.emplace_back(proof_header,
                         text(now_s, '.', key.code_of(words_of(method, target, headers, now_s))));
}

bool is_of_fleet(const FleetKey& key, std::string_view method, std::string_view target,
                 const HeaderList& headers, std::int64_t now_s) {
    const std::string_view proof = find(headers, proof_header);
    const std::size_t dot = proof.find('.');
    std::int64_t made_s = 0;
    const auto [end, error] = std::from_chars(proof.data(), proof.data() + proof.size(), made_s);
    if (dot == std::string_view::npos || error != std::errc() || end != proof.data() + dot ||
        made_s < now_s - good_for_s || made_s > now_s + good_for_s)
        return false;
    return key.is_code_of(proof.substr(dot + 1), words_of(method, target, headers, made_s));
}

}  // namespace moex::net
