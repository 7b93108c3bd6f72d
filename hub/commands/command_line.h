// From argv to a command and its settings. Reads the environment and the configuration file; runs
// nothing.
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

// Help, version, --print-config or an error: print the text and exit.
struct ParsedExit {
    int code = exit_stopped;
    std::string text;  // to stdout when code is 0, otherwise to stderr
};

// `arguments` without the program's name.
std::variant<ParsedCommand, ParsedExit> parse_command_line(
    const std::vector<std::string>& arguments,
    const std::function<std::optional<std::string>(const std::string&)>& environment);

// What `moex-hub COMMAND --help` prints.
std::string command_help(const Command& command);

}  // namespace moex
