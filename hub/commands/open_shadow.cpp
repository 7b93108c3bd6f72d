#include "hub/commands/open_shadow.h"

#include <algorithm>
#include <charconv>

#include "hub/foresight/shadow/fewer_experts.h"
#include "hub/foresight/shadow/shadow_experts.h"

namespace moex {

NamedShadow named_shadow(const std::string& given) {
    NamedShadow named{.folder = given};
    const std::size_t colon = given.rfind(':');
    std::uint32_t top_k = 0;
    if (colon != std::string::npos) {
        const char *const first = given.data() + colon + 1, *const last = given.data() +
                                                                          given.size();
        const auto [end, failure] = std::from_chars(first, last, top_k);
        if (failure == std::errc() && end == last && top_k > 0)
            named = {given.substr(0, colon), top_k};
    }
    if (named.top_k > 0 && named.folder == "served") named.folder.clear();
    return named;
}

Result<ShadowParts> open_shadow(const std::string& given, const LoadedModel& model) {
    const NamedShadow named = named_shadow(given);
    ShadowParts parts;
    parts.threads = std::make_unique<ThreadPool>(
        std::max<std::size_t>(1, model.threads->num_threads() / 2));
    if (named.folder.empty()) {
        if (!model.local)
            return Error{ErrorCode::unsupported,
                         text("the shadow ", given, " needs the model's experts on this machine")};
        parts.experts = model.local.get();
    } else {
        MOEX_ASSIGN(package, ShadowPackage::open(named.folder, *model.package));
        parts.own = std::make_unique<ShadowExperts>(package, *parts.threads);
        parts.experts = parts.own.get();
    }
    if (named.top_k > 0) {
        parts.fewer = make_fewer_experts(*parts.experts, named.top_k);
        parts.experts = parts.fewer.get();
    }
    parts.decoder = model.decoder->twin(*parts.threads);
    return parts;
}

}  // namespace moex
