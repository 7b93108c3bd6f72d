// The pages of keys and values that the model in this worker takes from the browser's files and gives to them
// (kept_pages.js). The model never waits for a file that does not come: each call ends, and without files it computes
// every token. Reports of onChange(): {is_on, bytes, bytes_max}, with `trouble`: "" | "full" | "failed", and `message`;
// `session` for a conversation after its pages have changed: {conversation, model, pages: their number, expires_at}.
import { KeptPages, state_end } from "./kept_pages.js";
import { bounded } from "./storage.js";

export const page_tokens = 128;
const hash_bytes = 32;
const find_ms_max = 15000;      // a question waits so long for its pages, then its tokens are computed

// Returns the SHA-256 of the first `num` tokens, each as a little-endian u32.
export async function hashOf(tokens, num) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", tokens.slice(0, num)));
}

// Connects one model with its pages.
export class PageFiles {
  // `wasm`: the functions takePage(before, page), endOfPages(), readPage(before, turn, index, num_tokens, is_state) and
  // readHeldPage(before, index, num_tokens, as_u8), of which the last two answer by given().
  // `goOn(tokens)`, if given, runs after the device's own pages and before endOfPages().
  constructor(wasm, onChange, goOn = async () => {}) {
    this.wasm = wasm;
    this.onChange = onChange;
    this.goOn = goOn;
    this.pages = null;
    this.wishes = 0;             // number of calls of remember()
    this.opened = Promise.resolve();
    this.conversation = "";      // of the question that is being answered
    this.forgotten = new Set();  // conversations that were deleted
    this.turn = 0;
    this.give = () => {};        // takes the page that readPage() asked for
    this.work = Promise.resolve();
  }

  // Begins to keep pages, for which the user has agreed, or ends it. `model`: the name of the pages' source.
  remember(is_on, model) {
    this.pages?.close();
    this.pages = null;
    this.wishes += 1;
    this.opened = is_on ? this.open(model, this.wishes) : Promise.resolve(this.onChange({ is_on: false }));
  }
  async open(model, wish) {
    try {
      const opened = await KeptPages.open(model);
      if (wish !== this.wishes) return opened.close();
      this.pages = opened;
      return await this.tell();
    } catch (error) { return wish === this.wishes && this.tell("failed", error); }
  }
  get is_on() { return this.pages !== null && !this.pages.is_closed; }

  async tell(trouble = "", error = null, conversation = "") {
    const { pages, wishes } = this;
    const bytes = trouble === "failed" ? 0 : await pages.bytes();
    const session = conversation ? { session: await pages.sessionOf(conversation) } : {};
    if (wishes !== this.wishes) return;      // the user has changed their mind meanwhile
    this.onChange({
      is_on: true, bytes, bytes_max: pages?.bytes_max ?? 0, trouble, message: error?.message ?? "", ...session,
    });
  }

  // ---- pages for a question

  // Begins a question of `conversation`.
  begin(conversation) {
    this.conversation = conversation;
    this.forgotten.delete(conversation);      // it was deleted, and the deletion was taken back
  }

  // Gives the model the pages of `tokens` from page `first_page` on. For a model with recurrent states, these are the
  // pages before the newest state, and that state, if it is after more than `state_after` tokens; null: other models.
  async find(tokens, first_page, state_after = null) {
    this.turn += 1;              // pages of the text before are not kept any more
    let has_ended = false;
    try {
      await bounded("pages", async () => {
        await this.opened;
        const isWanted = () => !has_ended;
        if (!this.is_on) return;
        if (state_after === null) await this.giveChain(tokens, first_page, isWanted);
        else await this.giveToState(tokens, first_page, state_after, isWanted);
      }, find_ms_max);
    } catch (error) { this.tell("failed", error); }
    has_ended = true;
    try {
      await this.goOn(tokens);
    } finally {
      this.wasm.endOfPages();
    }
  }
  async giveChain(tokens, first_page, isWanted) {
    const used = [];
    for (let page = first_page; page * page_tokens < tokens.length; page += 1) {
      const before = await hashOf(tokens, page * page_tokens);
      const is_whole = (page + 1) * page_tokens <= tokens.length;
      const end = is_whole ? await hashOf(tokens, (page + 1) * page_tokens) : null;
      let taken = "";
      for (const name of await this.pages.names(before, end)) {
        const bytes = await this.pages.read(name);
        if (!isWanted()) return;
        taken = bytes ? this.wasm.takePage(before, bytes) : "refused";
        if (taken === "refused") await this.pages.remove([name]);
        else used.push(name);
        if (taken === "wholly") break;
      }
      if (taken !== "wholly") break;
    }
    await this.pages.use(used, this.conversation);
  }

  // Without a state behind them, pages are of no use, so that none is read then. The text's last token is computed in
  // any case, so that no state is behind it.
  async giveToState(tokens, first_page, state_after, isWanted) {
    const chain = await this.pages.chain(first_page, tokens.length - 1, page_tokens, (num) => hashOf(tokens, num));
    chain.forEach((one, i) => {
      if ((first_page + i) * page_tokens + one.tokens <= state_after) one.state = "";
    });
    const used = [];
    let num_given = 0;
    for (let is_taken = false; !is_taken; ) {
      const last = chain.findLastIndex(({ state }) => state);
      if (last < 0) break;
      const end = chain[last], bytes = await this.pages.read(end.state);
      for (; bytes && num_given <= last; num_given += 1) {
        const { name, before } = chain[num_given], page = await this.pages.read(name);
        if (!isWanted()) return;
        if (!page || this.wasm.takePage(before, page) === "refused") {
          await this.pages.remove([name]);
          chain.length = num_given;      // an earlier state is looked for
          break;
        }
        used.push(name);
      }
      if (chain.length <= last) continue;
      if (!isWanted()) return;
      is_taken = bytes !== null && this.wasm.takePage(end.before, bytes) !== "refused";
      if (!is_taken) await this.pages.remove([end.state]);
      end.state = "";
    }
    await this.pages.use(used, this.conversation);
  }

  // ---- pages of an answer

  // Keeps the pages of `tokens`, which the GPU holds, one after the other, with the recurrent states after `states`
  // tokens each. A later question ends it.
  keep(turn, tokens, states = []) {
    const { conversation, turn: now } = this;
    this.work = this.work.then(async () => {
      const isWanted = () => (
        this.is_on && (this.wasm.mayWrite?.() ?? true) && now === this.turn && !this.forgotten.has(conversation));
      if (!isWanted()) return;
      try {
        const is_full = await this.keepChain(turn, tokens, states, conversation, isWanted);
        if (this.is_on) await this.tell(is_full ? "full" : "", null, conversation);
      } catch (error) {
        if (this.is_on) this.tell("failed", error);
      }
    });
  }
  // Deletes the pages of a conversation, and keeps no more of it.
  forget(conversation) {
    this.forgotten.add(conversation);
    this.work = this.work.then(async () => {
      if (!this.is_on) return;
      try {
        await this.pages.forget(conversation);
        if (this.is_on) await this.tell("", null, conversation);
      } catch (error) {
        if (this.is_on) this.tell("failed", error);
      }
    });
  }
  // Returns the pages of a text as {before, end, num_tokens, name}; fewer once isWanted() returns false.
  async pagesOf(tokens, isWanted) {
    const pages = [];
    for (let page = 0; page * page_tokens < tokens.length && isWanted(); page += 1) {
      const num_tokens = Math.min((page + 1) * page_tokens, tokens.length);
      const before = await hashOf(tokens, page * page_tokens), end = await hashOf(tokens, num_tokens);
      const name = `${await this.pages.nameOf(before)}.${await this.pages.nameOf(end)}`;
      pages.push({ before, end, num_tokens, name });
    }
    return pages;
  }
  // Returns true if there was no room for a page or a state.
  async keepChain(turn, tokens, states, conversation, isWanted) {
    const chain = new Set(), pages = await this.pagesOf(tokens, isWanted);
    const own = new Set(pages.map(({ name }) => name));
    const wanted = new Set(pages.filter(({ num_tokens }) => states.includes(num_tokens))
      .map(({ name }) => name + state_end));
    let is_full = false;
    for (let page = 0; page < pages.length && isWanted(); page += 1) {
      const { before, end, num_tokens, name } = pages[page];
      const about = { position: page, tokens: num_tokens - page * page_tokens, conversation, chain };
      const kept = new Set((await this.pages.records()).map(({ id }) => id));
      if (kept.has(name)) {
        chain.add(name);
        await this.pages.use([name], conversation);
      } else {
        const bytes = await this.read(before, turn, page, num_tokens, false);
        if (bytes.length === 0 || !isWanted()) return is_full;
        const written = await this.pages.write({ before, end, bytes, ...about });
        if (written !== "kept") return is_full || written === "full";
      }
      if (!wanted.has(name + state_end) || kept.has(name + state_end)) continue;
      const bytes = await this.read(before, turn, page, num_tokens, true);
      if (bytes.length === 0) continue;      // the state has left the model's memory
      if (!isWanted()) return is_full;
      const written = await this.pages.writeState({ name, bytes, own, wanted, ...about });
      if (written === "closed") return is_full;
      is_full ||= written === "full";
    }
    return is_full;
  }
  read(before, turn, page, num_tokens, is_state) {
    return new Promise((give) => {
      this.give = give;
      this.wasm.readPage(before, turn, page, num_tokens, is_state);
    });
  }
  // Reads a page of the prompt that find() looks for, as it is on the GPU. The pages that are kept have their turn
  // first, which ends soon, because their text is not wanted any more.
  async readHeld(before, index, num_tokens, as_u8) {
    await this.work;
    return new Promise((give) => {
      this.give = give;
      this.wasm.readHeldPage(before, index, num_tokens, as_u8);
    });
  }
  given(bytes) { this.give(bytes); }
}

// Returns `before`, a hash, and the bytes of a page as one stretch of bytes, as mx_on_page() takes them.
export function behindHash(before, bytes) {
  const all = new Uint8Array(hash_bytes + bytes.length);
  all.set(before);
  all.set(bytes, hash_bytes);
  return all;
}
