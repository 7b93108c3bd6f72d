// A tile has up to ${rows} pairs (row, expert) with the same expert. A table of tiles has for each tile: expert, number
// of pairs, the pairs, their weights as f32 bits. If every tile has one pair, the routes
// themselves are the table: expert and weight of each pair. The including file defines the binding `tiles`.
const tile_rows: u32 = ${rows}u;
//@ for i in 0..tiled
const tiles_word: u32 = 4u;                      // first word of the first tile
const tile_words: u32 = 2u + 2u * ${rows}u;

fn pair_of(tile: u32, i: u32) -> u32 {
  return tiles[tiles_word + tile * tile_words + 2u + i];
}
fn weight_of(tile: u32, i: u32) -> f32 {
  return bitcast<f32>(tiles[tiles_word + tile * tile_words + 2u + tile_rows + i]);
}
//@ end
//@ for i in 0..single
fn pair_of(tile: u32, i: u32) -> u32 {
  return tile;
}
fn weight_of(tile: u32, i: u32) -> f32 {
  return bitcast<f32>(tiles[2u * tile + 1u]);
}
//@ end
