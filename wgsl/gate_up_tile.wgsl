  // Words of a tile: blob's first word in the arena, first pair, number of pairs, row of the first pair
  let tile = upload[place.first_tile_word] + group.y * 4u;
  let blob = upload[tile];
  let first_pair = upload[tile + 1u];
  let num_pairs = upload[tile + 2u];
  let pairs = upload[header_pairs_word];
//@ include gate_up_weights.wgsl
  // Rows after the tile's end repeat its last row and are not stored.
//@ for r in 0..rows
  let x_base_${r} = upload[pairs + 2u * (first_pair + min(${r}u, num_pairs - 1u))] * (hidden_size / 4u);
//@ end
