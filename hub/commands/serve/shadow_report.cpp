#include "hub/commands/serve/shadow_report.h"

#include "hub/base/log.h"
#include "hub/options/options_shadow.h"

namespace moex {

nlohmann::json shadow_report(const std::string& folder, std::uint32_t per_row,
                             const ServedShadowCounters& counts) {
    return {{"name", folder},
            {"token_period", shadow_token_period},
            {"kv_period", shadow_kv_period},
            {"ahead", shadow_draws_ahead},
            {"fetch", per_row},
            {"steps", counts.steps},
            {"steps_ahead", counts.steps_ahead},
            {"passes_cut", counts.passes_cut},
            {"layers", counts.layers},
            {"layers_late", counts.layers_late},
            {"tokens_drawn", counts.tokens_drawn},
            {"tokens_right", counts.tokens_right},
            {"positions_copied", counts.positions_copied},
            {"departure_us", counts.departure_us}};
}

void log_shadow(const ServedShadowCounters& counts) {
    log_info("hub: the shadow", kv("steps", counts.steps), kv("steps_ahead", counts.steps_ahead),
             kv("passes_cut", counts.passes_cut), kv("layers", counts.layers),
             kv("layers_late", counts.layers_late), kv("tokens_drawn", counts.tokens_drawn),
             kv("tokens_right", counts.tokens_right),
             kv("positions_copied", counts.positions_copied),
             kv("departure_us", counts.departure_us));
}

}  // namespace moex
