// The tokenizer of a GGUF file: its arrays as a tokenizer.json (byte-level BPE, or SentencePiece's
// BPE and Unigram), and its chat template as a tokenizer_config.json.
#pragma once

#include "hub/model/pack/readers/gguf_file.h"
#include "hub/model/pack/readers/model_source.h"

namespace moex {

// Adds tokenizer.json and tokenizer_config.json to source.texts. A kind of tokenizer that is not
// known adds a warning, and the package then takes token ids.
void add_gguf_tokenizer(const GgufFile& file, ModelSource& source);

}  // namespace moex
