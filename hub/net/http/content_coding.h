// Which content coding of a page its client wants. Pure. Source: RFC 9110 section 12.5.3.
#pragma once

#include <span>
#include <string_view>

namespace moex::net {

// The first of `codings` (best first, e.g. "br", "gzip") with the greatest weight above 0 in an
// Accept-Encoding field. Empty: none of them, the content goes as it is; so it does where the field
// is absent or has no meaning.
std::string_view choose_coding(std::string_view accept_encoding,
                               std::span<const std::string_view> codings);

}  // namespace moex::net
