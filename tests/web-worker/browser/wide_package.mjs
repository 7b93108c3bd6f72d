// Packs a tiny checkpoint of tests/golden with the demo model's tokenizer, so that it can be asked in words. Its tables
// get a row for each token of that vocabulary: one of the checkpoint's rows, with its values rotated.
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";

const demo = "static/models/demo", golden = "tests/golden";
const vocab_size = 8192, end_token = 8191, context_tokens = 512;

// Returns the rows of a table for the whole vocabulary.
function widen(bytes, [num_rows, row_size]) {
  const row_bytes = bytes.length / num_rows, value_bytes = row_bytes / row_size;
  return Buffer.concat(Array.from({ length: vocab_size }, (_, token) => {
    const row = bytes.subarray((token % num_rows) * row_bytes).subarray(0, row_bytes);
    const turn = (Math.floor(token / num_rows) % row_size) * value_bytes;
    return Buffer.concat([row.subarray(turn), row.subarray(0, turn)]);
  }));
}

function widenTables(file) {
  const header_bytes = Number(file.readBigUInt64LE(0)), data = file.subarray(8 + header_bytes);
  const tensors = JSON.parse(file.subarray(8, 8 + header_bytes)), header = {}, parts = [];
  let end = 0;
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(tensors)) {
    if (name === "__metadata__") continue;
    const bytes = data.subarray(...data_offsets), is_table = /embed_tokens|lm_head/.test(name);
    const part = is_table ? widen(bytes, shape) : bytes;
    header[name] = {
      dtype, shape: is_table ? [vocab_size, shape[1]] : shape, data_offsets: [end, end + part.length],
    };
    end += part.length;
    parts.push(part);
  }
  const json = Buffer.from(JSON.stringify(header)), length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, ...parts]);
}

// `name`: a folder of tests/golden. Returns the package's folder, below `folder`.
export function packWide(name, folder, build = process.env.MOEX_BUILD ?? "build") {
  const from = join(golden, name), to = join(folder, name.replaceAll("/", "-")), model = `${to}-package`;
  mkdirSync(to);
  writeFileSync(join(to, "model.safetensors"), widenTables(readFileSync(join(from, "model.safetensors"))));
  const config = JSON.parse(readFileSync(join(from, "config.json"), "utf8"));
  writeFileSync(join(to, "config.json"), JSON.stringify({
    ...config, vocab_size, bos_token_id: end_token, eos_token_id: end_token, pad_token_id: null,
    max_position_embeddings: Math.max(context_tokens, config.max_position_embeddings ?? 0),
  }));
  for (const file of ["tokenizer.json", "tokenizer_config.json"]) copyFileSync(join(demo, file), join(to, file));
  execFileSync(join(resolve(build), "moex-hub"), ["pack", to, model, "--name", "wide"], { stdio: "ignore" });
  return model;
}
