// Result<T>: a value, or an error that the outside world caused. An Error has a code for the
// program and a sentence for people. Result uses no exceptions, so that it also builds for the
// browser.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "protocol/check.h"

namespace moex {

enum class ErrorCode {
    // frames and messages
    truncated_frame,
    bad_magic,
    unsupported_version,
    unknown_type,
    unknown_dtype,
    unknown_flags,
    payload_size,
    num_tokens_range,
    unknown_expert,
    bad_order,  // ids are not in the ascending order that is required
    bad_compression,
    non_finite,
    bad_json,
    bad_field,
    // files and models
    not_found,
    io_error,
    bad_file,
    unsupported,
    hash_mismatch,
    no_space,
    // running
    invalid_argument,
    unauthorized,
    unavailable,  // impossible at this time; a retry may succeed
    overloaded,
    timeout,
    cancelled,
    device_lost,
    internal,
};

// Returns the name of `code` in snake_case, as it appears on the wire, in logs and in JSON.
const char* error_code_name(ErrorCode code);

struct Error {
    ErrorCode code;
    std::string message;
};

template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }

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

    const Error& error() const {
        MOEX_CHECK(!ok(), "error() of a value");
        return *std::get_if<1>(&state_);
    }

  private:
    void require() const {
        MOEX_CHECK(ok(), ok() ? std::string() : std::get_if<1>(&state_)->message);
    }
    std::variant<T, Error> state_;
};

// A result without a value: success, or an Error.
template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}
    bool ok() const { return !error_.has_value(); }
    explicit operator bool() const { return ok(); }
    const Error& error() const {
        MOEX_CHECK(!ok(), "error() of a success");
        return *error_;
    }

  private:
    std::optional<Error> error_;
};
using Status = Result<void>;

}  // namespace moex

// Evaluates `expression`. If it is an error, the calling function returns that error; otherwise it
// continues.
#define MOEX_TRY(expression)                                                                   \
    do {                                                                                       \
        if (auto moex_status_ = (expression); !moex_status_.ok()) return moex_status_.error(); \
    } while (false)

// Declares `name` as the value of `expression`. If `expression` is an error, the calling function
// returns that error.
#define MOEX_ASSIGN(name, expression)                        \
    auto name##_result_ = (expression);                      \
    if (!name##_result_.ok()) return name##_result_.error(); \
    auto name = std::move(name##_result_).value()
