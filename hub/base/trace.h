// Records where the time of tokens goes: spans of the engine, of the swarm's strand and of each
// worker's rounds, and counters of workers, for chrome://tracing and ui.perfetto.dev.
// Tracing is normally off, and a span then costs one load. When tracing is on, a span takes a lock
// and some 100 bytes; a separate thread writes the spans to the file. The code that opens a trace
// must close it after all objects that have spans.
// Source: "Trace Event Format" (Google, 2016), its JSON array format; viewers can read a file that
// ends in the middle of a run.
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

// A named value attached to a span. Names are string literals.
struct TraceValue {
    const char* name = nullptr;
    std::uint64_t value = 0;
};

class Trace {
  public:
    // rows of the hub in the trace viewer
    enum class Row : std::uint32_t { engine = 1, strand = 2, shadow = 3 };
    static constexpr std::uint64_t bytes_max_default = 1ull << 30;

    // Starts a trace in a new file, which replaces the file at `path`. on() returns this trace
    // until it is destroyed. Only one trace can be open at a time.
    static Result<std::unique_ptr<Trace>> open(const std::filesystem::path& path,
                                               std::uint64_t bytes_max = bytes_max_default);
    ~Trace();  // writes the pending events to the file
    Trace(const Trace&) = delete;

    // Returns the open trace; null: tracing is off. May be called from any thread.
    static Trace* on() { return current_.load(std::memory_order_acquire); }

    // Records a span; may be called from any thread. Spans that arrive faster than they can be
    // written are dropped and counted. When the file has `bytes_max` bytes, all later spans are
    // dropped.
    void span(Row row, const char* name, TimePoint begin, TimePoint end,
              std::initializer_list<TraceValue> values = {});
    // Records a span in the rows of a worker. Spans with the same `id` nest in the order of the
    // calls, independent of spans with other ids.
    void worker_span(std::uint64_t worker, std::uint32_t id, const char* name, TimePoint begin,
                     TimePoint end, std::initializer_list<TraceValue> values = {});
    // Records the values of a worker's counters, which hold from the time `at` until the next call.
    // The viewer draws one curve for each value.
    void worker_counts(std::uint64_t worker, const char* name, TimePoint at,
                       std::initializer_list<TraceValue> values);

  private:
    struct State;
    explicit Trace(std::unique_ptr<State> state);

    static std::atomic<Trace*> current_;
    std::unique_ptr<State> state_;
};

// Records a span from the construction of this object until the end of its block.
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
