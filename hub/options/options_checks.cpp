#include "hub/options/options_checks.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>

#include "hub/dispatch/core/swarm_core.h"
#include "hub/engine/generation.h"
#include "hub/options/options.h"
#include "hub/options/options_shadow.h"
#include "hub/registry/postgres_address.h"

namespace moex {
namespace {

Error wrong_value(const auto&... parts) {
    return Error{ErrorCode::invalid_argument, text(parts...)};
}

// Returns true if the whole text `value` is a number, and stores the number in `out`.
template <class Number>
bool is_number(std::string_view value, Number& out) {
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), out);
    return failure == std::errc() && end == value.data() + value.size();
}

template <std::size_t n>
bool is_one_of(const std::string_view (&names)[n], std::string_view value) {
    return std::find(std::begin(names), std::end(names), value) != std::end(names);
}

}  // namespace

Status check_listen(std::string_view value) {
    if (auto parsed = parse_listen(value); !parsed.ok()) return parsed.error();
    return {};
}

Status check_hedge(std::string_view value) {
    if (auto parsed = parse_hedge_policy(value); !parsed.ok()) return parsed.error();
    return {};
}

Status check_placement(std::string_view value) {
    if (auto parsed = parse_placement(value); !parsed.ok()) return parsed.error();
    return {};
}

Status check_origin(std::string_view value) {
    const bool has_scheme = value.starts_with("http://") || value.starts_with("https://");
    const std::size_t host = value.find("//");
    if (!has_scheme || value.find('/', host + 2) != std::string_view::npos ||
        value.size() <= host + 2)
        return wrong_value("\"", value,
                           "\" is no origin; wanted scheme://host[:port] without a path, like "
                           "https://chat.example");
    return {};
}

Status check_address(std::string_view value) {
    unsigned char bytes[16];
    const std::string address(value);
    if (inet_pton(AF_INET, address.c_str(), bytes) == 1 ||
        inet_pton(AF_INET6, address.c_str(), bytes) == 1)
        return {};
    return wrong_value("wanted an IP address like 127.0.0.1 or ::1, found \"", value, "\"");
}

Status check_experts(std::string_view value) {
    static constexpr std::string_view served[] = {"exact", "speculative", "estimator"};
    if (is_one_of(served, value)) return {};

    // Values of --experts that older versions accepted could have a suffix: "early:2",
    // "estimator+weights", "hybrid:6".
    static constexpr std::string_view measured[] = {"early",     "next-gate",   "quasi-hidden",
                                                    "estimator", "speculative", "hybrid",
                                                    "linear",    "router-free"};
    if (is_one_of(measured, value.substr(0, value.find_first_of(":+"))))
        return wrong_value("\"", value,
                           "\" is no longer served; write speculative or estimator, the two lossy "
                           "modes, or exact");
    return wrong_value("wanted exact, speculative or estimator, found \"", value, "\"");
}

Status check_prefetch(std::string_view value) {
    constexpr std::uint32_t experts_max = 1024;
    std::uint32_t number = 0;
    if (value == "off" || value == "on") return {};
    if (is_number(value, number) && number >= 1 && number <= experts_max) return {};
    if (names_shadow(value)) {
        const auto folder = parse_shadow_folder(value);
        return folder.ok() ? Status() : folder.error();
    }
    return wrong_value("wanted off, on, a number of experts from 1 to ", experts_max,
                       " or shadow:DIR, found \"", value, "\"");
}

Status check_prefetch_by(std::string_view value) {
    static constexpr std::string_view served[] = {"auto", "next-gate", "quasi-hidden", "estimator"};
    if (is_one_of(served, value)) return {};

    static constexpr std::string_view measured[] = {
        "previous-token", "lru", "lfu", "popularity", "request-popularity", "random", "linear"};
    if (is_one_of(measured, value))
        return wrong_value(
            "\"", value,
            "\" is no longer served; write next-gate, quasi-hidden or estimator, or auto for the "
            "best one that the package has. The bench program foresight_bench measures ",
            value);
    return wrong_value("wanted auto, next-gate, quasi-hidden or estimator, found \"", value, "\"");
}

Status check_replay(std::string_view value) {
    const std::string_view share = value.substr(0, value.size() - (value.ends_with("+1") ? 2 : 0));
    double number = 0;
    if (value.empty() || (is_number(share, number) && number >= 0 && number <= 1)) return {};
    return wrong_value("wanted a share from 0 to 1, or a share followed by +1, found \"", value,
                       "\"");
}

Status check_speculative(std::string_view value) {
    if (value == "off" || value == "auto") return {};
    std::uint32_t tokens = 0;
    if (is_number(value, tokens) && tokens >= 1 && tokens <= draft_tokens_max) return {};
    return wrong_value("wanted off, auto or a number from 1 to ", draft_tokens_max, ", found \"",
                       value, "\"");
}

Status check_disk_mb(std::string_view value) {
    constexpr std::uint64_t most = 10'000'000;
    std::uint64_t megabytes = 0;
    if (value == "auto" || (is_number(value, megabytes) && megabytes <= most)) return {};
    return wrong_value("wanted auto or a whole number of MB from 0 to ", most, ", found \"", value,
                       "\"");
}

Status check_store(std::string_view value) {
    const auto parsed = PostgresAddress::parse(value);
    return parsed.ok() ? Status() : Status(parsed.error());
}

Status check_number_text(std::string_view value) {
    double number = 0;
    if (is_number(value, number) && number >= 0 && number <= 100) return {};
    return wrong_value("wanted a number from 0 to 100, found \"", value, "\"");
}

Status check_seed(std::string_view value) {
    std::uint64_t number = 0;
    if (is_number(value, number)) return {};
    return wrong_value("wanted a whole number, found \"", value, "\"");
}

Status check_group(std::string_view value) {
    if (value == "auto" || value == "32" || value == "64" || value == "128") return {};
    return wrong_value("wanted auto, 32, 64 or 128, found \"", value, "\"");
}

}  // namespace moex
