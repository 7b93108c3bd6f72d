// The list of conversations: newest first, searched by any word in them, renamed in place, deleted with undo.
import { button, element, make } from "../dom.js";
import { when } from "../format.js";
import { say } from "../words/chat.js";

const undo_ms = 12000;

// Shows the list of conversations.
export class Sidebar {
  // `actions`: the handlers {select(id), rename(id, title), remove(id) -> function that restores it, begin()}.
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.list = element("conversations");
    this.search = element("search");
    this.search.addEventListener("input", () => this.draw());
    element("new-chat").addEventListener("click", () => {
      actions.begin();
      this.close();
    });
    element("open-side").addEventListener("click", () => this.toggle());
    element("side-shade").addEventListener("click", () => this.close());
  }

  // Returns true if the list is open on a narrow page, where it covers the thread.
  isOpen() { return document.body.classList.contains("side-open"); }
  toggle() { this.isOpen() ? this.close() : this.open(); }
  open() {
    document.body.classList.add("side-open");
    element("open-side").setAttribute("aria-expanded", "true");
    // Does not focus the search field where an on-screen keyboard would cover the list.
    if (!matchMedia("(pointer: coarse)").matches) this.search.focus();
  }
  close() {
    if (!this.isOpen()) return false;
    document.body.classList.remove("side-open");
    element("open-side").setAttribute("aria-expanded", "false");
    return true;
  }

  draw() {
    if (this.list.querySelector("input")) return;      // do not draw while the user edits a title
    const words = this.search.value;
    const rows = this.store.list(words);
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.list.replaceChildren(...rows.map(({ conversation, found }) => this.row(conversation, found)));
    if (focused) this.list.querySelector(`[data-key="${focused}"]`)?.focus();

    element("search-box").hidden = this.store.conversations.size < 2 && words === "";
    element("no-conversations").hidden = rows.length > 0;
    element("no-conversations").textContent = say(words.trim() ? "none_found" : "none_yet");
  }

  row({ id, title, updated_at }, found) {
    const row = make("li", "conversation");
    const link = make("a", "", "", { href: `#c=${id}`, "data-key": `open-${id}` });
    link.append(make("span", "conversation-title", title));
    link.append(make("span", "conversation-note", found || when(updated_at)));
    if (id === this.store.current.id) link.setAttribute("aria-current", "true");
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.actions.select(id);
      this.close();
    });

    const tool = (sign, what, act) => button("quiet small icon", sign, act, {
      "aria-label": say("about", say(what), title), title: say(what), "data-key": `${what}-${id}`,
    });
    row.append(link);
    row.append(tool("✎", "rename", () => this.rename(row, id, title)));
    row.append(tool("✕", "delete", () => this.remove(id, title)));
    return row;
  }

  rename(row, id, title) {
    const input = make("input", "", "", { type: "text", "aria-label": say("new_title"), maxlength: "120" });
    input.value = title;
    let is_over = false;
    const end = (is_wanted) => {
      if (is_over) return;
      is_over = true;
      const words = input.value;
      input.remove();
      if (is_wanted) this.actions.rename(id, words);
      this.draw();
      this.list.querySelector(`[data-key="open-${id}"]`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key === "Enter" || event.key === "Escape") {
        event.preventDefault();      // the key must neither send a question nor stop an answer
        event.stopPropagation();
        end(event.key === "Enter");
      }
    });
    input.addEventListener("blur", () => end(true));
    row.replaceChildren(input);
    input.focus();
    input.select();
  }

  async remove(id, title) {
    const undo = await this.actions.remove(id);
    const toast = element("toast");
    clearTimeout(this.toast_timer);
    const back = button("small", say("undo"), async () => {
      toast.hidden = true;
      await undo();
    });
    toast.replaceChildren(make("span", "", say("deleted", title)), back);
    toast.hidden = false;
    back.focus();
    this.toast_timer = setTimeout(() => { toast.hidden = true; }, undo_ms);
  }
}
