// Lists one-line bugs of hub/dispatch. Each bug replaces a text that occurs exactly once in its file. run.mjs plants
// the bugs one by one. A mutant is an error if its text no longer occurs in its file: the code has changed, and the
// mutant must be changed with it. `survives` gives the reason why no test finds the mutant and why that is harmless.
// Example: { file: 'round/router.cpp', what: 'the router ignores load', from: 'a < b', to: 'true' }
export const mutants = [
  // ---- unit_directory: which units a worker is ordered to hold
  {
    file: 'placement/unit_directory.cpp', what: 'units without a holder are ordered like second copies',
    from: 'const bool is_held = !holders_[unit].empty();', to: 'const bool is_held = true;',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'units are not ordered in the order of need',
    from: 'is_held ? mix_hash(holder.id, unit) : needed_after(unit)', to: 'mix_hash(holder.id, unit)',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'orders do not wait for the end of a mass leave',
    from: 'if (wish.is_download && (loads_at_ ||', to: 'if (wish.is_download && (false ||',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'all units are ordered at once',
    from: 'holder.num_loading() >= holder.loads_ahead)', to: 'false)',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'the remaining units are never ordered',
    from: 'if (holder.num_later > 0 && 2 * holder.num_loading() <= holder.loads_ahead)', to: 'if (holder.id == 0)',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'a holder with nothing left to load gets no further orders',
    from: 'held_until_[unit] = now;\n    tell_more(holder);', to: 'held_until_[unit] = now;',
    survives: 'settle(), on_budget() and assign_wanted() examine that holder again anyway',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'a copy is released before other workers have the unit',
    from: 'const bool copies_elsewhere = !owners.empty() && num_ready_owners >= enough;',
    to: 'const bool copies_elsewhere = enough > 0;',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'a copy at a worker that gets no requests counts',
    from: 'return holder->has(unit, UnitHolder::wanted) && options_.serves(*holder);',
    to: 'return holder->has(unit, UnitHolder::wanted);',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'a worker that loads nothing keeps its orders',
    from: 'if (holder.num_loading() > 0 && now', to: 'if (holder.num_loading() > 1u << 30 && now',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'the hub waits for a mass leave as for a single worker',
    from: '(members_.size() + away_.size()) / 4)) return;', to: '(members_.size() + away_.size()))) return;',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'units without another holder wait for an absent worker',
    from: 'if (is_covered(unit))', to: 'if (unit < num_units())',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'a worker is not sent a reduced number of units to come',
    from: 'orders_.push_back({.worker = id, .release = false, .units = {}});', to: ';',
  },
  {
    file: 'placement/unit_directory.cpp', what: 'a fast connection has no more loads ahead than a slow one',
    from: 'holder.loads_ahead = std::min(2 * holder.loads_ahead, num_units());', to: ';',
  },
  // ---- placement
  {
    file: 'placement/placement.cpp', what: 'all copies of a unit are placed on one address prefix',
    from: 'const bool is_new = collisions(unit, 0, member->given.address_prefix) == 0;',
    to: 'const bool is_new = true;',
  },
  {
    file: 'placement/placement.cpp', what: 'placement ignores the bound on load',
    from: 'return member.load < bound(member) && member.to_load <= to_load_max && !owns(member, unit);',
    to: 'return member.load < member.capacity && member.to_load <= to_load_max && !owns(member, unit);',
  },
  {
    file: 'placement/placement.cpp', what: 'a second copy does not give way to a unit that has none',
    from: 'owner = make_way(unit, copy, to_load_max, donor, gave_way, changes);', to: ';',
  },
  {
    file: 'placement/placement.cpp', what: 'only neighbours load the units that a mass leave lost',
    from: 'return least + options_.layer_units / 32;', to: 'return least + options_.num_units;',
  },
  // ---- attempt_policy
  {
    file: 'round/attempt_policy.cpp', what: 'one first attempt pays for a whole second attempt',
    from: 'saved_ = std::min(saved_ + budget_.per_first, budget_.saved_max);',
    to: 'saved_ = std::min(saved_ + 1, budget_.saved_max);',
  },
  {
    file: 'round/attempt_policy.cpp', what: 'second attempts have no budget',
    from: 'return saved_ >= 1;', to: 'return true;',
  },
  {
    file: 'round/attempt_policy.cpp', what: 'a second attempt is sent at the median latency',
    from: 'constexpr double wait_quantile = 0.96;', to: 'constexpr double wait_quantile = 0.5;',
  },
  {
    file: 'round/attempt_policy.cpp', what: 'adaptive mode sends twice while the swarm is fast',
    from: 'latency_.p50() > policy_.slow_p50', to: 'latency_.p50() < policy_.slow_p50',
  },
  // ---- worker_health
  {
    file: 'trust/worker_health.cpp', what: 'an answer does not reset the count of failures',
    from: 'if (event == HealthEvent::answer || event == HealthEvent::echo) failures_in_row_ = 0;',
    to: 'if (event == HealthEvent::echo) failures_in_row_ = 0;',
  },
  {
    file: 'trust/worker_health.cpp', what: 'later ejections are as short as the first',
    from: 'now + std::min<Duration>(options.eject_for * ejections_, options.eject_max);',
    to: 'now + std::min<Duration>(options.eject_for, options.eject_max);',
  },
  {
    file: 'trust/worker_health.cpp', what: 'a failed probe is forgiven',
    from: 'failures_in_row_ >= options.failures_max || state_ == Health::probing;',
    to: 'failures_in_row_ >= options.failures_max;',
  },
  {
    file: 'core/swarm_health.cpp', what: 'without a local backend all workers may be ejected',
    from: 'return 2 * num_out <= num_loaded;', to: 'return true;',
  },
  {
    file: 'core/swarm_health.cpp', what: 'three silent workers do not mark the swarm as silent',
    from: 'if (unanswered_.size() < std::min(enough, num_asked)) return;', to: 'if (unanswered_.size() < 99) return;',
  },
  {
    file: 'core/swarm_sessions.cpp', what: 'answers of a removed worker are accepted',
    from: 'if (round->reject_answers_of(id) > 0) touched.push_back(round_id);', to: 'touched.push_back(round_id);',
  },
  {
    file: 'core/swarm_protocol.cpp', what: 'repeated BUSY is not a failure',
    from: 'if (++worker.busy_in_row > options_.busy_in_row_max)', to: 'if (++worker.busy_in_row > 1u << 30)',
  },
  {
    file: 'core/swarm_protocol.cpp', what: 'late answers are not recorded as latencies',
    from: 'worker.record_latency(context.now - cancelled->sent_at, cancelled->num_pairs,\n'
      + '                                  context.now);',
    to: '',
  },
  {
    file: 'core/swarm_protocol.cpp', what: 'an answer is accepted for any request to its worker',
    from: 'else if (!(answer.shape == asked))', to: 'else if (answer.y.empty())',
  },
  // ---- swarm_attempts
  {
    file: 'core/swarm_attempts.cpp', what: 'a worker may get the same slice again',
    from: 'slice.tried.push_back(worker.id);', to: '',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'losing attempts are not cancelled',
    from: 'context.send(*worker, encode_cancel(attempt.sequence_id));', to: '',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'attempts answered elsewhere are not cancelled before the round ends',
    from: 'round.covered(other))\n            cancel_attempt(context, other);',
    to: 'false) cancel_attempt(context, other);',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'a worker that reported BUSY is not tried again',
    from: 'std::erase(slice.tried, attempt.worker);  // the worker may be asked again', to: '',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'BUSY counts as an attempt',
    from: '--slice.dispatches;  // BUSY was no attempt', to: 'slice.hedged = false;',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'a timeout is not a failure',
    from: 'swarm_.health.add_failure(context, worker, "timeout");', to: '',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'a group queued behind others counts as late',
    from: 'if (is_queued_behind_others(context, attempt)) return;', to: '',
  },
  {
    file: 'core/swarm_attempt_ends.cpp', what: 'a stalled worker is preferred as before',
    from: 'worker.stalls_until = now + worker.stalls_for;', to: '',
  },
  {
    file: 'core/swarm_attempts.cpp', what: 'second attempts do not reduce the budget',
    from: 'policy_.pay(static_cast<std::uint32_t>(round.attempts.size() - num_before));', to: '(void)num_before;',
  },
  // ---- swarm_dispatch
  {
    file: 'core/swarm_cover.cpp', what: 'a BUSY worker gets calls before its retry time',
    from: 'worker.ids.num_live() < worker.queue_depth && worker.busy_until <= now &&',
    to: 'worker.ids.num_live() < worker.queue_depth &&',
  },
  {
    file: 'core/swarm_cover.cpp', what: 'ejected workers get calls like others',
    from: 'slice.was_tried(worker.id) && (worker.health.serves() || in_need(slice.unit));',
    to: 'slice.was_tried(worker.id);',
  },
  {
    file: 'core/swarm_cover.cpp', what: 'second attempts use queue slots of first attempts',
    from: 'const bool idle_only = hedge && round.copies == 1,', to: 'const bool idle_only = false && hedge,',
  },
  {
    file: 'core/swarm_dispatch.cpp', what: 'after three attempts the local backend is not used',
    from: 'if (!swarm_.health.all_silent() && round.slices[i].dispatches < options_.attempts_max)',
    to: 'if (!swarm_.health.all_silent())',
  },
  {
    file: 'core/swarm_dispatch.cpp', what: 'a round waits too long for a unit without a holder',
    from: 'if (until <= context.now) {', to: 'if (until + 1h <= context.now) {',
  },
  {
    file: 'core/swarm_attempts.cpp', what: 'a probe ends together with the attempt that it copies',
    from: 'attempt.probe = kind == AttemptKind::probe;', to: 'attempt.probe = false;',
  },
  {
    file: 'core/swarm_cover.cpp', what: 'groups exceed the limit of a weak worker',
    from: 'num_pairs + slice.num_pairs() > pairs_max))', to: 'num_pairs + slice.num_pairs() > 1u << 30))',
  },
  {
    file: 'core/swarm_cover.cpp', what: 'new workers get as much as proven workers',
    from: 'if (!room_for_new) prefer_proven();', to: '',
  },
  // ---- router
  {
    file: 'round/router.cpp', what: 'a worker ten times slower does not count as slow',
    from: 'candidate.given.pace_ms > slow_factor * *middle;', to: 'candidate.given.pace_ms > 1e9 * *middle;',
  },
  {
    file: 'round/router.cpp', what: 'a stalled worker ranks like others',
    from: 'candidate.is_slow = candidate.given.stalls ||', to: 'candidate.is_slow =',
  },
  {
    file: 'round/router.cpp', what: 'large rounds are not split between workers',
    from: 'group.num_pairs + item.num_pairs <= best.share_pairs;', to: 'best.share_pairs > 0;',
  },
  {
    file: 'round/router.cpp', what: 'a loaded worker ranks like an idle one',
    from: 'return {~std::min(candidate.gain_pairs, candidate.share_pairs), candidate.given.num_live,',
    to: 'return {~std::min(candidate.gain_pairs, candidate.share_pairs), 0u,',
  },
  // ---- worker_pool
  {
    file: 'core/worker_pool.cpp', what: 'ids of cancelled requests are reused',
    from: 'find_live(id) != nullptr || cancelled_.contains(id)) ++id;', to: 'find_live(id) != nullptr) ++id;',
    survives: 'ids repeat only after four billion requests, and a cancelled id is kept for a minute',
  },
  {
    file: 'core/worker_pool.cpp', what: 'old latency samples never lose weight',
    from: 'const double trust = left_after(now - own.at, estimate_half_life);', to: 'const double trust = 1;',
  },
  {
    file: 'core/worker_pool.cpp', what: 'the timeout equals the mean latency',
    from: 'const double ms = std::max(4 * own.mean_ms, own.mean_ms + 6 * own.deviation_ms);',
    to: 'const double ms = own.mean_ms;',
  },
  {
    file: 'core/swarm_placement.cpp', what: 'a new worker gets all the calls',
    from: 'worker.work = std::max(worker.work, pool_.least_work(worker, context.now));', to: '',
  },
  // ---- round
  {
    file: 'round/round.cpp', what: 'answers are added in order of arrival',
    from: 'return a->first_slice < b->first_slice;', to: 'return a < b;',
  },
  {
    file: 'round/round.cpp', what: 'gates are not rounded in deterministic rounds',
    from: '? options.rounding.rounded_gate(gate)', to: '? gate',
  },
  {
    file: 'round/round.cpp', what: 'only the last answer of a removed liar is discarded',
    from: 'slices_left += num_open;', to: 'slices_left += num_open > 0;',
  },
  // ---- spans: which worker computes which layers whole, and which of its steps are checked
  {
    file: 'span/span_trust.cpp', what: 'a doubted holder is used at once',
    from: 'checks_left_ = rule_.doubted_checks;', to: 'checks_left_ = 0;',
  },
  {
    file: 'span/span_trust.cpp', what: 'a second wrong check ends no record',
    from: 'has_ended_ = is_doubted_;', to: ';',
  },
  {
    file: 'span/span_trust.cpp', what: 'a lie is forgotten when a moderate difference follows',
    from: 'was_wrong_ || finding == SpanFinding::wrong', to: 'finding == SpanFinding::wrong',
  },
  {
    file: 'span/span_trust.cpp', what: 'a holder is banned for honest differences',
    from: 'return is_lie ? SpanEnd::lied : SpanEnd::set_aside;', to: 'return SpanEnd::lied;',
  },
  {
    file: 'span/span_residual.cpp', what: 'the parts before the first router are explained by routes',
    from: 'if (is_first_layer) traces.is_before_router = true;', to: '',
  },
  {
    file: 'span/span_residual.cpp', what: 'keys that are replaced alone are explained by routes',
    from: 'alone > alone_max', to: 'false',
  },
  {
    file: 'span/span_client.cpp', what: 'a holder is slower by the time of another number of rows',
    from: 'away_min = span.away.at_least(rows)', to: 'away_min = span.away.expected(rows)',
  },
  {
    file: 'span/span_client.cpp', what: 'the hub is slower by the time of another number of rows',
    from: 'here_min = here.at_least(rows)', to: 'here_min = here.expected(rows)',
  },
  {
    file: 'span/span_client.cpp', what: 'a proven holder is never checked',
    from: '!span.trust.wants_check(std::uniform_real_distribution<>()(random_))', to: 'span.trust.is_proven()',
  },
  {
    file: 'span/span_client.cpp', what: 'a holder is never checked again after a stopped step',
    from: '            span.checking = false;\n    beside_', to: '            ;\n    beside_',
  },
  {
    file: 'span/span_client.cpp', what: 'a worker that returns has a new record',
    from: "span.worker_key.empty() ? text('#', span.worker) : span.worker_key;", to: "text('#', records_.size());",
  },
  {
    file: 'span/span_client.cpp', what: 'a standby gets keys and values only when it is used',
    from: 'if (!checks && !lacks) return;', to: 'if (!checks) return;',
  },
  {
    file: 'span/span_client.cpp', what: 'what a worker knows is not cut back where the hub computes rows',
    from: 'span->sequences.at_most(one.id, one.num_before);', to: ';',
  },
  {
    file: 'span/span_board.cpp', what: 'the steps of a lost span wait for their deadline',
    from: 'if (step.span == span && !step.answer)', to: 'if (step.span == 0)',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a standby does not move to layers without a holder',
    from: 'if (free.first == free.second) return false;', to: 'return false;',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a holder in use moves',
    from: 'if (board_->is_used(id)) return false;', to: ';',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'the only holder of some layers moves',
    from: 'if (has_other) {', to: 'if (true) {',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'all workers get the first layers',
    from: 'while (one.length < fit && is_free(first + one.length)) ++one.length;', to: 'one.length = fit;',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a span does not grow',
    from: 'return num_then >= num_now + std::max(grow_layers_min, num_now / 4);', to: 'return false;',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a span with few keys and values gets no more',
    from: 'if (lacks_kv) return num_then >= num_now;', to: '',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a holder that cannot grow gets fewer layers than it had',
    from: 'std::max(num_layers / 2, std::min(room.layers_held, num_layers - 1))', to: 'num_layers / 2',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a gap is cut into two for the longest span',
    from: 'one.length >= most - most / 4 &&', to: 'one.length >= most &&',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'the layers beside a short span are taken from it',
    from: 'return other == 0 ? length : std::min(length, other);', to: 'return length;',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a newcomer without experts gets no span',
    from: 'worker.num_planned() == 0,', to: 'false,',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a further layer comes before keys and values',
    from: ': std::min(sizes.kv_wanted, room.kv_bytes);', to: ': sizes.kv_min;',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'keys and values take the room of experts',
    from: 'std::min(left, sizes.kv_max);', to: 'left;',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'the buffers of a step take the room of experts',
    from: 'taken + room.step_bytes);', to: 'taken);',
  },
  // ---- spans, as the simulated swarm runs them (SimSpansTest)
  {
    file: 'span/span_client.cpp', what: 'a holder that fails is asked again after a second each time',
    from: 'span->suspended_for = std::min(2 * span->suspended_for, suspended_max);', to: ';',
  },
  {
    file: 'span/span_client_checks.cpp', what: 'a holder that refuses a step is asked again at once',
    from: 'if (!lacks_tokens || (span != nullptr && ++span->refused_in_a_row > 1))', to: 'if (false)',
  },
  {
    file: 'span/span_client.cpp', what: 'a stalled holder is waited for as long as a lost check',
    from: 'std::clamp(4 * sent.expected, options_.late_min, late_max)', to: 'Duration(std::chrono::seconds(30))',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'the spans of a worker that left stay assigned',
    from: '            drop(held->first);\n', to: '',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a span takes the layers of a holder that may return',
    from: 'std::max(grows_from_, now + options_.return_within)', to: 'grows_from_',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a liar gets other layers',
    from: '    rooms_.erase(holder);\n', to: '',
  },
  {
    file: 'core/swarm_spans.cpp', what: 'a worker is given layers that another one holds, where some have none',
    from: 'if (best.first < best.second) return best;', to: ';',
  },
  {
    file: 'core/swarm_checks.cpp', what: 'a worker that lies about layers may join again',
    from: 'if (options_.checks.on) trust_.ban(worker.trust_key, context.now);', to: ';',
  },
];
