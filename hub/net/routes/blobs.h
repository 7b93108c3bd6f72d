// Byte ranges of an immutable blob: which part a request asks for,
// and how to answer. Pure. Source: RFC 9110 sections 13 and 14.
#pragma once

#include <cstdint>

#include "hub/api/http.h"

namespace moex::net {

struct BlobAnswer {
    HttpResponse head;  // status 200, 206, 304 or 416 and its headers; no body
    std::uint64_t offset = 0, size = 0;
};
// One range at most; several, or a unit other than bytes, are
// answered with the whole. `etag` is strong, with its quotes.
BlobAnswer answer_blob(const HttpRequest& request, std::uint64_t blob_bytes,
                       const std::string& etag);

// True when If-None-Match names `etag` (weak comparison, lists, *).
bool etag_matches(std::string_view if_none_match, std::string_view etag);

}  // namespace moex::net
