// Multiplies one chunk of 4 inputs: ${rows} rows of x times ${outputs} rows of f32 weights, added to sum_ROW_WEIGHT.
// The including file defines code_WEIGHT (vec4<u32>, the weights' bits), chunk, and x_quad(x_base_ROW, quad, chunk).
//@ for r in 0..rows
let x_of_${r} = x_quad(x_base_${r}, 0u, chunk);
//@ for w in 0..outputs
sum_${r}_${w} = add_dot(bitcast<vec4<f32>>(code_${w}), x_of_${r}, sum_${r}_${w});
//@ end
//@ end
