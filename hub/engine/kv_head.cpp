#include "hub/engine/kv_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "hub/engine/kernels.h"
#include "protocol/half_rows.h"

namespace moex {
namespace {

constexpr float half_max = 65504.0f;

std::size_t num_groups(std::size_t size) { return (size + kv_group - 1) / kv_group; }

void store_halves(std::byte* to, std::span<const float> values) {
    thread_local std::vector<float> cut;
    cut.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        cut[i] = std::clamp(values[i], -half_max, half_max);
    halves_of_floats(cut.data(), cut.size(), to);
}

void store_codes(std::byte* to, std::span<const float> values) {
    // below this largest value, the factor 127 / largest would overflow f32
    constexpr float smallest = 1e-30f;
    std::byte* const codes = to + num_groups(values.size()) * sizeof(float);

    for (std::size_t first = 0; first < values.size(); first += kv_group) {
        const auto group = values.subspan(first, std::min(kv_group, values.size() - first));
        float largest = 0;
        bool is_finite = true;
        for (const float value : group) {
            largest = std::max(largest, std::fabs(value));
            is_finite = is_finite && std::isfinite(value);
        }
        // A NaN as scale marks a group with an infinite or NaN value.
        const float scale = is_finite ? largest / 127.0f : NAN,
                    factor = is_finite && largest > smallest ? 127.0f / largest : 0.0f;
        std::memcpy(to + first / kv_group * sizeof scale, &scale, sizeof scale);

        for (std::size_t i = 0; i < group.size(); ++i) {
            const float code = factor == 0 ? 0.0f : std::nearbyint(group[i] * factor);
            codes[first + i] = static_cast<std::byte>(static_cast<std::int8_t>(code));
        }
    }
}

}  // namespace

std::size_t kv_head_bytes(KvDtype dtype, std::uint32_t head_dim) {
    switch (dtype) {
        case KvDtype::f32: return head_dim * sizeof(float);
        case KvDtype::f16: return (head_dim * std::size_t{2} + 3) / 4 * 4;
        case KvDtype::int8:
            return num_groups(head_dim) * sizeof(float) + (std::size_t{head_dim} + 3) / 4 * 4;
    }
    return 0;
}

void store_kv_head(std::byte* to, KvDtype dtype, std::span<const float> values) {
    switch (dtype) {
        case KvDtype::f32: std::memcpy(to, values.data(), values.size_bytes()); return;
        case KvDtype::f16: store_halves(to, values); return;
        case KvDtype::int8: store_codes(to, values); return;
    }
}

void load_kv_head(std::span<float> values, KvDtype dtype, const std::byte* from) {
    switch (dtype) {
        case KvDtype::f32: std::memcpy(values.data(), from, values.size_bytes()); return;
        case KvDtype::f16: widen_halves(values, from); return;
        case KvDtype::int8: widen_codes(values, from); return;
    }
}

}  // namespace moex
