#include "tests/sim/sim_span_holder.h"

#include <algorithm>
#include <cstring>

#include "protocol/half.h"

namespace moex::sim {

float span_key(std::uint64_t sequence, std::uint32_t layer, std::uint32_t position) {
    return static_cast<float>((sequence * 5 + layer * 3 + position * 7) % 16);
}

void append_span_kv(Bytes& to, float key) {
    for (const float value : {key, key + 1}) {
        const half one = float_to_half(value);
        for (std::uint32_t i = 0; i < sim_kv_size; ++i)
            to.insert(to.end(), reinterpret_cast<const std::byte*>(&one),
                      reinterpret_cast<const std::byte*>(&one) + sizeof one);
    }
}

void SimSpanHolder::assign(const SpanAssign& assign) {
    spans_[assign.span] = {assign.first_layer, assign.end_layer, {}};
}

void SimSpanHolder::end(const std::vector<std::uint64_t>& sequences) {
    for (auto& [id, span] : spans_)
        for (const std::uint64_t sequence : sequences) span.keys.erase(sequence);
}

std::uint32_t SimSpanHolder::num_layers(std::uint32_t span) const {
    const auto found = spans_.find(span);
    return found == spans_.end() ? 0 : found->second.end_layer - found->second.first_layer;
}

void SimSpanHolder::bring(const SpanKv& kv) {
    const auto found = spans_.find(kv.span);
    if (found == spans_.end()) return;
    Keys& keys = found->second.keys[kv.sequence];
    if (kv.first > keys.size()) return;  // a frame before this one was lost
    keys.resize(kv.first);
    const std::size_t row_bytes = span_kv_bytes(1, 1, kv.kv_size);
    for (std::uint32_t row = 0; row < kv.num_rows; ++row) {
        std::vector<float>& layers = keys.emplace_back();
        for (std::uint32_t layer = 0; layer < kv.num_layers; ++layer) {
            half first;
            std::memcpy(&first, kv.rows.data() + (layer * kv.num_rows + row) * row_bytes,
                        sizeof first);
            layers.push_back(half_to_float(first));
        }
    }
}

SpanAnswer SimSpanHolder::step(const SpanStep& step, std::uint32_t hidden_size, bool lies) {
    SpanAnswer answer{.step = step.step, .span = step.span};
    const auto refuse = [&](SpanVerdict verdict) {
        answer.verdict = verdict;
        return answer;
    };
    const auto found = spans_.find(step.span);
    if (found == spans_.end()) return refuse(SpanVerdict::no_span);
    if (fails) return refuse(SpanVerdict::failed);
    Span& span = found->second;
    const std::uint32_t num_layers = span.end_layer - span.first_layer;
    for (const SpanSequence& one : step.sequences)
        if (span.keys[one.id].size() < one.num_before) return refuse(SpanVerdict::unknown_sequence);

    std::vector<std::vector<float>> added;  // [rows][layers]
    answer.x = step.x;
    for (std::size_t row = 0; const SpanSequence& one : step.sequences) {
        Keys& keys = span.keys[one.id];
        keys.resize(one.num_before);
        for (std::uint32_t i = 0; i < one.num_rows; ++i, ++row) {
            std::vector<float> mine;
            for (std::uint32_t layer = span.first_layer; layer < span.end_layer; ++layer)
                mine.push_back(span_key(one.id, layer, one.num_before + i));
            keys.push_back(mine);
            added.push_back(std::move(mine));
            float more = 0;
            for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
                more += static_cast<float>(span.first_layer + layer + 1);
                for (const std::vector<float>& key : keys) more += key[layer];
            }
            if (lies && lie == SpanLie::rows) more = -more;
            for (std::uint32_t i = 0; i < hidden_size; ++i) answer.x[row * hidden_size + i] += more;
        }
    }
    for (std::uint32_t layer = 0; layer < num_layers; ++layer)
        for (const std::vector<float>& row : added) append_span_kv(answer.kv, row[layer]);
    if (lies && (lie == SpanLie::keys || lie == SpanLie::values)) {
        const half false_value = float_to_half(100);
        const std::size_t value_bytes = sim_kv_size * sizeof(half),
                          begin = lie == SpanLie::keys ? 0 : value_bytes;
        for (std::size_t at = begin; at < answer.kv.size(); at += 2 * value_bytes)
            for (std::size_t i = 0; i < value_bytes; i += sizeof(half))
                std::memcpy(answer.kv.data() + at + i, &false_value, sizeof false_value);
    }
    answer.num_rows = step.num_rows();
    answer.num_layers = num_layers;
    answer.kv_size = sim_kv_size;
    return answer;
}

}  // namespace moex::sim
