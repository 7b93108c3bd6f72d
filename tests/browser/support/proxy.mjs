// A real proxy in front of a hub, with a snippet of the operator's manual (scripts/host/README.md) as its settings.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "node:tls";

const manual = readFileSync(new URL("../../../scripts/host/README.md", import.meta.url), "utf8");

// Returns the block of the manual in the language `name`, as it is written.
export function snippetOf(name) {
  const found = manual.split(`\n\`\`\`${name}\n`)[1]?.split("\n```")[0];
  if (!found) throw new Error(`scripts/host/README.md has no block in the language ${name}`);
  return `${found}\n`;
}

// Returns a port of the loopback interface that is free now.
export const freePort = () => new Promise((resolve) => {
  const server = createServer().listen(0, "127.0.0.1", () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

// The settings file of each proxy around its snippet, and the command that runs it in the foreground. Addresses, ports
// and certificates are this machine's; all else is the manual's.
const kinds = {
  nginx: {
    language: "nginx", program: "nginx", port: [/listen 443 /, (port) => `listen 127.0.0.1:${port} `],
    file: (text, at) => `pid ${at}/pid;\nerror_log stderr;\nevents {}\nhttp {\n  access_log off;\n`
      + ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map((one) => `  ${one}_temp_path ${at}/${one};\n`).join("")
      + `${text}}\n`,
    args: (file) => ["-c", file, "-g", "daemon off; master_process off;"],
  },
  caddy: {
    language: "caddyfile", program: "caddy", port: [/^hub\.example \{/m, (port) => `https://localhost:${port} {`],
    file: (text) => `{\n  admin off\n  auto_https off\n}\n${text}`,
    args: (file) => ["run", "--adapter", "caddyfile", "--config", file],
  },
  haproxy: {
    language: "haproxy", program: "haproxy", port: [/bind :443 /, (port) => `bind 127.0.0.1:${port} `],
    file: (text) => text,
    args: (file) => ["-db", "-f", file],
  },
};

kinds["nginx fleet"] = { ...kinds.nginx, language: "nginx fleet" };
kinds["haproxy fleet"] = { ...kinds.haproxy, language: "haproxy fleet" };

// Returns true if the proxy's program is installed here.
export function isInstalled(kind) {
  try {
    execFileSync("/bin/sh", ["-c", `PATH=$PATH:/usr/sbin command -v ${kinds[kind].program}`]);
    return true;
  } catch { return false; }
}

function replaced(text, [from, to]) {
  if (!(from instanceof RegExp ? from.test(text) : text.includes(from))) throw new Error(`no ${from} in the snippet`);
  return text.replaceAll(from instanceof RegExp ? new RegExp(from, "gm") : from, to);
}

// Connects and resolves when the proxy speaks TLS; the connection stays open.
export const dial = (port) => new Promise((resolve, reject) => {
  const socket = connect({ port, host: "127.0.0.1", servername: "localhost", rejectUnauthorized: false,
    ALPNProtocols: ["http/1.1"] }, () => resolve(socket));
  socket.once("error", reject);
});

export class Proxy {
  // Starts the proxy `kind` at `port` for the hub at `hub_port`. `cert`: a folder with cert.pem, key.pem and
  // cert-and-key.pem. `more`: further replacements [from, to] in the snippet.
  static async start(kind, { port, hub_port, cert, more = [] }) {
    const proxy = new Proxy();
    const { language, program, port: at, file, args } = kinds[kind];
    proxy.folder = mkdtempSync(join(tmpdir(), "moex-proxy-"));
    let text = replaced(snippetOf(language), [at[0], at[1](port)]);
    if (hub_port) text = replaced(text, ["127.0.0.1:8080", `127.0.0.1:${hub_port}`]);
    text = replaced(text, ["/etc/ssl/hub/", `${cert}/`]);
    for (const one of more) text = replaced(text, one);
    const settings = join(proxy.folder, "settings");
    writeFileSync(settings, file(text, proxy.folder));
    proxy.child = spawn(program, args(settings), {
      stdio: ["ignore", "pipe", "pipe"],
      env: { ...process.env, PATH: `${process.env.PATH}:/usr/sbin`, HOME: proxy.folder },
    });
    proxy.printed = "";
    for (const stream of [proxy.child.stdout, proxy.child.stderr])
      stream.setEncoding("utf8").on("data", (words) => { proxy.printed += words; });
    proxy.ended = new Promise((resolve) => proxy.child.once("close", resolve));
    for (let is_up = false; !is_up;) {
      if (proxy.child.exitCode !== null) throw new Error(`${kind} ended: ${proxy.printed}\n${text}`);
      is_up = await dial(port).then((socket) => { socket.destroy(); return true; }, () => false);
      if (!is_up) await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return proxy;
  }
  async stop() {
    this.child.kill("SIGTERM");
    const timer = setTimeout(() => this.child.kill("SIGKILL"), 5000);
    await this.ended;
    clearTimeout(timer);
    rmSync(this.folder, { recursive: true, force: true });
  }
}
