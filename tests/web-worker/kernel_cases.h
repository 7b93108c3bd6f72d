// Cases that compare the kernels with expert_reference in double. The same list runs natively on
// Vulkan and, compiled to WASM, in Chromium.
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
    // True: the case runs the three published kernels on one expert. False: it runs a group of two
    // experts with different numbers of rows.
    bool published = false;
    // True: the case checks that every row has the same bits alone and with other rows, with one
    // arena and with several, by lanes and by threads. Its error is then the number of answers that
    // differ.
    bool bits = false;
    RoundKernels kernels = RoundKernels::by_adapter;
    bool x_int8 = false;  // the dtype of x on the wire; `dtype` is the answer's dtype
    Dtype x_dtype() const { return x_int8 ? Dtype::int8 : dtype; }
};
std::string kernel_case_name(const KernelCase& one);
// The largest normalised RMS error that passes; 0 for cases that compare bits.
double kernel_tolerance(const KernelCase& one);

// Returns the cases. If `wide`, they include the shapes of large models at every size, and the
// small shapes by lanes and by threads. Otherwise they are only the cases that a software adapter
// in a browser computes in a minute.
std::vector<KernelCase> kernel_cases(bool wide);

// Runs one case on `device`. `done` gets the error that the case measured.
void run_kernel_case(gpu::Device& device, const KernelCase& one,
                     std::function<void(Result<double>)> done);

}  // namespace moex
