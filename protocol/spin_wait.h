// Waits that are expected to be short: a thread that sleeps is woken 10 to 50 us after its time, so
// it looks again and again for a while instead, and sleeps only then. That pays where what is
// waited for comes within that while: after two waits that took longer the next one sleeps at once,
// until one is short again. Two, since behind a long line long waits and short ones come in turns:
// for a question, and for what a GPU makes of it. One thread's.
#pragma once

namespace moex {

// `Clock`: as std::chrono's.
template <typename Clock>
class SpinWait {
  public:
    // 0: never.
    explicit SpinWait(typename Clock::duration most) : most_(most) {}

    // Looks until `has_come`, at the most for so long; once, where it does not pay. What it
    // answered last. The caller sleeps on false, and in both cases says came() behind it.
    template <typename HasCome>
    bool look(HasCome has_come) {
        began_ = Clock::now();
        while (!has_come()) {
            if (!pays_ || Clock::now() - began_ >= most_) return false;
            pause();
        }
        return true;
    }
    // What was waited for is here.
    void came() {
        const bool was_short = Clock::now() - began_ < most_;
        pays_ = was_short || was_short_before_;
        was_short_before_ = was_short;
    }
    bool pays() const { return pays_; }

  private:
    // Leaves the core to its other thread for a moment.
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
