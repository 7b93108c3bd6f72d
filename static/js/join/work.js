// The card "Your work here": an identity that the contributor creates, exports or deletes, and the hub's counts for it.
import { getJson, postJson } from "../api.js";
import { download, element, make } from "../dom.js";
import { compact } from "../format.js";
import {
  dropOwner, forgetText, identityText, makeOwner, openSealedOwner, recallOwner, sealOwner, sign,
} from "./owner.js";
import {
  boardRows, dailyPairs, rankText, shareOfToday, shareText, sparkPoints, sparkWords, verifiedText,
} from "./work_words.js";
import { recall, remember } from "../storage.js";
import { say } from "../words/join.js";

const shows_kept_as = "moex-shows-name";
const passphrase_letters_min = 8;
const ask_every_ms = 10000;
const spark = { width: 300, height: 48 };

// Shows the contributor's work and manages the identity.
export class WorkCard {
  // `send(message)` sends a message to the running worker.
  constructor(token, send) {
    this.token = token;
    this.send = send;
    this.owner = null;
    this.told = null;              // reply of /api/contributors
    this.signed = "";              // the signed nonce and the choice whether to show the name
    this.status = null;
    this.is_refused = token === "";
    this.asked_at = -Infinity;
    element("shows-name").checked = recall(shows_kept_as, "") === "yes";
    this.listen();
    this.draw();
  }

  listen() {
    element("work-make").addEventListener("click", () => this.try(() => this.make()));
    element("work-export").addEventListener("click", () => this.try(() => this.exportFile()));
    element("work-import").addEventListener("click", () => element("work-file").click());
    element("work-file").addEventListener("change", () => this.try(() => this.importFile()));
    element("work-drop").addEventListener("click", () => this.try(() => this.drop()));
    element("shows-name").addEventListener("change", () => {
      remember(shows_kept_as, element("shows-name").checked ? "yes" : "");
      this.identify();
    });
  }

  // Runs `act`, and shows the error in the card if it fails.
  async try(act) {
    element("work-problem").textContent = "";
    try {
      await act();
    } catch (error) {
      element("work-problem").textContent = error.name === "NotSupportedError"
        ? say("no_ed25519") : error.message;
    }
    this.draw();
  }

  // Reads the identity again, since another tab may have created or deleted it. Asks the hub for the contributor's
  // counts at intervals, or now if `at_once`.
  async look(at_once = false) {
    const before = this.owner?.public_key;
    this.owner = await recallOwner();
    const is_due = at_once || before !== this.owner?.public_key || performance.now() - this.asked_at >= ask_every_ms;
    if (!this.is_refused && is_due) {
      this.asked_at = performance.now();
      const path = this.owner ? `api/contributors?key=${this.owner.public_key}` : "api/contributors";
      const answer = await getJson(path, this.token).catch(() => null);
      if (answer?.status === 401) this.is_refused = true;
      if (answer?.ok) this.told = answer.body;
    }
    await this.identify();
    this.draw();
  }

  onStatus(status) {
    this.status = status;
    this.identify();
  }

  // Signs the nonce of this connection once, and again when the choice to show the name changes.
  async identify() {
    const { nonce, worker_id } = this.status ?? {};
    const shows_nickname = element("shows-name").checked;
    const wanted = `${nonce} ${shows_nickname} ${this.owner?.public_key}`;
    if (!nonce || !this.owner || wanted === this.signed) return;
    this.signed = wanted;
    const { public_key } = this.owner;
    try {
      const signature = await sign(this.owner, identityText(nonce, worker_id));
      this.send({ type: "identity", worker_id, public_key, signature, shows_nickname });
    } catch (error) {
      element("work-problem").textContent = say("does_not_sign", error.message);
    }
  }

  async make() {
    if (!globalThis.crypto?.subtle) throw new DOMException("", "NotSupportedError");
    this.owner = await makeOwner();
    await this.look(true);
  }

  async exportFile() {
    const passphrase = await this.ask(say("take_along"), say("export_words"));
    if (passphrase === null) return;
    download("moex-identity.json", await sealOwner(this.owner, passphrase), "application/json");
  }

  async importFile() {
    const [file] = element("work-file").files;
    if (!file) return;
    const text = await file.text();
    element("work-file").value = "";
    const passphrase = await this.ask(say("bring"), say(this.owner ? "bring_replaces" : "bring_words"));
    if (passphrase === null) return;
    this.owner = await openSealedOwner(text, passphrase);
    await this.look(true);
  }

  // Deletes the identity at the hub first: without the key, the page could not ask the hub for the deletion.
  async drop() {
    const is_wanted = await this.ask(say("drop"), say("drop_words"), false);
    if (is_wanted === null) return;
    await this.look(true);
    const signature = await sign(this.owner, forgetText(this.told?.challenge));
    const { ok, body } = await postJson("api/contributors/forget",
      { key: this.owner.public_key, challenge: this.told?.challenge ?? "", signature }, this.token);
    if (!ok) throw new Error(say("not_forgotten", body?.error?.message));
    await dropOwner();
    this.signed = "";
    await this.look(true);
  }

  // Asks the user for a passphrase. Resolves to "" if none is needed, or to null on cancel.
  ask(title, words, wants_passphrase = true) {
    const dialog = element("work-dialog");
    const field = element("work-passphrase");
    element("work-dialog-title").textContent = title;
    element("work-dialog-words").textContent = words;
    element("work-passphrase-field").hidden = !wants_passphrase;
    field.value = "";
    field.minLength = passphrase_letters_min;
    field.required = wants_passphrase;
    field.disabled = !wants_passphrase;
    return new Promise((resolve) => {      // the event "close" arrives too late, see confirmIn()
      const answer = (value) => (event) => {
        event.preventDefault();
        dialog.close();
        resolve(value());
      };
      dialog.querySelector("form").onsubmit = answer(() => field.value);
      element("work-dialog-no").onclick = dialog.oncancel = answer(() => null);
      dialog.showModal();
    });
  }

  draw() {
    const { told, owner } = this;
    element("work").hidden = told === null;
    element("work-none").hidden = owner !== null;
    element("work-mine").hidden = owner === null;
    element("work-export").hidden = element("work-drop").hidden = owner === null;
    element("work-make").hidden = owner !== null;
    if (told === null) return;

    element("work-share").textContent = shareText(shareOfToday(told));
    element("work-total").textContent = compact.format(told.mine?.pairs ?? 0);
    element("work-rank").textContent = rankText(told);
    element("work-streak").textContent = say("days", told.mine?.streak_days ?? 0);
    element("work-verified").textContent = verifiedText(told);
    element("work-spark").setAttribute("aria-label", sparkWords(told));
    element("work-line").setAttribute("points", sparkPoints(dailyPairs(told), spark.width, spark.height));
    element("board").replaceChildren(...boardRows(told).map(([rank, name, calls, is_mine]) => {
      const row = make("tr", is_mine ? "mine" : "");
      row.append(make("td", "number", rank), make("td", "", name), make("td", "number", calls));
      return row;
    }));
    element("board-box").hidden = told.board.length === 0;
  }
}
