// Makes a package of the demo's model that agents' long prompts and tools fit: for agents.test.mjs and live_agents.mjs.
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { modelFolder } from './hub_process.mjs';

// Writes the demo's package with a context of 65,536 tokens and a template that has tools. The weights stay where they
// are. Returns the folder.
export function agentPackage(folder) {
  mkdirSync(folder);
  const changed = ['manifest.json', 'tokenizer_config.json'];
  for (const name of readdirSync(modelFolder).filter((name) => !changed.includes(name)))
    symlinkSync(resolve(modelFolder, name), join(folder, name));
  const read = (name) => JSON.parse(readFileSync(join(modelFolder, name), 'utf8'));
  const config = { ...read('tokenizer_config.json'), model_max_length: 65536,
    chat_template: readFileSync(new URL('../golden/templates/qwen3.jinja', import.meta.url), 'utf8') };
  const bytes = Buffer.from(JSON.stringify(config));
  writeFileSync(join(folder, 'tokenizer_config.json'), bytes);
  const manifest = read('manifest.json');
  manifest.config.context_tokens = 65536;
  manifest.files['tokenizer_config.json'] =
    { sha256: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length };
  writeFileSync(join(folder, 'manifest.json'), JSON.stringify(manifest));
  return folder;
}
