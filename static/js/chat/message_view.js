// One message on the page: a question as it was typed; an answer with its thoughts, its facts and how it ended.
import { copyText, button, make } from "/js/dom.js";
import { MarkdownView, copyCodeOf, renderMarkdown } from "/js/markdown.js";
import { endWords, factsOf, thoughtWords } from "/js/chat/words.js";

export class MessageView {
  // `actions`: {continue(message), retry(message)}.
  constructor(message, actions) {
    this.actions = actions;
    this.root = make("article", `message ${message.role}`);
    this.body = make("div", "body");
    this.root.append(this.body);
    if (message.role === "user") {
      this.root.setAttribute("aria-label", "You");
      this.body.textContent = message.content;
      this.message = message;
      return;
    }

    this.root.setAttribute("aria-label", "Answer");
    this.root.addEventListener("click", (event) => {
      const hit = copyCodeOf(event);
      if (hit) copyText(hit.text, hit.button);
    });
    this.thoughts = this.makeThoughts();
    this.foot = make("div", "foot-rows");
    this.root.prepend(this.thoughts);
    this.root.append(this.foot);
    this.markdown = null;      // while it streams
    this.show(message, false);
  }

  makeThoughts() {
    const box = make("details", "thoughts");
    const text = make("div", "thoughts-body");
    box.append(make("summary"), text);
    box.addEventListener("toggle", () => this.paintThoughts());
    return box;
  }

  // `message` as it is now. A running one is painted as far as it has come, and grows by update().
  show(message, is_running) {
    this.message = message;
    if (message.role === "user") return;
    this.is_running = is_running;
    this.markdown = null;
    if (is_running) this.stream();
    else {
      renderMarkdown(this.body, message.content);
      this.paintThoughts();
      this.paintFoot();
    }
    this.body.classList.toggle("cursor", is_running);
  }

  stream() {
    this.is_running = true;
    this.foot.replaceChildren();
    this.body.classList.add("cursor");
    this.update();
  }

  update() {
    this.markdown ??= new MarkdownView(this.body);
    this.markdown.update(this.message.content);
    this.paintThoughts();
  }

  finish() {
    this.is_running = false;
    this.markdown ??= new MarkdownView(this.body);
    this.markdown.finish(this.message.content);
    this.body.classList.remove("cursor");
    this.paintThoughts();
    this.paintFoot();
  }

  // Closed thoughts cost nothing: they are painted when somebody opens them.
  paintThoughts() {
    const { reasoning, thinking } = this.message;
    this.thoughts.hidden = !reasoning && !thinking;
    if (this.thoughts.hidden) return;

    const words = thoughtWords(this.message);
    const summary = this.thoughts.querySelector("summary");
    if (summary.textContent !== words) summary.textContent = words;
    if (!this.thoughts.open) return;
    this.thought_view ??= new MarkdownView(this.thoughts.querySelector(".thoughts-body"));
    if (thinking) this.thought_view.update(reasoning);
    else this.thought_view.finish(reasoning);
  }

  paintFoot() {
    const { message } = this;
    this.foot.replaceChildren();
    const end = endWords(message);
    if (end) this.foot.append(this.makeEnd(end));

    const facts = make("div", "facts");
    for (const fact of factsOf(message)) facts.append(make("span", "", fact));
    if (message.content) {
      const copy = button("quiet small", "Copy", () => copyText(message.content, copy), { title: "Copy the answer" });
      facts.append(copy);
    }
    this.foot.append(facts);
  }

  makeEnd({ text, kind, action }) {
    const row = make("div", `ended ${kind}`);
    row.append(make("span", "", text));
    if (action === "continue") row.append(button("small", "Continue", () => this.actions.continue(this.message)));
    if (action === "retry") row.append(button("small", "Try again", () => this.actions.retry(this.message)));
    return row;
  }
}
