#include "hub/engine/kernels/matmul.h"

#include <algorithm>
#include <vector>

namespace moex {
namespace {

// Number of outputs in one unit of work. unit_outs is a multiple of the outputs of every tile.
// few_unit_outs is used where units of 48 outputs would leave threads without work, or give one
// thread twice the work of another, as in a router's short matrix.
constexpr std::uint32_t unit_outs = 48, few_unit_outs = 8;
constexpr std::size_t units_per_thread_min = 4;
// The minimum number of panels in a range of a parallel loop. With 9 rows or more, three panels are
// computed together. With fewer rows, panels are computed one by one, and larger ranges would make
// the other threads wait for a thread that has three panels more.
constexpr std::uint32_t many_rows = 9;
constexpr std::size_t many_rows_panels = 3;

// Cuts the outputs of all jobs into units, distributes the units over the threads, `grain` or more
// units at a time, and calls `run(job, out_begin, out_end)` for each range of a job's outputs.
template <class Job, class Run>
void share_out(std::span<const Job> jobs, ThreadPool& threads, std::uint32_t unit_outs,
               std::size_t grain, const Run& run) {
    std::vector<std::size_t> first_unit(jobs.size() + 1, 0);
    for (std::size_t j = 0; j < jobs.size(); ++j)
        first_unit[j + 1] = first_unit[j] + (jobs[j].weights.num_out + unit_outs - 1) / unit_outs;

    threads.parallel_for(first_unit.back(), grain, [&](std::size_t begin, std::size_t end) {
        std::size_t j = static_cast<std::size_t>(
                            std::upper_bound(first_unit.begin(), first_unit.end(), begin) -
                            first_unit.begin()) -
                        1;

        for (; begin < end; ++j) {
            const std::size_t stop = std::min(end, first_unit[j + 1]);
            if (stop <= begin) continue;
            const auto out_begin = static_cast<std::uint32_t>((begin - first_unit[j]) * unit_outs);
            const auto out_end = std::min(
                jobs[j].weights.num_out,
                static_cast<std::uint32_t>((stop - first_unit[j]) * unit_outs));

            run(jobs[j], out_begin, out_end);
            begin = stop;
        }
    });
}

template <class Job>
std::uint32_t unit_outs_of(std::span<const Job> jobs, const ThreadPool& threads) {
    std::size_t num_outs = 0;
    for (const Job& job : jobs) num_outs += job.weights.num_out;
    const std::size_t enough = units_per_thread_min * threads.num_threads() * unit_outs;
    return num_outs < enough ? few_unit_outs : unit_outs;
}

}  // namespace

void matmul(std::span<const MatmulJob> jobs, ThreadPool& threads) {
    share_out(jobs, threads, unit_outs_of(jobs, threads), 1,
              [](const MatmulJob& job, std::uint32_t begin, std::uint32_t end) {
                  matmul(job.out, job.weights, job.x, begin, end);
              });
}
void matmul_int4(std::span<const Int4MatmulJob> jobs, ThreadPool& threads) {
    share_out(jobs, threads, unit_outs, 1,
              [](const Int4MatmulJob& job, std::uint32_t begin, std::uint32_t end) {
                  matmul_int4(job.out, job.weights, job.x, begin, end);
              });
}

void matmul_packed(std::span<const PackedMatmulJob> jobs, ThreadPool& threads) {
    const bool are_many = std::any_of(jobs.begin(), jobs.end(), [](const PackedMatmulJob& job) {
        return job.x.num_rows >= many_rows;
    });
    share_out(jobs, threads, panel_outs, are_many ? many_rows_panels : 1,
              [](const PackedMatmulJob& job, std::uint32_t begin, std::uint32_t end) {
                  multiply(job.out, job.weights, job.x, begin / panel_outs,
                           (end + panel_outs - 1) / panel_outs);
              });
}

QuantizedRows quantize_rows(QuantizedBuffer& buffer, RowsIn x, std::uint32_t num_in,
                            std::uint32_t group_size, ThreadPool& threads, const MakeRow& make) {
    buffer.resize(x.num_rows, num_in, group_size);
    const std::size_t row_floats = std::size_t{num_in} * (make ? 2 : 1);
    parallel_each(threads, x.num_rows, row_floats, walk_floats, [&](std::size_t r) {
        if (make) make(r);
        buffer.quantize_row(static_cast<std::uint32_t>(r), {x.data + r * x.stride, num_in});
    });
    return buffer.rows();
}

}  // namespace moex
