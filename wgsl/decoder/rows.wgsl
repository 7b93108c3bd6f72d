// The rows of a step, as the host or the kernel that chose the last token left them (web-worker/decoder/step_rows.h).
const head_row_word: u32 = 0u;     // the first row whose logits are asked for
const num_rows_word: u32 = 1u;
const part_pages_word: u32 = 2u;   // pages that parts of attention have room for, a head and row
const chosen_word: u32 = 3u;       // how many tokens argmax_take has chosen
const rows_word: u32 = 64u;        // of each row: token, position, first entry of its sequence's page table, unused
const page_tokens: u32 = 128u;     // keys and values of so many positions lie together
