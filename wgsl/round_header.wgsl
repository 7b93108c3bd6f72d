// The upload buffer of a grouped round begins with these words (RoundHeader in web-worker/gpu/round_layout.h).
const header_num_tokens: u32 = 0u;
const header_num_answers: u32 = 1u;
const header_dtype: u32 = 2u;
const header_x_word: u32 = 3u;
const header_pairs_word: u32 = 4u;
const header_answer_starts_word: u32 = 5u;
const header_answer_pairs_word: u32 = 6u;
const header_x_dtype: u32 = 7u;
