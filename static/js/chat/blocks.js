// Finds the blocks of a streaming answer that cannot change any more. The module is pure: it works on marked's tokens.

// Returns the number of leading `tokens` of `source` that are finished. The last block may always grow. The block
// before it is finished once the last block's first line is complete: half a line ("1") may still join it ("1. another
// item").
export function numFinished(tokens, source) {
  const blocks = tokens.map((token, i) => (token.type === "space" ? -1 : i)).filter((i) => i >= 0);
  if (blocks.length < 2) return 0;
  const last = blocks.at(-1);
  const finished = tokens[last].raw.includes("\n") ? last : blocks.at(-2);

  // Callers cut `source` after the finished blocks, so `source` must begin with the raw texts of these blocks.
  let at = 0;
  for (let i = 0; i < finished; i += 1) {
    if (!source.startsWith(tokens[i].raw, at)) return 0;
    at += tokens[i].raw.length;
  }
  return finished;
}
