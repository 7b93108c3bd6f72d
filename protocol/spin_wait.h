// SpinWait polls for a bounded time before a thread sleeps, for waits that are expected to be
// short.
//
// A sleeping thread wakes up 10 to 50 us late, so the thread polls first and sleeps only after
// `most`. Polling pays only if the awaited event arrives within that time. After two waits that
// took longer, the next wait sleeps at once, until a wait is short again. The rule needs two waits,
// because over a long link long and short waits alternate: a long wait for a request, and a short
// wait for the GPU's result. A SpinWait belongs to one thread.
#pragma once

namespace moex {

// `Clock` is a class with the interface of a std::chrono clock.
template <typename Clock>
class SpinWait {
  public:
    // `most` is the longest time to poll before a sleep; 0 disables polling.
    explicit SpinWait(typename Clock::duration most) : most_(most) {}

    // Polls `has_come` until it returns true or until `most` has passed. If polling does not pay,
    // it is polled once. Returns what `has_come` returned last. If that is false, the caller
    // sleeps. In both cases the caller calls came() when the event has arrived.
    template <typename HasCome>
    bool look(HasCome has_come) {
        began_ = Clock::now();
        while (!has_come()) {
            if (!pays_ || Clock::now() - began_ >= most_) return false;
            pause();
        }
        return true;
    }
    // The caller reports that the awaited event has arrived.
    void came() {
        const bool was_short = Clock::now() - began_ < most_;
        pays_ = was_short || was_short_before_;
        was_short_before_ = was_short;
    }
    bool pays() const { return pays_; }

  private:
    // Yields the core to the other hardware thread of the same core for a moment.
    static void pause() {
#if defined(__x86_64__)
        for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
#endif
    }

    const typename Clock::duration most_;
    typename Clock::time_point began_{};
    bool pays_ = false, was_short_before_ = false;
};

}  // namespace moex
