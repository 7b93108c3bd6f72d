#include "hub/commands/command_line.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "hub/commands/version.h"

namespace moex {
namespace {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

std::string overview() {
    std::string out = "usage: moex-hub COMMAND [options]\n\n";
    for (const Command& command : command_table()) {
        std::string line = text("  ", command.name);
        line.resize(19, ' ');
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

void add_setting_help(std::string& out, const Setting& setting) {
    if (setting.kind == SettingKind::secret)
        return add_help_line(out, environment_name(setting), setting.help, "");

    std::string left = flag_name(setting);
    if (!setting.value_name.empty()) left += text(' ', setting.value_name);
    std::string help(setting.help);
    if (!setting.choices.empty() && setting.kind == SettingKind::text)
        help += text(" (", setting.choices, ")");
    add_help_line(out, left, help, setting.kind == SettingKind::flag ? "" : setting.default_value);
}

std::string usage_line(const Command& command) {
    std::string usage = text("usage: moex-hub ", command.name);
    for (const Argument& argument : command.arguments) {
        std::string part(argument.name);
        if (!argument.value_name.empty()) part += text(' ', argument.value_name);
        usage += argument.required ? text(' ', part) : text(" [", part, "]");
    }
    return text(usage, command.mask ? " [options]" : "", "\n");
}

ParsedExit wrong(std::string_view sentence, std::string_view command) {
    return {exit_wrong_arguments, text("moex-hub: ", sentence, "\nmoex-hub ", command,
                                       command.empty() ? "" : " ", "--help says more\n")};
}

// One subcommand: its options as CLI11 knows them, and what it read into them.
class CommandParser {
  public:
    CommandParser(const Command& command, CLI::App& app)
        : command_(command),
          sub_(app.add_subcommand(std::string(command.name))) {
        sub_->set_help_flag();
        sub_->add_flag("-h,--help", help_);
        if (command.mask) {
            sub_->add_option("--config", config_);
            sub_->add_flag("--print-config", print_config_);
            sub_->add_flag("--check", check_);
        }
        for (const Argument& argument : command.arguments) add(argument);
        for (const Setting& setting : setting_table())
            if ((setting.commands & command.mask) && setting.kind != SettingKind::secret)
                add(setting);
    }
    // CLI11 keeps the members' addresses.
    CommandParser(const CommandParser&) = delete;

    const Command& command() const { return command_; }
    bool was_named() const { return sub_->parsed(); }

    std::variant<ParsedCommand, ParsedExit> finish(bool help, const Environment& environment) {
        if (help || help_) return ParsedExit{exit_stopped, command_help(command_)};

        const auto resolve = [mask = command_.mask, flags = flags(), environment,
                              file = config_file(environment)] {
            return resolve_settings(mask, flags, environment, file);
        };
        auto settings = resolve();
        if (!settings.ok()) return wrong(settings.error().message, command_.name);
        if (print_config_) return ParsedExit{exit_stopped, settings->print(command_.mask)};

        ParsedCommand out{.command = &command_};
        out.invocation = {.settings = *std::move(settings),
                          .arguments = arguments(),
                          .check_only = check_,
                          .settings_again = resolve};
        for (const Argument& argument : command_.arguments)
            if (argument.required && !out.invocation.argument(argument.name))
                return wrong(text(argument.name, " is missing"), command_.name);
        return out;
    }

  private:
    void add(const Argument& argument) {
        const std::string name(argument.name);
        if (argument.value_name.empty() && !argument.is_positional())
            sub_->add_flag(name, switches_[name]);
        else
            sub_->add_option(name, arguments_[name]);
    }

    void add(const Setting& setting) {
        std::vector<std::string>& values = settings_[std::string(setting.name)];
        CLI::Option* option = setting.kind == SettingKind::flag
                                  ? sub_->add_flag(flag_name(setting), values)
                                  : sub_->add_option(flag_name(setting), values)->expected(1);
        option->allow_extra_args(false);  // what follows a value is the command's own
        option->multi_option_policy(setting.kind == SettingKind::list
                                        ? CLI::MultiOptionPolicy::TakeAll
                                        : CLI::MultiOptionPolicy::TakeLast);
        setting_options_.emplace_back(&setting, option);
    }

    // The settings that the command line gave.
    std::map<std::string, std::vector<std::string>> flags() const {
        std::map<std::string, std::vector<std::string>> given;
        for (const auto& [setting, option] : setting_options_) {
            const std::string name(setting->name);
            if (option->count() > 0) given[name] = settings_.at(name);
        }
        return given;
    }

    std::map<std::string, std::string, std::less<>> arguments() const {
        std::map<std::string, std::string, std::less<>> given;
        for (const auto& [name, value] : arguments_)
            if (sub_->get_option(name)->count() > 0) given[name] = value;
        for (const auto& [name, is_on] : switches_)
            if (is_on) given[name] = "on";
        return given;
    }

    std::optional<std::filesystem::path> config_file(const Environment& environment) const {
        if (!config_.empty()) return config_;
        if (const auto named = environment("MOEX_CONFIG"); named && !named->empty()) return *named;
        return default_config_file();
    }

    const Command& command_;
    CLI::App* sub_;
    bool help_ = false, print_config_ = false, check_ = false;
    std::string config_;
    std::map<std::string, std::vector<std::string>> settings_;
    std::map<std::string, std::string> arguments_;
    std::map<std::string, bool> switches_;
    std::vector<std::pair<const Setting*, CLI::Option*>> setting_options_;
};

}  // namespace

std::string command_help(const Command& command) {
    std::string out = text(usage_line(command), command.summary, "\n\n");
    for (const Argument& argument : command.arguments) {
        std::string left(argument.name);
        if (!argument.value_name.empty()) left += text(' ', argument.value_name);
        add_help_line(out, left, argument.help, "");
    }
    for (const Setting& setting : setting_table())
        if ((setting.commands & command.mask) && !setting.hidden) add_setting_help(out, setting);

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
    const std::vector<std::string>& arguments, const Environment& environment) {
    CLI::App app;
    app.set_help_flag();
    bool help = false, version = false;
    app.add_flag("-h,--help", help);
    app.add_flag("--version", version);
    std::vector<std::unique_ptr<CommandParser>> commands;
    for (const Command& command : command_table())
        commands.push_back(std::make_unique<CommandParser>(command, app));

    // CLI11 takes them from the back
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
        app.parse(reversed);
    } catch (const CLI::ParseError& error) {
        const auto named = std::find_if(commands.begin(), commands.end(), [&](const auto& one) {
            return !arguments.empty() && one->command().name == arguments.front();
        });
        return wrong(error.what(), named != commands.end() ? (*named)->command().name : "");
    }

    if (version) return ParsedExit{exit_stopped, text("moex-hub ", moex_version(), "\n")};
    for (const auto& command : commands)
        if (command->was_named()) return command->finish(help, environment);
    return ParsedExit{help ? exit_stopped : exit_wrong_arguments, overview()};
}

}  // namespace moex
