// Holds the span that the hub assigns: fetches the blobs of its layers and experts, loads them on
// the GPU, reports the span ready, and answers its steps in the order of their arrival.
//   SPAN_ASSIGN -> blobs of the layers -> layer by layer: blobs of its experts, then to the GPU ->
//   measured -> SPAN_READY
// A worker holds one span. Another SPAN_ASSIGN replaces it.
#pragma once

#include <memory>

#include "web-worker/span_host.h"

namespace moex {

std::unique_ptr<SpanHost> make_span_worker(SpanContext context);

}  // namespace moex
