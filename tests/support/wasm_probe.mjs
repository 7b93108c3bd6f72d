// Sends requests to text_node.cpp, as NativeProbe does to text_probe: tokenizer and template in WASM, with this
// engine's RegExp and Unicode. The caller passes the bytes, since the loader of emcc 3.1.6 would fetch() a path.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join, resolve } from 'node:path';
import { BrowserText } from '../../web-worker/local/text.js';

export class WasmProbe {
  // `folder` is the folder web-tests of the build.
  static async open(folder) {
    const path = join(resolve(folder), 'moex-text.js');
    const create = createRequire(import.meta.url)(path);
    const probe = new WasmProbe();
    probe.wasm = await create({ wasmBinary: readFileSync(path.replace(/js$/, 'wasm')), text: new BrowserText() });
    return probe;
  }
  async ask(request) {
    const sent = { ...request };
    for (const file of ['json', 'config'])
      if (file in sent) sent[file] = sent[file] === '' ? '' : readFileSync(sent[file], 'utf8');
    const { _malloc, _free, _text_answer, stringToUTF8, UTF8ToString } = this.wasm;
    const json = JSON.stringify(sent);
    const size = Buffer.byteLength(json) + 1;
    const at = _malloc(size);
    stringToUTF8(json, at, size);
    const answer = UTF8ToString(_text_answer(at));
    _free(at);
    return JSON.parse(answer);
  }
  close() {}
}
