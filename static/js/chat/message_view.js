// A message on the page: a question as typed; an answer with its thoughts, its facts and how it ended. If a message
// has several versions, a row shows which one this is and switches to the others.
import { copyText, button, make } from "../dom.js";
import { say } from "../words/chat.js";
import { MarkdownView, copyCodeOf, renderMarkdown } from "./markdown.js";
import { CallCards, JsonCard } from "./cards.js";
import { endWords, factsOf, offerWords, thoughtWords } from "./words.js";

// Shows one message with its buttons.
export class MessageView {
  // `actions`: {continue(message), retry(message), again(message), edit(message, text) -> true if accepted,
  // choose(message), results(message)}.
  constructor(message, actions) {
    this.actions = actions;
    this.root = make("article", `message ${message.role}`);
    this.body = make("div", "body");
    this.root.append(this.body);
    if (message.role === "user") {
      this.root.setAttribute("aria-label", say("you"));
      this.body.textContent = message.content;
      this.message = message;
      this.foot = make("div", "tools");
      this.foot.append(this.makeTool(say("edit"), say("edit_title"), () => this.beginEdit()));
      this.root.append(this.foot);
      return;
    }

    this.root.setAttribute("aria-label", say("answer"));
    this.root.addEventListener("click", (event) => {
      const hit = copyCodeOf(event);
      if (hit) copyText(hit.text, hit.button);
    });
    this.thoughts = this.makeThoughts();
    this.foot = make("div", "foot-rows");
    this.cards = new CallCards(() => this.actions.results(this.message));
    this.root.prepend(this.thoughts);
    this.root.append(this.cards.root, this.foot);
    this.markdown = null;      // a MarkdownView while the answer streams
    this.show(message, false);
  }

  makeThoughts() {
    const box = make("details", "thoughts");
    const text = make("div", "thoughts-body");
    box.append(make("summary"), text);
    box.addEventListener("toggle", () => this.paintThoughts());
    return box;
  }

  // Makes a button of a message; it is disabled while an answer runs.
  makeTool(text, title, act) { return button("quiet small when-idle", text, act, { title }); }

  // Shows which version of a message this is. `siblings`: all versions, including this message.
  standAmong(siblings) {
    const words = siblings.length > 1 ? say("version", siblings.indexOf(this.message) + 1, siblings.length) : "";
    if (this.pager?.dataset.words === words || (!words && !this.pager)) return;
    this.siblings = siblings;
    this.pager?.remove();
    this.pager = words ? this.makePager(words) : null;
    if (!this.pager) return;
    if (this.message.role === "user") this.foot.prepend(this.pager);
    else this.root.append(this.pager);
  }

  // Offers the answer `better` in the place of this one; nothing if it is undefined. `is_running`: it is growing.
  offer(better, is_running) {
    const words = better ? offerWords(better, is_running) : null;
    const key = words ? `${better.id} ${words.text}` : "";
    if ((this.offered?.dataset.key ?? "") === key) return;
    this.offered?.remove();
    this.offered = words ? this.makeOffer(better, words) : null;
    if (!words) return;
    this.offered.dataset.key = key;
    this.foot.before(this.offered);
  }
  makeOffer(better, { text, kind, action }) {
    const row = make("div", `ended offer ${kind}`, "", { role: "status" });
    row.append(make("span", "", text));
    if (action === "show") row.append(button("small", say("refine_show"), () => this.actions.choose(better)));
    if (action === "retry") row.append(this.makeTool(say("retry"), "", () => this.actions.retry(better)));
    return row;
  }

  makePager(words) {
    const what = this.message.role === "user" ? "question" : "answer";
    const at = this.siblings.indexOf(this.message);
    const step = (sign, title, to) => {
      const choose = () => this.actions.choose(this.siblings[to]);
      const node = button("quiet small icon", sign, choose, { "aria-label": title });
      node.disabled = !this.siblings[to];
      return node;
    };
    const row = make("div", "pager", "", { role: "group", "aria-label": say(`versions_${what}`) });
    row.dataset.words = words;
    row.append(step("‹", say(`earlier_${what}`), at - 1), make("span", "", words),
      step("›", say(`later_${what}`), at + 1));
    return row;
  }

  // Replaces the shown question by a text field. The edited text becomes another version of the question, with its own
  // answer.
  beginEdit() {
    const field = make("textarea", "", "", { "aria-label": say("edit_label") });
    field.value = this.message.content;
    field.rows = Math.min(12, this.message.content.split("\n").length + 1);
    const end = () => {
      form.remove();
      this.body.hidden = false;
      this.foot.hidden = false;
      this.root.classList.remove("editing");
    };
    const send = () => {
      const text = field.value.trim();
      if (text && this.actions.edit(this.message, text)) end();
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key !== "Escape" && (event.key !== "Enter" || event.shiftKey)) return;
      event.preventDefault();      // keep Escape from stopping an answer, Enter from inserting a line
      if (event.key === "Enter") send();
      else end();
    });
    const form = make("div", "edit");
    const row = make("div", "row end");
    row.append(button("small", say("cancel"), end), button("small primary when-idle", say("send"), send));
    form.append(field, row);
    this.body.hidden = true;
    this.foot.hidden = true;
    this.root.classList.add("editing");
    this.root.prepend(form);
    field.focus();
  }

  // Shows `message` in its current state. A running answer is painted as far as it has arrived, and grows by update().
  show(message, is_running) {
    this.message = message;
    if (message.role === "user") return;
    this.is_running = is_running;
    this.markdown = null;
    this.form = null;
    if (is_running) this.stream();
    else {
      if (message.is_form) this.paintForm();
      else renderMarkdown(this.body, message.content);
      this.cards.show(message.calls ?? [], false);
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
    if (this.message.is_form) {
      this.paintForm();
    } else {
      this.markdown ??= new MarkdownView(this.body);
      this.markdown.update(this.message.content);
    }
    this.cards.show(this.message.calls ?? [], true);
    this.paintThoughts();
  }

  // Shows an answer that follows a JSON schema: as text while it arrives, as rows when it is complete.
  paintForm() {
    if (!this.form) {
      this.form = new JsonCard(say("form_answer"));
      this.body.replaceChildren(this.form.root);
    }
    this.form.root.hidden = this.message.content === "";
    this.form.show(this.message.content, !this.is_running);
  }

  finish() {
    this.is_running = false;
    if (this.message.is_form) {
      this.paintForm();
    } else {
      this.markdown ??= new MarkdownView(this.body);
      this.markdown.finish(this.message.content);
    }
    this.cards.show(this.message.calls ?? [], false);
    this.body.classList.remove("cursor");
    this.paintThoughts();
    this.paintFoot();
  }

  // Paint the thoughts only when the user opens them, so that closed thoughts take no time.
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
    const { place } = message.facts ?? {};
    if (place) {
      const { model } = message.facts;
      const title = say(`place_${place}_title`, model);
      facts.append(make("span", `place ${place}`, say(`place_${place}`, model), { title }));
    }
    for (const fact of factsOf(message)) facts.append(make("span", "", fact));
    if (message.content && !message.is_form) {
      const copy = button("quiet small", say("copy"), () => copyText(message.content, copy),
        { title: say("copy_answer") });
      facts.append(copy);
    }
    if (message.content || message.calls?.length > 0) {
      facts.append(this.makeTool(say("again"), say("again_title"), () => this.actions.again(message)));
    }
    this.foot.append(facts);
  }

  makeEnd({ text, kind, action }) {
    const row = make("div", `ended ${kind}`);
    row.append(make("span", "", text));
    if (action === "continue") row.append(button("small", say("go_on"), () => this.actions.continue(this.message)));
    if (action === "retry") row.append(button("small", say("retry"), () => this.actions.retry(this.message)));
    return row;
  }
}
