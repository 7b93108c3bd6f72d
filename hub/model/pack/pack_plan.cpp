#include "hub/model/pack/pack_plan.h"

#include <set>

#include "hub/model/pack/input_reader.h"

namespace moex {

std::uint64_t PackPlan::contributors(std::uint64_t memory_bytes) const {
    const std::uint64_t fit = blob_bytes == 0 ? 0 : memory_bytes / blob_bytes;
    return fit == 0 ? 0 : (num_blobs + fit - 1) / fit;
}

namespace {

std::uint64_t hub_file_bytes(PackInput& input) {
    std::uint64_t bytes = make_safetensors_header(input.hub.entries).size();
    for (const SafetensorsEntry& entry : input.hub.entries) bytes += entry.size_bytes;
    return bytes;
}

}  // namespace

Result<PackPlan> plan_package(const std::filesystem::path& model, const PackOptions& options) {
    MOEX_ASSIGN(input, read_pack_input(model, options));
    PackPlan plan{.name = input.options.name,
                  .config = input.config,
                  .group_size = input.shape.group_size,
                  .input_bytes = input.used_bytes,
                  .blob_bytes = input.config.has_experts() ? input.layout.size_bytes : 0,
                  .warnings = input.warnings};

    std::set<const TensorReader*> used(input.hub_sources.begin(), input.hub_sources.end());
    for (const auto& layer : input.experts) {
        plan.num_blobs += layer.size();
        for (const ExpertSource& expert : layer)
            for (const ExpertMatrix* matrix : {&expert.gate, &expert.up, &expert.down}) {
                used.insert(matrix->tensor);
                auto& counts = matrix->keeps_codes ? plan.kept : plan.converted;
                ++counts[matrix->tensor->info().format];
            }
    }
    for (const TensorReader* reader : used) {
        PackPlan::Part& part = plan.formats[reader->info().format];
        ++part.tensors;
        part.bytes += reader->info().stored_bytes;
    }

    plan.hub_bytes = hub_file_bytes(input);
    if (PackInput* const head = input.draft_head.get()) {
        plan.input_bytes += head->used_bytes;
        plan.draft_head_bytes = hub_file_bytes(*head);
        for (const auto& layer : head->experts)
            plan.draft_head_bytes += layer.size() * head->layout.size_bytes;
    }
    for (const auto& [name, content] : input.texts) plan.text_bytes += content.size();
    return plan;
}

}  // namespace moex
