#include "bench/foresight/bench_command.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace moex::bench {
namespace {

std::optional<std::string> environment(const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
}

const Setting* setting_of(std::string_view flag, unsigned mask) {
    for (const Setting& setting : setting_table())
        if ((setting.commands & mask) && setting.kind != SettingKind::secret &&
            flag_name(setting) == flag)
            return &setting;
    return nullptr;
}

}  // namespace

int fail(std::string_view program, std::string_view sentence) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(),
                 one_line(sentence).c_str());
    return exit_failed;
}

std::optional<Invocation> parse_bench_command(int argc, char** argv, unsigned mask,
                                              std::initializer_list<std::string_view> own,
                                              std::string_view help, int& exit_code) {
    std::map<std::string, std::vector<std::string>> flags;
    Invocation invocation;
    const std::string_view path = argv[0], program = path.substr(path.find_last_of('/') + 1);
    const auto refuse = [&](std::string_view sentence) {
        fail(program, sentence);
        exit_code = exit_wrong_arguments;
        return std::nullopt;
    };

    for (int i = 1; i < argc; ++i) {
        const std::string_view word = argv[i];
        if (word == "--help" || word == "-h") {
            std::fwrite(help.data(), 1, help.size(), stdout);
            exit_code = exit_stopped;
            return std::nullopt;
        }
        const Setting* setting = setting_of(word, mask);
        const bool is_own = std::find(own.begin(), own.end(), word) != own.end();
        if (!setting && !is_own) return refuse(text(word, " is no option (see --help)"));
        if (setting && setting->kind == SettingKind::flag) {
            flags[std::string(setting->name)] = {"on"};
            continue;
        }
        if (i + 1 == argc) return refuse(text(word, " wants a value"));
        const std::string value = argv[++i];
        if (is_own)
            invocation.arguments[std::string(word)] = value;
        else
            flags[std::string(setting->name)].push_back(value);
    }

    if (!invocation.argument("--text")) return refuse("--text FILE is missing (see --help)");
    auto settings = resolve_settings(mask, flags, environment, std::nullopt);
    if (!settings.ok()) return refuse(settings.error().message);
    invocation.settings = *std::move(settings);
    return invocation;
}

}  // namespace moex::bench
