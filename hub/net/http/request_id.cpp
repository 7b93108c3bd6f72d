#include "hub/net/http/request_id.h"

#include <algorithm>
#include <array>
#include <random>

namespace moex::net {

std::string make_request_id() {
    // A request id is a name and no secret, so a seed of 64 bits per thread is enough.
    thread_local std::mt19937_64 random(std::uint64_t{std::random_device{}()} << 32 |
                                        std::random_device{}());
    static constexpr char hex[] = "0123456789abcdef";

    std::string id = "req-";
    std::array<std::uint64_t, 2> words{random(), random()};
    for (int i = 0; i < 24; ++i) {
        std::uint64_t& word = words[static_cast<std::size_t>(i) / 12];
        id += hex[word & 15];
        word >>= 4;
    }
    return id;
}

std::string request_id_of(const HttpRequest& request) {
    constexpr std::string_view field = "x-request-id";
    const auto is_field = [&](const auto& header) { return header.first == field; };
    const auto is_visible = [](char c) { return c > 0x20 && c < 0x7f; };

    const bool is_one = std::count_if(request.headers.begin(), request.headers.end(), is_field) ==
                        1;
    const std::string_view given = request.header(field).value_or("");
    const bool is_sane = is_one && !given.empty() && given.size() <= request_id_chars_max &&
                         std::all_of(given.begin(), given.end(), is_visible);
    return is_sane ? std::string(given) : make_request_id();
}

}  // namespace moex::net
