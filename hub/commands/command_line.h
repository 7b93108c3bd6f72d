// Parses argv into a command and its settings. Reads the environment and the configuration file,
// and runs nothing.
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

// Help, version, --print-config or an error: the caller prints the text and exits.
struct ParsedExit {
    int code = exit_stopped;
    std::string text;  // to stdout when code is 0, otherwise to stderr
};

// Parses `arguments`, which do not include the program's name.
std::variant<ParsedCommand, ParsedExit> parse_command_line(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<std::string>(const std::string&)>& environment);

}  // namespace moex
