#include "hub/commands/state_folder.h"

#include "hub/registry/state_files.h"

namespace moex {

Result<std::filesystem::path> state_folder(const Settings& settings) {
    std::filesystem::path chosen = settings.text("state");
    if (!chosen.empty()) return chosen;
    return default_state_directory();
}

Result<std::unique_ptr<Registry>> open_registry_of(const Settings& settings,
                                                   std::string_view things, bool may_make) {
    if (const std::string& url = settings.text("store"); !url.empty())
        return Registry::open(StorePlace{.url = url});
    MOEX_ASSIGN(directory, state_folder(settings));
    std::error_code failure;
    if (!may_make && !std::filesystem::exists(directory / "moex.sqlite", failure))
        return Error{ErrorCode::not_found, text(directory.string(), ": no hub keeps its ", things,
                                                " here; --state names the folder of one")};
    return Registry::open(directory);
}

}  // namespace moex
