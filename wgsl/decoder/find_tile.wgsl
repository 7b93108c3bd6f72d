// Finds the tile of this workgroup: the tile's expert within the arena, and its pairs. Rows after the tile's end repeat
// its last pair.
//@ for i in 0..tiled
  if (group.y >= tiles[0]) {
    return;
  }
  let expert = tiles[tiles_word + group.y * tile_words] - place.first_expert;   // wraps around for an earlier expert
  let num_pairs = tiles[tiles_word + group.y * tile_words + 1u];
//@ end
//@ for i in 0..single
  let expert = tiles[2u * group.y] - place.first_expert;   // wraps around for an expert of an earlier arena
  let num_pairs = 1u;
//@ end
  if (expert >= place.num_experts) {
    return;
  }
//@ for r in 0..rows
  let pair_${r} = pair_of(group.y, min(${r}u, num_pairs - 1u));
//@ end

