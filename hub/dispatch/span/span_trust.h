// Which steps of a span's holder are checked, and when its answers differ too often. One record per
// holder. Verdicts go in; "check this step", "use its answers" and "it lied" come out. The class
// knows no clock, no frame and no worker.
//   new      `to_prove` checks; no answer is used
//   proven   answers are used, except those of checks: a share `rate` of the steps, drawn at random
//   doubted  after a wrong check: the next `doubted_checks` steps are checks; no answer is used.
//            Another wrong check is a lie. After right ones the holder is proven again.
// A lie ends the record. A step of a check is computed by the hub, and the holder cannot tell such
// a step from another.
#pragma once

#include <cstdint>

namespace moex {

struct SpanCheckRule {
    std::uint32_t to_prove = 8;
    double rate = 1.0 / 64;
    std::uint32_t doubted_checks = 256;
};

class SpanTrust {
  public:
    explicit SpanTrust(const SpanCheckRule& rule) : rule_(rule), checks_left_(rule.to_prove) {}

    // Returns true if answers may be used.
    bool is_proven() const { return checks_left_ == 0; }
    bool has_lied() const { return has_lied_; }
    // Returns true if the next step is a check. `draw` is uniform in [0, 1) and secret.
    bool wants_check(double draw) const { return !is_proven() || draw < rule_.rate; }
    // Records a verdict. Returns true if the holder lied.
    bool on_check(bool is_right);
    // An answer was lost or late: the next step is a check.
    void on_failure() { checks_left_ = checks_left_ == 0 ? 1 : checks_left_; }

  private:
    SpanCheckRule rule_;
    std::uint32_t checks_left_;  // until answers are used
    bool is_doubted_ =
        false;  // a check was wrong, and `doubted_checks` right ones have not followed
    bool has_lied_ = false;
};

// Returns how many wrong answers of a holder are used, on average, until it is found to lie, if
// each of its answers is wrong with probability `lies`, beyond the tolerance of a check. With
//   s = (1 - rate) / rate                  wrong answers that are used until a check meets one
//   d = 1 - (1 - lies)^doubted_checks      probability that a lie is found while it is doubted
// a holder that is proven places s wrong answers before it is doubted, and s / d in all, since it
// is proven again with probability 1 - d. A new holder must become proven first, either at once,
// (1 - lies)^to_prove, or after it was doubted.
//   a new holder: 0 for lies = 1, 63 for 0.01, 278 for 0.001; a proven one: 63, 68 and 279
double expected_wrong_answers(const SpanCheckRule& rule, double lies, bool is_proven = false);

}  // namespace moex
