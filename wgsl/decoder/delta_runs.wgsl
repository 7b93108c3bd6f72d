// Layout of the runs of a step: for each sequence, its rows of consecutive positions, in layers with a gated delta rule
// (DeltaRun in web-worker/decoder/step_rows.h). Included where `runs` is the buffer of their words.
// A slot has the state of a text after some number of tokens. A run reads the slot from_slot; replays rows from its
// journal, which are behind that slot's state and were computed in earlier steps; and computes the rows of the step. On
// the way it stores up to two states. The journal has inputs of rows that may be rolled back, at position %
// journal_rows.
const run_words: u32 = 16u;
const from_slot_word: u32 = 0u;      // no_slot: the text begins, with zeros
const to_slot_word: u32 = 1u;        // two slots to store to
const store_after_word: u32 = 3u;    // rows until each of them is stored, replayed ones included; 0: never
const journal_word: u32 = 5u;
const position_word: u32 = 6u;       // number of tokens of from_slot, and position of the first replayed row
const num_replayed_word: u32 = 7u;
const num_rows_word: u32 = 8u;
const first_row_word: u32 = 9u;      // the step's rows from here on, num_first of them, then those from next_row on
const num_first_word: u32 = 10u;
const next_row_word: u32 = 11u;
const mixed_at_word: u32 = 12u;      // place of the run's rows, replayed ones first, among the rows of all runs
const keeps_rows_word: u32 = 13u;    // 1: the step's rows are written to the journal
const no_slot: u32 = 4294967295u;
const journal_rows: u32 = 18u;       // rows that are replayed, and those of a step that may be rolled back

// Returns the row of the step that is row `index` of a run.
fn step_row(run: u32, index: u32) -> u32 {
  let num_first = runs[run + num_first_word];
  return select(runs[run + next_row_word] + index - num_first, runs[run + first_row_word] + index, index < num_first);
}
// Returns the row of the journals for row `index` of a run, replayed rows included.
fn journal_row(run: u32, index: u32) -> u32 {
  return runs[run + journal_word] * journal_rows + (runs[run + position_word] + index) % journal_rows;
}
