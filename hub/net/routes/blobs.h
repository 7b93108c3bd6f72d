// Byte ranges of an immutable blob: the part that a request selects, and the head of the answer.
// Pure. Source: RFC 9110 sections 13 and 14.
#pragma once

#include <cstdint>

#include "hub/api/http.h"

namespace moex::net {

struct BlobAnswer {
    HttpResponse head;  // the answer's status (200, 206, 304 or 416) and headers, without the body
    std::uint64_t offset = 0, size = 0;
};
// Answers a request for one byte range of a blob. A request for several ranges, or with a unit
// other than bytes, gets the whole blob. `etag` is strong, with its quotes.
BlobAnswer answer_blob(const HttpRequest& request, std::uint64_t blob_bytes,
                       const std::string& etag);

// Returns true if If-None-Match matches `etag` (weak comparison; the header may be a list or *).
bool etag_matches(std::string_view if_none_match, std::string_view etag);

}  // namespace moex::net
