// A refusal of a request: one type for all errors that a client sees, from the rules of access to
// the errors of the engine. refusal_response() turns it into an answer.
// Checked<T> is either a T or the Refusal of the request that needed it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "hub/base/clock.h"
#include "protocol/check.h"
#include "protocol/result.h"

namespace moex {

struct Refusal {
    unsigned status = 400;
    std::string message;  // a sentence that says what is wrong and how to correct it
    std::string code;     // error code for programs, e.g. "context_length_exceeded"; empty: null
    std::string param;    // name of the wrong field of the body; empty: null
    std::vector<std::pair<std::string, std::string>> headers = {};
    // Further members of the error object, e.g. {"n_ctx", 4096}.
    std::vector<std::pair<std::string, std::uint64_t>> numbers = {};
};

// Makes a refusal with status 429 or 503 and Retry-After in whole seconds, at least 1 second.
Refusal refuse_for_now(unsigned status, std::string message, std::string code, Duration wait);

// Translates an error of the engine into the refusal that a client gets.
Refusal refusal_of(const Error& error);

template <class T>
class [[nodiscard]] Checked {
  public:
    Checked(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Checked(Refusal refusal) : state_(std::in_place_index<1>, std::move(refusal)) {}

    bool ok() const { return state_.index() == 0; }

    T& value() & {
        require();
        return *std::get_if<0>(&state_);
    }
    const T& value() const& {
        require();
        return *std::get_if<0>(&state_);
    }
    T&& value() && {
        require();
        return std::move(*std::get_if<0>(&state_));
    }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Refusal& refusal() const {
        MOEX_CHECK(!ok(), "refusal() of a value");
        return *std::get_if<1>(&state_);
    }

  private:
    void require() const {
        MOEX_CHECK(ok(), ok() ? std::string() : std::get_if<1>(&state_)->message);
    }
    std::variant<T, Refusal> state_;
};

// Success without a value, or a Refusal.
template <>
class [[nodiscard]] Checked<void> {
  public:
    Checked() = default;
    Checked(Refusal refusal) : refusal_(std::move(refusal)) {}

    bool ok() const { return !refusal_.has_value(); }
    const Refusal& refusal() const {
        MOEX_CHECK(!ok(), "refusal() of a success");
        return *refusal_;
    }

  private:
    std::optional<Refusal> refusal_;
};

}  // namespace moex

// Returns the refusal of `expression` from the calling function, if it has one.
#define MOEX_ADMIT(expression)                                      \
    do {                                                            \
        if (auto moex_checked_ = (expression); !moex_checked_.ok()) \
            return moex_checked_.refusal();                         \
    } while (false)

// Declares `name` as the value of `expression`, or returns its refusal from the calling function.
#define MOEX_OR_REFUSE(name, expression)                         \
    auto name##_checked_ = (expression);                         \
    if (!name##_checked_.ok()) return name##_checked_.refusal(); \
    auto name = std::move(name##_checked_).value()
