// Finds the head of a checkpoint that drafts tokens (hub/model/package/draft_head.h), to pack it
// beside the model.
#pragma once

#include <memory>
#include <optional>

#include "hub/model/pack/pack_input.h"

namespace moex {

// Returns the configuration of a head of the model, whose layer is like the model's last one with
// keys, or nullopt if no layer has keys.
std::optional<ModelConfig> draft_head_config(const ModelConfig& model);

// Moves the tensors mtp.* of `model` into an input of their own, under the names of a package:
//   mtp.layers.0.X                                     model.layers.0.X
//   mtp.norm.weight                                    model.norm.weight
//   mtp.fc.weight                                      draft.join.weight
//   mtp.pre_fc_norm_embedding, mtp.pre_fc_norm_hidden  draft.embedding_norm, draft.hidden_norm
// The result has source, configuration, shape and options. Its tensors are neither arranged nor
// looked for yet.
// Returns null if the checkpoint has no head, or one that this program does not compute: of more
// than one layer, with embeddings of its own, or of a model without a layer with keys. Its tensors
// then stay where they are.
std::unique_ptr<PackInput> take_draft_head(PackInput& model);

}  // namespace moex
