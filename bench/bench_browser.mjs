// Starts a Chromium for benches without observing its network.
//
// Problem: Playwright makes the browser report each message of each WebSocket, of workers too, and keep what pages
// load. A message to a server on this machine and back takes 0.45 ms with that and 0.2 without, one of 64 kB 1.9 and
// 0.6, and a page needs twice the processor to read a file (bench/results/tab_trip.epyc-2-cores.csv). A contributor's
// browser does none of this.
// Solution: Puppeteer can leave the network out.
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

import { chromiumOptions } from "../tests/browser/support/tab.mjs";

const require = createRequire(join(resolve(process.env.MOEX_NPM ?? "build/npm"), "package.json"));

// Resolves to a browser of Puppeteer. `profile`: the folder for what it keeps; null: it keeps nothing. `webgpu` false:
// it finds no GPU.
export function launchQuiet({ profile = null, webgpu = true } = {}) {
  const { executablePath, args, chromiumSandbox } = chromiumOptions([], webgpu);
  return require("puppeteer-core").launch({
    executablePath, headless: "shell", networkEnabled: false, timeout: 0, protocolTimeout: 0,
    args: [...args, ...(chromiumSandbox ? [] : ["--no-sandbox"])], ...(profile ? { userDataDir: profile } : {}),
  });
}
