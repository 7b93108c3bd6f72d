// Merges up to 16 lists of a row's likeliest tokens into one.
//   @binding(0) lists  read_write  u32: input from from_word on, [num_rows, num_lists, list_words], likeliest.wgsl;
//                      output
//                                  from to_word on, [num_rows, ceil(num_lists / 16), list_words]
// Dispatch (ceil(num_lists / 16), num_rows, 1).
// CPU reference: likeliest() in tests/web-worker/decoder_twins.h; the tokens exactly, the sum within 1e-5.
//@ host_checked
//@ include likeliest.wgsl
const merged_lists: u32 = 16u;
override num_lists: u32;
override from_word: u32;
override to_word: u32;

@group(0) @binding(0) var<storage, read_write> lists: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first = group.x * merged_lists;
  let count = min(merged_lists, num_lists - first);
  let from_list = from_word + (group.y * num_lists + first) * list_words;
  for (var i = thread; i < sorted_places; i += 256u) {
    let list = i / kept;
    logit_at[i] = lowest;
    token_at[i] = no_token;
    if (list < count) {
      let place = from_list + list * list_words + 2u + 2u * (i % kept);
      logit_at[i] = bitcast<f32>(lists[place]);
      token_at[i] = lists[place + 1u];
    }
  }
  sort_places(thread);

  let to_list = to_word + (group.y * ((num_lists + merged_lists - 1u) / merged_lists) + group.x) * list_words;
  if (thread == 0u) {
    var sum = 0.0;
    var is_broken = false;
    for (var list = 0u; list < count; list += 1u) {
      let part = from_list + list * list_words;
      is_broken = is_broken || !is_number(lists[part + 1u]);
      sum += bitcast<f32>(lists[part + 1u]) * exp(bitcast<f32>(lists[part]) - logit_at[0]);
    }
    lists[to_list] = bitcast<u32>(logit_at[0]);
    lists[to_list + 1u] = select(bitcast<u32>(sum), not_a_number, is_broken);
  }
  if (thread < kept) {
    lists[to_list + 2u + 2u * thread] = bitcast<u32>(logit_at[thread]);
    lists[to_list + 3u + 2u * thread] = token_at[thread];
  }
}
