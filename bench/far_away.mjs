// A line to a port of this machine that is as long as one wants: what a bench puts between a hub and its workers.
import { spawn } from "node:child_process";
import { join } from "node:path";

// Resolves to a server on a free port, {address(), close()}: every piece, and each end, comes half of `rtt_ms` later on
// the other side of 127.0.0.1:`port`. The line is a process of its own (delay_line.cpp), of the build in MOEX_BUILD.
export async function farAway(port, rtt_ms) {
  const line = spawn(join(process.env.MOEX_BUILD ?? "build", "delay_line"),
    ["--port", String(port), "--rtt-ms", String(rtt_ms)], { stdio: ["pipe", "pipe", "inherit"] });
  const near = await new Promise((resolve, reject) => {
    line.once("error", reject);
    line.once("exit", (code) => reject(new Error(`delay_line ended with ${code}`)));
    line.stdout.once("data", (text) => resolve(Number(text)));
  });
  return { address: () => ({ port: near }), close: () => line.stdin.end() };
}
