// scripts/run.sh --with-tab as used at a terminal: Ctrl-C reaches the whole process group, the hub drains, the browser
// ends.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { build, chat } from "./support/hub.mjs";

// Returns the ids of the processes with `mark` in their environment: all processes that the script started, in any
// session.
function processesWith(mark) {
  return readdirSync("/proc").filter((name) => {
    if (!/^\d+$/.test(name)) return false;
    try { return readFileSync(`/proc/${name}/environ`, "latin1").includes(mark); } catch { return false; }
  });
}

test("Ctrl-C lets a stream finish, then hub and browser end", async () => {
  const mark = `mark-${randomUUID()}`;
  const folder = mkdtempSync(join(tmpdir(), "moex-run-")), state = join(folder, "state");
  chmodSync(folder, 0o777);   // run by root, the script starts the hub as another user
  const hub_flags = ["--listen", "127.0.0.1:0", "--state", state, "--local-fallback", "off"];
  const child = spawn("bash", ["scripts/run.sh", "--no-build", "--with-tab", ...hub_flags], {
    detached: true, stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, MOEX_BUILD: build, MOEX_MARK: mark, MOEX_CONFIG: "/dev/null" },
  });
  const ended = new Promise((resolve) => child.once("close", resolve));
  let printed = "";
  try {
    const url = await new Promise((resolve, reject) => {
      const look = (text) => {
        printed += text;
        const ready = /^ready: url=(\S+)/m.exec(printed);
        if (ready) resolve(ready[1]);
      };
      child.stdout.setEncoding("utf8").on("data", look);
      child.stderr.setEncoding("utf8").on("data", look);
      ended.then((code) => reject(new Error(`run.sh ended with ${code}:\n${printed}`)));
    });
    // Wait until the tab computes experts for the hub.
    while ((await fetch(`${url}/health`)).status !== 200) await new Promise((resolve) => setTimeout(resolve, 100));
    const messages = [{ role: "user", content: "Tell me a story about the sea." }];
    const answer = await chat({ url }, { messages, max_tokens: 24, temperature: 0 }, (count) => {
      if (count === 2) process.kill(-child.pid, "SIGINT");
    });
    assert.equal(answer.error, null);
    assert.ok(answer.finish === "length" || answer.finish === "stop", answer.finish);
    assert.equal(await ended, 0, printed);
    // Chromium's child processes end a moment after Chromium.
    while (processesWith(mark).length > 0) await new Promise((resolve) => setTimeout(resolve, 100));
  } finally {
    for (const id of processesWith(mark)) try { process.kill(Number(id), "SIGKILL"); } catch { /* gone */ }
    rmSync(folder, { recursive: true, force: true });
  }
});
