// Runs moex-processor, the module that computes a whole model in a browser without WebGPU, in Node, with the files of a
// package on disk in place of the browser's files.
import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

import { BrowserText } from "../../../web-worker/local/text.js";

const page_tokens = 128;
const decoder = new TextDecoder(), encoder = new TextEncoder();
const sha256 = (bytes) => createHash("sha256").update(bytes).digest();

// Holds one model. Reports of the module are read by next(kind).
export class ProcessorModel {
  static async load(folder, build = process.env.MOEX_BUILD ?? "build") {
    const model = new ProcessorModel(folder);
    const path = join(resolve(build), "web/wasm/moex-processor.js");
    // The module is made for a worker, whose global names it expects.
    Object.assign(globalThis, { self: globalThis, location: { href: pathToFileURL(path).href } });
    const { default: create } = await import(pathToFileURL(path));
    const wasmBinary = readFileSync(path.replace(/js$/, "wasm"));
    model.wasm = await create({ mx: model.mx, wasmBinary, text: new BrowserText(), locateFile: (name) => name });
    model.wasm._mx_init();
    return model;
  }

  constructor(folder) {
    this.folder = folder;
    this.files = new Map();
    for (const name of ["manifest.json", "hub.safetensors", "tokenizer.json", "tokenizer_config.json"]) {
      const bytes = readFileSync(join(folder, name));
      this.files.set(sha256(bytes).toString("hex"), bytes);
    }
    this.reports = [];
    this.heard = () => {};
    this.pages = [];           // of the text that was kept last
    this.given = [];           // pages that the module finds
    this.shelf = null;         // {tokens, pages, states} that it finds in place of them: what another program has kept
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      this.onTurn();
      this.wasm._mx_on_turn();
    };
    this.onTurn = () => {};    // called before each turn of the module
    this.close = () => port1.close();
    const file = (hex) => this.file(decoder.decode(hex));
    this.mx = {
      copyIn: null,
      askForTurn: () => port2.postMessage(null),
      fileSize: (hex) => file(hex)?.length ?? -1,
      readFile: (hex, offset, to) => {
        to.set(file(hex).subarray(offset, offset + to.length));
        return to.length;
      },
      report: (json) => {
        this.reports.push(JSON.parse(decoder.decode(json)));
        this.heard();
      },
      findPages: (tokens, first_page) => { this.givePages(tokens, first_page); },
      keepPages: (turn, tokens, states) => { this.kept = { turn, tokens, states }; },
      pageRead: (bytes) => { this.heardPage(bytes); },
    };
  }

  file(hex) {
    const path = join(this.folder, "weights", hex);
    if (!this.files.has(hex) && existsSync(path)) this.files.set(hex, readFileSync(path));
    return this.files.get(hex);
  }

  withBytes(bytes, f) {
    const address = this.wasm._malloc(bytes.length) >>> 0;
    this.mx.copyIn(bytes, address);
    const result = f(address, bytes.length);
    this.wasm._free(address);
    return result;
  }
  withText(text, f) { return this.withBytes(encoder.encode(text), f); }

  // Resolves to the next report of one of `kinds`; texts before it are added to `this.text`.
  async next(...kinds) {
    for (;;) {
      for (let report = this.reports.shift(); report; report = this.reports.shift()) {
        if (report.text !== undefined) this.text += report.text;
        if (kinds.some((kind) => report[kind] !== undefined)) return report;
        if (report.failed || report.refused) throw new Error(JSON.stringify(report));
      }
      await new Promise((go) => { this.heard = go; });
    }
  }

  // Opens the model with all its layers. Resolves to {ready} or {failed}.
  async open({ context_tokens_max = 4096, memory_bytes = 2 ** 30 } = {}) {
    const hash = (names) => sha256(Buffer.concat(names.map((name) => readFileSync(join(this.folder, name)))))
      .toString("hex");
    this.withText(hash(["manifest.json"]) + hash(["tokenizer.json", "tokenizer_config.json"]),
      (address, size) => this.wasm._mx_local_open(address, size, context_tokens_max, 1, memory_bytes));
    const opened = await this.next("opened", "failed");
    if (opened.failed) return opened;
    const { experts } = JSON.parse(readFileSync(join(this.folder, "manifest.json"), "utf8"));
    experts.forEach((_, layer) => this.wasm._mx_local_layer(layer));
    return this.next("ready", "failed");
  }

  // Resolves to {text, ...figures}.
  async answer(body) {
    this.text = "";
    this.withText(JSON.stringify(body), (address, size) => this.wasm._mx_local_ask(address, size));
    const { ended } = await this.next("ended");
    return { text: this.text, ...ended };
  }
  cancel() { this.wasm._mx_local_cancel(); }

  // Resolves to the pages of the text that was kept last, each as {before, bytes}.
  async readPages() {
    const { tokens } = this.kept, pages = [];
    for (let first = 0; first < tokens.length; first += page_tokens) {
      pages.push(await this.readPage(first / page_tokens, tokens.length, false));
    }
    return pages;
  }
  // Resolves to the recurrent states that the module has chosen, each as {before, bytes, end}.
  async readStates() {
    const states = [];
    for (const end of this.kept.states) {
      const page = Math.ceil(end / page_tokens) - 1;
      states.push({ end, ...await this.readPage(page, end, true) });
    }
    return states;
  }
  async readPage(index, num_tokens, is_state) {
    const { turn, tokens } = this.kept;
    const before = sha256(new Uint8Array(tokens.slice(0, index * page_tokens).buffer));
    const reading = new Promise((resolve_) => { this.heardPage = resolve_; });
    this.withBytes(before, (address, size) => (
      this.wasm._mx_read_page(address, size, turn, index, num_tokens, is_state)));
    return { before, bytes: await reading };
  }
  // Of `shelf`, as page_files.js does: the pages before the newest state that the text goes on from, then that state.
  ofShelf(tokens, first_page) {
    const { tokens: kept, pages, states } = this.shelf;
    const differs = tokens.findIndex((token, i) => token !== kept[i]);
    const common = Math.min(differs < 0 ? tokens.length : differs, tokens.length - 1);
    const state = states.findLast(({ end }) => end <= common);
    return state ? [...pages.slice(first_page, Math.ceil(state.end / page_tokens)), state] : [];
  }
  async givePages(tokens, first_page) {
    await null;                // never inside of the call
    for (const { before, bytes } of this.shelf ? this.ofShelf(tokens, first_page) : this.given.slice(first_page)) {
      const taken = this.withBytes(Buffer.concat([before, bytes]),
        (address, size) => this.wasm._mx_on_page(address, size, 0));
      if (taken < 2) break;
    }
    this.wasm._mx_on_pages_end();
  }
}
