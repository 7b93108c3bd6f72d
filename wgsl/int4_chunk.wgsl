// Multiplies one chunk of 32 inputs: ${rows} rows of x times ${outputs} rows of weights, added to sum_ROW_WEIGHT.
// The including file defines code_WEIGHT (var, vec4<u32>), scale_zero_WEIGHT (u32), chunk, and x_quad(x_base_ROW, quad,
// chunk).
// If a tile of eight rows has at most ${sure_rows} pairs (`num_pairs`), the rows after the first ${sure_rows} are
// skipped. Zeros are factored out: sum of (code - zero) * x = sum of code * x - zero * sum of x. A code is unpacked
// once for all rows.
// `mxfp4`: codes have values and no zero; scale_zero_WEIGHT is the scale's byte (mxfp4.wgsl).
//@ for r in 0..rows
//@ for i in 0..affine
var total_${r} = 0.0;
//@ end
//@ for w in 0..outputs
var dot_${r}_${w} = 0.0;
//@ end
//@ end
for (var quad = 0u; quad < 8u; quad += 2u) {
//@ for w in 0..outputs
//@ for i in 0..affine
  let low_${w} = low_nibbles(code_${w}.x);
  let high_${w} = high_nibbles(code_${w}.x);
//@ end
//@ for i in 0..mxfp4
  let low_${w} = low_mxfp4(code_${w}.x);
  let high_${w} = high_mxfp4(code_${w}.x);
//@ end
  code_${w} = code_${w}.yzwx;
//@ end
//@ for r in 0..sure_rows
  let x_low_${r} = x_quad(x_base_${r}, quad, chunk);
  let x_high_${r} = x_quad(x_base_${r}, quad + 1u, chunk);
//@ for i in 0..affine
  total_${r} += sum_of(x_low_${r}) + sum_of(x_high_${r});
//@ end
//@ for w in 0..outputs
  dot_${r}_${w} = add_dot(high_${w}, x_high_${r}, add_dot(low_${w}, x_low_${r}, dot_${r}_${w}));
//@ end
//@ end
//@ for branch in 0..branches
  if (num_pairs > ${sure_rows}u) {  // the condition is uniform over the workgroup
//@ for r in sure_rows..rows
    let x_low_${r} = x_quad(x_base_${r}, quad, chunk);
    let x_high_${r} = x_quad(x_base_${r}, quad + 1u, chunk);
//@ for i in 0..affine
    total_${r} += sum_of(x_low_${r}) + sum_of(x_high_${r});
//@ end
//@ for w in 0..outputs
    dot_${r}_${w} = add_dot(high_${w}, x_high_${r}, add_dot(low_${w}, x_low_${r}, dot_${r}_${w}));
//@ end
//@ end
  }
//@ end
}
//@ for w in 0..outputs
//@ for i in 0..affine
let scale_${w} = unpack2x16float(scale_zero_${w});
//@ for r in 0..rows
sum_${r}_${w} = fma(scale_${w}.x, fma(-scale_${w}.y, total_${r}, dot_${r}_${w}), sum_${r}_${w});
//@ end
//@ end
//@ for i in 0..mxfp4
let scale_${w} = mxfp4_factor(scale_zero_${w});
//@ for r in 0..rows
sum_${r}_${w} = fma(scale_${w}, dot_${r}_${w}, sum_${r}_${w});
//@ end
//@ end
//@ end
