#include "hub/engine/kernels/integer_paths.h"

#include <algorithm>
#include <vector>

#include "protocol/check.h"

namespace moex {

std::span<const IntegerPathChoice> integer_paths() {
    static const std::vector<IntegerPathChoice> paths = [] {
        std::vector<IntegerPathChoice> found;
#if defined(__x86_64__)
        found = {{&integer_amx(), integer_amx_supported()},
                 {&integer_avx512_vnni(), integer_avx512_vnni_supported()},
                 {&integer_avx_vnni(), integer_avx_vnni_supported()},
                 {&integer_avx2(), integer_avx2_supported()}};
#endif
#if defined(__wasm_simd128__)
        found = {{&integer_wasm(), true}};
#endif
        found.push_back({&integer_portable(), true});
        return found;
    }();
    return paths;
}

const IntegerPath& integer_path() {
    static const IntegerPath& best = *std::find_if(integer_paths().begin(), integer_paths().end(),
                                                   [](const IntegerPathChoice& choice) {
                                                       return choice.supported;
                                                   })
                                          ->path;
    return best;
}

void multiply(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
              std::uint32_t panel_begin, std::uint32_t panel_end) {
    MOEX_DCHECK(x.group_size == weights.group_size && x.num_groups == weights.num_groups(),
                "rows were quantised for another matrix");
    const IntegerPath& path = integer_path();
    const IntegerProducts& products = x.num_rows == 1 ? path.gemv : path.gemm;
    products.of(weights.dtype)(out, weights, x, panel_begin, panel_end);
}

}  // namespace moex
