#include "hub/commands/command_line.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "hub/commands/help_text.h"
#include "hub/commands/version.h"

namespace moex {
namespace {

using Environment = std::function<std::optional<std::string>(const std::string&)>;

ParsedExit wrong(std::string_view sentence, std::string_view command) {
    return {exit_wrong_arguments, text("moex-hub: ", sentence, "\nmoex-hub ", command,
                                       command.empty() ? "" : " ", "--help says more\n")};
}

// Returns an error text if the command has become a bench program; null for all other commands.
const char* where_it_moved(const std::vector<std::string>& arguments) {
    if (arguments.empty() || arguments.front() != "predict") return nullptr;
    return "predict is now the bench program foresight_bench, with the same options: "
           "scripts/build.sh --tests foresight_bench";
}

// Parser of one subcommand: the subcommand's options as CLI11 objects, and the values that CLI11
// read.
class CommandParser {
  public:
    CommandParser(const Command& command, CLI::App& app)
        : command_(command),
          sub_(app.add_subcommand(std::string(command.name))) {
        sub_->set_help_flag();
        sub_->add_flag("-h,--help", help_);
        sub_->add_flag("--help-all", help_all_);
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
    // The parser cannot be copied, because CLI11 keeps the addresses of the parser's members.
    CommandParser(const CommandParser&) = delete;

    const Command& command() const { return command_; }
    bool was_named() const { return sub_->parsed(); }

    std::variant<ParsedCommand, ParsedExit> finish(bool help, const Environment& environment) {
        if (help_all_) return ParsedExit{exit_stopped, command_help(command_, HelpLength::full)};
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
        // an option takes one value; the next word may be a positional argument
        option->allow_extra_args(false);
        option->multi_option_policy(setting.kind == SettingKind::list
                                        ? CLI::MultiOptionPolicy::TakeAll
                                        : CLI::MultiOptionPolicy::TakeLast);
        setting_options_.emplace_back(&setting, option);
    }

    // Returns the settings that flags on the command line set, by setting name.
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
    bool help_ = false, help_all_ = false, print_config_ = false, check_ = false;
    std::string config_;
    std::map<std::string, std::vector<std::string>> settings_;
    std::map<std::string, std::string> arguments_;
    std::map<std::string, bool> switches_;
    std::vector<std::pair<const Setting*, CLI::Option*>> setting_options_;
};

}  // namespace

std::variant<ParsedCommand, ParsedExit> parse_command_line(
    const std::vector<std::string>& arguments, const Environment& environment) {
    if (const char* moved = where_it_moved(arguments)) return wrong(moved, "");

    CLI::App app;
    app.set_help_flag();
    app.require_subcommand(0, 1);  // a later word is an argument, also if it is a command's name
    bool help = false, version = false;
    app.add_flag("-h,--help", help);
    app.add_flag("--version", version);
    std::vector<std::unique_ptr<CommandParser>> commands;
    for (const Command& command : command_table())
        commands.push_back(std::make_unique<CommandParser>(command, app));

    // CLI11 reads the vector of arguments from its end, so the order is reversed.
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
    return ParsedExit{help ? exit_stopped : exit_wrong_arguments, overview_help()};
}

}  // namespace moex
