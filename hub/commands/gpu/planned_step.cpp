#include "hub/commands/gpu/planned_step.h"

namespace moex {

PlannedStep plan_step(std::span<const StepRows> batch) {
    enum class Wants { nothing, likeliest, logits };
    PlannedStep step;
    for (const StepRows& one : batch)
        for (std::size_t i = 0; i < one.tokens.size(); ++i)
            step.hidden_row.push_back(one.hidden ? step.num_hidden++ : PlannedStep::no_row);
    for (const Wants wants : {Wants::nothing, Wants::likeliest, Wants::logits}) {
        std::uint32_t index = 0;
        for (const StepRows& one : batch) {
            const auto count = static_cast<std::uint32_t>(one.tokens.size());
            const std::uint32_t first = one.kv->num_tokens();
            for (std::uint32_t i = 0; i < count; ++i, ++index) {
                const bool asked = !one.no_logits && (one.all_logits || i + 1 == count);
                if (wants != (!asked               ? Wants::nothing
                              : one.likeliest == 0 ? Wants::logits
                                                   : Wants::likeliest))
                    continue;
                step.rows.push_back({one.tokens[i], first + i});
                step.index.push_back(index);
                step.num_pages.push_back((first + i) / kv_page_tokens + 1);
                step.sequence.push_back(&one);
                step.num_logits += asked;
                step.num_likeliest += wants == Wants::likeliest;
            }
        }
    }
    return step;
}

}  // namespace moex
