// Measures how long a token of a whole model takes on this GPU, and which stage takes the time: the
// ablation that WeInfer publishes (objects created in every step or once; steps one by one or
// issued ahead), its stages, and the predictions of its equations. The measurement is the same in a
// tab and natively. GPU time is a slope: the same commands once and several times in one
// submission.
// Source: Chen et al., "WeInfer", WWW 2025, sections 3, 4 and 5.3, eq. 3 and 15.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "web-worker/decoder/bench_models.h"
#include "web-worker/decoder/greedy_loop.h"
#include "web-worker/decoder/timing_device.h"

namespace moex {

// The model, the conditions and the size of a measurement.
struct DecoderTimingOptions {
    std::string shape = "demo", weights = "int4";  // bench_models.h
    KvKind kv_kind = KvKind::f32;
    std::vector<std::uint32_t> fetch{8};  // tokens per readback when steps are issued ahead
    std::uint32_t tokens = 300;           // tokens per condition, over all its turns
    // Number of times that each condition is measured, in alternation with the other conditions.
    std::uint32_t turns = 3;
    std::uint32_t context = 1024, prompt = 128;
    // Tokens before the prompt, which are not computed: their keys, values and states are zeros.
    std::uint32_t behind = 0;
    bool ablation = true;  // also measure the conditions none, reuse and pipeline
    bool kernels = false;  // also measure the time of each kernel in a step, and in one of a prompt
    std::optional<bool> spread;  // GpuDecoderOptions

    // Shrinks the run for a software adapter, just enough to check that the bench works.
    void shorten();
};

// One line of the result. Times are in ms; a time that the line does not have is 0.
struct DecoderTimingRow {
    // prefill      a prompt; ms_token is per token of the prompt
    // none         a token is read before the next step is issued, and every step creates its
    //              uniform buffers, bind groups and staging buffer anew
    // reuse        a token is read before the next step is issued; nothing is created
    // pipeline     steps are issued ahead, `fetch` tokens per readback; everything is created anew
    // both         steps are issued ahead, nothing is created: the mode in which a tab answers
    // kernel NAME  all dispatches of one kernel in a step: exec_ms is the sum of their times
    // prompt kernel NAME  the same in a step of `tokens` rows of a prompt
    std::string what;
    std::uint32_t fetch = 0, tokens = 0;
    double ms_token = 0, ms_least = 0, ms_most = 0;  // per token: median, least, most over turns
    double prep_ms = 0;   // time from issuing a step until the GPU can begin it
    double issue_ms = 0;  // time to issue one of many steps in a row
    double exec_ms = 0;   // time that a step takes on the GPU
    double fetch_ms = 0;  // time of a readback whose data is already complete
    double model_ms = 0;  // time per token by eq. 3 or eq. 15 from these times
    std::uint32_t dispatches = 0;
    std::uint32_t created = 0;  // number of buffers and bind groups created per step
    double mb = 0;              // 10^6 bytes of weights that a token reads
    double utilisation() const { return ms_token > 0 ? exec_ms / ms_token : 0; }
    double gb_s() const { return exec_ms > 0 ? mb / exec_ms : 0; }
};

// Runs one measurement, stage by stage, and reports its lines.
class DecoderTiming {
  public:
    // `device` outlives this object.
    DecoderTiming(gpu::Device& device, DecoderTimingOptions options,
                  std::function<double()> now_us);
    ~DecoderTiming();
    DecoderTiming(const DecoderTiming&) = delete;

    // Calls `row` for each line, then `done` once. This object may be destroyed after `done` has
    // returned, but not inside `done`.
    void start(std::function<void(const DecoderTimingRow&)> row, std::function<void(Status)> done);
    // Receives the name of the stage that begins, to show it to a user; set it before start().
    std::function<void(std::string_view)> on_stage = [](std::string_view) {};

  private:
    using Then = std::function<void()>;
    using Ms = std::function<void(double ms)>;
    struct Condition {
        const char* what;
        bool creates, ahead;
        std::uint32_t fetch;
        std::vector<double> ms_token = {};  // ms per token, one value per turn
        std::uint32_t tokens = 0;
        std::uint64_t created = 0;
    };

    std::uint64_t created() const;
    double now_ms() const { return now_us_() / 1e3; }
    void next();
    void fail(const Error& error);
    void add(std::string stage, Then step);
    bool held(const Status& status);
    void plan();
    void load();
    void begin_sequence();
    bool feed(std::uint32_t tokens);
    void read_one(Then then);

    void prefill(bool printed);
    void capture_step();
    void measure_fetch();
    void measure_prep(bool creates);
    void capture_prompt();
    void kernel(const std::string& what, std::uint32_t tokens, std::vector<gpu::Command> commands);
    void plan_kernels(const std::string& what, std::uint32_t tokens);
    void one_by_one(Condition& condition);
    void step_one_by_one(Condition& condition, std::uint32_t left);
    void ahead(Condition& condition);
    void took(Condition& condition, double ms, std::uint32_t tokens);
    void give(const Condition& condition);

    void submitted(const std::vector<gpu::Command>& commands, std::uint32_t times, Ms then);
    void slope(std::vector<gpu::Command> commands, Ms then);
    void take_turn();

    TimingDevice device_;
    DecoderTimingOptions options_;
    std::function<double()> now_us_;
    std::function<void(const DecoderTimingRow&)> row_;
    std::function<void(Status)> done_;
    std::deque<Then> steps_;

    DecoderModel model_;
    gpu::BufferId readback_, word_;
    std::unique_ptr<GpuDecoder> decoder_;
    std::unique_ptr<GreedyLoop> loop_, loop_before_;
    std::vector<std::uint32_t> prompt_;
    std::vector<Condition> conditions_;

    std::vector<gpu::Command> step_;
    std::vector<double> times_;
    double started_ms_ = 0, heard_ms_ = 0;
    std::uint64_t created_before_ = 0;
    std::uint32_t heard_ = 0;
    double exec_ms_ = 0, fetch_ms_ = 0;
    // Index 0: a step creates no objects. Index 1: a step creates all of its objects anew.
    double prep_ms_[2] = {}, issue_ms_[2] = {};

    struct Slope {  // state of the slope measurement in progress
        std::vector<gpu::Command> once, many;
        std::uint32_t repeats = 0, turns_left = 0;
        double once_ms = 0, many_ms = 0;
        Ms then;
    } slope_;
    LifeGuard life_;
};

}  // namespace moex
