// Unwraps a Result that a test needs, and fails the test if the Result is an error.
#pragma once

#include <stdexcept>
#include <utility>

#include "protocol/result.h"

namespace moex::test {

template <typename T>
T must(Result<T> result) {
    if (!result.ok()) throw std::runtime_error(result.error().message);
    return std::move(*result);
}

}  // namespace moex::test
