// A proxy with a given round trip time, which a bench puts between a hub and its workers.
import { spawn } from "node:child_process";
import { join } from "node:path";

// Resolves to a server on a free port, {address(), set(rtt_ms), close()}, that forwards to 127.0.0.1:`port`. Data and
// the ends of connections are delayed by half of `rtt_ms` in each direction. A share `late.share` of the frames is late
// by `late.ms` more. The proxy is a process (delay_line.cpp) of the build in MOEX_BUILD.
export async function farAway(port, rtt_ms, late = { share: 0, ms: 0 }) {
  const line = spawn(join(process.env.MOEX_BUILD ?? "build", "delay_line"),
    ["--port", port, "--rtt-ms", rtt_ms, "--late-share", late.share, "--late-ms", late.ms].map(String),
    { stdio: ["pipe", "pipe", "inherit"] });
  const near = await new Promise((resolve, reject) => {
    line.once("error", reject);
    line.once("exit", (code) => reject(new Error(`delay_line ended with ${code}`)));
    line.stdout.once("data", (text) => resolve(Number(text)));
  });
  return { address: () => ({ port: near }), set: (ms) => line.stdin.write(`${ms}\n`), close: () => line.stdin.end() };
}
