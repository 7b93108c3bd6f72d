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

Result<PackOptions> with_smallest_group(const std::filesystem::path& model,
                                        const PackOptions& options, bool may_code_hub) {
    MOEX_ASSIGN(wanted, plan_package(model, options));
    if (options.expert_dtype != ExpertDtype::int4 || wanted.num_blobs == 0 || !wanted.kept.empty())
        return options;

    PackOptions chosen = options;
    if (may_code_hub && options.hub_dtype == HubDtype::bf16) chosen.hub_dtype = HubDtype::int8;
    for (const std::uint32_t group_size : {32u, 64u, 128u}) {
        if (group_size >= wanted.group_size) break;
        chosen.group_size_max = group_size;
        MOEX_ASSIGN(plan, plan_package(model, chosen));
        if (plan.output_bytes() <= wanted.output_bytes()) return chosen;
    }
    return options;
}

}  // namespace moex
