// Reads how a checkpoint makes embeddings: modules.json of sentence-transformers, and the
// config.json of its pooling module.
#pragma once

#include "hub/model/pack/readers/model_source.h"

namespace moex {

// Fills in source.embedding if the folder has a modules.json. A pooling that the hub cannot compute
// is refused by name; another module that is left out gives a warning.
Status read_embedding_modules(ModelSource& source);

}  // namespace moex
