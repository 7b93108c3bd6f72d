// The draft head of a package: the part of a checkpoint that drafts tokens (multi-token
// prediction). It is stored as a package of its own, PACKAGE/draft_head, with one layer, and with
// these tensors instead of embeddings and LM head, which it takes from the model:
//   draft.join.weight [hidden_size, 2 * hidden_size]
//   draft.embedding_norm.weight, draft.hidden_norm.weight [hidden_size]
// The row of a token t that follows a row h of the model after its final norm:
//   x = join * concat(norm(embedding of t), norm(h)), then the layer, model.norm and the LM head
// The logits are those of the token behind t. For the token after that, h is the head's own row
// after model.norm. Keys and values of the layer belong to the head.
// Source: the mtp.* tensors of Qwen3-Next and Qwen3.5 in vLLM's qwen3_next_mtp.py.
#pragma once

#include <memory>

#include "hub/model/package/package.h"

namespace moex {

// Returns the draft head of `model`. Returns not_found if the model has none, or if its folder is
// not on this machine; another error if its manifest is not the one that the model's manifest
// names, or if it does not fit the model.
Result<std::shared_ptr<const ModelPackage>> open_draft_head(const ModelPackage& model);

}  // namespace moex
