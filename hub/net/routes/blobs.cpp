#include "hub/net/routes/blobs.h"

#include <algorithm>

#include "hub/net/http/fields.h"
#include "protocol/text.h"

namespace moex::net {
namespace {

enum class RangeKind { whole, part, unsatisfiable };
struct Range {
    RangeKind kind = RangeKind::whole;
    std::uint64_t first = 0, last = 0;
};

std::optional<std::uint64_t> digits(std::string_view text) {
    if (text.empty() || text.size() > 18) return std::nullopt;

    std::uint64_t value = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return std::nullopt;
        value = value * 10 + static_cast<unsigned>(c - '0');
    }
    return value;
}

// Parses a Range field that has one byte range. Any other Range field is ignored, as RFC 9110
// section 14.2 allows.
Range parse_range(std::string_view value, std::uint64_t size) {
    if (value.substr(0, 6) != "bytes=" || value.find(',') != std::string_view::npos) return {};

    value.remove_prefix(6);
    const std::size_t dash = value.find('-');
    if (dash == std::string_view::npos) return {};

    const std::string_view first_text = value.substr(0, dash), last_text = value.substr(dash + 1);
    if (first_text.empty()) {
        const auto suffix = digits(last_text);
        if (!suffix) return {};
        if (*suffix == 0 || size == 0) return {RangeKind::unsatisfiable};
        return {RangeKind::part, size - std::min(*suffix, size), size - 1};
    }

    const auto first = digits(first_text);
    const auto last = last_text.empty() ? std::optional<std::uint64_t>(UINT64_MAX)
                                        : digits(last_text);
    if (!first || !last || *last < *first) return {};
    if (*first >= size) return {RangeKind::unsatisfiable};
    return {RangeKind::part, *first, std::min(*last, size - 1)};
}

}  // namespace

bool etag_matches(std::string_view if_none_match, std::string_view etag) {
    while (!if_none_match.empty()) {
        std::string_view item = if_none_match.substr(0, if_none_match.find(','));
        if_none_match.remove_prefix(std::min(if_none_match.size(), item.size() + 1));

        item = trim_blanks(item);
        if (item.substr(0, 2) == "W/") item.remove_prefix(2);
        if (item == "*" || item == etag) return true;
    }
    return false;
}

BlobAnswer answer_blob(const HttpRequest& request, std::uint64_t blob_bytes,
                       const std::string& etag) {
    BlobAnswer answer;
    answer.head.content_type = "application/octet-stream";
    answer.head.headers = {{"ETag", etag},
                           {"Cache-Control", "public, max-age=31536000, immutable"},
                           {"Accept-Ranges", "bytes"}};

    if (const auto known = request.header("if-none-match"); known && etag_matches(*known, etag)) {
        answer.head.status = 304;
        return answer;
    }

    Range range;
    if (const auto asked = request.header("range")) {
        // If-Range has a different ETag, so the part that the client has belongs to a different
        // blob. Send the whole blob.
        const auto condition = request.header("if-range");
        if (!condition || *condition == etag) range = parse_range(*asked, blob_bytes);
    }

    switch (range.kind) {
        case RangeKind::whole: answer.size = blob_bytes; break;
        case RangeKind::part:
            answer.head.status = 206;
            answer.offset = range.first;
            answer.size = range.last - range.first + 1;
            answer.head.headers.emplace_back(
                "Content-Range", text("bytes ", range.first, "-", range.last, "/", blob_bytes));
            break;
        case RangeKind::unsatisfiable:
            answer.head.status = 416;
            answer.head.headers.emplace_back("Content-Range", text("bytes */", blob_bytes));
            break;
    }
    return answer;
}

}  // namespace moex::net
