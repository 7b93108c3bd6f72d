#include "hub/commands/command_line.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "hub/commands/version.h"

namespace moex {
namespace {

std::string overview() {
    std::string out = "usage: moex-hub COMMAND [options]\n\n";
    for (const Command& command : command_table()) {
        std::string line = text("  ", command.name);
        line.resize(12, ' ');
        out += text(line, command.summary, "\n");
    }
    out +=
        "\nSettings: flag > MOEX_* environment > TOML file (--config) > default. moex-hub COMMAND "
        "--help lists them.\n"
        "example: moex-hub serve      exit: 0 stopped, 1 failed, 2 wrong arguments\n";
    return out;
}

void add_help_line(std::string& out, std::string left, std::string_view help,
                   std::string_view default_value) {
    if (left.size() < 27)
        left.resize(27, ' ');
    else
        left += "  ";
    out += text("  ", left, help);
    if (!default_value.empty()) out += text("  [", default_value, "]");
    out += '\n';
}

}  // namespace

std::string command_help(const Command& command) {
    std::string usage = text("usage: moex-hub ", command.name);
    for (const Argument& argument : command.arguments) {
        std::string part(argument.name);
        if (!argument.value_name.empty()) part += text(' ', argument.value_name);
        usage += argument.required ? text(' ', part) : text(" [", part, "]");
    }
    std::string out = text(usage, command.mask ? " [options]" : "", "\n", command.summary, "\n\n");
    for (const Argument& argument : command.arguments)
        add_help_line(out,
                      argument.value_name.empty() ? std::string(argument.name)
                                                  : text(argument.name, ' ', argument.value_name),
                      argument.help, "");
    for (const Setting& setting : setting_table()) {
        if (!(setting.commands & command.mask) || setting.hidden) continue;
        if (setting.kind == SettingKind::secret) {
            add_help_line(out, environment_name(setting), setting.help, "");
            continue;
        }
        std::string left = flag_name(setting);
        if (!setting.value_name.empty()) left += text(' ', setting.value_name);
        std::string help(setting.help);
        if (!setting.choices.empty() && setting.kind == SettingKind::text)
            help += text(" (", setting.choices, ")");
        add_help_line(out, left, help,
                      setting.kind == SettingKind::flag ? "" : setting.default_value);
    }
    if (command.mask) {
        add_help_line(out, "--config FILE",
                      "settings as TOML; default: $XDG_CONFIG_HOME/moex/config.toml if it exists",
                      "");
        add_help_line(out, "--print-config",
                      "print every setting, its value and where it came from", "");
        add_help_line(out, "--check", "check settings and files, start nothing", "");
        out +=
            "\nEvery option is also a MOEX_* variable (--queue-max: MOEX_QUEUE_MAX) and a key of "
            "the file (queue_max).\n";
    }
    out += text("\nexample: ", command.example, "\nexit: 0 stopped, 1 failed, 2 wrong arguments",
                command.mask == command_generate ? ", 130 interrupted (Ctrl-C)\n" : "\n");
    return out;
}

std::variant<ParsedCommand, ParsedExit> parse_command_line(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<std::string>(const std::string&)>& environment) {
    CLI::App app;
    app.set_help_flag();
    bool help = false, version = false;
    app.add_flag("-h,--help", help);
    app.add_flag("--version", version);

    struct Parsed {
        bool help = false, print_config = false, check = false;
        std::string config;
        std::map<std::string, std::vector<std::string>> settings;
        std::map<std::string, std::string> arguments;
        std::map<std::string, bool> switches;
        std::vector<std::pair<const Setting*, CLI::Option*>> setting_options;
    };
    std::map<std::string_view, Parsed> parsed_by_command;
    std::map<std::string_view, CLI::App*> subcommands;
    for (const Command& command : command_table()) {
        Parsed& parsed = parsed_by_command[command.name];
        CLI::App* sub = app.add_subcommand(std::string(command.name));
        subcommands[command.name] = sub;
        sub->set_help_flag();
        sub->add_flag("-h,--help", parsed.help);
        if (command.mask) {
            sub->add_option("--config", parsed.config);
            sub->add_flag("--print-config", parsed.print_config);
            sub->add_flag("--check", parsed.check);
        }
        for (const Argument& argument : command.arguments) {
            const std::string name(argument.name);
            if (argument.value_name.empty() && !argument.is_positional())
                sub->add_flag(name, parsed.switches[name]);
            else
                sub->add_option(name, parsed.arguments[name]);
        }
        for (const Setting& setting : setting_table()) {
            if (!(setting.commands & command.mask) || setting.kind == SettingKind::secret) continue;
            std::vector<std::string>& values = parsed.settings[std::string(setting.name)];
            CLI::Option* option = setting.kind == SettingKind::flag
                                      ? sub->add_flag(flag_name(setting), values)
                                      : sub->add_option(flag_name(setting), values)->expected(1);
            option->multi_option_policy(setting.kind == SettingKind::list
                                            ? CLI::MultiOptionPolicy::TakeAll
                                            : CLI::MultiOptionPolicy::TakeLast);
            parsed.setting_options.emplace_back(&setting, option);
        }
    }
    const auto wrong = [](std::string_view sentence, std::string_view command) {
        return ParsedExit{exit_wrong_arguments,
                          text("moex-hub: ", sentence, "\nmoex-hub ", command,
                               command.empty() ? "" : " ", "--help says more\n")};
    };

    // CLI11 takes them from the back
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
        app.parse(reversed);
    } catch (const CLI::ParseError& error) {
        std::string_view command;
        if (!arguments.empty() && subcommands.contains(arguments.front()))
            command = subcommands.find(arguments.front())->first;
        return wrong(error.what(), command);
    }
    if (version) return ParsedExit{exit_stopped, text("moex-hub ", moex_version(), "\n")};
    for (const Command& command : command_table()) {
        if (!subcommands[command.name]->parsed()) continue;
        Parsed& parsed = parsed_by_command[command.name];
        if (help || parsed.help) return ParsedExit{exit_stopped, command_help(command)};

        ParsedCommand out{.command = &command};
        for (const auto& [name, value] : parsed.arguments)
            if (subcommands[command.name]->get_option(name)->count() > 0)
                out.invocation.arguments[name] = value;
        for (const auto& [name, is_on] : parsed.switches)
            if (is_on) out.invocation.arguments[name] = "on";

        std::map<std::string, std::vector<std::string>> flags;
        for (const auto& [setting, option] : parsed.setting_options)
            if (option->count() > 0)
                flags[std::string(setting->name)] = parsed.settings[std::string(setting->name)];
        std::optional<std::filesystem::path> file;
        if (!parsed.config.empty())
            file = parsed.config;
        else if (const auto from_environment = environment("MOEX_CONFIG");
                 from_environment && !from_environment->empty())
            file = *from_environment;
        else
            file = default_config_file();
        auto settings = resolve_settings(command.mask, flags, environment, file);
        if (!settings.ok()) return wrong(settings.error().message, command.name);
        out.invocation.settings = *std::move(settings);
        if (parsed.print_config)
            return ParsedExit{exit_stopped, out.invocation.settings.print(command.mask)};
        for (const Argument& argument : command.arguments)
            if (argument.required && !out.invocation.argument(argument.name))
                return wrong(text(argument.name, " is missing"), command.name);
        out.invocation.check_only = parsed.check;
        return out;
    }
    if (help) return ParsedExit{exit_stopped, overview()};
    return ParsedExit{exit_wrong_arguments, overview()};
}

}  // namespace moex
