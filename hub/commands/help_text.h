// The help texts of moex-hub, made from the tables of commands and settings. Every line has at most
// help_columns columns. This file owns the layout; the words are in the tables.
//
//   --listen ADDR:PORT         HTTP and WebSocket; port 0 takes a free port  [127.0.0.1:8080]
#pragma once

#include <string>

#include "hub/commands/command.h"

namespace moex {

inline constexpr std::size_t help_columns = 100;

enum class HelpLength {
    brief,  // --help: the settings that an operator chooses, one line for each
    full,   // --help-all: every setting that is not hidden, with its whole description
};

// Returns the text that `moex-hub --help` prints.
std::string overview_help();
// Returns the text of `moex-hub COMMAND --help`, or of --help-all. Only the commands that take the
// settings of serve have a brief text. For the other commands both texts list everything.
std::string command_help(const Command& command, HelpLength length = HelpLength::brief);

}  // namespace moex
