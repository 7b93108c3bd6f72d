// Quantises a matrix to INT4 groups so that its outputs on a calibration text change least.
//
// Rounding each weight to the nearest code ignores that errors of weights add up in an output: with
// correlated inputs an error of one weight can undo that of another. So the weights of a row are
// rounded one after the other, and each error is passed on to the weights that are not rounded yet
// (Frantar et al., "GPTQ", 2022; the same as Babai's nearest plane). Inputs with large second
// moments are rounded first. Afterwards codes, scales and zeros are improved in turn, each by the
// exact minimum of the row's error with all else fixed. The codes have the form of
// quantize_int4_row(), and the result is the same on every machine.
//
// The error is measured with moments of the inputs (input_moments.h). A short text estimates them
// badly: directions that it has by chance too rarely would take all errors. So the moments are
// shrunk towards a multiple of the unit matrix, the more the fewer rows there are (Chen et al.,
// "Shrinkage Algorithms for MMSE Covariance Estimation", 2010, equation 23). Without rows the
// quantiser would treat all inputs alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hub/model/pack/input_moments.h"

namespace moex {

struct CalibratedOptions {
    double shrinkage_min = 0.01;    // share of the unit matrix, however long the text is
    std::uint32_t refinements = 3;  // rounds of better scales, zeros and codes
};

// Sums over the weights of matrices: plain squares, and squares of outputs (weighted by the inputs'
// moments), of the weights, of the error of plain rounding, and of the error of this quantiser.
struct CalibratedError {
    double squares = 0, rounding = 0, calibrated = 0;
    double output_squares = 0, output_rounding = 0, output_calibrated = 0;
    void add(const CalibratedError& other);
};

// Scale and zero of a group, as f16 stores them.
struct CalibratedGroupScale {
    float scale = 0x1p-14f, zero = 0;
};

class CalibratedQuantizer {
  public:
    // Requires moments of at least one row that is not zero.
    CalibratedQuantizer(const InputMoments& moments, const CalibratedOptions& options);

    // Quantises weights [num_rows, size] into codes [num_rows, size / 8] and scale_zero [num_rows,
    // size / group_size]. Returns false if a weight is too large for an f16 scale.
    bool quantize(std::span<const float> weights, std::uint32_t group_size, std::uint32_t* codes,
                  std::uint32_t* scale_zero, CalibratedError& error) const;

  private:
    struct RowBlock;
    void shrink(double effective_rows);
    void factor();
    void search_scales(RowBlock& block) const;
    void round_in_order(RowBlock& block) const;
    void improve_scales(RowBlock& block) const;
    void improve_codes(RowBlock& block) const;
    void find_gradient(RowBlock& block) const;

    CalibratedOptions options_;
    std::uint32_t size_;
    std::vector<float> moments_;  // [size, size], symmetric and shrunk
    // L is the lower Cholesky factor of the moments, with the inputs in the order of order_.
    std::vector<std::uint32_t> order_;    // [size]: the input that is rounded n-th from the last
    std::vector<float> passed_on_;        // [size, size]: L[j][i] / L[i][i]
    std::vector<float> rounding_weight_;  // [size]: L[i][i]² by input
};

}  // namespace moex
