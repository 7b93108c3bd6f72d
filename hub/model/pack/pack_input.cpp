#include "hub/model/pack/pack_input.h"

namespace moex {

std::uint64_t PackInput::expert_bytes(const ExpertSource& expert) const {
    std::uint64_t total = 0;
    for (const ExpertMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
        const TensorInfo& info = matrix->tensor->info();
        const std::uint64_t elements = std::uint64_t{config.hidden_size} * inner_size;
        total += static_cast<std::uint64_t>(static_cast<double>(info.stored_bytes) *
                                            static_cast<double>(elements) /
                                            static_cast<double>(info.num_elements()));
    }
    return total;
}

}  // namespace moex
