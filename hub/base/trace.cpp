#include "hub/base/trace.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hub/base/log.h"
#include "protocol/text.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

constexpr std::size_t pending_max = 1 << 16;
constexpr std::size_t values_max = 10;
constexpr Duration write_every = 100ms;
constexpr std::uint32_t hub_process = 1;
constexpr std::uint32_t first_worker_process = 10;

struct Event {
    const char* name = nullptr;
    bool of_worker = false, is_count = false;
    std::uint64_t row = 0;  // a Trace::Row of the hub, or the id of a worker
    std::uint32_t id = 0;   // id of a group of nested spans of a worker
    TimePoint begin, end;
    std::array<TraceValue, values_max> values{};
};

struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
};

std::string us(Duration duration) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.3f", static_cast<double>(duration.count()) / 1e3);
    return digits;
}

std::string values_json(const Event& event) {
    std::string out;
    for (const TraceValue& one : event.values)
        if (one.name != nullptr)
            out += text(out.empty() ? "" : ",", '"', one.name, "\":", one.value);
    return '{' + out + '}';
}

std::string name_json(const char* what, std::uint64_t process, std::uint64_t thread,
                      const std::string& name) {
    return text("{\"ph\":\"M\",\"name\":\"", what, "\",\"pid\":", process, ",\"tid\":", thread,
                ",\"args\":{\"name\":\"", name, "\"}},\n");
}

}  // namespace

struct Trace::State {
    std::unique_ptr<std::FILE, CloseFile> file;
    std::uint64_t bytes_max = 0;
    TimePoint started = now_steady();

    std::mutex mutex;
    std::condition_variable wake;
    std::vector<Event> pending;
    std::uint64_t dropped = 0;
    bool stopping = false, full = false;

    // Only the writer thread uses the members below.
    std::thread writer;
    std::vector<Event> taken;
    std::set<std::uint64_t> known_workers;
    std::uint64_t bytes_written = 0;

    void add(const Event& event) {
        const std::lock_guard lock(mutex);
        if (full || pending.size() >= pending_max) {
            ++dropped;
            return;
        }
        pending.push_back(event);
        if (pending.size() == pending_max / 2) wake.notify_one();
    }

    void write(const std::string& lines) {
        bytes_written += lines.size();
        const bool written = std::fwrite(lines.data(), 1, lines.size(), file.get()) == lines.size();
        if (written && bytes_written < bytes_max) return;

        log_warn(written ? "trace: the file reached its size limit, later spans are dropped"
                         : "trace: writing to the file failed, later spans are dropped");
        const std::lock_guard lock(mutex);
        full = true;
    }

    void begin_file() {
        write("[\n" + name_json("process_name", hub_process, 0, "hub") +
              name_json("thread_name", hub_process, static_cast<std::uint32_t>(Row::engine),
                        "engine") +
              name_json("thread_name", hub_process, static_cast<std::uint32_t>(Row::strand),
                        "swarm strand") +
              name_json("thread_name", hub_process, static_cast<std::uint32_t>(Row::shadow),
                        "shadow"));
    }

    void write(const Event& event, std::string& lines) {
        const std::string begin = us(event.begin - started), values = values_json(event);
        if (!event.of_worker) {
            lines += text("{\"ph\":\"X\",\"name\":\"", event.name, "\",\"pid\":", hub_process,
                          ",\"tid\":", event.row, ",\"ts\":", begin,
                          ",\"dur\":", us(event.end - event.begin), ",\"args\":", values, "},\n");
            return;
        }
        const std::uint64_t process = first_worker_process + event.row;
        if (known_workers.insert(event.row).second)
            lines += name_json("process_name", process, 0, text("worker ", event.row));

        if (event.is_count) {
            lines += text("{\"ph\":\"C\",\"name\":\"", event.name, "\",\"pid\":", process,
                          ",\"tid\":0,\"ts\":", begin, ",\"args\":", values, "},\n");
            return;
        }
        const std::string rest = text("\",\"cat\":\"round\",\"id\":", event.id,
                                      ",\"pid\":", process, ",\"tid\":0,\"ts\":");
        lines += text("{\"ph\":\"b\",\"name\":\"", event.name, rest, begin, ",\"args\":", values,
                      "},\n{\"ph\":\"e\",\"name\":\"", event.name, rest, us(event.end - started),
                      "},\n");
    }

    void run() {
        name_thread("trace");
        for (bool last = false; !last;) {
            {
                std::unique_lock lock(mutex);
                wake.wait_for(lock, write_every,
                              [&] { return stopping || pending.size() >= pending_max / 2; });
                taken.swap(pending);
                last = stopping;
            }
            std::string lines;
            for (const Event& event : taken) write(event, lines);
            taken.clear();
            if (!lines.empty() && !full) write(lines);
            std::fflush(file.get());
        }
    }
};

std::atomic<Trace*> Trace::current_{nullptr};

Result<std::unique_ptr<Trace>> Trace::open(const std::filesystem::path& path,
                                           std::uint64_t bytes_max) {
    auto state = std::make_unique<State>();
    state->file.reset(std::fopen(path.c_str(), "wb"));
    if (!state->file)
        return Error{ErrorCode::invalid_argument,
                     text("cannot write ", path.string(), ": ", std::strerror(errno))};
    state->bytes_max = bytes_max;
    state->begin_file();
    return std::unique_ptr<Trace>(new Trace(std::move(state)));
}

Trace::Trace(std::unique_ptr<State> state) : state_(std::move(state)) {
    state_->writer = std::thread([this] { state_->run(); });
    MOEX_CHECK(current_.exchange(this) == nullptr, "a trace is open already");
}

Trace::~Trace() {
    current_ = nullptr;
    {
        const std::lock_guard lock(state_->mutex);
        state_->stopping = true;
    }
    state_->wake.notify_one();
    state_->writer.join();

    if (state_->dropped > 0)
        log_warn("trace: spans were not written", kv("spans", state_->dropped));
    std::fputs("{\"ph\":\"M\",\"name\":\"trace_end\",\"pid\":1,\"tid\":0,\"args\":{}}]\n",
               state_->file.get());
}

void Trace::span(Row row, const char* name, TimePoint begin, TimePoint end,
                 std::initializer_list<TraceValue> values) {
    Event event{.name = name, .row = static_cast<std::uint32_t>(row), .begin = begin, .end = end};
    std::copy_n(values.begin(), std::min(values.size(), values_max), event.values.begin());
    state_->add(event);
}

void Trace::worker_span(std::uint64_t worker, std::uint32_t id, const char* name, TimePoint begin,
                        TimePoint end, std::initializer_list<TraceValue> values) {
    Event event{
        .name = name, .of_worker = true, .row = worker, .id = id, .begin = begin, .end = end};
    std::copy_n(values.begin(), std::min(values.size(), values_max), event.values.begin());
    state_->add(event);
}

void Trace::worker_counts(std::uint64_t worker, const char* name, TimePoint at,
                          std::initializer_list<TraceValue> values) {
    Event event{.name = name, .of_worker = true, .is_count = true, .row = worker, .begin = at};
    std::copy_n(values.begin(), std::min(values.size(), values_max), event.values.begin());
    state_->add(event);
}

}  // namespace moex
