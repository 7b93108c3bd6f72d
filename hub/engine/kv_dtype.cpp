#include "hub/engine/kv_dtype.h"

namespace moex {

const char* kv_dtype_name(KvDtype dtype) {
    switch (dtype) {
        case KvDtype::f32: return "f32";
        case KvDtype::f16: return "f16";
        case KvDtype::int8: return "int8";
    }
    return "f32";
}

std::optional<KvDtype> parse_kv_dtype(std::string_view name) {
    for (const KvDtype dtype : {KvDtype::f32, KvDtype::f16, KvDtype::int8})
        if (name == kv_dtype_name(dtype)) return dtype;
    return std::nullopt;
}

}  // namespace moex
