#include "hub/commands/help_text.h"

#include <algorithm>

namespace moex {
namespace {

// Column at which the description of an option begins.
constexpr std::size_t help_column = 29;

// Appends `words` to `out`, whose last line already has `column` columns. Lines are broken at
// spaces, and continued lines begin at column `indent`. A line break in `words` begins a new line
// too.
void append_wrapped(std::string& out, std::size_t column, std::size_t indent,
                    std::string_view words) {
    bool is_line_empty = true;
    while (!words.empty()) {
        const std::size_t gap = std::min(words.find_first_not_of(' '), words.size());
        words.remove_prefix(gap);
        const std::string_view one = words.substr(0, words.find_first_of(" \n"));
        words.remove_prefix(one.size());

        if (!is_line_empty && column + gap + one.size() > help_columns) {
            out += '\n' + std::string(indent, ' ');
            column = indent;
        } else if (!is_line_empty) {
            out.append(gap, ' ');
            column += gap;
        }
        out += one;
        column += one.size();
        is_line_empty = false;

        if (words.starts_with('\n')) {
            words.remove_prefix(1);
            out += '\n' + std::string(indent, ' ');
            column = indent;
            is_line_empty = true;
        }
    }
    out += '\n';
}

void append_option(std::string& out, std::string_view left, std::string_view help) {
    std::string line = text("  ", left);
    // An option that is wider than its column gets a line of its own, and the description follows
    // below.
    if (line.size() + 2 > help_column) {
        out += line + '\n';
        line.clear();
    }
    line.resize(help_column, ' ');
    out += line;
    append_wrapped(out, help_column, help_column, help);
}

// Show the default behind the first line of the description. A flag shows no default, because every
// flag is off by default.
std::string help_of(const Setting& setting, HelpLength length) {
    std::string help(setting.help_line());
    const bool names_choices = setting.value_name == setting.choices;
    if (length == HelpLength::full && setting.kind == SettingKind::text && !names_choices &&
        !setting.choices.empty())
        help += text(" (", setting.choices, ")");
    if (setting.kind != SettingKind::flag && !setting.default_value.empty())
        help += text("  [", setting.default_value, "]");
    if (length == HelpLength::full) help += setting.help.substr(setting.help_line().size());
    return help;
}

void append_setting(std::string& out, const Setting& setting, HelpLength length) {
    std::string left = setting.kind == SettingKind::secret ? environment_name(setting)
                                                           : flag_name(setting);
    if (!setting.value_name.empty()) left += text(' ', setting.value_name);
    append_option(out, left, help_of(setting, length));
}

std::string usage_of(const Command& command) {
    // Mark for a space between an option and its value, at which append_wrapped() does not break
    // the line.
    constexpr char fixed_space = '\x1f';
    std::string arguments;
    for (const Argument& argument : command.arguments) {
        std::string part(argument.name);
        if (!argument.value_name.empty()) part += text(fixed_space, argument.value_name);
        arguments += argument.required ? text(' ', part) : text(" [", part, "]");
    }
    if (command.mask) arguments += " [options]";

    std::string usage = text("usage: moex-hub ", command.name);
    if (arguments.empty()) return usage + '\n';
    usage += ' ';
    append_wrapped(usage, usage.size(), usage.size(), arguments.substr(1));
    std::replace(usage.begin(), usage.end(), fixed_space, ' ');
    return usage;
}

bool is_listed(const Setting& setting, const Command& command, HelpLength length) {
    return (setting.commands & command.mask) && !setting.is_hidden() &&
           (length == HelpLength::full || setting.shown == SettingShown::always);
}

// Serve has about 70 settings, so its help lists them in groups.
void append_groups(std::string& out, const Command& command, HelpLength length) {
    for (const SettingGroup group : setting_groups) {
        out += text(setting_group_title(group), "\n");
        for (const Setting& setting : setting_table())
            if (setting.group == group && is_listed(setting, command, length))
                append_setting(out, setting, length);
        out += '\n';
    }
}

void append_common_options(std::string& out, bool has_brief_help) {
    if (has_brief_help)
        append_option(out, "--help-all", "list every setting, and explain each in full");
    append_option(out, "--config FILE",
                  "settings file (TOML); default: $XDG_CONFIG_HOME/moex/config.toml");
    append_option(out, "--print-config", "print every setting, its value and its source");
    append_option(out, "--check", "check settings and files, start nothing");
    out += '\n';
    append_wrapped(
        out, 0, 0,
        "Every setting is also a variable (--queue-max: MOEX_QUEUE_MAX) and a key of the "
        "file (queue_max).");
}

}  // namespace

std::string overview_help() {
    constexpr std::size_t summary_column = 19;
    std::string out = "usage: moex-hub COMMAND [options]\n\n";
    for (const Command& command : command_table()) {
        std::string line = text("  ", command.name);
        line.resize(summary_column, ' ');
        out += line;
        append_wrapped(out, summary_column, summary_column, command.summary);
    }
    out += '\n';
    append_wrapped(out, 0, 0,
                   "Settings: flag > MOEX_* environment > TOML file (--config) > default. moex-hub "
                   "COMMAND --help lists them.");
    out += "example: moex-hub serve      exit: 0 stopped, 1 failed, 2 wrong arguments\n";
    return out;
}

std::string command_help(const Command& command, HelpLength length) {
    const bool has_groups = command.mask & command_serve;
    std::string out = usage_of(command);
    append_wrapped(out, 0, 0, command.summary);
    out += '\n';

    for (const Argument& argument : command.arguments) {
        std::string left(argument.name);
        if (!argument.value_name.empty()) left += text(' ', argument.value_name);
        append_option(out, left, argument.help);
    }
    if (has_groups) {
        append_groups(out, command, length);
    } else {
        for (const Setting& setting : setting_table())
            if (is_listed(setting, command, HelpLength::full))
                append_setting(out, setting, HelpLength::full);
    }
    if (command.mask) append_common_options(out, has_groups && length == HelpLength::brief);
    if (!command.mask) out += '\n';

    const bool is_interruptible = command.mask & (command_generate | command_pull);
    const std::string example = text("example: ", command.example),
                      exit = text("exit: 0 stopped, 1 failed, 2 wrong arguments",
                                  is_interruptible ? ", 130 interrupted (Ctrl-C)" : "");
    constexpr std::string_view gap = "      ";
    const bool fits = example.size() + gap.size() + exit.size() <= help_columns;
    out += text(example, fits ? gap : "\n", exit, "\n");
    return out;
}

}  // namespace moex
