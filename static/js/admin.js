// The host's page: keys, the join link, contributors, settings. The admin key goes as Bearer, from this tab alone.
import {
  inOrder, keyStates, limitWords, mayRevoke, qrPath, roleWords, termWords, usedWords,
} from "/js/admin/words.js";
import { getJson, postJson } from "/js/api.js";
import { button, copyText, element, make } from "/js/dom.js";
import { listenForForget } from "/js/forget.js";
import { bytes, compact, count, ms, span } from "/js/format.js";
import { drop, read, write } from "/js/storage.js";

const refresh_ms = 2000;
const key_name = "moex-admin-key";
let key = read(key_name, "");
let settings = [];
let timer = 0;

// ---- tables: [head, cell of a row, class]

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
  ["", (one) => (mayRevoke(one) ? button("small danger", "Revoke", () => askToRevoke(one)) : "")],
];
const worker_kinds = { active: "good", loading: "warn", connecting: "warn", draining: "warn", unhealthy: "bad" };
const worker_columns = [
  ["Name", (worker) => worker.nickname || `#${worker.id}`, "name"],
  ["State", (worker) => pill([worker_kinds[worker.state] ?? "", worker.state])],
  ["GPU", (worker) => [worker.vendor, worker.description].filter(Boolean).join(" ") || worker.backend, "name"],
  ["Experts", (worker) => `${worker.units_ready} / ${worker.units_assigned}`, "number"],
  ["Answered", (worker) => compact.format(worker.pairs_answered), "number"],
  ["Per call", (worker) => ms(worker.p50_ms), "number"],
  ["Timeouts", (worker) => String(worker.timeouts), "number"],
  ["Bad answers", (worker) => String(worker.bad_answers), "number"],
  ["Up / down", (worker) => `${bytes(worker.bytes_received)} / ${bytes(worker.bytes_sent)}`, "number"],
  ["For", (worker) => span(worker.connected_s), "number"],
];
const setting_columns = [
  ["Setting", (one) => one.name],
  ["Value", (one) => one.value || "–"],
  ["From", (one) => one.source],
  ["What it does", (one) => one.help],
];

function drawHeads(id, columns) {
  element(id).replaceChildren(...columns.map(([name, , kind = ""]) => make("th", kind === "number" ? kind : "", name)));
}

function rowOf(columns, one, ...more) {
  const row = make("tr");
  for (const [name, tell, kind = ""] of columns) {
    const cell = make("td", kind, "", { "data-name": name });
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
  element("keys").replaceChildren(...rows);
  element("local-words").textContent = `Without a key: ${usedWords(local.today)} tokens today, `
    + `${usedWords(local.all)} in all.`;
}

function drawWorkers(workers) {
  element("no-workers").hidden = workers.length > 0;
  element("worker-table").hidden = workers.length === 0;
  element("workers").replaceChildren(...workers.map((worker) => rowOf(worker_columns, worker)));
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
    const [keys, status] = await Promise.all([getJson("/api/admin/keys", key), getJson("/api/status", key)]);
    if (keys.status === 401 || keys.status === 403) return close("The hub does not know this key as an admin's.");
    if (!keys.ok || !status.ok) throw new Error((keys.ok ? status : keys).body?.error?.message ?? "no answer");
    if (element("rooms").hidden) await openRooms();
    drawKeys(keys.body, Date.now() / 1000);
    drawStatus(status.body);
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
  const dialog = element("ask");
  element("ask-head").textContent = head;
  element("ask-words").textContent = words;
  element("ask-yes").textContent = yes;
  element("ask-no").onclick = () => dialog.close("no");
  element("ask-yes").onclick = () => dialog.close("yes");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

async function askToRevoke(one) {
  const words = `${one.name} (${one.id}) can do nothing with it any more; answers that run end with an error.`;
  if (!await ask("Revoke this key?", words, "Revoke")) return;
  if (await order("/api/admin/keys/revoke", { id: one.id })) refresh();
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
drawHeads("setting-heads", setting_columns);
begin();
