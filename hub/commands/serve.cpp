// moex-hub serve: opens the model, makes the parts of the hub, prints the links, and runs until a
// signal.
#include <cstdio>

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/serve/hub_program.h"
#include "hub/commands/serve/serve_check.h"
#include "hub/commands/serve/serve_settings.h"

namespace moex {
namespace {

// Prints what `serve` would fail with, or one line if it would start.
int check_only(const Settings& settings) {
    int code = exit_stopped;
    for (const auto& [name, finding] : check_serve(settings)) {
        if (finding.grade == Finding::Grade::wrong)
            code = fail(text(name, ": ", finding.words, "; ", finding.fix));
        else if (finding.grade == Finding::Grade::note)
            std::fprintf(stderr, "moex-hub: note: %s: %s\n", name, one_line(finding.words).c_str());
    }
    if (code == exit_stopped) (void)print_now("settings, model, certificate and state are right\n");
    return code;
}

}  // namespace

int run_serve(const Invocation& invocation) {
    set_log_of(invocation.settings);
    const auto settings = read_serve_settings(invocation.settings);
    if (!settings.ok()) {
        fail(settings.error().message);
        return exit_wrong_arguments;
    }

    if (invocation.check_only) return check_only(invocation.settings);

    HubProgram hub(invocation, *settings);
    const Status opened = hub.open();
    if (!opened.ok()) return fail(opened.error().message);
    const Status ended = hub.run();
    return ended.ok() ? exit_stopped : fail(ended.error().message);
}

}  // namespace moex
