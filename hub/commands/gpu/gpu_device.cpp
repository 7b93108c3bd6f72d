#include "hub/commands/gpu/gpu_device.h"

namespace moex {

Result<std::unique_ptr<gpu::Device>> open_gpu_device(const std::string& name,
                                                     gpu::PostFunction post, bool stay_awake) {
    const bool any = name == "auto";
    auto opened = gpu::open_vulkan_device(
        {.device = any ? "" : name,
         .stay_awake = stay_awake ? gpu::StayAwake::alone : gpu::StayAwake::never},
        std::move(post));
    if (!opened.ok())
        return any ? Error{ErrorCode::unavailable, opened.error().message} : opened.error();
    if (any && (*opened)->adapter().software)
        return Error{ErrorCode::unavailable,
                     text("no GPU here but ", (*opened)->adapter().description,
                          ", which is software; name it to use it")};
    (*opened)->set_owner_answers(true);
    return opened;
}

KvKind kv_kind_of(KvDtype dtype) {
    return dtype == KvDtype::f32 ? KvKind::f32 : dtype == KvDtype::f16 ? KvKind::f16 : KvKind::u8;
}

std::uint64_t megabytes(std::uint64_t bytes) { return (bytes + (1u << 20) - 1) >> 20; }

Status check_memory(const gpu::AdapterInfo& adapter, const DecoderMemory::Needs& needs,
                    std::uint64_t there_bytes) {
    if (there_bytes == 0 || needs.all() <= there_bytes) return {};
    return Error{ErrorCode::no_space,
                 text("the model wants ", megabytes(needs.all()), " MB of ", adapter.description,
                      " (", megabytes(needs.weights), " of weights, ", megabytes(needs.kv),
                      " of keys and values, ",
                      needs.states > 0 ? text(megabytes(needs.states), " of recurrent states, ")
                                       : std::string(),
                      megabytes(needs.step), " to compute with), ", megabytes(there_bytes),
                      " MB are there")};
}

}  // namespace moex
