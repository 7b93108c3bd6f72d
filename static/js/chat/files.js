// Conversations as files: the buttons that export the open conversation or all of them, and the import of a file.
import { download, element } from "../dom.js";
import { say } from "../words/chat.js";
import { fileName, fromJson, toJson, toMarkdown } from "./conversation.js";

// Gives the buttons their work. tell(words) shows a sentence to the user.
export function handleFiles(store, tell) {
  element("export-markdown").addEventListener("click", () => {
    download(fileName(store.current.title, "md"), toMarkdown(store.current), "text/markdown");
  });
  element("export-json").addEventListener("click", () => {
    download(fileName(store.current.title, "json"), toJson([store.current]), "application/json");
  });
  element("export-all").addEventListener("click", () => {
    download("moex-chats.json", toJson(store.list().map(({ conversation }) => conversation)), "application/json");
  });

  element("import").addEventListener("click", () => element("import-file").click());
  element("import-file").addEventListener("change", async () => {
    const [file] = element("import-file").files;
    element("import-file").value = "";      // lets the user choose the same file again
    if (!file) return;
    try {
      const conversations = fromJson(await file.text());
      const num_new = await store.add(conversations);
      const rest = conversations.length - num_new;
      const parts = [say("imported", num_new), rest > 0 ? say("here_already", rest) : ""];
      tell(parts.filter(Boolean).join(" "));
    } catch (error) {
      tell(error.message);
    }
  });
}
