// PackInput: what `pack` will read and write, found before the first weight is read. All tensors
// are there with the right shapes, the texts are valid, and the form of every matrix in the package
// is chosen.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hub/model/families.h"
#include "hub/model/pack/expert_source.h"
#include "hub/model/pack/hub_codes_writer.h"
#include "hub/model/pack/pack_options.h"
#include "hub/model/pack/readers/model_source.h"
#include "hub/model/package/generation_defaults.h"
#include "protocol/tensor_format.h"

namespace moex {

struct PackInput {
    ModelSource source;
    ModelConfig config;
    const Family* family = nullptr;  // never null
    PackOptions options;
    ExpertShape shape;
    // Width of the model's experts. shape.moe_intermediate_size is the next multiple of 32; the
    // further rows and columns are zero and change no result.
    std::uint32_t inner_size = 0;
    ExpertBlobLayout layout;
    std::vector<HubTensorSpec> hub_specs;
    std::vector<const TensorReader*> hub_sources;  // [hub_specs.size()]
    std::vector<TensorDtype> hub_dtypes;           // [hub_specs.size()]; bf16 or f32
    HubEntries hub;
    // [num_layers][num_experts]: where each expert's weights are stored; empty for a dense layer
    std::vector<std::vector<ExpertSource>> experts;
    std::map<std::string, std::string> texts;
    GenerationDefaults generation;
    std::vector<std::string> warnings;
    std::uint64_t used_bytes = 0;  // bytes of the model's tensors that `pack` reads
    // the head that drafts tokens, as a package of its own (draft_head_input.h); null: none
    std::unique_ptr<PackInput> draft_head;
    std::string identity;  // text of .pack-state/input, which names the input of a pack run

    // Returns how many bytes of the model's tensors are read to pack `expert`.
    std::uint64_t expert_bytes(const ExpertSource& expert) const;
};

}  // namespace moex
