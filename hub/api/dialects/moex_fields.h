// The hub's own `moex` object in the body of a request, which is allowed in every dialect: how the
// experts compute, and what is kept. README.md of hub/api is the manual of its fields.
//   {"moex": {"experts": "exact", "late_ms": 200, "late_max": 3, "speculative": "off",
//             "store": false, "spans": "off", "pages": NAME, "resumable": true}}
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hub/api/api_options.h"
#include "hub/api/dialect.h"
#include "hub/api/jobs/completion_job.h"
#include "hub/api/refusal.h"

namespace moex {

struct MoexFields {
    bool resumable = false;      // the client may resume the stream after a disconnect
    bool stores_pages = true;    // pages of the text may be kept on disk
    bool opens_objects = false;  // AnswerForm::opens_objects
    bool stays_here = false;     // no worker computes whole layers of the answer
    ExpertMode experts{.name = "exact", .perplexity_excess = 0.0};
    LateWish late;
    std::optional<std::uint32_t> draft_tokens;  // empty: the hub's choice
    std::string pages;                          // name of a text of /v1/pages; empty: none
};

// Reads the object; a body without it has the operator's defaults. `is_stream`: the request asks
// for a stream. Refuses unknown values, and what this hub does not offer (`options`).
Checked<MoexFields> read_moex_fields(const OrderedJson& body, const ApiOptions& options,
                                     bool is_stream, Dialect dialect);

}  // namespace moex
