// Matrix products in integers: weights of 4, 6 or 8 bits times activations of 8 bits, in groups
// along the inputs. Within a group all sums are whole numbers and exact. Group after group, from
// the first to the last, is added to the total of its output in f32, by a formula with a fixed
// order of roundings:
//   total = total + (weight_scale · x_scale) · (sum of codes · x_codes − zero · sum of x_codes)
// No multiplication may be fused with an addition. So every instruction set and every number of
// rows and of threads gives the same bits, and a test compares each path to the portable one with
// ==.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "hub/engine/kernels/matrix.h"
#include "hub/engine/kernels/quantized_rows.h"
#include "protocol/result.h"

namespace moex {

// Memory aligned to 64 bytes. Large pieces use huge pages where the system has them. The memory is
// not cleared; the system provides a page when it is first written.
class AlignedBuffer {
  public:
    AlignedBuffer() = default;
    // Ends the process if there is not enough memory.
    explicit AlignedBuffer(std::size_t size_bytes);
    static Result<AlignedBuffer> allocate(std::size_t size_bytes);  // or no_space
    std::byte* data() const { return data_.get(); }

  private:
    struct Free {
        void operator()(std::byte* data) const;
    };
    std::unique_ptr<std::byte[], Free> data_;
};

// The outputs of a packed matrix are cut into panels of 16; the last panel is filled up with zeros.
inline constexpr std::uint32_t panel_outs = 16;

enum class PackedDtype : std::uint8_t { int8, int6, int4, mxfp4 };

// A weight matrix in panels; the memory is borrowed. It is stored panel by panel and group by group
// (int6: two groups at a time, the second of the last pair may be unused), as blocks of
// block_bytes():
//   int8   f32 scale[16]                  s8 code[group_size / 4][16][4]
//   int6   f16 scale[2][16]               u8 codes[2][group_size / 16][3][16][4]
//   int4   f16 scale[16], f16 zero[16]    u8 codes[group_size / 8][16][4]
//   mxfp4  u8 scale[16]                   u8 codes[group_size / 8][16][4]
// The dimension [16] is over outputs, [4] over neighbouring inputs. A byte of int4 has input i in
// its low half and input i + 4 in its high half. For 16 inputs in int6, byte b of the three bytes
// has input 4 b + i in its low six bits; its high two bits are bits 2 b and 2 b + 1 of input 12 +
// i. Codes of 6 bits are stored plus 32. mxfp4 has the order of int4, groups of 32, E2M1 codes and
// E8M0 scales: a code counts as twice its value, an integer, and the weight scale is 2^(scale −
// 128). Its blocks are aligned to 16 bytes, so that it takes no more room than a blob. Inputs
// beyond num_in have code 0 (and are multiplied by 0). A panel is read from its first byte to its
// last without a gap: a layout with all scales in front gave half the memory throughput.
struct PackedMatrix {
    const std::byte* data = nullptr;
    PackedDtype dtype = PackedDtype::int8;
    // outputs and inputs of the matrix; group_size is 32, 64 or 128
    std::uint32_t num_out = 0, num_in = 0, group_size = 0;

    std::uint32_t num_panels() const { return (num_out + panel_outs - 1) / panel_outs; }
    std::uint32_t num_groups() const { return (num_in + group_size - 1) / group_size; }
    std::uint32_t groups_per_block() const { return dtype == PackedDtype::int6 ? 2 : 1; }
    std::size_t group_code_bytes() const {
        const std::uint32_t bits = dtype == PackedDtype::int8   ? 8
                                   : dtype == PackedDtype::int6 ? 6
                                                                : 4;
        return std::size_t{group_size} * panel_outs * bits / 8;
    }
    std::size_t scale_bytes() const { return dtype == PackedDtype::mxfp4 ? 16 : 64; }
    std::size_t block_bytes() const {
        return scale_bytes() + groups_per_block() * group_code_bytes();
    }
    std::uint32_t num_blocks() const {
        return (num_groups() + groups_per_block() - 1) / groups_per_block();
    }
    std::size_t panel_bytes() const { return num_blocks() * block_bytes(); }
    // 0 for a matrix without values
    std::size_t size_bytes() const { return group_size > 0 ? num_panels() * panel_bytes() : 0; }
    const std::byte* panel(std::uint32_t index) const { return data + index * panel_bytes(); }
};

// Returns the group size for a matrix with `num_in` inputs: the largest of 128, 64 and 32 that
// divides num_in; 32 if none divides it.
std::uint32_t packed_group_size(std::uint32_t num_in);

// Round weights to codes and write them as the panels [panel_begin, panel_end) of `shape`. All
// members of `shape` except `data` are set. `to` has the size shape.size_bytes(). The codes are
// defined in protocol/hub_codes.h.
void pack_int8(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end);
void pack_int6(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end);
void pack_int4(std::byte* to, const PackedMatrix& shape, const WeightMatrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end);
// Write the codes, scales and zeros of a quantised matrix in panel order, without rounding; int8
// requires whole groups. pack_int4() writes mxfp4 if `from` has its scales.
void pack_int8(std::byte* to, const PackedMatrix& shape, const Int8Matrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end);
void pack_int4(std::byte* to, const PackedMatrix& shape, const Int4Matrix& from,
               std::uint32_t panel_begin, std::uint32_t panel_end);

// These functions compute the steps of an expert between and after its products. Their arithmetic
// is fixed, too: no multiplication is fused with an addition. out = gate / (1 + e^−gate) · up; out
// may be gate or up. The exponential function is defined in PROTOCOL.md.
void integer_silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up);
// sum = sum + y · factor
void integer_add_scaled(std::span<float> sum, std::span<const float> y, float factor);
namespace plain {  // slow reference versions of the two functions above
void integer_silu_mul(std::span<float> out, std::span<const float> gate, std::span<const float> up);
void integer_add_scaled(std::span<float> sum, std::span<const float> y, float factor);
}  // namespace plain

// A function that computes the product out[r][n] for all rows r and for the outputs n of the panels
// [panel_begin, panel_end).
using IntegerProduct = void (*)(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
                                std::uint32_t panel_begin, std::uint32_t panel_end);

struct IntegerProducts {
    IntegerProduct int8 = nullptr, int6 = nullptr, int4 = nullptr, mxfp4 = nullptr;
    IntegerProduct of(PackedDtype dtype) const {
        switch (dtype) {
            case PackedDtype::int8: return int8;
            case PackedDtype::int6: return int6;
            case PackedDtype::int4: return int4;
            case PackedDtype::mxfp4: break;
        }
        return mxfp4;
    }
};

// The products for one instruction set: gemv for one row, gemm for any number of rows.
struct IntegerPath {
    const char* name = nullptr;  // "AVX2"
    IntegerProducts gemv, gemm;
};

// A path (the code for one instruction set) that this program contains. integer_paths() lists the
// fastest path first and the portable path last.
struct IntegerPathChoice {
    const IntegerPath* path = nullptr;
    bool supported = false;  // true if this CPU and this operating system kernel support the path
};
std::span<const IntegerPathChoice> integer_paths();
// Returns the fastest path that this machine supports; it is determined once per process.
const IntegerPath& integer_path();

// Computes a product with the code of integer_path().
void multiply(RowsOut out, const PackedMatrix& weights, const QuantizedRows& x,
              std::uint32_t panel_begin, std::uint32_t panel_end);

}  // namespace moex
