// `moex-hub pack --calibrate TEXT`: packs a checkpoint with INT4 experts that are quantised for a
// text, and reports what that gained.
#pragma once

#include <filesystem>
#include <string>

#include "hub/base/thread_pool.h"
#include "hub/model/pack/calibrated_quantizer.h"
#include "hub/model/pack/pack_options.h"
#include "protocol/result.h"

namespace moex {

struct CalibratedPackOptions {
    std::string text_path;
    // most tokens to read, in windows that are spread over the text; memory limits them, too
    std::uint64_t tokens_max = 65536;
    bool progress_lines = false;
    CalibratedOptions quantizer;
};

// Quantises the experts of `package`, a complete package of `checkpoint`, anew. Prints errors and
// perplexities before and after to stdout. The package's old blobs are removed. Experts whose codes
// were taken over from the checkpoint are left as they are.
Status calibrate_experts_of(const std::filesystem::path& checkpoint,
                            const std::filesystem::path& package, const PackOptions& options,
                            const CalibratedPackOptions& calibration, ThreadPool& threads);

}  // namespace moex
