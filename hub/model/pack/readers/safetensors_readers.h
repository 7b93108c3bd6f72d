// Readers of tensors in safetensors shards: plain numbers, and the layouts of FP8, GPTQ, AWQ and
// MXFP4. Each function checks types and shapes of all tensors that a weight consists of. Errors
// name the tensor.
//
// Source of the layouts: transformers' fine-grained FP8 and MXFP4 integrations, AutoGPTQ,
// GPTQModel, AutoAWQ.
#pragma once

#include <memory>

#include "hub/model/pack/checkpoint.h"
#include "hub/model/pack/readers/quantization.h"
#include "hub/model/pack/readers/tensor_reader.h"

namespace moex {

using Reader = std::unique_ptr<TensorReader>;
using SharedCheckpoint = std::shared_ptr<const Checkpoint>;

// Numbers as they are. A tensor with another element type gets a reader, too, whose
// info().is_readable is false.
Reader make_plain_reader(SharedCheckpoint files, const Checkpoint::Tensor& tensor);

// FP8: `weight` F8_E4M3 [..., out, in] and its scales, [..., ceil(out / block), ceil(in / block)],
// or one per row, or one. w = fp8 · scale.
Result<Reader> make_fp8_reader(SharedCheckpoint files, const Checkpoint::Tensor& weight,
                               const Checkpoint::Tensor& scales, const Quantization& quantization);

// GPTQ and AWQ: `qweight`, `qzeros` and `scales` of the module with the name `module` (which ends
// with a dot), and GPTQ's `g_idx` if there is one. The reader is named MODULE.weight, [out, in].
//   GPTQ  qweight I32 [in / 8, out], the lowest nibble is the first of eight inputs;
//         qzeros I32 [groups, out / 8]; scales [groups, out]; g_idx I32 [in], the group of an input
//   AWQ   qweight I32 [in, out / 8], whose nibble p is output (0, 2, 4, 6, 1, 3, 5, 7)[p];
//         qzeros I32 [groups, out / 8] in the same order; scales [groups, out]
Result<Reader> make_packed_int4_reader(SharedCheckpoint files, const std::string& module,
                                       const Quantization& quantization);

// MXFP4: `blocks` U8 [..., out, in / 32, 16] and `scales` U8 [..., out, in / 32]. Byte b of a block
// has element 2b in its low half and 2b + 1 in its high half. The name of the weight is `name`.
Result<Reader> make_mxfp4_reader(SharedCheckpoint files, const std::string& name,
                                 const Checkpoint::Tensor& blocks,
                                 const Checkpoint::Tensor& scales);

// Returns the error of a tensor with another type or shape than `wanted`.
Error wrong_part(const Checkpoint& files, const Checkpoint::Tensor& part,
                 const std::string& wanted);

}  // namespace moex
