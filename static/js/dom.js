// The DOM helpers that every page needs.
import { say } from "./words/shared.js";

export const element = (id) => document.getElementById(id);

// Makes an element. Example: make("button", "button quiet", "Copy", { type: "button" })
export function make(tag, class_name = "", text = "", attributes = {}) {
  const node = document.createElement(tag);
  if (class_name) node.className = class_name;
  if (text) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

// Makes a button element with the click handler `act`.
export function button(class_name, text, act, attributes = {}) {
  const node = make("button", `button ${class_name}`, text, { type: "button", ...attributes });
  node.addEventListener("click", act);
  return node;
}

// Opens `dialog` and resolves to true if `yes` ended it, false for `no` or Escape. Does not use the event "close": it
// arrives with a later frame, and would answer the previous question.
export function confirmIn(dialog, yes, no) {
  return new Promise((resolve) => {
    const answer = (is_wanted) => () => {
      dialog.close();
      resolve(is_wanted);
    };
    yes.onclick = answer(true);
    no.onclick = dialog.oncancel = answer(false);
    dialog.showModal();
  });
}

// Copies `text` and shows "Copied" on the button for a moment.
const labels = new WeakMap();      // button -> its normal text, which a second click must not lose
export async function copyText(text, node) {
  if (!labels.has(node)) labels.set(node, { text: node.textContent, timer: 0 });
  const label = labels.get(node);
  try {
    await navigator.clipboard.writeText(text);
    node.textContent = say("copied");
  } catch {
    node.textContent = say("copy_refused");
  }
  clearTimeout(label.timer);
  label.timer = setTimeout(() => { node.textContent = label.text; }, 1500);
}

// Offers `text` to the user as a file to download.
export function download(name, text, type) {
  const link = make("a", "", "", { download: name });
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
