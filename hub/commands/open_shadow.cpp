#include "hub/commands/open_shadow.h"

#include <algorithm>

#include "hub/foresight/shadow/shadow_experts.h"

namespace moex {

Status require_keys_only(const ModelConfig& config, const std::string& folder) {
    if (!config.has_delta_net()) return {};
    return Error{ErrorCode::unsupported,
                 text(folder, ": models of type ", config.architecture,
                      " have layers with a recurrent state, which a shadow cannot share and a "
                      "draft model cannot take back; leave it out")};
}

Result<ShadowParts> open_shadow(const std::string& folder, const LoadedModel& model) {
    MOEX_TRY(require_keys_only(model.package->config(), folder));
    ShadowParts parts;
    parts.threads = std::make_unique<ThreadPool>(
        std::max<std::size_t>(1, model.threads->num_threads() / 2));
    MOEX_ASSIGN(package, ShadowPackage::open(folder, *model.package));
    parts.experts = std::make_unique<ShadowExperts>(package, *parts.threads);
    parts.decoder = model.decoder->twin(*parts.threads);
    return parts;
}

}  // namespace moex
