#include "hub/dispatch/span/span_trust.h"

#include <cmath>
#include <limits>

namespace moex {

SpanEnd SpanTrust::on_check(SpanFinding finding) {
    if (has_ended_) return SpanEnd::none;
    if (finding == SpanFinding::right) {
        if (checks_left_ > 0 && --checks_left_ == 0) is_doubted_ = was_wrong_ = false;
        return SpanEnd::none;
    }
    const bool is_lie = was_wrong_ || finding == SpanFinding::wrong;
    has_ended_ = is_doubted_;
    is_doubted_ = true;
    was_wrong_ = is_lie;
    checks_left_ = rule_.doubted_checks;
    if (!has_ended_) return SpanEnd::none;
    return is_lie ? SpanEnd::lied : SpanEnd::set_aside;
}

double expected_wrong_answers(const SpanCheckRule& rule, double lies, bool is_proven) {
    if (lies <= 0) return 0;
    if (rule.rate <= 0) return std::numeric_limits<double>::infinity();
    const double passes_first = std::pow(1 - lies, rule.to_prove),
                 passes_doubt = std::pow(1 - lies, rule.doubted_checks);
    const double once_proven = (1 - rule.rate) / rule.rate / (1 - passes_doubt);
    if (is_proven) return once_proven;
    return once_proven * (passes_first + (1 - passes_first) * passes_doubt);
}

}  // namespace moex
