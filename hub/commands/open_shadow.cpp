#include "hub/commands/open_shadow.h"

#include <algorithm>

#include "hub/foresight/shadow/shadow_experts.h"

namespace moex {

Result<ShadowParts> open_shadow(const std::string& folder, const LoadedModel& model) {
    ShadowParts parts;
    parts.threads = std::make_unique<ThreadPool>(
        std::max<std::size_t>(1, model.threads->num_threads() / 2));
    MOEX_ASSIGN(package, ShadowPackage::open(folder, *model.package));
    parts.experts = std::make_unique<ShadowExperts>(package, *parts.threads);
    parts.decoder = model.decoder->twin(*parts.threads);
    return parts;
}

}  // namespace moex
