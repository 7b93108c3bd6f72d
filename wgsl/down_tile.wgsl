  // Words of a tile: blob's first word in the arena, first pair, number of pairs
  let tile = upload[place.first_tile_word] + group.y * 4u;
  let blob = upload[tile];
  let first_pair = upload[tile + 1u];
  let num_pairs = upload[tile + 2u];
  let pairs = upload[header_pairs_word];
  let chunks = moe_intermediate_size / 32u;
  let groups = chunks >> chunks_per_group_log2;
  let codes_0 = (blob + down_codes_word) / 4u + output * chunks;
//@ for i in 0..affine
  let scales_0 = blob + down_scale_zero_word + output * groups;
//@ end
//@ for i in 0..mxfp4
  let scales_0 = (blob + down_scale_zero_word) * 4u + output * groups;
//@ end
  // Rows after the tile's end repeat its last row and are not stored.
//@ for r in 0..rows
  let x_base_${r} = (first_pair + min(${r}u, num_pairs - 1u)) * (moe_intermediate_size / 4u);
//@ end
