// The open conversation on the page. Only changed parts are touched: selected text, a focused button and an open block
// of thoughts stay as they are.
import { pathOf, siblingsOf } from "./conversation.js";
import { MessageView } from "./message_view.js";
import { betterOf } from "./refine.js";

const near_end_px = 80;

// Shows the messages of the open conversation.
export class Thread {
  // `scroller` is the scrolling element, `list` holds the messages.
  constructor(scroller, list, actions) {
    this.scroller = scroller;
    this.list = list;
    this.actions = actions;
    this.views = new Map();      // message id -> {view, rev}: its view, and the shown revision
    this.conversation = null;
    this.painting = 0;
  }

  // Shows `conversation`. `running`: the messages that are still growing.
  show(conversation, running) {
    const is_other = this.conversation !== conversation;
    const follow = is_other || this.isAtEnd();
    if (is_other) this.views.clear();
    this.conversation = conversation;

    const path = pathOf(conversation);
    const nodes = path.map((message) => {
      const view = this.viewOf(message, running.includes(message));
      view.standAmong(siblingsOf(conversation, message));
      return view.root;
    });
    this.offer(running);
    const wanted = new Set(path.map((message) => message.id));
    for (const id of this.views.keys()) if (!wanted.has(id)) this.views.delete(id);
    if (is_other) this.list.replaceChildren(...nodes);
    else this.arrange(nodes);
    if (follow) this.toEnd();
  }

  // Offers the better answer of each shown draft. `running`: the messages that are still growing.
  offer(running) {
    for (const { view } of this.views.values()) {
      const better = betterOf(this.conversation.messages, view.message);
      view.offer(better, running.includes(better));
    }
  }

  // Creates the views of all messages again, after a change of the language.
  showAnew(conversation, running) {
    this.conversation = null;
    this.show(conversation, running);
  }

  viewOf(message, is_running) {
    const known = this.views.get(message.id);
    if (!known) {
      const view = new MessageView(message, this.actions);
      if (is_running) view.stream();
      this.views.set(message.id, { view, rev: message.rev });
      return view;
    }
    if (!is_running && (known.view.message !== message || known.rev !== message.rev)) {
      known.view.show(message, false);
      known.rev = message.rev;
    }
    return known.view;
  }

  arrange(nodes) {
    nodes.forEach((node, i) => {
      if (this.list.children[i] !== node) this.list.insertBefore(node, this.list.children[i] ?? null);
    });
    while (this.list.children.length > nodes.length) this.list.lastElementChild.remove();
  }

  // Shows that the answer in `message` begins or is continued.
  begin(message) {
    this.views.get(message.id)?.view.stream();
    this.toEnd();
  }

  // Paints a growing answer at most once per frame. Of several answers side by side, only the shown answer is painted.
  grow(message) {
    if (this.painting || !this.views.has(message.id)) return;
    this.painting = requestAnimationFrame(() => {
      this.painting = 0;
      const view = this.views.get(message.id)?.view;
      if (!view?.is_running) return;
      const follow = this.isAtEnd();
      view.update();
      if (follow) this.toEnd();
    });
  }

  end(message) {
    cancelAnimationFrame(this.painting);
    this.painting = 0;
    const known = this.views.get(message.id);
    if (!known) return;
    const follow = this.isAtEnd();
    known.view.finish();
    known.rev = message.rev;
    if (follow) this.toEnd();
  }

  shows(message) { return this.views.has(message.id); }

  isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < near_end_px;
  }
  toEnd() { this.scroller.scrollTop = this.scroller.scrollHeight; }
}
