// The kernels against expert_reference in double: one list of
// cases, run natively on Vulkan and, compiled to WASM, in Chromium.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "web-worker/expert_runner.h"

namespace moex {

struct KernelCase {
    const char* shape_name = "";
    ExpertShape shape;
    std::uint32_t num_tokens = 1;
    Dtype dtype = Dtype::f32;
    bool unsummed = false;
    // the three published kernels on one expert; otherwise a group of two experts with uneven rows
    bool published = false;
    // the same bits for every row alone and in company, in one arena and in several, by lanes and
    // by threads; `num_tokens` rows, and the error is the number of answers that differ
    bool bits = false;
    RoundKernels kernels = RoundKernels::by_adapter;
    bool x_int8 = false;  // x alone, `dtype` is that of the answer
    Dtype x_dtype() const { return x_int8 ? Dtype::int8 : dtype; }
};
std::string kernel_case_name(const KernelCase& one);
double kernel_tolerance(const KernelCase& one);  // normalised RMS error; bits: none

// `wide`: the shapes of large models at every size asked for, and the small ones by lanes and by
// threads; otherwise what a software browser adapter does in a minute.
std::vector<KernelCase> kernel_cases(bool wide);

// Runs one case on `device`; the value is its error.
void run_kernel_case(gpu::Device& device, const KernelCase& one,
                     std::function<void(Result<double>)> done);

}  // namespace moex
