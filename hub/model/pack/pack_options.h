// The options of `moex-hub pack` and synth, their progress and their report.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/hub_codes.h"
#include "protocol/tensor_format.h"

namespace moex {

struct PackOptions {
    ExpertDtype expert_dtype = ExpertDtype::int4;
    // true: experts that the checkpoint has in MXFP4 keep it where `expert_dtype` is int4
    bool keeps_mxfp4 = true;
    std::uint32_t group_size_max = 128;
    std::string name;  // name of the model; empty: name of the checkpoint's folder
    // true: tensors of the hub that are not bf16 in the checkpoint are stored as f32, which keeps
    // every bit; false: as bf16
    bool hub_f32 = false;
    // Format of the hub's matrices in the package: unchanged, or codes. The int8 codes equal those
    // that a hub with int8 arithmetic computes when it loads an unquantised package. With int4,
    // embeddings and LM head still have 8 bits.
    HubDtype hub_dtype = HubDtype::bf16;
    // true: an expert matrix that is not stored in INT4 groups of the package's form is an error,
    // so that nothing is quantised (again)
    bool keep_format = false;
};
// Precision lost by weights that were quantised in the model's files and again by `pack`.
struct PackLoss {
    double squares = 0, error_squares = 0;  // sums of squared weights and of squared errors
    std::uint64_t num_matrices = 0;
    double worst_nmse = 0;
    std::string worst;  // tensor with the largest normalised mean squared error
    double nmse() const { return squares > 0 ? error_squares / squares : 0; }
};
struct PackLosses {
    std::map<std::string, PackLoss> requantized;  // key: kind of tensor, "experts.up_proj (FP8)"
    std::map<std::string, std::uint64_t> kept;  // number of matrices copied bit for bit, by format
};
struct PackProgress {
    std::uint64_t done_bytes = 0, total_bytes = 0;  // tensor bytes of the checkpoint: read; all
    std::uint32_t layer = 0, num_layers = 0;
};
struct PackReport {
    std::uint64_t input_bytes = 0, output_bytes = 0;
    std::uint32_t num_blobs = 0, layers_resumed = 0;
    PackLosses losses;  // only for layers that this call packed, without resumed layers
    // sentences, e.g. that a package of a checkpoint without tokenizer accepts token ids only
    std::vector<std::string> warnings;
};

}  // namespace moex
