#include "tests/sim/sim_types.h"

#include <algorithm>

#include "protocol/half.h"

namespace moex::sim {

Result<Faults> parse_faults(std::string_view list) {
    Faults faults;
    while (!list.empty()) {
        const std::size_t comma = std::min(list.find(','), list.size());
        const std::string_view name = list.substr(0, comma);
        list.remove_prefix(std::min(list.size(), comma + 1));
        const bool all = name == "all";
        bool known = all || name == "none";
        const auto want = [&](std::string_view fault) {
            return known |= name == fault, all || name == fault;
        };
        if (want("loss")) faults.loss = 0.01;
        if (want("delay")) faults.delay = 0.05;
        if (want("duplication")) faults.duplication = 0.02;
        if (want("reorder")) faults.reorder = 0.05;
        if (want("truncation")) faults.truncation = 0.002;
        if (want("flips")) faults.bit_flips = 0.002;
        if (want("stalls")) faults.stall = 0.01;
        if (want("busy")) faults.busy = 0.02;
        if (want("errors")) faults.error = 0.02;
        if (want("churn")) faults.churn_per_minute = 2;
        if (want("liars")) faults.liars = 0.2;
        if (!known)
            return Error{ErrorCode::invalid_argument,
                         text("fault \"", name,
                              "\": want none, all, loss, delay, duplication, reorder, truncation, "
                              "flips, stalls, busy, errors, churn or liars")};
    }
    return faults;
}

void sim_expert(std::uint32_t layer, std::uint32_t expert, const float* x, float gate,
                std::uint32_t hidden_size, bool round_f16, float* y) {
    const float scale = 0.25f + 0.0625f * static_cast<float>(expert % 7),
                shift = 0.01f * static_cast<float>(layer + 1);
    for (std::uint32_t i = 0; i < hidden_size; ++i) {
        const float value = gate * (scale * x[i] + shift * x[(i + expert + 1) % hidden_size]);
        y[i] = round_f16 ? half_to_float(float_to_half(value)) : value;
    }
}

}  // namespace moex::sim
