// Chooses the content coding of a page from the request. Pure. Source: RFC 9110 section 12.5.3.
#pragma once

#include <span>
#include <string_view>

namespace moex::net {

// Returns the first of `codings` (best first, e.g. "br", "gzip") with the greatest weight above 0
// in an Accept-Encoding field. An empty result means that the content is sent uncompressed: the
// field accepts none of `codings`, is absent or is not valid.
std::string_view choose_coding(std::string_view accept_encoding,
                               std::span<const std::string_view> codings);

}  // namespace moex::net
