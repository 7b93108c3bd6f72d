// The page's conversations, and which of them is open. Views listen for changes; chat.js, which talks to the hub, makes
// the changes.
import { findIn, fromSession, newConversation, newId, pathOf, titleFrom } from "./conversation.js";
import { Keeper } from "./keep.js";
import { newAnswer } from "./turn.js";

// Holds the conversations of the page, and which one is open.
export class Store {
  // `onChange(what)` is called with "list", "open" (another conversation, or its messages), "trouble" (a conversation
  // cannot be stored).
  static async open(onChange) {
    const store = new Store();
    store.onChange = onChange;
    store.trouble = null;
    store.conversations = new Map();
    store.removed = new Set();         // ids of deleted conversations, which running answers must not restore
    store.busy = null;                 // the conversation whose answers this page is streaming, or null
    store.current = newConversation();
    store.keeper = await Keeper.open({
      onChange: (event) => store.heard(event),
      onTrouble: (error) => {
        store.trouble = error;
        onChange("trouble");
      },
    });
    await store.reload();
    return store;
  }

  async reload() {
    try {
      for (const one of await this.keeper.all()) this.conversations.set(one.id, one);
    } catch (error) {
      this.keeper.onTrouble(error);
    }
  }

  // Returns the conversations, newest first. With `words`, only those that contain them, each with the place of the
  // match.
  list(words = "") {
    return [...this.conversations.values()]
      .map((conversation) => ({ conversation, found: findIn(conversation, words) }))
      .filter(({ found }) => found !== null)
      .sort((one, other) => other.conversation.updated_at - one.conversation.updated_at);
  }

  select(id) {
    const known = this.conversations.get(id);
    if (!known && this.current.messages.length === 0 && !this.conversations.has(this.current.id)) return;
    this.current = known ?? newConversation();
    this.onChange("open");
    this.onChange("list");
  }

  // Adds a question after `parent`: "" for the beginning, by default after the last shown message. Returns it.
  ask(text, model, parent = pathOf(this.current).at(-1)?.id ?? "") {
    const { current } = this;
    const question = { id: newId(), role: "user", content: text, at: Date.now(), rev: 1, parent };
    if (current.messages.length === 0) current.title = titleFrom(text);
    current.model = model;
    current.messages.push(question);
    current.chosen[parent] = question.id;
    return question;
  }

  // Adds `num` empty answers to `question` and shows the first; earlier answers to the question stay.
  answersTo(question, num) {
    const answers = Array.from({ length: num }, () => (
      { ...newAnswer(newId(), Date.now()), rev: 1, parent: question.id }));
    this.current.messages.push(...answers);
    this.current.chosen[question.id] = answers[0].id;
    return answers;
  }

  // Adds an empty answer beside `message`, which stays the one that is shown.
  answerBeside(conversation, message) {
    const answer = { ...newAnswer(newId(), Date.now()), rev: 1, parent: message.parent };
    conversation.messages.push(answer);
    return answer;
  }

  // Shows `message` instead of its siblings from now on.
  choose(message) {
    const { current } = this;
    current.chosen[message.parent] = message.id;
    this.onChange("open");
    return this.save(current);
  }

  // Imports conversations. Resolves to the number of new conversations; a conversation that exists already is merged.
  async add(conversations) {
    const before = this.conversations.size;
    for (const one of conversations) {
      this.removed.delete(one.id);
      const kept = await this.keeper.put(one);
      const known = this.conversations.get(one.id);
      if (known) this.adopt(known, kept);
      else this.conversations.set(one.id, kept);
    }
    this.onChange("list");
    return this.conversations.size - before;
  }

  // Stores a conversation. `changed`: the messages that have grown since they were last saved.
  async save(conversation, changed = []) {
    for (const message of changed) message.rev = (message.rev ?? 0) + 1;
    if (this.removed.has(conversation.id)) return;
    conversation.updated_at = Date.now();
    this.conversations.set(conversation.id, conversation);
    this.onChange("list");
    const kept = await this.keeper.put(conversation);
    this.adopt(conversation, kept);
  }

  // Merges the additions of another tab in `kept` into `conversation`, the object that the views of this page hold.
  adopt(conversation, kept) {
    if (kept === conversation) return;
    const own = new Map(conversation.messages.map((message) => [message.id, message]));
    const had = conversation.messages.length;
    // Prefer this page's copy of a message unless the stored copy is newer: it may have grown while it was being saved.
    const messages = kept.messages.map((message) => {
      const mine = own.get(message.id);
      own.delete(message.id);
      return mine && (mine.rev ?? 0) >= (message.rev ?? 0) ? mine : message;
    });
    const changed = messages.some((message, i) => message !== conversation.messages[i]);
    conversation.messages = [...messages, ...own.values()];
    conversation.title = kept.title;
    conversation.renamed_at = kept.renamed_at;
    if (conversation === this.current && (changed || conversation.messages.length !== had)) this.onChange("open");
  }

  async rename(id, title) {
    const conversation = this.conversations.get(id);
    if (!conversation || !title.trim() || title.trim() === conversation.title) return;
    conversation.title = title.trim();
    conversation.renamed_at = Date.now();
    this.onChange("list");
    this.adopt(conversation, await this.keeper.put(conversation));
  }

  // Deletes a conversation. Resolves to a function that restores it.
  async remove(id) {
    const conversation = this.conversations.get(id);
    this.conversations.delete(id);
    this.removed.add(id);
    if (this.current.id === id) {
      this.current = newConversation();
      this.onChange("open");
    }
    this.onChange("list");
    await this.keeper.remove(id);
    return async () => {
      this.removed.delete(id);
      this.conversations.set(id, conversation);
      this.onChange("list");
      await this.keeper.put(conversation);
    };
  }

  // Handles a change or a deletion by another tab.
  async heard({ type, id }) {
    if (type === "removed") {
      if (this.busy?.id === id) return;      // the running answer will store the conversation again
      this.conversations.delete(id);
      if (this.current.id === id) {
        this.current = newConversation();
        this.onChange("open");
      }
      this.onChange("list");
      return;
    }

    const kept = await this.keeper.get(id).catch(() => null);
    if (!kept) return;
    const known = this.conversations.get(id);
    if (known) {
      known.updated_at = Math.max(known.updated_at, kept.updated_at);
      this.adopt(known, kept);
    } else {
      this.conversations.set(id, kept);
    }
    this.onChange("list");
  }

  // Adds the conversation that an older version of the page left in this tab.
  async adoptSession(kept) {
    const conversation = fromSession(kept);
    if (!conversation) return null;
    await this.save(conversation);
    return conversation;
  }
}
