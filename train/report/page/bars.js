// Draws bytes as bars: memory by category and traffic by purpose. Each of the first 16 ranks has a
// panel with its measured and planned bytes.
"use strict";

const mostPanels = 16;

// `rows` is a list of {name, planned (undefined: not planned), measured}. `largest` is the largest
// value of all panels. All panels have the same scale, so that ranks can be compared.
function barPanel(parent, title, rows, largest) {
  const figure = element("figure", parent);
  element("figcaption", figure, {}, title);
  drawAtWidth(figure, (node, width) => drawBars(node, width, title, rows, largest));
  tableOf(figure, "numbers", ["", "planned", "measured"], rows.map(
    (row) => [row.name, number(row.planned), number(row.measured)]));
}

function drawBars(parent, width, title, rows, largest) {
  const rowHeight = 21;
  const left = 124;
  const room = width - left - 78;
  const svg = drawing(parent, width, rows.length * rowHeight + 4, title);
  rows.forEach((row, i) => {
    const y = i * rowHeight + 3;
    const size = (value) => (largest > 0 ? (value / largest) * room : 0);
    const differs = row.planned !== undefined && row.planned !== row.measured;
    shape("text", svg, {x: left - 8, y: y + 12, "text-anchor": "end", class: "strong"},
          words(row.name));
    shape("rect", svg, {x: left, y, width: size(row.measured), height: 15,
                        fill: differs ? "var(--exposed)" : "var(--c0)"});
    if (row.planned !== undefined) {
      const x = left + size(row.planned);
      shape("line", svg, {x1: x, x2: x, y1: y - 2, y2: y + 17, stroke: "var(--ink)",
                          "stroke-width": 2});
    }
    shape("text", svg, {x: left + size(row.measured) + 6, y: y + 12},
          `${bytes(row.measured)}${differs ? " ≠" : ""}`);
  });
  onPointer(svg, (x, y) => {
    const row = y === null ? null : rows[Math.floor((y - 2) / rowHeight)];
    if (!row) return "";
    const plan = row.planned === undefined ? "not planned" : `planned ${number(row.planned)} bytes`;
    return `${words(row.name)}: measured ${number(row.measured)} bytes, ${plan}`;
  });
}

function shownRanks(summary) {
  const ranks = summary.ranks;
  if (ranks.length <= mostPanels) return ranks;
  return ranks.slice(0, mostPanels);
}

function barSection(page, id, title, text, summary, rowsOf) {
  const ranks = shownRanks(summary);
  const others = summary.ranks.length - ranks.length;
  const rest = others > 0 ? ` Ranks from ${ranks.length} on are not drawn.` : "";
  const node = section(page, id, title, text + rest);
  const panels = element("div", node, {class: "panels"});
  const rows = ranks.map(rowsOf);
  const largest = Math.max(...rows.flat().map((row) => Math.max(row.measured, row.planned ?? 0)));
  ranks.forEach((rank, i) => barPanel(panels, `rank ${rank.rank}`, rows[i], largest));
}

function memorySection(page, run) {
  if (!run.summary) return;
  const text = "Peak bytes of each category. The mark is the plan, made before the run; a " +
    "bar in another colour, with ≠, differs from it.";
  barSection(page, "memory", "Memory", text, run.summary, (rank) =>
    Object.entries(rank.memory).map(
      ([name, of]) => ({name, planned: of.planned, measured: of.peak})));
}

function trafficSection(page, run) {
  if (!run.summary) return;
  const steps = counted(run.summary.steps, "step");
  const text = `Bytes that each rank has sent in ${steps}, by purpose. The mark is the plan.`;
  barSection(page, "traffic", "Traffic", text, run.summary, (rank) =>
    Object.entries(rank.traffic).map(
      ([name, of]) => ({name, planned: of.planned, measured: of.measured})));
}
