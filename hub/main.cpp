// moex-hub: the main program. It parses the arguments, runs one command, and stops.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "hub/base/mapped_file.h"
#include "hub/commands/command_line.h"
#include "hub/commands/output.h"

int main(int argc, char** argv) {
    using namespace moex;

    hold_standard_descriptors();
    // Ignore SIGPIPE and SIGXFSZ, which would end the process without a message. A write to a
    // closed pipe or beyond the file size limit then fails with EPIPE or EFBIG, and the command
    // reports the error in a sentence.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    guard_mapped_files();

    const auto environment = [](const std::string& name) -> std::optional<std::string> {
        const char* value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
    };

    try {
        auto parsed = parse_command_line({argv + 1, argv + argc}, environment);
        if (const auto* stop = std::get_if<ParsedExit>(&parsed)) {
            if (stop->code == exit_stopped)
                (void)print_now(stop->text);
            else
                std::fputs(stop->text.c_str(), stderr);
            return finish_output(stop->code);
        }

        const auto& command = std::get<ParsedCommand>(parsed);
        return finish_output(command.command->run(command.invocation));
    } catch (const std::exception& error) {
        return fail(error.what());
    }
}
