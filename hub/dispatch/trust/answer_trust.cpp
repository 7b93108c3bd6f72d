#include "hub/dispatch/trust/answer_trust.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace moex {
namespace {
constexpr std::size_t records_max = 20'000, addresses_max = 20'000;
constexpr std::uint32_t doublings_max = 20;
}  // namespace

const char* trust_name(Trust trust) {
    switch (trust) {
        case Trust::unproven: return "unproven";
        case Trust::suspected: return "suspected";
        case Trust::proven: return "proven";
        case Trust::banned: return "banned";
    }
    return "unknown";
}

AnswerTrust::AnswerTrust(const CheckOptions& options) : options_(options), random_(options.seed) {}

const AnswerTrust::Record* AnswerTrust::find(std::string_view key) const {
    const auto found = records_.find(key);
    return found == records_.end() ? nullptr : &*found->second;
}

AnswerTrust::Record& AnswerTrust::record_of(std::string_view key) {
    if (const auto found = records_.find(key); found != records_.end()) {
        recent_.splice(recent_.begin(), recent_, found->second);
        return recent_.front();
    }

    if (recent_.size() >= records_max) {
        records_.erase(recent_.back().key);
        recent_.pop_back();
    }
    recent_.push_front({.key = std::string(key)});
    records_.emplace(recent_.front().key, recent_.begin());
    return recent_.front();
}

bool AnswerTrust::is_proven(const Record& record) const {
    return record.rows_verified >= options_.to_prove &&
           record.answers_verified >= options_.to_prove;
}

Trust AnswerTrust::trust(std::string_view key, TimePoint now) const {
    const Record* record = find(key);
    if (record == nullptr) return Trust::unproven;
    if (now < record->banned_until) return Trust::banned;
    if (is_proven(*record)) return Trust::proven;
    return record->suspected ? Trust::suspected : Trust::unproven;
}

double AnswerTrust::rate_of(const Record& record, std::uint64_t address, TimePoint now) const {
    if (record.rows_verified < options_.to_prove) return 1;
    double rate = std::max(options_.rate_min, static_cast<double>(options_.to_prove) /
                                                  static_cast<double>(record.rows_answered));

    const auto from = addresses_.find(address);
    if (from != addresses_.end() && now < from->second.until) rate *= 1 + from->second.lies;
    return std::min(1.0, rate);
}

double AnswerTrust::rate(std::string_view key, TimePoint now) const {
    const Record* record = find(key);
    return record == nullptr ? 1 : rate_of(*record, 0, now);
}

CheckPlan AnswerTrust::plan(std::string_view key, std::uint64_t address, std::uint32_t num_rows,
                            std::uint32_t num_pairs, bool odd, TimePoint now) {
    Record& record = record_of(key);
    if (record.lies > 0 && now - record.lied_at >= options_.lie_forgotten_after) {
        --record.lies;
        record.lied_at = now;
    }

    record.rows_answered += num_rows;
    record.pairs_answered += num_pairs;

    CheckPlan plan{.hold = odd || !is_proven(record), .mark = record.pairs_answered};
    const double rate = odd ? 1 : rate_of(record, address, now);
    for (std::uint32_t row = 0; row < num_rows; ++row)
        if (uniform() < rate) plan.rows.push_back(row);
    if (plan.hold && plan.rows.empty() && num_rows > 0)
        plan.rows.push_back(static_cast<std::uint32_t>(uniform() * num_rows));
    return plan;
}

bool AnswerTrust::on_verdict(std::string_view key, std::uint64_t address, Verdict verdict,
                             const CheckPlan& plan, TimePoint now) {
    Record& record = record_of(key);
    if (verdict == Verdict::undecided) return false;

    if (verdict == Verdict::honest) {
        record.rows_verified += plan.rows.size();
        record.rows_verified_ever += plan.rows.size();
        record.answers_verified += plan.hold;
        if (plan.mark > record.pairs_settled)
            record.pairs_credited += plan.mark - std::exchange(record.pairs_settled, plan.mark);
        if (is_proven(record)) record.suspected = false;
        return false;
    }

    record.suspected = true;
    ++record.times_suspected;
    record.rows_answered = record.rows_verified = record.answers_verified = 0;
    record.pairs_settled = record.pairs_answered;
    record.lied_at = now;
    if (address != 0 && (addresses_.size() < addresses_max || addresses_.contains(address))) {
        Address& from = addresses_[address];
        from.lies = now < from.until ? from.lies + 1 : 1;
        from.until = now + options_.address_suspect_for;
    }
    if (++record.lies < options_.lies_max) return false;

    ban(key, now);
    return true;
}

void AnswerTrust::suspect(std::string_view key) {
    Record& record = record_of(key);
    record.suspected = true;
    ++record.times_suspected;
    record.rows_answered = record.rows_verified = record.answers_verified = 0;
}

TrustRecord AnswerTrust::record(std::string_view key) const {
    const Record* record = find(key);
    if (record == nullptr) return {};
    return {.rows_answered = record->rows_answered,
            .rows_verified = record->rows_verified,
            .answers_verified = record->answers_verified,
            .rows_verified_ever = record->rows_verified_ever,
            .lies = record->lies,
            .times_suspected = record->times_suspected,
            .suspected = record->suspected,
            .lied_at = record->lied_at};
}

void AnswerTrust::set_record(std::string_view key, const TrustRecord& given) {
    Record& record = record_of(key);
    record.rows_answered = given.rows_answered;
    record.rows_verified = given.rows_verified;
    record.answers_verified = given.answers_verified;
    record.rows_verified_ever = given.rows_verified_ever;
    record.lies = given.lies;
    record.times_suspected = given.times_suspected;
    record.suspected = given.suspected && !is_proven(record);
    record.lied_at = given.lied_at;
}

Duration AnswerTrust::banned_for(std::string_view key, TimePoint now) const {
    const Record* record = find(key);
    return record == nullptr ? Duration::zero()
                             : std::max(Duration::zero(), Duration(record->banned_until - now));
}

void AnswerTrust::ban(std::string_view key, TimePoint now) {
    Record& record = record_of(key);
    const std::uint32_t doublings = std::min(record.bans++, doublings_max);
    record.banned_until = now + std::min(options_.ban_max, options_.ban_for * (1 << doublings));
    // after the ban, the next false answer bans the key again
    record.lies = options_.lies_max - 1;
}

void AnswerTrust::lift(std::string_view key) {
    const auto found = records_.find(key);
    if (found == records_.end()) return;
    found->second->banned_until = TimePoint{};
    found->second->bans = found->second->lies = 0;
}

std::uint64_t AnswerTrust::pairs_credited(std::string_view key) const {
    const Record* record = find(key);
    return record == nullptr ? 0 : record->pairs_credited;
}

std::uint64_t AnswerTrust::rows_verified(std::string_view key) const {
    const Record* record = find(key);
    return record == nullptr ? 0 : record->rows_verified_ever;
}

std::uint32_t AnswerTrust::lies(std::string_view key) const {
    const Record* record = find(key);
    return record == nullptr ? 0 : record->lies;
}

void ExpertGains::learn(std::uint32_t unit, float gain) {
    Gain& known = largest_[unit];
    known.largest = std::max(known.largest, gain);
    ++known.num_samples;
}

double ExpertGains::bound(std::uint32_t unit) const {
    constexpr double slack = 4;
    constexpr std::uint32_t samples_min = 16;
    const Gain& known = largest_[unit];
    return known.num_samples < samples_min ? std::numeric_limits<double>::infinity()
                                           : slack * known.largest;
}

}  // namespace moex
