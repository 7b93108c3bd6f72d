// Compares the gated delta rule with its slow reference version, and tests that a row has the same
// bits however the text is cut into steps, rolled back and repeated.
#include "hub/engine/delta_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "hub/engine/delta_rule_plain.h"
#include "tests/hub/engine/engine_fixture.h"

namespace moex {
namespace {

using test::random_floats;

// Random rows of a text, and their outputs.
struct Text {
    Text(const DeltaShape& shape, std::uint32_t num_tokens, std::uint32_t seed)
        : shape(shape),
          q(random_floats(std::size_t{num_tokens} * keys(), seed)),
          k(random_floats(q.size(), seed + 1)),
          v(random_floats(std::size_t{num_tokens} * values(), seed + 2)),
          log_decay(random_floats(std::size_t{num_tokens} * shape.value_heads, seed + 3)),
          beta(random_floats(log_decay.size(), seed + 4)),
          out(v.size()) {
        for (std::size_t i = 0; i < k.size(); i += shape.key_dim) {
            float squares = 0;
            for (std::size_t j = i; j < i + shape.key_dim; ++j) squares += k[j] * k[j];
            for (std::size_t j = i; j < i + shape.key_dim; ++j) k[j] /= std::sqrt(squares + 1e-6f);
        }
        for (float& one : log_decay) one = -std::exp(3 * one - 2);
        for (float& one : beta) one = 1 / (1 + std::exp(-one));
    }

    std::size_t keys() const { return std::size_t{shape.key_heads} * shape.key_dim; }
    std::size_t values() const { return std::size_t{shape.value_heads} * shape.value_dim; }
    DeltaRows rows(std::uint32_t first, std::uint32_t count) {
        return {.first_position = first,
                .settled_position = first,
                .q = {&q[first * keys()], keys(), count},
                .k = {&k[first * keys()], keys(), count},
                .v = {&v[first * values()], values(), count},
                .log_decay = {&log_decay[first * shape.value_heads], shape.value_heads, count},
                .beta = {&beta[first * shape.value_heads], shape.value_heads, count},
                .out = {&out[first * values()], values()}};
    }

    DeltaShape shape;
    std::vector<float> q, k, v, log_decay, beta, out;
};

// Returns S of all value heads after the first `num_tokens` tokens, by the formula of delta_rule.h.
std::vector<double> plain_matrices(const Text& text, std::uint32_t num_tokens) {
    const DeltaShape& shape = text.shape;
    const std::size_t matrix = std::size_t{shape.key_dim} * shape.value_dim;
    std::vector<double> all(shape.value_heads * matrix);
    for (std::uint32_t head = 0; head < shape.value_heads; ++head)
        for (std::uint32_t token = 0; token < num_tokens; ++token) {
            double* const s = &all[head * matrix];
            const float* const k =
                &text.k[token * text.keys() + head / shape.values_per_key() * shape.key_dim];
            const float* const v = &text.v[token * text.values() + head * shape.value_dim];
            const std::size_t gate = token * shape.value_heads + head;
            for (std::size_t i = 0; i < matrix; ++i) s[i] *= std::exp(double{text.log_decay[gate]});
            for (std::uint32_t column = 0; column < shape.value_dim; ++column) {
                double recalled = 0;
                for (std::uint32_t row = 0; row < shape.key_dim; ++row)
                    recalled += s[row * shape.value_dim + column] * k[row];
                const double delta = text.beta[gate] * (v[column] - recalled);
                for (std::uint32_t row = 0; row < shape.key_dim; ++row)
                    s[row * shape.value_dim + column] += k[row] * delta;
            }
        }
    return all;
}

// A memory with the floats that it borrows.
struct Kept {
    explicit Kept(const DeltaShape& shape)
        : shape(shape),
          floats(DeltaMemory::num_floats(shape), 7.0f) {}

    void append(const DeltaRows& rows) {
        DeltaMemory memory(shape, floats, border);
        for (std::uint32_t head = 0; head < shape.key_heads; ++head) memory.append(rows, head);
        memory.finish_append(rows);
    }
    // The rows of a step in two parts, which another layer's rows may lie between.
    void append_parts(Text& text, std::uint32_t first, std::uint32_t count, std::uint32_t half) {
        DeltaRows parts[] = {text.rows(first, half), text.rows(first + half, count - half)};
        parts[1].settled_position = first;
        for (const DeltaRows& part : parts)
            if (part.q.num_rows > 0) append(part);
    }
    void extend(const DeltaRows& rows, bool in_place = false) {
        // Whatever the new memory held before must not matter.
        std::vector<float> old(floats.size(), 7.0f);
        std::uint32_t old_border = 3;
        if (!in_place) {
            std::swap(old, floats);
            std::swap(old_border, border);
        }
        DeltaMemory memory(shape, floats, border);
        const DeltaMemory from = in_place ? memory : DeltaMemory(shape, old, old_border);
        for (std::uint32_t head = 0; head < shape.key_heads; ++head)
            memory.extend(from, rows, head);
        memory.finish_extend(rows);
    }

    DeltaShape shape;
    std::vector<float> floats;
    std::uint32_t border = 0;
};

constexpr DeltaShape shapes[] = {{1, 1, 4, 4}, {2, 4, 16, 24}, {3, 3, 5, 7}, {2, 6, 128, 128}};

TEST(DeltaRuleTest, EqualsItsTwin) {
    for (const DeltaShape& shape : shapes) {
        Text text(shape, 83, 1), twin(shape, 83, 1);
        std::vector<double> s(std::size_t{shape.value_heads} * shape.key_dim * shape.value_dim);
        plain::delta_rule(s, twin.rows(0, 83), shape);
        Kept(shape).extend(text.rows(0, 83));

        double error = 0, size = 0;
        for (std::size_t i = 0; i < text.out.size(); ++i) {
            ASSERT_NEAR(text.out[i], twin.out[i], 1e-4 * (1 + std::abs(twin.out[i])));
            error += std::pow(text.out[i] - twin.out[i], 2);
            size += std::pow(twin.out[i], 2);
        }
        EXPECT_LT(std::sqrt(error / size), 2e-6) << shape.key_dim;
    }
}

TEST(DeltaRuleTest, CutsRollbacksAndRepeatedStepsChangeNoBit) {
    constexpr std::uint32_t num_tokens = 90;
    for (const DeltaShape& shape : shapes) {
        Text whole(shape, num_tokens, 11);
        Kept(shape).extend(whole.rows(0, num_tokens));

        std::mt19937 random(shape.key_dim);
        const auto up_to = [&](std::uint32_t most) { return 1 + random() % most; };
        for (int trial = 0; trial < 40; ++trial) {
            Text text(shape, num_tokens, 11), wrong(shape, num_tokens, 99);
            Kept kept(shape);
            for (std::uint32_t at = 0; at < num_tokens;) {
                const std::uint32_t left = num_tokens - at;
                if (random() % 4 == 0) {
                    const std::uint32_t count = up_to(std::min(left, 30u));
                    Kept failed = kept;
                    failed.extend(wrong.rows(at, count));
                    const std::uint32_t half = random() % count;
                    if (half > 0) kept.extend(text.rows(at, half));
                    kept.extend(text.rows(at + half, count - half), half > 0);
                    at += count;
                    continue;
                }
                // a step that failed behind this layer, then drafts, of which some are kept
                const std::uint32_t count = up_to(std::min(left, delta_append_max));
                if (random() % 2 == 0) kept.append(wrong.rows(at, count));
                kept.append_parts(text, at, count, random() % count);
                at += trial == 0 ? count : up_to(count);
            }
            ASSERT_EQ(std::memcmp(whole.out.data(), text.out.data(), whole.out.size() * 4), 0)
                << shape.key_dim << ", trial " << trial;
        }
    }
}

// A head that forgets at once must not divide by the little that is left.
// S before a position, however the text was cut, is what the plain form has after these tokens.
TEST(DeltaRuleTest, MatricesBeforeAPositionAreThoseOfTheTwin) {
    const DeltaShape shape{.key_heads = 2, .value_heads = 4, .key_dim = 24, .value_dim = 20};
    Text text(shape, 60, 11);
    for (const std::uint32_t step : {1u, 3u, 9u}) {
        Kept kept(shape);
        for (std::uint32_t at = 0; at + step <= 60; at += step) {
            kept.append(text.rows(at, step));
            // Within the step, and behind its last row.
            for (const std::uint32_t position : {at, at + step}) {
                if (position == 0) continue;
                const std::vector<float> found =
                    DeltaMemory(shape, kept.floats, kept.border).matrices_before(position);
                const std::vector<double> wanted = plain_matrices(text, position);
                ASSERT_EQ(found.size(), wanted.size());
                for (std::size_t i = 0; i < found.size(); ++i)
                    ASSERT_NEAR(found[i], wanted[i], 2e-5) << step << ' ' << position << ' ' << i;
            }
        }
    }
}

TEST(DeltaRuleTest, StrongDecaysStayFinite) {
    const DeltaShape shape{1, 2, 8, 8};
    Text text(shape, 40, 5), twin(shape, 40, 5);
    for (std::size_t i = 0; i < text.log_decay.size(); ++i)
        text.log_decay[i] = twin.log_decay[i] = i % 5 == 0 ? -200.0f : -0.01f;
    std::vector<double> s(2 * 8 * 8);
    plain::delta_rule(s, twin.rows(0, 40), shape);
    Kept(shape).extend(text.rows(0, 40));
    for (std::size_t i = 0; i < text.out.size(); ++i)
        ASSERT_NEAR(text.out[i], twin.out[i], 1e-5 * (1 + std::abs(twin.out[i])));
}

}  // namespace
}  // namespace moex
