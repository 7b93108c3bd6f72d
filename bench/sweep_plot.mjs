// Draws the output of `moex-sim --sweep`: for each kind of swarm the median and p99 time of a token under each policy
// of second attempts, and the share of second attempts that the policy sent. Writes an SVG.
// example: node bench/sweep_plot.mjs bench/results/sweep.simulated.csv > bench/results/sweep.simulated.svg
import {readFileSync} from "node:fs";

const rows = readFileSync(process.argv[2], "utf8")
    .split("\n")
    .filter((line) => line !== "" && !line.startsWith("#"))
    .slice(1)
    .map((line) => line.split(","))
    .map(([profile, policy, p50, p99, , extra]) => ({profile, policy, p50: +p50, p99: +p99, extra: +extra}));

const profiles = [...new Set(rows.map((row) => row.profile))];
// policies that every kind of swarm ran with; a bound that only one kind has is no policy
const policies = [...new Set(rows.map((row) => row.policy))]
    .filter((policy) => profiles.every((profile) =>
        rows.some((row) => row.profile === profile && row.policy === policy)));
const colours = ["#6b7280", "#2563eb", "#0d9488", "#d97706", "#b91c1c"];

const left = 60, top = 40, plotHeight = 260, barWidth = 22, groupGap = 40;
const groupWidth = policies.length * (barWidth + 4);
const width = left + profiles.length * (groupWidth + groupGap);
const height = top + plotHeight + 70;
const mostMs = Math.ceil(Math.max(...rows.map((row) => row.p99)) / 250) * 250;
const y = (ms) => Math.round(top + plotHeight * (1 - ms / mostMs));

const out = [];
const text = (x, at, words, more = "") => out.push(`<text x="${x}" y="${at}" ${more}>${words}</text>`);

for (let ms = 0; ms <= mostMs; ms += 250) {
    out.push(`<line x1="${left}" x2="${width}" y1="${y(ms)}" y2="${y(ms)}" stroke="#ddd"/>`);
    text(left - 6, y(ms) + 4, `${ms}`, 'text-anchor="end"');
}
text(left, 16, "A token of 48 layers in ms: bars to the p99, a line at the median; below, extra groups in %");

profiles.forEach((profile, i) => {
    const begin = left + i * (groupWidth + groupGap) + groupGap / 2;
    policies.forEach((policy, k) => {
        const row = rows.find((one) => one.profile === profile && one.policy === policy);
        const x = begin + k * (barWidth + 4);
        out.push(`<rect x="${x}" y="${y(row.p99)}" width="${barWidth}" height="${y(0) - y(row.p99)}"`,
            `fill="${colours[k % colours.length]}"/>`);
        out.push(`<line x1="${x}" x2="${x + barWidth}" y1="${y(row.p50)}" y2="${y(row.p50)}" stroke="#fff"`,
            'stroke-width="2"/>');
        text(x + barWidth / 2, y(0) + 14, row.extra.toFixed(row.extra < 10 ? 1 : 0),
            'text-anchor="middle" font-size="9"');
    });
    text(begin + groupWidth / 2, y(0) + 32, profile, 'text-anchor="middle"');
});

policies.forEach((policy, k) => {
    const x = left + k * 110;
    out.push(`<rect x="${x}" y="${height - 22}" width="12" height="12" fill="${colours[k % colours.length]}"/>`);
    text(x + 18, height - 12, policy);
});

console.log(`<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"`);
console.log('font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#fff"/>');
console.log(out.join("\n") + "\n</svg>");
