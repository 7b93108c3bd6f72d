// moex-hub key: manages the keys of clients, their limits, and their usage. A hub may run at the
// same time: it sees a change of a key within a quarter of a second, and `revoke` waits for that.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/state_folder.h"
#include "hub/registry/registry.h"

namespace moex {
namespace {

constexpr std::int64_t day_s = 86'400;

std::string utc_day(std::int64_t time_s) {
    const std::time_t time = time_s;
    std::tm parts{};
    gmtime_r(&time, &parts);
    char text[16];
    return std::string(text, std::strftime(text, sizeof text, "%Y-%m-%d", &parts));
}

std::optional<std::uint64_t> whole_number(std::string_view value) {
    std::uint64_t number = 0;
    const auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (failure != std::errc() || end != value.data() + value.size()) return std::nullopt;
    return number;
}

// Parses the time at which a key expires: "30d" or "12h" from now, or a UTC day such as
// "2027-01-31".
Result<std::int64_t> parse_expiry(const std::string& value, std::int64_t now_s) {
    constexpr std::uint64_t days_max = 36'500;
    if (value.ends_with('d') || value.ends_with('h')) {
        const auto count = whole_number(std::string_view(value).substr(0, value.size() - 1));
        const bool is_days = value.ends_with('d');
        if (count && *count > 0 && *count <= (is_days ? days_max : days_max * 24))
            return now_s + static_cast<std::int64_t>(*count) * (is_days ? day_s : 3600);
    }

    std::tm parts{};
    const char* end = strptime(value.c_str(), "%Y-%m-%d", &parts);
    if (end && *end == '\0') {
        const std::int64_t time_s = timegm(&parts);
        if (time_s > now_s && utc_day(time_s) == value) return time_s;
    }
    return Error{ErrorCode::invalid_argument,
                 text("--expires: wanted days (30d), hours (12h) or a day to come (2027-01-31), "
                      "found \"",
                      value, "\"")};
}

Result<KeyWish> wish_of(const Invocation& invocation) {
    KeyWish wish{.name = *invocation.argument("NAME")};
    if (const std::string* role = invocation.argument("--role")) {
        const std::optional<Role> parsed = parse_role(*role);
        if (!parsed)
            return Error{ErrorCode::invalid_argument,
                         text("--role: wanted api, join or admin, found \"", *role, "\"")};
        wish.role = *parsed;
    }
    if (const std::string* limit = invocation.argument("--limit")) {
        const auto tokens = whole_number(*limit);
        constexpr std::uint64_t limit_max = 1'000'000'000;
        if (!tokens || *tokens == 0 || *tokens > limit_max)
            return Error{ErrorCode::invalid_argument,
                         text("--limit: wanted tokens per minute, from 1 to ", limit_max,
                              ", found \"", *limit, "\"")};
        wish.tokens_per_minute = *tokens;
    }
    if (const std::string* expires = invocation.argument("--expires")) {
        MOEX_ASSIGN(expires_s, parse_expiry(*expires, std::time(nullptr)));
        wish.expires_s = expires_s;
    }
    return wish;
}

int wrong(std::string_view sentence) {
    fail(sentence);
    return exit_wrong_arguments;
}

int add(Registry& registry, const Invocation& invocation) {
    const auto wish = wish_of(invocation);
    if (!wish.ok()) return wrong(wish.error().message);
    const auto made = registry.make_key(*wish);
    if (!made.ok())
        return made.error().code == ErrorCode::invalid_argument ? wrong(made.error().message)
                                                                : fail(made.error().message);

    // Print only the new key to stdout, so that scripts can read it. All other words go to stderr.
    std::fprintf(stderr, "key %s, role %s, for %s; it is shown this once:\n", made->info.id.c_str(),
                 role_name(made->info.role), one_line(made->info.name).c_str());
    (void)print_now(made->key + '\n');
    return exit_stopped;
}

const char* state_of(const KeyInfo& key) {
    if (key.revoked_s > 0) return "revoked";
    return key.opens(std::time(nullptr)) ? "open" : "expired";
}

// Prints a table in which each column is as wide as its widest cell. The last column is not padded.
std::string table(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths;
    for (const auto& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (i == widths.size()) widths.push_back(0);
            widths[i] = std::max(widths[i], row[i].size());
        }

    std::string out;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) {
            line += row[i];
            if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
        }
        out += line + '\n';
    }
    return out;
}

int list(const Registry& registry) {
    std::vector<std::vector<std::string>> rows{
        {"key", "role", "state", "tokens/min", "made", "expires", "name"}};
    for (const KeyInfo& key : registry.keys())
        rows.push_back({key.id, role_name(key.role), state_of(key),
                        key.tokens_per_minute > 0 ? text(key.tokens_per_minute) : "-",
                        utc_day(key.created_s), key.expires_s > 0 ? utc_day(key.expires_s) : "-",
                        one_line(key.name)});
    (void)print_now(table(rows));
    return exit_stopped;
}

int revoke(Registry& registry, const Invocation& invocation) {
    const auto ended = registry.revoke_key(*invocation.argument("NAME"));
    if (!ended.ok()) return fail(ended.error().message);

    constexpr Duration seen_within = 10s;
    if (!registry.wait_until_seen(seen_within))
        return fail(text("key ", ended->id,
                         " is revoked, but a hub that serves with these keys has not seen it "
                         "within 10 seconds; does it hang? A hub that starts again sees it"));

    const bool is_link = ended->role == Role::join && ended->name == join_link_name;
    (void)print_now(is_link ? std::string("the join link has a new token; workers that are "
                                          "connected stay\n")
                            : text("key ", ended->id, " of ", one_line(ended->name),
                                   " opens nothing any more\n"));
    if (ended->name == host_key_name)
        std::fprintf(stderr,
                     "moex-hub: serve takes this key from a file or the environment: with the "
                     "next start it opens again\n");
    return exit_stopped;
}

// Quotes a text as a cell of a CSV file (RFC 4180).
std::string csv_field(const std::string& value) {
    if (value.find_first_of(",\"\n\r") == std::string::npos) return value;
    std::string quoted = "\"";
    for (const char c : value) quoted.append(c == '"' ? 2 : 1, c);
    return quoted + '"';
}

int usage(const Registry& registry, bool as_csv) {
    std::map<std::string, std::string> names{{local_key_id, "requests without a key"}};
    for (const KeyInfo& key : registry.keys()) names[key.id] = one_line(key.name);

    std::map<std::string, TokenUse> sums;
    std::string csv = "day,key,name,requests,prompt_tokens,answer_tokens\r\n";
    for (const TokenUseOfDay& day : registry.token_use()) {
        TokenUse& sum = sums[day.key_id];
        sum.requests += day.requests;
        sum.prompt_tokens += day.prompt_tokens;
        sum.answer_tokens += day.answer_tokens;
        csv += text(utc_day(day.day_s), ',', day.key_id, ',', csv_field(names[day.key_id]), ',',
                    day.requests, ',', day.prompt_tokens, ',', day.answer_tokens, "\r\n");
    }
    if (as_csv) {
        (void)print_now(csv);
        return exit_stopped;
    }

    std::vector<std::vector<std::string>> rows{
        {"key", "requests", "prompt tokens", "answer tokens", "name"}};
    for (const auto& [id, sum] : sums)
        rows.push_back(
            {id, text(sum.requests), text(sum.prompt_tokens), text(sum.answer_tokens), names[id]});
    (void)print_now(table(rows));
    return exit_stopped;
}

}  // namespace

int run_key(const Invocation& invocation) {
    const std::string& action = *invocation.argument("ACTION");
    const bool is_add = action == "add", is_revoke = action == "revoke";
    if (!is_add && !is_revoke && action != "list" && action != "usage")
        return wrong(text("wanted add, list, revoke or usage, found \"", action, "\""));
    if ((is_add || is_revoke) != (invocation.argument("NAME") != nullptr))
        return wrong(is_add || is_revoke ? "NAME is missing"
                                         : text(action, " takes no name").c_str());

    const auto registry = open_registry_of(invocation.settings, "keys", is_add);
    if (!registry.ok()) return fail(registry.error().message);
    if (is_add) return add(**registry, invocation);
    if (is_revoke) return revoke(**registry, invocation);
    if (action == "list") return list(**registry);
    return usage(**registry, invocation.argument("--csv") != nullptr);
}

}  // namespace moex
