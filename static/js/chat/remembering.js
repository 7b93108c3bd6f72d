// The user's decision whether "this device" keeps what it has read of conversations over reloads (js/kept_pages.js). It
// is asked once, and nothing is kept before. The choice holds for all tabs.
import { forgetPages } from "../forget.js";
import { KeptPages } from "../kept_pages.js";
import { askToStay, recall, remember } from "../storage.js";

const kept_as = "moex-remember";

// Holds the choice: "yes", "no", or "" before the user has chosen.
export class Remembering {
  // `onChange()` is called when the choice changes, here or in another tab.
  constructor(onChange) {
    this.choice = recall(kept_as, "");
    this.onChange = onChange;
    globalThis.addEventListener?.("storage", ({ key, newValue }) => {
      if (key !== kept_as) return;
      this.choice = newValue ?? "";
      onChange();
    });
  }
  get is_on() { return this.choice === "yes"; }

  // Stores the choice. "No" deletes what was kept.
  async choose(is_on) {
    this.choice = is_on ? "yes" : "no";
    remember(kept_as, this.choice);
    this.onChange();
    if (is_on) askToStay();
    else await forgetPages();
  }

  // Deletes the pages of a conversation that was deleted.
  async forget(conversation) {
    if (!this.is_on) return;
    const pages = await KeptPages.open("").catch(() => null);
    await pages?.forget(conversation).catch(() => {});
    pages?.close();
  }
}
