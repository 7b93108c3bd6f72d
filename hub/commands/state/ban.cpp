// moex-hub ban: lists the banned keys of workers, and lifts a ban. A hub may run at the same time:
// it sees the change when the worker next tries to join.
#include <cstdio>
#include <ctime>

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/state_folder.h"
#include "hub/registry/bans.h"
#include "hub/registry/registry.h"

namespace moex {
namespace {

int wrong_ban(std::string_view sentence) {
    fail(sentence);
    return exit_wrong_arguments;
}

std::string utc(std::int64_t time_s) {
    const std::time_t time = time_s;
    std::tm parts{};
    gmtime_r(&time, &parts);
    char out[24];
    return std::string(out, std::strftime(out, sizeof out, "%Y-%m-%d %H:%M", &parts));
}

int list(const BanBook& bans) {
    const std::int64_t now_s = std::time(nullptr);
    std::string out;
    for (const Ban& ban : bans.list())
        out += text(
            one_line(ban.worker_key), "  ",
            ban.until_s > now_s ? text("until ", utc(ban.until_s), " UTC") : std::string("over"),
            ", ban ", ban.times, ", ", ban.nickname.empty() ? "" : one_line(ban.nickname),
            ban.nickname.empty() ? "" : ": ", one_line(ban.reason), '\n');
    (void)print_now(out);
    return exit_stopped;
}

}  // namespace

int run_ban(const Invocation& invocation) {
    const std::string& action = *invocation.argument("ACTION");
    const std::string* key = invocation.argument("KEY");
    if (action != "list" && action != "lift")
        return wrong_ban(text("wanted list or lift, found \"", action, "\""));
    if ((action == "lift") != (key != nullptr))
        return wrong_ban(key ? "list takes no key" : "the worker's KEY is missing");

    const auto registry = open_registry_of(invocation.settings, "bans", false);
    if (!registry.ok()) return fail(registry.error().message);
    BanBook& bans = (*registry)->bans();
    if (action == "list") return list(bans);

    const auto lifted = bans.lift(*key);
    if (!lifted.ok()) return fail(lifted.error().message);
    (void)print_now(text("worker ", one_line(lifted->worker_key), " may join again\n"));
    return exit_stopped;
}

}  // namespace moex
