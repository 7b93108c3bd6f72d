// moex-hub: parse, run one command, stop.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "hub/commands/command_line.h"

int main(int argc, char** argv) {
    using namespace moex;
    // a reader that went away is an error of that write, not the end of the hub
    std::signal(SIGPIPE, SIG_IGN);
    const auto environment = [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
    };
    try {
        auto parsed = parse_command_line({argv + 1, argv + argc}, environment);
        if (const auto* stop = std::get_if<ParsedExit>(&parsed)) {
            std::fputs(stop->text.c_str(), stop->code == exit_stopped ? stdout : stderr);
            return stop->code;
        }
        const auto& command = std::get<ParsedCommand>(parsed);
        return command.command->run(command.invocation);
    } catch (const std::exception& error) {
        return fail(error.what());
    }
}
