// Where the time of tokens goes, written down while it passes: spans of the engine, the swarm's
// strand and each worker's rounds, and what workers count, for chrome://tracing and
// ui.perfetto.dev.
// Off, which is the rule, a span costs one load. On, it takes a lock and some 100 bytes; a thread
// of its own writes them down. Whoever opens a trace closes it after all that has spans.
// Source: "Trace Event Format" (Google, 2016), its JSON array format; a file that ends in the
// middle of a run is still read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>

#include "hub/base/clock.h"
#include "protocol/result.h"

namespace moex {

// What a span says besides its name. Names are string literals.
struct TraceValue {
    const char* name = nullptr;
    std::uint64_t value = 0;
};

class Trace {
  public:
    enum class Row : std::uint32_t { engine = 1, strand = 2, shadow = 3 };  // of the hub
    static constexpr std::uint64_t bytes_max_default = 1ull << 30;

    // Replaces `path`, and is what on() gives until it is destroyed. One at a time.
    static Result<std::unique_ptr<Trace>> open(const std::filesystem::path& path,
                                               std::uint64_t bytes_max = bytes_max_default);
    ~Trace();  // writes what is left
    Trace(const Trace&) = delete;

    // Null: nobody traces. Any thread.
    static Trace* on() { return current_.load(std::memory_order_acquire); }

    // From any thread. What comes faster than it can be written is dropped and counted; beyond
    // bytes_max all is.
    void span(Row row, const char* name, TimePoint begin, TimePoint end,
              std::initializer_list<TraceValue> values = {});
    // In a worker's rows. Those of one `id` nest in the order in which they are told, whatever
    // other ids do meanwhile.
    void worker_span(std::uint64_t worker, std::uint32_t id, const char* name, TimePoint begin,
                     TimePoint end, std::initializer_list<TraceValue> values = {});
    // What a worker counts, from `at` until it is told again: a curve for each value.
    void worker_counts(std::uint64_t worker, const char* name, TimePoint at,
                       std::initializer_list<TraceValue> values);

  private:
    struct State;
    explicit Trace(std::unique_ptr<State> state);

    static std::atomic<Trace*> current_;
    std::unique_ptr<State> state_;
};

// The time until the end of a block.
class TraceSpan {
  public:
    TraceSpan(Trace::Row row, const char* name, TraceValue value = {})
        : trace_(Trace::on()),
          row_(row),
          name_(name),
          value_(value) {
        if (trace_ != nullptr) begin_ = now_steady();
    }
    ~TraceSpan() {
        if (trace_ != nullptr) trace_->span(row_, name_, begin_, now_steady(), {value_});
    }
    TraceSpan(const TraceSpan&) = delete;

  private:
    Trace* trace_;
    Trace::Row row_;
    const char* name_;
    TraceValue value_;
    TimePoint begin_{};
};

}  // namespace moex
