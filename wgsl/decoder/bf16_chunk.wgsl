// Multiplies one chunk of 8 inputs: ${rows} rows of x times ${outputs} rows of bf16 weights, added to sum_ROW_WEIGHT.
// The including file defines code_WEIGHT (vec4<u32>, two weights a word), chunk, and x_quad(x_base_ROW, quad, chunk).
//@ for r in 0..rows
let x_low_${r} = x_quad(x_base_${r}, 0u, chunk);
let x_high_${r} = x_quad(x_base_${r}, 1u, chunk);
//@ end
//@ for w in 0..outputs
let low_${w} = bf16_quad(code_${w}.xy);
let high_${w} = bf16_quad(code_${w}.zw);
//@ for r in 0..rows
sum_${r}_${w} = add_dot(high_${w}, x_high_${r}, add_dot(low_${w}, x_low_${r}, sum_${r}_${w}));
//@ end
//@ end
