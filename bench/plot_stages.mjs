// Draws stage tables: a bar for each row, as long as the stage's share of its bound.
//   node bench/plot_stages.mjs [TABLE.csv ...]     default: every bench/results/stages.*.csv
// Writes an SVG beside each table. A bar that ends at the line reaches its bound; a longer bar was measured wrongly.
// example: node bench/plot_stages.mjs bench/results/stages.epyc-2-cores.csv
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const size = { label: 190, bar: 400, note: 230, row: 22, bar_height: 14, title: 34, foot: 12 };
const colors = { "1": "#3b6ea8", many: "#b8702f", bound: "#888", text: "#222", quiet: "#666" };
const share_max = 1.25;  // share at the right end of the axis; longer bars are cut

const escape = (text) => text.replace(/[&<>]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[sign]);
const x_of = (share) => Math.round(size.label + Math.min(share, share_max) / share_max * size.bar);

// Parses the rows of a table by column names; comments are skipped.
function rows_of(csv) {
  const [header, ...lines] = csv.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
  const names = header.split(",");
  return lines.map((line) => Object.fromEntries(line.split(",").map((value, i) => [names[i], value])));
}

function text_at(x, y, content, { anchor = "start", color = colors.text, bold = false } = {}) {
  const weight = bold ? ' font-weight="bold"' : "";
  return `<text x="${x}" y="${y}" text-anchor="${anchor}" fill="${color}"${weight}>${escape(content)}</text>`;
}

function bar(row, y) {
  const share = Number(row.share), is_one = row.rows === "1";
  const color = is_one ? colors["1"] : colors.many;
  const amount = `${row.per_second} of ${row.bound_per_second} ${is_one ? "GB/s" : "GMAC/s"}`;
  const width = x_of(share) - size.label;
  return [
    text_at(size.label - 8, y + 11, `${row.stage}, ${row.rows} row${is_one ? "" : "s"}`, { anchor: "end" }),
    `<rect x="${size.label}" y="${y}" width="${width}" height="${size.bar_height}" fill="${color}"/>`,
    text_at(size.label + size.bar + 8, y + 11, `${share.toFixed(2)}: ${amount}`, { color: colors.quiet }),
  ].join("\n");
}

// Each machine and shape of the table has a title of its own in the picture.
function picture(rows) {
  const groups = new Map();
  for (const row of rows) {
    const title = `${row.machine}: ${row.shape}`;
    groups.set(title, [...groups.get(title) ?? [], row]);
  }
  const parts = [];
  let y = 0;
  for (const [title, members] of groups) {
    parts.push(text_at(8, y + 20, `${title}, share of the bound`, { bold: true }));
    y += size.title;
    const bottom = y + members.length * size.row;
    parts.push(`<line x1="${x_of(1)}" y1="${y - 6}" x2="${x_of(1)}" y2="${bottom}" stroke="${colors.bound}"/>`);
    members.forEach((row, i) => parts.push(bar(row, y + i * size.row)));
    y = bottom + size.foot;
  }
  const width = size.label + size.bar + size.note;
  const font = 'font-family="sans-serif" font-size="12"';
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${y}" ${font}>
<rect width="${width}" height="${y}" fill="white"/>
${parts.join("\n")}
</svg>
`;
}

const results = fileURLToPath(new URL("results/", import.meta.url));
const given = process.argv.slice(2);
const tables = given.length > 0
  ? given
  : readdirSync(results).filter((name) => /^stages\..*\.csv$/.test(name)).map((name) => results + name);
for (const table of tables) {
  const rows = rows_of(readFileSync(table, "utf8"));
  writeFileSync(table.replace(/\.csv$/, ".svg"), picture(rows));
}
