#include "hub/dispatch/core/swarm_backend.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

#include "hub/base/trace.h"
#include "hub/dispatch/trust/judge_thread.h"
#include "protocol/spin_wait.h"
#include "protocol/thread_name.h"

namespace moex {
namespace {

// The state of a round that two threads share: the engine's thread waits for the round, and the
// strand writes its answer.
struct PendingRound {
    std::mutex mutex;
    std::condition_variable done_signal;
    std::atomic<bool> done = false;  // written only while `mutex` is held
    // the engine has left the round: the spans in `batch` are no longer valid
    bool abandoned = false;
    ExpertBatch batch;
    RoundRows rows;  // rows of `batch`, until the strand takes them over
    RoundId id = 0;  // round id, set by the strand; 0 until the round is open
    std::optional<Result<ExpertAnswer>> answer;
    RoundSum sum;

    void complete(Result<ExpertAnswer> result, RoundSum of_answers) {
        {
            const std::lock_guard lock(mutex);
            if (done) return;
            answer = std::move(result);
            sum = std::move(of_answers);
            done = true;
        }
        done_signal.notify_all();
    }
};

}  // namespace

// Functions posted to the strand share ownership of this state. A function that runs late finds the
// state closed instead of destroyed.
struct SwarmBackend::State : std::enable_shared_from_this<SwarmBackend::State> {
    // Serialises the work on the strand with the destructor. The mutex is recursive, because a link
    // may report its own end from inside send().
    std::recursive_mutex mutex;
    bool closed = false;

    SwarmCore core;
    const RowReader row_reader;  // the core's row reader, used by the engine's thread
    SwarmHost& host;
    const ExpertCompute* local;
    std::function<void(const WorkerEvent&)> on_event;
    std::unordered_map<WorkerId, std::shared_ptr<WorkerLink>> links;
    std::unordered_map<RoundId, std::shared_ptr<PendingRound>> rounds;
    std::optional<TimePoint> timer_at;
    SpinWait<std::chrono::steady_clock> spin;  // used by the engine's thread
    std::atomic<bool> wants_hints = false;     // copy of core.wants_hints() for the engine's thread

    // The local backend's thread and its queue of jobs. All jobs belong to open rounds.
    std::mutex jobs_mutex;
    std::condition_variable jobs_signal;
    std::deque<ComputeLocally> jobs;
    bool jobs_stop = false;
    std::thread local_thread;
    std::unique_ptr<JudgeThread> judge;  // null: this hub cannot check answers

    std::unique_ptr<SpanClient> spans;  // used by the engine's thread; null: no spans

    std::mutex liars_mutex;
    std::set<WorkerId> liars;

    State(SwarmOptions options, SwarmHost& swarm_host, const ExpertCompute* local_experts,
          std::function<void(const WorkerEvent&)> event)
        : core(std::move(options)),
          row_reader(core.row_reader()),
          host(swarm_host),
          local(local_experts),
          on_event(std::move(event)),
          spin(core.options().spin_max) {
        if (local == nullptr) core.set_local_fallback(false);
    }

    // Posts a function that runs only while this state is open.
    void post(std::function<void(State&)> function) {
        host.post([weak = weak_from_this(), function = std::move(function)] {
            const auto self = weak.lock();
            if (!self) return;
            const std::lock_guard lock(self->mutex);
            if (!self->closed) function(*self);
        });
    }

    void perform(std::vector<SwarmAction>& actions) {
        for (SwarmAction& action : actions) std::visit([&](auto& what) { act(what); }, action);
        wants_hints.store(core.wants_hints(), std::memory_order_relaxed);
        arm_timer();
    }

    void act(SendFrame& action) {
        const auto link = links.find(action.worker);
        if (link == links.end()) return;
        // Hold a reference to the link: send() may call on_disconnect(), which erases the link.
        const std::shared_ptr<WorkerLink> kept = link->second;
        kept->send(std::move(action.frame));
    }
    void act(CloseWorker& action) {
        auto node = links.extract(action.worker);
        if (node) node.mapped()->close(action.code, action.reason);
    }
    void act(SetFrameLimit& action) {
        const auto link = links.find(action.worker);
        if (link != links.end()) link->second->set_frame_limit(action.bytes);
    }
    void act(ComputeLocally& action) {
        {
            const std::lock_guard lock(jobs_mutex);
            jobs.push_back(std::move(action));
        }
        jobs_signal.notify_one();
    }
    void act(CheckAnswer& action) {
        MOEX_CHECK(judge != nullptr, "a sample without a judge");
        judge->submit(std::move(action.sample));
    }
    void start_judge() {
        judge = std::make_unique<JudgeThread>(
            *local, [weak = weak_from_this()](std::uint64_t id, Judgement judgement) {
                const auto self = weak.lock();
                if (!self) return;
                self->post([id, judgement = std::move(judgement)](State& state) {
                    std::vector<SwarmAction> actions;
                    state.core.on_judgement(now_steady(), id, judgement, actions);
                    state.perform(actions);
                });
            });
    }
    void act(RoundDone& action) {
        auto node = rounds.extract(action.round);
        drop_jobs(action.round);
        if (node) node.mapped()->complete(std::move(action.answer), std::move(action.sum));
    }
    // Drops the local jobs of a round that has ended. They would delay the next round.
    void drop_jobs(RoundId round) {
        const std::lock_guard lock(jobs_mutex);
        std::erase_if(jobs, [&](const ComputeLocally& job) { return job.round == round; });
    }
    void act(WorkerEvent& action) {
        if (action.kind == WorkerEvent::Kind::lied) {
            constexpr std::size_t liars_max = 10'000;
            const std::lock_guard lock(liars_mutex);
            liars.insert(action.worker);
            if (liars.size() > liars_max) liars.erase(liars.begin());
        }
        if (on_event) on_event(action);
    }

    void arm_timer() {
        const std::optional<TimePoint> next = core.next_deadline();
        // the earlier timer stays, because an early tick is harmless
        if (!next || (timer_at && *timer_at <= *next)) return;
        timer_at = next;
        host.set_timer(*next, [weak = weak_from_this()] {
            const auto self = weak.lock();
            if (!self) return;
            const std::lock_guard lock(self->mutex);
            if (self->closed) return;
            self->timer_at.reset();
            const TraceSpan span(Trace::Row::strand, "tick");
            std::vector<SwarmAction> actions;
            self->core.on_tick(now_steady(), actions);
            self->perform(actions);
        });
    }

    // Measures how long this machine computes calls of various numbers of pairs, so that workers
    // can be compared with it from the first round on. Calls for rounds end the measurement.
    void measure_local() {
        constexpr Duration time_max = 300ms;
        constexpr std::uint32_t pairs_max = 1024;
        const SwarmOptions& options = core.options();
        const TimePoint until = now_steady() + time_max;
        for (std::uint32_t pairs = std::max(1u, options.top_k); pairs <= pairs_max; pairs *= 2) {
            const Duration took = measure(example_job(options, pairs));
            const std::lock_guard lock(jobs_mutex);
            if (jobs_stop || !jobs.empty() || now_steady() + 4 * took > until) return;
        }
    }

    // Computes a call twice and reports the shorter time. The first time may include the time in
    // which weights are prepared that this machine has not used before.
    Duration measure(const ComputeLocally& job) {
        Duration least = Duration::max();
        for (int i = 0; i < 2; ++i) {
            const TimePoint begin = now_steady();
            if (!compute(job).ok()) break;
            least = std::min(least, now_steady() - begin);
        }
        const auto num_pairs = static_cast<std::uint32_t>(job.rows.size());
        post([num_pairs, least](State& state) {
            state.core.on_local_measured(now_steady(), num_pairs, least);
        });
        return least;
    }

    // Returns a call of `num_pairs` pairs of the model's last layer with experts, spread evenly.
    static ComputeLocally example_job(const SwarmOptions& options, std::uint32_t num_pairs) {
        const auto last = std::find_if(options.layer_is_moe.rbegin(), options.layer_is_moe.rend(),
                                       [](auto is_moe) { return is_moe != 0; });
        const std::uint32_t num_experts = std::min(num_pairs, options.limits.num_experts);
        ComputeLocally job{.round = 0,
                           .attempt = 0,
                           .layer = static_cast<std::uint16_t>(
                               std::distance(last, options.layer_is_moe.rend()) - 1),
                           .rows = std::vector<std::uint16_t>(num_pairs),
                           .gates = std::vector<float>(num_pairs, 1.0f)};
        std::vector<float> x(options.limits.hidden_size);
        for (std::size_t i = 0; i < x.size(); ++i) x[i] = i % 2 == 0 ? 0.5f : -1.0f;
        job.x = std::make_shared<const std::vector<float>>(std::move(x));
        for (std::uint32_t expert = 0; expert < num_experts; ++expert)
            job.experts.push_back(
                {.expert = static_cast<std::uint16_t>(expert),
                 .num_rows = static_cast<std::uint16_t>(
                     num_pairs / num_experts + (expert < num_pairs % num_experts ? 1 : 0))});
        return job;
    }

    // Makes the engine's side of spans, which sends its frames on the strand.
    void open_spans() {
        const auto act_on_strand = [weak = weak_from_this()](auto act) {
            const auto self = weak.lock();
            if (!self) return;
            self->post([act = std::move(act)](State& state) mutable {
                std::vector<SwarmAction> actions;
                act(state.core, actions);
                state.perform(actions);
            });
        };
        spans = std::make_unique<SpanClient>(
            core.options().spans, core.options().limits.hidden_size, core.span_board(),
            SpanClient::Link{
                .send =
                    [act_on_strand](std::uint32_t span, std::uint32_t step, Bytes frame) {
                        act_on_strand([span, step, frame = std::move(frame)](
                                          SwarmCore& core,
                                          std::vector<SwarmAction>& actions) mutable {
                            core.on_span_frame(now_steady(), span, step, std::move(frame), actions);
                        });
                    },
                .lied =
                    [act_on_strand](std::uint32_t span, std::string why) {
                        act_on_strand([span, why = std::move(why)](
                                          SwarmCore& core, std::vector<SwarmAction>& actions) {
                            core.on_span_lie(now_steady(), span, why, actions);
                        });
                    },
                .set_aside =
                    [act_on_strand](std::uint32_t span, std::string why) {
                        act_on_strand([span, why = std::move(why)](
                                          SwarmCore& core, std::vector<SwarmAction>& actions) {
                            core.on_span_set_aside(now_steady(), span, why, actions);
                        });
                    },
                .late =
                    [act_on_strand](std::uint32_t span, TimePoint sent_at) {
                        act_on_strand(
                            [span, sent_at](SwarmCore& core, std::vector<SwarmAction>& actions) {
                                core.on_span_late(now_steady(), span, sent_at, actions);
                            });
                    }});
    }

    void run_local() {
        name_thread("local-call");
        if (core.options().use_workers == UseWorkers::automatic) measure_local();
        for (;;) {
            ComputeLocally job;
            {
                std::unique_lock lock(jobs_mutex);
                jobs_signal.wait(lock, [&] { return jobs_stop || !jobs.empty(); });
                if (jobs_stop) return;
                job = std::move(jobs.front());
                jobs.pop_front();
            }
            if (job.attempt == 0) {
                measure(job);
                continue;
            }
            const RoundId round = job.round;
            const std::uint64_t attempt = job.attempt;
            auto y = std::make_shared<Result<std::vector<float>>>(compute(job));
            job.x.reset();  // the core reuses the buffer `x` once it is the only owner
            post([round, attempt, y](State& state) {
                std::vector<SwarmAction> actions;
                state.core.on_local(now_steady(), round, attempt, std::move(*y), actions);
                state.perform(actions);
            });
        }
    }

    Result<std::vector<float>> compute(const ComputeLocally& job) const {
        const std::size_t hidden = core.options().limits.hidden_size;
        std::vector<float> y(job.rows.size() * hidden), x;
        std::size_t pair = 0;
        for (const GroupExpert& expert : job.experts) {
            x.resize(expert.num_rows * hidden);
            for (std::size_t i = 0; i < expert.num_rows; ++i)
                std::copy_n(job.x->data() + job.rows[pair + i] * hidden, hidden,
                            x.data() + i * hidden);
            MOEX_TRY(local->compute(job.layer, expert.expert, x,
                                    std::span(job.gates).subspan(pair, expert.num_rows),
                                    std::span(y).subspan(pair * hidden, expert.num_rows * hidden)));
            pair += expert.num_rows;
        }
        return y;
    }
};

namespace {

class SwarmRound : public ExpertRound {
  public:
    using Cancel = std::function<void(std::shared_ptr<PendingRound>)>;
    // `spin` belongs to the engine's thread, which waits in this object, and outlives the object.
    SwarmRound(std::shared_ptr<PendingRound> pending, SpinWait<std::chrono::steady_clock>& spin,
               Cancel cancel)
        : pending_(std::move(pending)),
          spin_(spin),
          cancel_(std::move(cancel)) {}
    ~SwarmRound() override {
        {
            const std::lock_guard lock(pending_->mutex);
            if (pending_->done) return;
            pending_->abandoned = true;
        }
        cancel_(pending_);
    }
    Result<ExpertAnswer> wait(std::stop_token stop) override {
        // The stop callback must outlive the lock below: its destructor waits for a running
        // callback, which may need the mutex.
        const std::stop_callback wake(stop, [this] {
            const std::lock_guard lock(pending_->mutex);
            pending_->done_signal.notify_all();
        });
        const auto ended = [&] { return pending_->done || stop.stop_requested(); };
        spin_.look(ended);
        std::unique_lock lock(pending_->mutex);
        pending_->done_signal.wait(lock, ended);
        spin_.came();
        if (!pending_->done) return Error{ErrorCode::cancelled, "the round was stopped"};
        if (!pending_->answer) return Error{ErrorCode::invalid_argument, "wait() was called twice"};
        Result<ExpertAnswer> answer = std::move(*pending_->answer);
        pending_->answer.reset();
        const RoundSum sum = std::move(pending_->sum);
        lock.unlock();
        if (answer.ok()) sum.write(pending_->batch.y);
        return answer;
    }

  private:
    std::shared_ptr<PendingRound> pending_;
    SpinWait<std::chrono::steady_clock>& spin_;
    Cancel cancel_;
};

}  // namespace

SwarmBackend::SwarmBackend(SwarmOptions options, SwarmHost& host, const ExpertCompute* local,
                           std::function<void(const WorkerEvent&)> on_event) {
    options.checks.judge = options.checks.on && local != nullptr;
    const bool judges = options.checks.judge;
    state_ = std::make_shared<State>(std::move(options), host, local, std::move(on_event));
    if (local != nullptr)
        state_->local_thread = std::thread([state = state_.get()] { state->run_local(); });
    if (judges) state_->start_judge();
    if (state_->core.options().spans.on) state_->open_spans();
}

SwarmBackend::~SwarmBackend() {
    {
        const std::lock_guard lock(state_->jobs_mutex);
        state_->jobs_stop = true;
    }
    state_->jobs_signal.notify_all();
    if (state_->local_thread.joinable()) state_->local_thread.join();
    {
        // The judge may still post a verdict during destruction; the verdict then finds this state
        // closed.
        std::unique_ptr<JudgeThread> judge;
        {
            const std::lock_guard lock(state_->mutex);
            state_->closed = true;
            judge = std::move(state_->judge);
        }
    }
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    state_->links.clear();
    for (auto& [id, pending] : state_->rounds)
        pending->complete(Error{ErrorCode::cancelled, "the swarm was stopped"}, {});
    state_->rounds.clear();
}

std::unique_ptr<ExpertRound> SwarmBackend::submit(const ExpertBatch& batch) {
    auto pending = std::make_shared<PendingRound>();
    pending->batch = batch;
    pending->rows = state_->row_reader.read(batch);
    state_->host.post([weak = std::weak_ptr<State>(state_), pending] {
        const auto state = weak.lock();
        if (!state) {
            pending->complete(Error{ErrorCode::cancelled, "the swarm was stopped"}, {});
            return;
        }
        const std::lock_guard lock(state->mutex);
        if (state->closed) {
            pending->complete(Error{ErrorCode::cancelled, "the swarm was stopped"}, {});
            return;
        }
        Trace* const trace = Trace::on();
        const TimePoint began = trace ? now_steady() : TimePoint{};
        std::set<std::uint16_t> asked;  // distinct experts, for the trace
        std::vector<SwarmAction> actions;
        {
            // The lock keeps the batch valid while the core reads its experts.
            const std::lock_guard spans(pending->mutex);
            if (pending->abandoned) return;
            if (trace)
                asked.insert(pending->batch.expert_ids.begin(), pending->batch.expert_ids.end());
            pending->id = state->core.on_round(now_steady(), pending->batch,
                                               std::move(pending->rows), actions);
        }
        state->rounds.emplace(pending->id, pending);
        state->perform(actions);
        if (trace)
            trace->span(Trace::Row::strand, "round", began, now_steady(),
                        {{"layer", pending->batch.layer},
                         {"rows", pending->batch.num_tokens},
                         {"experts", asked.size()}});
    });
    return std::make_unique<SwarmRound>(
        pending, state_->spin,
        [weak = std::weak_ptr<State>(state_)](const std::shared_ptr<PendingRound>& abandoned) {
            const auto state = weak.lock();
            if (!state) return;
            state->post([abandoned](State& open) {
                if (abandoned->id == 0) return;
                std::vector<SwarmAction> actions;
                open.core.on_cancel_round(now_steady(), abandoned->id, actions);
                open.rounds.erase(abandoned->id);
                open.drop_jobs(abandoned->id);
                open.perform(actions);
            });
        });
}

SpanClient* SwarmBackend::spans() const { return state_->spans.get(); }

bool SwarmBackend::wants_hints() const {
    return state_->wants_hints.load(std::memory_order_relaxed);
}

void SwarmBackend::hint(std::span<const ExpertHint> hints) {
    if (hints.empty()) return;
    state_->post([kept = std::vector(hints.begin(), hints.end())](State& state) {
        std::vector<SwarmAction> actions;
        state.core.on_hints(now_steady(), kept, actions);
        state.perform(actions);
    });
}

WorkerId SwarmBackend::on_connect(std::shared_ptr<WorkerLink> link, std::string address,
                                  bool authorized) {
    const std::lock_guard lock(state_->mutex);
    std::vector<SwarmAction> actions;
    const WorkerId id = state_->core.on_connect(now_steady(), std::move(address), authorized,
                                                actions);
    state_->links[id] = std::move(link);
    state_->perform(actions);
    return id;
}

void SwarmBackend::on_frame(WorkerId worker, ByteView frame) {
    const std::lock_guard lock(state_->mutex);
    std::vector<SwarmAction> actions;
    state_->core.on_frame(now_steady(), worker, frame, actions);
    state_->perform(actions);
}

void SwarmBackend::on_answer(WorkerId worker, WorkerAnswer answer) {
    const std::lock_guard lock(state_->mutex);
    std::vector<SwarmAction> actions;
    state_->core.on_answer(now_steady(), worker, std::move(answer), actions);
    state_->perform(actions);
}

bool SwarmBackend::has_lied(WorkerId worker) const {
    const std::lock_guard lock(state_->liars_mutex);
    return state_->liars.contains(worker);
}

void SwarmBackend::on_disconnect(WorkerId worker) {
    const std::lock_guard lock(state_->mutex);
    state_->links.erase(worker);
    std::vector<SwarmAction> actions;
    state_->core.on_disconnect(now_steady(), worker, actions);
    state_->perform(actions);
}

void SwarmBackend::drain(Duration deadline) {
    const std::lock_guard lock(state_->mutex);
    std::vector<SwarmAction> actions;
    state_->core.on_drain(now_steady(), deadline, actions);
    state_->perform(actions);
}

Status SwarmBackend::order(WorkerId worker, WorkerOrder order) {
    const std::lock_guard lock(state_->mutex);
    std::vector<SwarmAction> actions;
    Status done = state_->core.on_order(now_steady(), worker, order, actions);
    state_->perform(actions);
    return done;
}

Status SwarmBackend::tell_hubs(WorkerId worker, const HubsChange& change) {
    const std::lock_guard lock(state_->mutex);
    std::vector<SwarmAction> actions;
    Status told = state_->core.on_hubs(now_steady(), worker, change, actions);
    state_->perform(actions);
    return told;
}

TrustRecord SwarmBackend::trust_record(std::string_view worker_key) const {
    const std::lock_guard lock(state_->mutex);
    return state_->core.trust_record(worker_key);
}

void SwarmBackend::set_trust_record(std::string_view worker_key, const TrustRecord& record) {
    const std::lock_guard lock(state_->mutex);
    state_->core.set_trust_record(now_steady(), worker_key, record);
}

SwarmCore& SwarmBackend::core() { return state_->core; }

}  // namespace moex
