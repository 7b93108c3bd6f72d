// The command line of the two benches in this folder: the settings of a moex-hub command (--model,
// --window, --threads ... and their MOEX_* variables) and the bench's own options.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>

#include "hub/commands/command.h"

namespace moex::bench {

// Parses `--name value` and `--flag` words. `mask` names the moex-hub command whose settings are
// known; `own` lists the bench's options, which all take a value. `help` is printed for --help.
// Returns nullopt and sets `exit_code` if the bench ends here, after a sentence on stderr.
std::optional<Invocation> parse_bench_command(int argc, char** argv, unsigned mask,
                                              std::initializer_list<std::string_view> own,
                                              std::string_view help, int& exit_code);

// Prints the program's name and the sentence on stderr; returns exit_failed.
int fail(std::string_view program, std::string_view sentence);

}  // namespace moex::bench
