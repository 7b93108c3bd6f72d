// Which steps of a span's holder are checked, and when its answers differ too often. One record per
// holder. Findings of checks go in; "check this step", "use its answers" and an end come out. The
// class knows no clock, no frame and no worker.
//   new      `to_prove` checks; no answer is used
//   proven   answers are used, except those of checks: a share `rate` of the steps, drawn at random
//   doubted  after a check that was not right: the next `doubted_checks` steps are checks, and no
//            answer is used. Another such check ends the record. After right ones the holder is
//            proven again.
// The two findings of a doubt decide which end it is. If either is `wrong`, the holder lied. If
// both are `differs`, it is set aside, since honest arithmetic may differ like that. In both cases
// no further answer is used, so a liar gains nothing by an answer that differs moderately.
// A step of a check is computed by the hub, and the holder cannot tell such a step from another.
#pragma once

#include <cstdint>

namespace moex {

struct SpanCheckRule {
    std::uint32_t to_prove = 8;
    double rate = 1.0 / 64;
    std::uint32_t doubted_checks = 256;
};

enum class SpanFinding : std::uint8_t {
    right,    // within the tolerance
    differs,  // beyond it, as honest arithmetic may be that chooses another expert
    wrong,    // in a way that no honest arithmetic explains (RouteTraces)
};
// The end of a record.
enum class SpanEnd : std::uint8_t { none, set_aside, lied };

class SpanTrust {
  public:
    explicit SpanTrust(const SpanCheckRule& rule) : rule_(rule), checks_left_(rule.to_prove) {}

    // Returns true if answers may be used.
    bool is_proven() const { return checks_left_ == 0; }
    // Returns true if the record has ended: no answer is used or checked any more.
    bool has_ended() const { return has_ended_; }
    // Returns true if the next step is a check. `draw` is uniform in [0, 1) and secret.
    bool wants_check(double draw) const { return !is_proven() || draw < rule_.rate; }
    // Records a finding. Returns how the record ends by it.
    SpanEnd on_check(SpanFinding finding);
    // An answer was lost or late: the next step is a check.
    void on_failure() { checks_left_ = checks_left_ == 0 ? 1 : checks_left_; }

  private:
    SpanCheckRule rule_;
    std::uint32_t checks_left_;  // until answers are used
    // A check was not right, and `doubted_checks` right ones have not followed.
    bool is_doubted_ = false;
    bool was_wrong_ = false;  // the check that the doubt began with was `wrong`
    bool has_ended_ = false;
};

// Returns how many wrong answers of a holder are used, on average, until its record ends, if each
// of its answers is wrong with probability `lies`, beyond the tolerance of a check. With
//   s = (1 - rate) / rate                  wrong answers that are used until a check meets one
//   d = 1 - (1 - lies)^doubted_checks      probability that another one is found while it is
//   doubted
// a holder that is proven places s wrong answers before it is doubted, and s / d in all, since it
// is proven again with probability 1 - d. A new holder must become proven first, either at once,
// (1 - lies)^to_prove, or after it was doubted.
//   a new holder: 0 for lies = 1, 63 for 0.01, 278 for 0.001; a proven one: 63, 68 and 279
double expected_wrong_answers(const SpanCheckRule& rule, double lies, bool is_proven = false);

}  // namespace moex
