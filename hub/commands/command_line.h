// Parses argv into a command and its settings. The parser also reads the environment and the
// configuration file for settings. It runs no command.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hub/commands/command.h"

namespace moex {

struct ParsedCommand {
    const Command* command = nullptr;
    Invocation invocation;
};

// The result of parsing when no command runs, because help, the version or --print-config was
// requested, or because of an error. The caller prints the text and exits.
struct ParsedExit {
    int code = exit_stopped;
    std::string text;  // printed to stdout when `code` is 0, otherwise to stderr
};

// Parses `arguments`, which are the words of argv after the program's name.
std::variant<ParsedCommand, ParsedExit> parse_command_line(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<std::string>(const std::string&)>& environment);

}  // namespace moex
