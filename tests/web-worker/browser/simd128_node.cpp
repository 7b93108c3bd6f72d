// The integer kernels compiled to WASM, for Node: functions that run the cases, check the digest of
// answers, and time an expert.
#include <emscripten.h>

#include <algorithm>

#include "protocol/half.h"
#include "tests/web-worker/integer_cases.h"

namespace {
moex::ThreadPool& one_thread() {
    static moex::ThreadPool threads(1);
    return threads;
}
}  // namespace

extern "C" {

EMSCRIPTEN_KEEPALIVE const char* simd128_path() { return moex::integer_path().name; }

EMSCRIPTEN_KEEPALIVE const char* simd128_disagreements() {
    static std::string found;
    found = moex::integer_disagreements();
    return found.c_str();
}

// Returns 1 if the answers have the bits that all machines must give.
EMSCRIPTEN_KEEPALIVE int simd128_digest_is_right() {
    return moex::answers_digest(one_thread()) == moex::expected_answers_digest ? 1 : 0;
}

// Returns the milliseconds of an expert over `num_rows` rows: the median of `repeats` passes over
// more experts than a cache holds.
EMSCRIPTEN_KEEPALIVE double simd128_expert_ms(std::uint32_t hidden, std::uint32_t intermediate,
                                              std::uint32_t group_size, std::uint32_t num_rows,
                                              int exact, std::uint32_t repeats) {
    constexpr std::uint32_t num_experts = 16;
    std::vector<moex::FormulaExpert> experts;
    for (std::uint32_t i = 0; i < num_experts; ++i)
        experts.emplace_back(moex::ExpertShape{hidden, intermediate, group_size}, i);
    const auto x = moex::formula_rows(num_rows, hidden, 1);
    std::vector<float> y(x.size());
    std::vector<std::uint32_t> row_of_slot;
    for (std::uint32_t row = 0; row < num_rows; ++row) row_of_slot.push_back(row);

    std::vector<double> times;
    for (std::uint32_t i = 0; i < repeats * num_experts; ++i) {
        moex::FormulaExpert& one = experts[i % num_experts];
        one.packed.count = one.exact.count = num_rows;
        const double begin = emscripten_get_now();
        if (exact != 0)
            moex::compute_experts({&one.exact, 1}, {x.data(), hidden, num_rows}, row_of_slot,
                                  y.data(), one_thread());
        else
            moex::compute_experts({&one.packed, 1}, {x.data(), hidden, num_rows}, row_of_slot,
                                  y.data(), one_thread());
        times.push_back(emscripten_get_now() - begin);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

}  // extern "C"
