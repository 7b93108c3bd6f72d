// Layout of the rows of a step, written by the host or by the kernel that chose the last token
// (web-worker/decoder/step_rows.h).
const head_row_word: u32 = 0u;     // word with the first row for which logits are computed
const num_rows_word: u32 = 1u;
const part_pages_word: u32 = 2u;   // word with the capacity for parts of attention: pages per head and row
const chosen_word: u32 = 3u;       // word with the number of tokens that argmax_take has chosen
const rows_word: u32 = 64u;        // 4 words per row: token, position, first entry of its sequence's page table, unused
const page_tokens: u32 = 128u;     // number of positions whose keys and values share a page
