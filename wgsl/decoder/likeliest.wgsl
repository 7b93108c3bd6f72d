// A list of the likeliest tokens: sorted by descending logit, on ties the lower token first, with the sum of exp() over
// all logits. A list is u32: the peak as f32 bits, the sum of exp(logit - peak) as f32 bits (a NaN if a logit is not a
// number), then ${kept} times {logit as f32 bits, token}. Entries without a candidate have the token 0xffffffff.
const kept: u32 = ${kept}u;
const list_words: u32 = ${list_words}u;   // words of a list: 2 + 2 * kept
const sorted_places: u32 = 1024u;
const lowest: f32 = -3.4028234e38;
const no_token: u32 = 0xffffffffu;
const not_a_number: u32 = 0x7fc00000u;

var<workgroup> logit_at: array<f32, 1024>;
var<workgroup> token_at: array<u32, 1024>;

// Returns false for infinity and NaN. It tests the bits, because a compiler may assume that all floats are finite.
fn is_number(bits: u32) -> bool {
  return (bits & 0x7f800000u) != 0x7f800000u;
}

// Sorts the entries of logit_at and token_at with a bitonic sorter (Batcher, "Sorting networks and their applications",
// 1968).
fn sort_places(thread: u32) {
  for (var run = 2u; run <= sorted_places; run <<= 1u) {
    for (var reach = run >> 1u; reach > 0u; reach >>= 1u) {
      workgroupBarrier();
      for (var i = thread; i < sorted_places / 2u; i += 256u) {
        let a = (i / reach) * 2u * reach + i % reach;
        let b = a + reach;
        let falling = (a & run) == 0u;
        let b_first = logit_at[b] > logit_at[a] || (logit_at[b] == logit_at[a] && token_at[b] < token_at[a]);
        if (b_first == falling) {
          let logit = logit_at[a];
          let token = token_at[a];
          logit_at[a] = logit_at[b];
          token_at[a] = token_at[b];
          logit_at[b] = logit;
          token_at[b] = token;
        }
      }
    }
  }
  workgroupBarrier();
}
