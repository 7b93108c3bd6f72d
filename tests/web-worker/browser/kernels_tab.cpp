// The kernel cases compiled to WASM. A page starts one case after another, and gets each result
// through mx_report.
#include <emscripten.h>

#include <nlohmann/json.hpp>

#include "tests/web-worker/kernel_cases.h"
#include "web-worker/browser/bridge.h"
#include "web-worker/gpu/webgpu/webgpu_device.h"

namespace moex {
namespace {

struct Kernels {
    std::unique_ptr<gpu::Device> device;
    std::vector<KernelCase> cases = kernel_cases(false);
};
Kernels& kernels() {
    static Kernels instance;
    return instance;
}
void report(const nlohmann::json& answer) {
    const std::string json = answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    mx_report(json.data(), static_cast<int>(json.size()));
}

}  // namespace

extern "C" {

void mx_bind_heap();  // bridge_library.js: gives JavaScript access to the heap

EMSCRIPTEN_KEEPALIVE void mx_init() { mx_bind_heap(); }

// Opens the GPU. Reports {"backend", "vendor", "architecture", "description", "software",
// "num_cases"}, or {"reason"}.
EMSCRIPTEN_KEEPALIVE void mx_open() {
    gpu::open_webgpu_device([](Result<std::unique_ptr<gpu::Device>> opened) {
        if (!opened.ok()) return report({{"reason", opened.error().message}});
        kernels().device = std::move(*opened);
        const gpu::AdapterInfo& adapter = kernels().device->adapter();
        report({{"backend", adapter.backend},
                {"vendor", adapter.vendor},
                {"architecture", adapter.architecture},
                {"description", adapter.description},
                {"software", adapter.software},
                {"num_cases", kernels().cases.size()}});
    });
}

// Runs one kernel case. Reports {"name", "dtype", "error", "tolerance"}, or {"name", "reason"}.
EMSCRIPTEN_KEEPALIVE void mx_run_case(std::uint32_t index) {
    const KernelCase& one = kernels().cases.at(index);
    run_kernel_case(*kernels().device, one, [&one](Result<double> error) {
        if (!error.ok())
            return report({{"name", kernel_case_name(one)}, {"reason", error.error().message}});
        report({{"name", kernel_case_name(one)},
                {"dtype", dtype_name(one.dtype)},
                {"error", *error},
                {"tolerance", kernel_tolerance(one)}});
    });
}

}  // extern "C"

}  // namespace moex
