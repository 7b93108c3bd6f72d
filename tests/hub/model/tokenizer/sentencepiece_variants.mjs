// Makes tokenizer files of SentencePiece's kind of a byte-level tokenizer: the same words and merges over characters,
// with "▁" for a space and a token for each byte. The variants have the normalizers, pre-tokenizers, decoders and added
// tokens of Llama 2, Mistral, Gemma, T5 and XLM-R.
const space = '▁';

// The byte of each character of GPT-2's byte alphabet.
function byte_of_character() {
  const bytes = new Map();
  let next = 256;
  for (let byte = 0; byte < 256; ++byte) {
    const printable = (byte >= 33 && byte <= 126) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    bytes.set(String.fromCodePoint(printable ? byte : next++), byte);
  }
  return bytes;
}

// Returns {pieces, merges}: the pieces are strings in the order of their ids, the merges are pairs.
export function character_vocabulary(byte_level) {
  const bytes = byte_of_character();
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const text_of = (token) => {
    const known = [...token].map((c) => bytes.get(c));
    if (known.includes(undefined)) return null;
    try {
      return decoder.decode(Uint8Array.from(known)).replaceAll(' ', space);
    } catch {
      return null;
    }
  };
  const by_id = Object.entries(byte_level.model.vocab).sort((a, b) => a[1] - b[1]);
  const words = new Set(by_id.map(([token]) => text_of(token)).filter((word) => word !== null));
  for (const word of [...words]) for (const c of word) words.add(c);
  const pieces = ['<unk>', '<s>', '</s>'];
  for (let byte = 0; byte < 256; ++byte) pieces.push(`<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`);
  const merges = byte_level.model.merges.map((merge) => (Array.isArray(merge) ? merge : merge.split(' ')).map(text_of))
    .filter(([left, right]) => words.has(left) && words.has(right) && words.has(left + right));
  return { pieces: [...pieces, ...words], merges };
}

const token = (id, content, flags) => ({ id, content, single_word: false, lstrip: false, rstrip: false,
  normalized: false, special: false, ...flags });
const replace = (from, to) => ({ type: 'Replace', pattern: { String: from }, content: to });
const sequence = (name, ...parts) => ({ type: 'Sequence', [name]: parts });
const llama_normalizer = sequence('normalizers', { type: 'Prepend', prepend: space }, replace(' ', space));
const bytes_decoder = (...more) => sequence('decoders', replace(space, ' '), { type: 'ByteFallback' }, { type: 'Fuse' },
  ...more);
const strip = { type: 'Strip', content: ' ', start: 1, stop: 0 };
const metaspace = (prepend_scheme, split) => ({ type: 'Metaspace', replacement: space, prepend_scheme, split });
const template = (before, after) => ({
  type: 'TemplateProcessing', pair: [],
  single: [...before.map(([id]) => ({ SpecialToken: { id, type_id: 0 } })), { Sequence: { id: 'A', type_id: 0 } },
    ...after.map(([id]) => ({ SpecialToken: { id, type_id: 0 } }))],
  special_tokens: Object.fromEntries([...before, ...after].map(([id, number]) => [id, { id, ids: [number],
    tokens: [id] }])),
});

// Returns {name: tokenizer.json as an object}.
export function sentencepiece_variants(byte_level) {
  const { pieces, merges } = character_vocabulary(byte_level);
  const vocab = Object.fromEntries(pieces.map((piece, id) => [piece, id]));
  const bpe = (more) => ({ type: 'BPE', dropout: null, unk_token: '<unk>', continuing_subword_prefix: null,
    end_of_word_suffix: null, fuse_unk: true, byte_fallback: true, ignore_merges: false, vocab, merges, ...more });
  // Without the tokens of bytes, other scripts are unknown.
  const words = ['<unk>', '<s>', '</s>', ...pieces.slice(3 + 256)];
  const word_ids = Object.fromEntries(words.map((piece, id) => [piece, id]));
  const unigram = { type: 'Unigram', unk_id: 0, byte_fallback: false,
    vocab: words.map((piece, id) => [piece, id < 3 ? 0 : -Math.log(id) - 1.25 * (id % 7) / [...piece].length]) };
  const control = (flags) => ['<unk>', '<s>', '</s>'].map((content, id) => token(id, content,
    { special: true, ...flags }));
  const end = pieces.length;
  const more = [token(end, '<think>', {}), token(end + 1, '<|lstrip|>', { lstrip: true }),
    token(end + 2, '<|rstrip|>', { rstrip: true, special: true }), token(end + 3, 'word', { normalized: true }),
    token(end + 4, 'Ångström', { normalized: true })];
  const file = (model, parts) => ({ version: '1.0', truncation: null, padding: null, added_tokens: control(),
    normalizer: null, pre_tokenizer: null, post_processor: null, decoder: bytes_decoder(), ...parts, model });
  return {
    llama2: file(bpe(), { normalizer: llama_normalizer, decoder: bytes_decoder(strip),
      post_processor: template([['<s>', 1]], []) }),
    llama2_old: file(bpe(), { added_tokens: [...control({ normalized: true }), ...more], normalizer: llama_normalizer,
      decoder: bytes_decoder(strip) }),
    mistral: file(bpe({ ignore_merges: true }), { pre_tokenizer: metaspace('first', false), added_tokens: [...control(),
      ...more], decoder: bytes_decoder(strip) }),
    gemma: file(bpe({ merges: merges.map((merge) => merge.join(' ')) }), { normalizer: replace(' ', space),
      added_tokens: [...control(), ...more],
      pre_tokenizer: { type: 'Split', pattern: { String: ' ' }, behavior: 'MergedWithPrevious', invert: false } }),
    metaspace: file(bpe(), { pre_tokenizer: metaspace('always', true), decoder: { type: 'Metaspace',
      replacement: space, prepend_scheme: 'always', split: true } }),
    no_prefix: file(bpe(), { pre_tokenizer: metaspace('never', false), decoder: bytes_decoder() }),
    unknown: file(bpe({ byte_fallback: false, vocab: word_ids }), { normalizer: llama_normalizer,
      decoder: bytes_decoder(strip) }),
    many_unknown: file(bpe({ byte_fallback: false, fuse_unk: false, vocab: word_ids }), {
      normalizer: sequence('normalizers', { type: 'NFKC' }, { type: 'Strip', strip_left: true, strip_right: true },
        llama_normalizer) }),
    t5: file(unigram, { pre_tokenizer: metaspace('always', true), decoder: metaspace('always', true),
      normalizer: sequence('normalizers', { type: 'NFKC' }, { type: 'Replace', pattern: { Regex: ' {2,}' },
        content: ' ' }), post_processor: template([], [['</s>', 2]]) }),
    xlm: file(unigram, { decoder: metaspace('always', true), pre_tokenizer: sequence('pretokenizers',
      { type: 'WhitespaceSplit' }, metaspace('always', true)), post_processor: template([['<s>', 1]], [['</s>', 2]]) }),
    plain_letters: file(unigram, { normalizer: sequence('normalizers', { type: 'NFD' }, { type: 'StripAccents' },
      replace(' ', space)), decoder: metaspace('always', false) }),
    compatible: file(bpe(), { normalizer: sequence('normalizers', { type: 'NFKD' }, replace(' ', space)) }),
  };
}
