// Compresses the hub's pages with brotli and gzip at their strongest settings. It writes FOLDER/<SHA-256 of the
// content>.br and .gz, each with the compressed page if that saves at least a tenth, and otherwise empty. Existing
// files are not changed.
//   usage: node compress_assets.mjs FOLDER < list of files, one a line
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

const [folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const codings = {
  br: (bytes) => brotliCompressSync(bytes, { params: {
    [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY,
    [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
  } }),
  gz: (bytes) => gzipSync(bytes, { level: constants.Z_BEST_COMPRESSION }),
};

for (const file of readFileSync(0, 'utf8').split('\n').filter(Boolean)) {
  const bytes = readFileSync(file), hash = createHash('sha256').update(bytes).digest('hex');
  for (const [suffix, compress] of Object.entries(codings)) {
    const out = join(folder, `${hash}.${suffix}`);
    if (existsSync(out)) continue;
    const smaller = compress(bytes);
    writeFileSync(`${out}.part`, smaller.length < 0.9 * bytes.length ? smaller : '');
    renameSync(`${out}.part`, out);   // a build at the same time sees a whole file or none
  }
}
