// Groups the (row, expert) pairs of a step by expert into tiles, so that a weight is read once for up to ${rows} rows.
//   @binding(0) rows    read        u32: rows.wgsl
//   @binding(1) routes  read        u32 [num_rows, top_k, 2]: route.wgsl
//   @binding(2) tiles   read_write  u32: the number of tiles, then (tile.wgsl) the tiles, experts ascending
// Each thread takes every 256th expert and scans all pairs, which are few. Dispatch (1, 1, 1).
// CPU reference: group_pairs() in tests/web-worker/decoder_twins.h, exact.
//@ host_checked
//@ include rows.wgsl
//@ include tile.wgsl
override num_experts: u32;   // at most 1024
override top_k: u32;

@group(0) @binding(0) var<storage, read> rows: array<u32>;
@group(0) @binding(1) var<storage, read> routes: array<u32>;
@group(0) @binding(2) var<storage, read_write> tiles: array<u32>;

var<workgroup> num_tiles: array<u32, 1024>;   // number of tiles of each expert

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) thread: u32) {
  let num_pairs = rows[num_rows_word] * top_k;
  for (var expert = thread; expert < num_experts; expert += 256u) {
    var count = 0u;
    for (var pair = 0u; pair < num_pairs; pair += 1u) {
      count += select(0u, 1u, routes[2u * pair] == expert);
    }
    num_tiles[expert] = (count + tile_rows - 1u) / tile_rows;
  }
  workgroupBarrier();

  for (var expert = thread; expert < num_experts; expert += 256u) {
    var tile = 0u;
    for (var before = 0u; before < expert; before += 1u) {
      tile += num_tiles[before];
    }
    if (expert == num_experts - 1u) {
      tiles[0] = tile + num_tiles[expert];
    }
    if (num_tiles[expert] == 0u) {
      continue;
    }

    var filled = 0u;
    for (var pair = 0u; pair < num_pairs; pair += 1u) {
      if (routes[2u * pair] == expert) {
        let at = tiles_word + (tile + filled / tile_rows) * tile_words;
        let slot = filled % tile_rows;
        tiles[at] = expert;
        tiles[at + 1u] = slot + 1u;
        tiles[at + 2u + slot] = pair;
        tiles[at + 2u + tile_rows + slot] = routes[2u * pair + 1u];
        filled += 1u;
      }
    }
  }
}
