// moex-hub backup: copies the state of a hub into one file, while the hub serves or not.
#include "hub/registry/backup.h"

#include <cstdio>

#include "hub/commands/command.h"
#include "hub/commands/output.h"
#include "hub/commands/state_folder.h"

namespace moex {

int run_backup(const Invocation& invocation) {
    const auto directory = state_folder(invocation.settings);
    if (!directory.ok()) return fail(directory.error().message);
    if (invocation.check_only) return exit_stopped;

    const std::filesystem::path file = *invocation.argument("FILE");
    if (const Status written = back_up_state(*directory, file); !written.ok())
        return fail(written.error().message);
    (void)print_now(text(one_line(file.string()), " holds the state of ",
                         one_line(directory->string()),
                         ": hashes of keys, counts, bans and the join token; keep it secret\n"));
    return exit_stopped;
}

}  // namespace moex
