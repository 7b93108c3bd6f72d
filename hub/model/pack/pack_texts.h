// The texts of a package: tokenizer, chat template and sampling defaults, checked as a hub would
// open them.
#pragma once

#include "hub/model/pack/pack_input.h"

namespace moex {

// Fills in input.texts and input.generation from input.source.
Status read_pack_texts(PackInput& input);

}  // namespace moex
