// The host's page: keys, the join link, contributors, settings. The admin key goes as Bearer, from this tab alone.
import {
  banWords, bannedName, inOrder, keyStates, limitWords, mayRevoke, qrPath, roleWords, termWords, usedWords, workerName,
  workerPills,
} from "/js/admin/words.js";
import { getJson, postJson } from "/js/api.js";
import { button, confirmIn, copyText, element, make } from "/js/dom.js";
import { listenForForget } from "/js/forget.js";
import { compact, count, ms, span } from "/js/format.js";
import { drop, read, write } from "/js/storage.js";

const refresh_ms = 2000;
const key_name = "moex-admin-key";
let key = read(key_name, "");
let settings = [];
let timer = 0;

// ---- tables: [head, cell of a row, class]; `acts` holds buttons, whose head is for those who hear it

const pill = ([kind, word]) => make("span", `pill ${kind}`, word);

const key_columns = [
  ["Name", (one) => one.name, "name"],
  ["State", (one) => pill(keyStates[one.state] ?? ["bad", one.state])],
  ["May", (one) => roleWords[one.role] ?? one.role],
  ["Id", (one) => make("code", "", one.id)],
  ["Limit", limitWords, "number"],
  ["Tokens today", (one) => usedWords(one.today), "number"],
  ["In all", (one) => usedWords(one.all), "number"],
  ["Term", (one, now_s) => termWords(one, now_s)],
  ["Actions", (one) => (mayRevoke(one) ? act("danger", "Revoke", one.id, () => askToRevoke(one)) : ""), "acts"],
];
const worker_columns = [
  ["Name", workerName, "name"],
  ["State", (worker) => group("pills", workerPills(worker).map(pill))],
  ["GPU", (worker) => [worker.vendor, worker.description].filter(Boolean).join(" ") || worker.backend, "name"],
  ["Experts", (worker) => `${worker.units_ready} / ${worker.units_assigned}`, "number"],
  ["Answered", (worker) => compact.format(worker.pairs_answered), "number"],
  ["Per call", (worker) => ms(worker.p50_ms), "number"],
  ["Late / wrong", (worker) => `${worker.timeouts} / ${worker.bad_answers}`, "number"],
  ["For", (worker) => span(worker.connected_s), "number"],
  ["Actions", workerButtons, "acts"],
];
const ban_columns = [
  ["Worker", bannedName, "name"],
  ["Closed", banWords],
  ["Times", (ban) => String(ban.times), "number"],
  ["Why", (ban) => ban.reason, "name"],
  ["Actions", (ban) => act("", "Lift", ban.worker_key, () => lift(ban)), "acts"],
];
const setting_columns = [
  ["Setting", (one) => one.name],
  ["Value", (one) => one.value || "–"],
  ["From", (one) => one.source],
  ["What it does", (one) => one.help],
];

function group(class_name, nodes) {
  const box = make("span", class_name);
  box.append(...nodes);
  return box;
}

// A row's button: its name survives the next drawing of the row, and so does the focus on it.
const act = (kind, text, id, run, more = {}) =>
  button(`small ${kind}`, text, run, { "data-act": `${text} ${id}`, ...more });

function workerButtons(worker) {
  const order = (what, on) => () => orderWorker(what, { worker: worker.id, on });
  const why = worker.has_key ? {} : { disabled: "", title: "It gave no key that could be closed" };
  return group("acts", [
    worker.drained ? act("", "Use again", worker.id, order("drain", false))
      : act("", "Drain", worker.id, order("drain", true)),
    worker.pinned ? act("", "Unpin", worker.id, order("pin", false)) : act("", "Pin", worker.id, order("pin", true)),
    act("danger", "Ban", worker.id, () => askToBan(worker), why),
  ]);
}

function drawHeads(id, columns) {
  element(id).replaceChildren(...columns.map(([name, , kind = ""]) => {
    const head = make("th", kind === "number" ? kind : "", kind === "acts" ? "" : name, { scope: "col" });
    if (kind === "acts") head.append(make("span", "visually-hidden", name));
    return head;
  }));
}

// Draws rows anew; who stood on one of their buttons stands on it again.
function drawRows(id, rows) {
  const { act: focused } = document.activeElement?.dataset ?? {};
  element(id).replaceChildren(...rows);
  if (focused && document.activeElement === document.body)
    [...element(id).querySelectorAll("[data-act]")].find(({ dataset }) => dataset.act === focused)?.focus();
}

function rowOf(columns, one, ...more) {
  const row = make("tr");
  for (const [name, tell, kind = ""] of columns) {
    const cell = make("td", kind, "", { "data-name": kind === "acts" ? "" : name });
    cell.append(tell(one, ...more));
    row.append(cell);
  }
  return row;
}

// ---- the rooms

function drawKeys({ keys, local }, now_s) {
  const rows = inOrder(keys).map((one) => {
    const row = rowOf(key_columns, one, now_s);
    row.classList.toggle("ended", one.state !== "open");
    return row;
  });
  drawRows("keys", rows);
  element("local-words").textContent = `Without a key: ${usedWords(local.today)} tokens today, `
    + `${usedWords(local.all)} in all.`;
}

function drawWorkers(workers) {
  element("no-workers").hidden = workers.length > 0;
  element("worker-table").hidden = workers.length === 0;
  drawRows("workers", workers.map((worker) => rowOf(worker_columns, worker)));
}

function drawBans(bans) {
  element("bans-box").hidden = bans.length === 0;
  drawRows("bans", bans.map((ban) => {
    const row = rowOf(ban_columns, ban);
    row.classList.toggle("ended", ban.is_over);
    return row;
  }));
}

function drawJoin({ url, qr = [] }) {
  if (element("join-url").textContent === url) return;
  element("join-url").textContent = url;
  element("qr").hidden = qr.length === 0;
  if (qr.length === 0) return;

  const svg_space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(svg_space, "svg");
  const path = document.createElementNS(svg_space, "path");
  const side = qr.length + 8;
  svg.setAttribute("viewBox", `0 0 ${side} ${side}`);
  svg.setAttribute("shape-rendering", "crispEdges");
  path.setAttribute("d", qrPath(qr));
  svg.append(path);
  element("qr").replaceChildren(svg);
}

function drawSettings() {
  const only_given = element("only-given").checked;
  const shown = settings.filter((one) => !only_given || one.source !== "default");
  element("settings").replaceChildren(...shown.map((one) => rowOf(setting_columns, one)));
}

function drawStatus(status) {
  const active = status.workers.filter((worker) => worker.state === "active").length;
  element("state").className = `pill ${status.health === "ok" ? "good" : "warn"}`;
  element("state").textContent = status.health === "ok" ? "serving" : status.health;
  element("summary").textContent = `${status.model.name}, up ${span(status.uptime_s)}, `
    + `${count(active, "contributor")} serving, ${status.engine.running} + ${status.engine.waiting} answers`;
  drawWorkers(status.workers);
}

// ---- asking

function say(kind, sentence) {
  element("notice").className = `notice ${kind}`;
  element("notice").hidden = !sentence;
  element("notice").textContent = sentence;
}

// The key does not open this: the form, and why.
function close(sentence) {
  clearTimeout(timer);
  key = "";
  drop(key_name);
  element("rooms").hidden = true;
  element("key-form").hidden = false;
  element("state").className = "pill warn";
  element("state").textContent = "key needed";
  element("summary").textContent = "";
  say("", sentence);
}

async function refresh() {
  clearTimeout(timer);
  try {
    const [keys, status, bans] = await Promise.all(
      ["/api/admin/keys", "/api/status", "/api/admin/bans"].map((path) => getJson(path, key)));
    if (keys.status === 401 || keys.status === 403) return close("The hub does not know this key as an admin's.");
    const failed = [keys, status, bans].find(({ ok }) => !ok);
    if (failed) throw new Error(failed.body?.error?.message ?? "no answer");
    if (element("rooms").hidden) await openRooms();
    drawKeys(keys.body, Date.now() / 1000);
    drawStatus(status.body);
    drawBans(bans.body.bans);
    say("", "");
  } catch (failure) {
    element("state").className = "pill bad";
    element("state").textContent = "no answer";
    say("bad", `The hub does not answer (${failure.message}). This page goes on by itself when it is back.`);
  }
  timer = setTimeout(refresh, refresh_ms);
}

async function openRooms() {
  const [join, in_force] = await Promise.all([getJson("/api/admin/join", key), getJson("/api/admin/settings", key)]);
  if (!join.ok || !in_force.ok) throw new Error("it did not tell its settings");
  drawJoin(join.body);
  settings = in_force.body.settings;
  drawSettings();
  element("key-form").hidden = true;
  element("rooms").hidden = false;
}

// What a button asks for: its answer, or null when the hub refused, which is said.
async function order(path, body) {
  try {
    const answer = await postJson(path, body, key);
    if (answer.ok) return answer.body;
    say("bad", `The hub refused: ${answer.body?.error?.message ?? answer.status}.`);
  } catch {
    say("bad", "The hub does not answer.");
  }
  return null;
}

// Resolves to whether the host meant it.
function ask(head, words, yes) {
  element("ask-head").textContent = head;
  element("ask-words").textContent = words;
  element("ask-yes").textContent = yes;
  return confirmIn(element("ask"), element("ask-yes"), element("ask-no"));
}

async function askToRevoke(one) {
  const words = `${one.name} (${one.id}) can do nothing with it any more; answers that run end with an error.`;
  if (!await ask("Revoke this key?", words, "Revoke")) return;
  if (await order("/api/admin/keys/revoke", { id: one.id })) refresh();
}

async function orderWorker(what, body) {
  if (await order(`/api/admin/workers/${what}`, body)) refresh();
}

async function askToBan(worker) {
  const words = `${workerName(worker)} goes now and may not come back for 30 days. Others take over what it holds; its `
    + "answers in rounds that are open are asked of them again.";
  if (await ask("Ban this contributor?", words, "Ban")) orderWorker("ban", { worker: worker.id });
}

async function lift({ worker_key }) {
  if (await order("/api/admin/bans/lift", { worker_key })) refresh();
}

element("rotate").addEventListener("click", async () => {
  const words = "Nobody can join by the old link any more. Contributors who are connected stay until they leave.";
  if (!await ask("Make a new join link?", words, "Make a new link")) return;
  const join = await order("/api/admin/join/rotate", {});
  if (join) drawJoin(join);
});

element("make-key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const made = await order("/api/admin/keys", {
    name: element("key-name").value.trim(), role: element("key-role").value,
    tokens_per_minute: Number(element("key-limit").value), expires_days: Number(element("key-days").value),
  });
  if (!made) return;

  event.target.reset();
  element("fresh-words").textContent = `The key for ${made.name}. It is shown this once.`;
  element("fresh-value").textContent = made.key;
  element("fresh-key").hidden = false;
  refresh();
});
element("hide-key").addEventListener("click", () => {
  element("fresh-value").textContent = "";
  element("fresh-key").hidden = true;
});
element("copy-key").addEventListener("click", () => copyText(element("fresh-value").textContent, element("copy-key")));
element("copy-join").addEventListener("click", () => copyText(element("join-url").textContent, element("copy-join")));
element("only-given").addEventListener("change", drawSettings);
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = element("key").value.trim();
  element("key").value = "";
  write(key_name, key);
  refresh();
});

// ---- the beginning: a one-time link is traded for a key, and leaves the address

async function begin() {
  const once = new URLSearchParams(location.hash.slice(1)).get("once");
  if (once) {
    history.replaceState(null, "", location.pathname);
    const claimed = await postJson("/api/admin/claim", {}, once).catch(() => null);
    if (claimed?.ok) {
      key = claimed.body.key;
      write(key_name, key);
    } else if (!key) {
      return close(claimed?.body?.error?.message ? `This link opens nothing: ${claimed.body.error.message}.`
        : "The hub does not answer.");
    }
  }
  if (!key) return close("");
  return refresh();
}

listenForForget();
drawHeads("key-heads", key_columns);
drawHeads("worker-heads", worker_columns);
drawHeads("ban-heads", ban_columns);
drawHeads("setting-heads", setting_columns);
begin();
