#include "hub/dispatch/span/span_trust.h"

#include <cmath>
#include <limits>

namespace moex {

bool SpanTrust::on_check(bool is_right) {
    if (has_lied_) return false;
    if (!is_right) {
        has_lied_ = is_doubted_;
        is_doubted_ = true;
        checks_left_ = rule_.doubted_checks;
        return has_lied_;
    }
    if (checks_left_ > 0 && --checks_left_ == 0) is_doubted_ = false;
    return false;
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
