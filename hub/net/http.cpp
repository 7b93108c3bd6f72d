#include "hub/net/http.h"

namespace moex {

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
    for (const auto& [key, value] : headers)
        if (key == name) return std::string_view(value);
    return std::nullopt;
}

}  // namespace moex
