// moex-hub serve: opens the model, makes the parts of the hub, prints the links, and runs until a
// signal.
#include "hub/commands/command.h"
#include "hub/commands/serve/hub_program.h"
#include "hub/commands/serve/serve_settings.h"

namespace moex {

int run_serve(const Invocation& invocation) {
    set_log_of(invocation.settings);
    const auto settings = read_serve_settings(invocation.settings);
    if (!settings.ok()) {
        fail(settings.error().message);
        return exit_wrong_arguments;
    }

    HubProgram hub(invocation, *settings);
    const Status opened = invocation.check_only ? hub.check() : hub.open();
    if (!opened.ok()) return fail(opened.error().message);

    if (invocation.check_only) return exit_stopped;
    const Status ended = hub.run();
    return ended.ok() ? exit_stopped : fail(ended.error().message);
}

}  // namespace moex
