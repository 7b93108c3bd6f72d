// The subcommands of moex-hub. Each subcommand has one entry in a list, which parsing, help and
// dispatch share.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/options/options.h"

namespace moex {

// The exit codes of moex-hub. A command that a signal ends returns exit_signal plus the signal's
// number.
enum ExitCode { exit_stopped = 0, exit_failed = 1, exit_wrong_arguments = 2, exit_signal = 128 };

// An argument of a command that is not one of the settings: a positional argument ("HF_DIR"), or an
// option that applies to one run ("--prompt").
struct Argument {
    std::string_view name;
    std::string_view value_name;  // empty: a switch
    std::string_view help;
    bool required = false;
    std::string_view choices = {};  // for completion: "add|list"
    bool is_positional() const { return !name.starts_with("--"); }
};

struct Invocation {
    Settings settings;
    std::map<std::string, std::string, std::less<>> arguments;  // switches hold "on"
    // --check: the command only checks whether it could start, and then stops
    bool check_only = false;
    // Reads the settings again, because the configuration file may have been edited since the
    // start.
    std::function<Result<Settings>()> settings_again = {};

    // Returns the value of an argument, or nullptr if it was not given.
    const std::string* argument(std::string_view name) const {
        const auto found = arguments.find(name);
        return found == arguments.end() ? nullptr : &found->second;
    }
};

struct Command {
    std::string_view name;
    unsigned mask = 0;  // the command's bit of CommandMask; 0: the command takes no settings
    std::string_view summary;
    std::string_view example;
    std::vector<Argument> arguments;
    int (*run)(const Invocation&) = nullptr;
};
std::span<const Command> command_table();

// Returns `sentence` with '?' in place of control characters, which may occur in file names.
std::string one_line(std::string_view sentence);

// Prints "moex-hub: SENTENCE" on one line of stderr and returns exit_failed.
int fail(std::string_view sentence);

int run_serve(const Invocation& invocation);
int run_pack(const Invocation& invocation);
int run_pull(const Invocation& invocation);
int run_models(const Invocation& invocation);
int run_rm(const Invocation& invocation);
int run_verify(const Invocation& invocation);
int run_generate(const Invocation& invocation);
int run_chat(const Invocation& invocation);
int run_clients(const Invocation& invocation);
int run_eval(const Invocation& invocation);
int run_train_estimator(const Invocation& invocation);
int run_inspect(const Invocation& invocation);
int run_model(const Invocation& invocation);
int run_key(const Invocation& invocation);
int run_ban(const Invocation& invocation);
int run_fleet(const Invocation& invocation);
int run_front(const Invocation& invocation);
int run_backup(const Invocation& invocation);
int run_forget(const Invocation& invocation);
int run_sign(const Invocation& invocation);
int run_cert(const Invocation& invocation);
int run_doctor(const Invocation& invocation);
int run_completion(const Invocation& invocation);
int run_version(const Invocation& invocation);
int run_synth(const Invocation& invocation);

}  // namespace moex
