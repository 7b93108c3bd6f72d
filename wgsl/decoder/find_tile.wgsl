// Finds the tile of this workgroup: its expert within the arena, and its pairs. Rows after its end repeat the last
// pair.
//@ for i in 0..tiled
  if (group.y >= tiles[0]) {
    return;
  }
  let expert = tiles[tiles_word + group.y * tile_words] - place.first_expert;   // experts of earlier arenas wrap around
  let num_pairs = tiles[tiles_word + group.y * tile_words + 1u];
//@ end
//@ for i in 0..single
  let expert = tiles[2u * group.y] - place.first_expert;   // experts of earlier arenas wrap around
  let num_pairs = 1u;
//@ end
  if (expert >= place.num_experts) {
    return;
  }
//@ for r in 0..rows
  let pair_${r} = pair_of(group.y, min(${r}u, num_pairs - 1u));
//@ end

