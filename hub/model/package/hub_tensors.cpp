#include "hub/model/package/hub_tensors.h"

namespace moex {

std::optional<TensorDtype> codes_dtype(const HubTensorSpec& spec, HubDtype hub_dtype) {
    if (hub_dtype == HubDtype::bf16 || spec.precise || spec.shape.size() != 2) return std::nullopt;
    return hub_dtype == HubDtype::int8 || spec.is_table ? TensorDtype::int8 : TensorDtype::int4;
}

CodesLayout codes_layout(const HubTensorSpec& spec, TensorDtype dtype) {
    const std::uint64_t num_out = spec.shape[0], num_in = spec.shape[1];
    CodesLayout layout{.row_size = static_cast<std::uint32_t>(num_in)};
    if (dtype == TensorDtype::int8) {
        layout.group_size = int8_group_size(layout.row_size);
        layout.codes = {spec.name, TensorDtype::int8, {num_out, num_in}};
        layout.scales = {
            spec.name + ".scale", TensorDtype::f32, {num_out, num_in / layout.group_size}};
    } else {
        layout.group_size = hub_int4_group_size;
        layout.codes = {spec.name, TensorDtype::int4, {num_out, num_in / 2}};
        layout.scales = {
            spec.name + ".scale_zero", TensorDtype::f16, {num_out, num_in / layout.group_size, 2}};
    }
    return layout;
}

Status check_rows_for_codes(const ModelConfig& config) {
    for (const HubTensorSpec& spec : hub_tensor_specs(config))
        if (codes_dtype(spec, HubDtype::int8) && spec.shape[1] % 32 != 0)
            return Error{ErrorCode::unsupported,
                         text(spec.name, " is ", shape_text(spec.shape), " (", spec.shape_words,
                              "): --hub-dtype int8 and int4 want rows that are multiples of 32")};
    return {};
}

}  // namespace moex
