// moex-hub completion bash: prints a shell script that completes commands and options. The script
// is made from the tables of commands and settings.
#include "hub/commands/command.h"
#include "hub/commands/output.h"

namespace moex {
namespace {

// Returns the words of `choices`, such as "a|b|c", with spaces between them: "a b c".
std::string words_of(std::string_view choices) {
    std::string words(choices);
    for (char& c : words)
        if (c == '|') c = ' ';
    return words;
}

// Returns the words that may follow the flag of `setting` on a command line. An empty result means
// that a file name or any text may follow.
std::string values_of(const Setting& setting) {
    if (setting.kind == SettingKind::on_off) return "on off";
    return words_of(setting.choices);
}

std::string options_of(const Command& command) {
    std::string words = "--help --help-all";
    if (command.mask) words += " --config --print-config --check";
    for (const Argument& argument : command.arguments)
        if (!argument.is_positional()) words += text(' ', argument.name);
    for (const Setting& setting : setting_table())
        if ((setting.commands & command.mask) && !setting.is_hidden() &&
            setting.kind != SettingKind::secret)
            words += text(' ', flag_name(setting));
    return words;
}

constexpr const char* script_head =
    R"(# bash completion of moex-hub, made by `moex-hub completion bash`.
_moex_hub() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$_moex_hub_commands --help --version" -- "$current")
        return
    fi
)";

constexpr const char* script_tail = R"(    if [ -n "$words" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        compopt -o filenames 2>/dev/null || :
    fi
}
complete -F _moex_hub moex-hub
)";

std::string bash_script() {
    std::string commands, values, options;
    for (const Command& command : command_table()) {
        commands += text(commands.empty() ? "" : " ", command.name);
        options += text("        ", command.name, ") [[ $current == -* ]] && words=\"",
                        options_of(command), "\" ;;\n");
        for (const Argument& argument : command.arguments)
            if (!argument.choices.empty() && !argument.is_positional())
                values += text("        ", command.name, ":", argument.name, ") words=\"",
                               words_of(argument.choices), "\" ;;\n");
            else if (!argument.choices.empty())
                values += text("        ", command.name, ":", command.name, ") words=\"",
                               words_of(argument.choices), "\" ;;\n");
    }
    for (const Setting& setting : setting_table())
        if (const std::string words = values_of(setting); !words.empty() && !setting.is_hidden())
            values += text("        *:", flag_name(setting), ") words=\"", words, "\" ;;\n");

    std::string script = script_head;
    script.replace(script.find("$_moex_hub_commands"), std::string("$_moex_hub_commands").size(),
                   commands);
    script += "    case \"${COMP_WORDS[1]}\" in\n" + options + "    esac\n";
    script += "    case \"${COMP_WORDS[1]}:$before\" in\n" + values + "    esac\n";
    return script + script_tail;
}

}  // namespace

int run_completion(const Invocation& invocation) {
    if (*invocation.argument("SHELL") != "bash") {
        fail(text("wanted bash, found \"", *invocation.argument("SHELL"), "\""));
        return exit_wrong_arguments;
    }
    (void)print_now(bash_script());
    return exit_stopped;
}

}  // namespace moex
