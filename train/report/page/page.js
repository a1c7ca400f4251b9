// Builds the page. The page describes all runs, and draws their curves in common charts. For one
// chosen run, the page shows norms, classes, timeline, owners, memory, traffic and settings.
"use strict";

const {runs, version} = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const mostWithTiles = 3;  // a page of more runs shows their figures in a table, not in tiles

const last = (points) => points?.at(-1)?.[1];
const lastStep = (points) => points?.at(-1)?.[0];

function describeRun({header}) {
  const model = header.model ?? {};
  const parts = [header.program, header.preset ?? model.name,
    model.parameters === undefined ? null : counted(model.parameters, "parameter"),
    header.precision, header.stage === undefined ? null : `stage ${header.stage}`,
    header.ranks === undefined ? null : counted(header.ranks, "rank") +
      (header.threads === undefined ? "" : ` × ${counted(header.threads, "thread")}`),
    header.device_name ?? header.device, header.reduction && `${header.reduction} reduction`];
  return parts.filter(Boolean).join(" · ");
}

function tile(parent, value, label) {
  const node = element("div", parent, {class: "tile"});
  element("b", node, {}, value);
  element("span", node, {}, label);
}

function bestOf(run) {
  const names = Object.keys(run.evals).filter((key) => key !== "epoch");
  const name = names.find((key) => /^(top1|rmse|ndcg)/.test(key)) ?? names[0];
  if (!name) return null;
  const points = run.evals[name].filter(([, value]) => value !== null);
  const rises = /^(top|hr|ndcg|recall|mrr)/.test(name);
  const best = points.reduce((a, b) => ((rises ? b[1] > a[1] : b[1] < a[1]) ? b : a), points[0]);
  return best && {name, step: best[0], value: best[1]};
}

// Returns the figures of a run as a list of [label, value, note].
function figuresOf(run) {
  const {series, count, medians} = run.steps;
  const list = [["steps", number(count), ` of ${number(run.header.steps)}`],
                ["last loss", number(last(series.loss)),
                 `, step ${number(lastStep(series.loss))}`]];
  const best = bestOf(run);
  if (best) {
    list.push([`best ${words(best.name)}`, number(best.value), `, step ${number(best.step)}`]);
  }
  for (const [name, value] of Object.entries(medians)) {
    if (name === "step_ms") list.push(["a step, median", `${number(value)} ms`, ""]);
    else list.push([`${words(name)}, median`, number(Math.round(value)), ""]);
  }
  const {summary} = run;
  if (!summary) return [...list, ["the run goes on, was stopped or failed", "no summary", ""]];
  const peak = Math.max(...summary.ranks.map((rank) => rank.peak_total));
  return [...list, ["peak memory of a rank", bytes(peak), ""],
          ["planned and measured bytes", summary.equal ? "equal" : "DIFFERS", ""]];
}

function tiles(parent, run) {
  const node = element("div", parent, {class: "tiles"});
  for (const [label, value, note] of figuresOf(run)) tile(node, value, label + note);
}

// Adds a table of the figures of many runs, with a row for each run.
function figuresTable(parent) {
  const figures = runs.map(figuresOf);
  const labels = [...new Set(figures.flatMap((list) => list.map(([label]) => label)))];
  const rows = figures.map((list, i) => [runs[i].name, ...labels.map((label) => {
    const found = list.find(([of]) => of === label);
    return found ? found[1] : "";
  })]);
  tableOf(parent, "the runs in figures", ["", ...labels], rows).parentNode.open = true;
}

// Returns the lines of one series, one line for each run.
function linesOf(kind, name, label = words(name)) {
  const several = runs.length > 1;
  return runs.map((run, i) => ({
    name: several ? `${run.name}, ${label}` : label,
    label: several ? run.name : label,
    ...lineStyle(i),
    dotted: kind === "evals",
    points: kind === "evals" ? run.evals[name] ?? [] : withGaps(run.steps, name),
  }));
}

function namesOf(kind) {
  const all = runs.flatMap((run) => Object.keys(kind === "evals" ? run.evals : run.steps.series));
  return [...new Set(all)].filter((name) => name !== "epoch");
}

// Returns the first and the last step of all runs. All charts show this range.
function stepsOfAll() {
  const series = runs.flatMap((run) => [run.steps.series, run.evals].flatMap(Object.values));
  return extent(series.flatMap((points) => [points[0][0], points.at(-1)[0]]));
}

// With several runs, each chart has one line for each run, so that a colour identifies a run.
function charts(parent) {
  const node = element("div", parent, {class: "charts"});
  const several = runs.length > 1;
  const common = {steps: stepsOfAll(), resumes: several ? [] : runs[0].resumes ?? []};
  const withSkipped = {...common, ...skippedSteps(runs)};
  const colored = (lines, fill) => lines.map((line) => ({...line, color: fill}));
  const loss = linesOf("steps", "loss");
  const validation = linesOf("evals", "val_loss", "validation loss");
  chart(node, "Loss", several ? loss : [...loss, ...colored(validation, color(1))], withSkipped);
  if (several) chart(node, "Validation loss", validation, common);
  // Perplexity and bits per byte get no charts, because they follow from the loss.
  const drawn = ["val_loss", "perplexity", "bits_per_byte"];
  for (const name of namesOf("evals").filter((key) => !drawn.includes(key))) {
    chart(node, `Evaluation: ${words(name)}`, linesOf("evals", name), common);
  }
  chart(node, "Learning rate", linesOf("steps", "lr"), common);
  chart(node, "Norm of the gradient", linesOf("steps", "grad_norm"), withSkipped);
  const warm = (line) => ({...line, warm: true});
  const speeds = namesOf("steps").filter((name) => name.endsWith("_per_s"));
  for (const name of speeds) {
    const title = `Speed: ${words(name).replace("per s", "per second")}`;
    chart(node, title, linesOf("steps", name).map(warm), common);
  }
  const times = linesOf("steps", "step_ms", "step").map(warm);
  const exposed = linesOf("steps", "comm_exposed_ms", "exposed communication").map(warm);
  chart(node, "Milliseconds of a step",
        several ? times : [...times, ...colored(exposed, "var(--exposed)")], common);
  const waiting = "Milliseconds of a step spent waiting for";
  if (several) chart(node, `${waiting} communication`, exposed, common);
  const known = ["loss", "lr", "grad_norm", "step_ms", "comm_exposed_ms", ...speeds];
  const titles = {
    loss_scale: "Scale of the loss in fp16",
    data_exposed_ms: `${waiting} data`,
    checkpoint_wait_ms: "Milliseconds that an update waited for a checkpoint",
  };
  for (const name of namesOf("steps").filter((key) => !known.includes(key))) {
    chart(node, titles[name] ?? words(name), linesOf("steps", name), common);
  }
}

function heat(share) {
  return `color-mix(in oklab, var(--c0) ${Math.round(100 * share)}%, var(--empty))`;
}

const rowsOfText = 10;  // least distance in pixels between the names of two rows

// Returns the indices of the rows that show their names. If the rows are high enough, all rows show
// their names. Otherwise, only rows that are far enough apart show their names. The first row of
// each layer has priority. A parameter's layer is its name up to the first part that is a number,
// as in h.3 or layer1.0. Without such a part, the layer is the first part of the name.
function namedRows(names, row) {
  const layer = (name) => name.match(/^.*?\.\d+/)?.[0] ?? name.split(".")[0];
  const chosen = [];
  const choose = (i, room) => {
    if (chosen.every((j) => Math.abs(i - j) * row >= room)) chosen.push(i);
  };
  names.forEach((name, i) => {
    if (i === 0 || layer(name) !== layer(names[i - 1])) choose(i, rowsOfText);
  });
  names.forEach((_, i) => choose(i, row < rowsOfText ? 2 * rowsOfText : rowsOfText));
  return chosen;
}

// Draws all cells of one shade as one path, because a page with an element for each cell is slow.
function drawCells(svg, {names, steps, values, share}, left, row, column) {
  const shades = 32;
  const paths = new Map();
  steps.forEach((_, j) => names.forEach((_, i) => {
    if (!(values[j][i] > 0)) return;
    const shade = Math.round(shades * share(values[j][i]));
    const x = (left + j * column).toFixed(1);
    const width = (column + 0.3).toFixed(1);
    const height = (row - 0.5).toFixed(1);
    const cell = `M${x} ${(i * row).toFixed(1)}h${width}v${height}h-${width}z`;
    paths.set(shade, (paths.get(shade) ?? "") + cell);
  }));
  for (const [shade, d] of paths) shape("path", svg, {d, fill: heat(shade / shades)});
}

function drawNorms(parent, width, norms) {
  const {names, steps, values} = norms;
  const left = Math.min(196, 0.36 * width);
  const row = Math.max(3, Math.min(14, 720 / names.length));
  const column = (width - left) / steps.length;
  const svg = drawing(parent, width, names.length * row + 20, "Norms of gradients");
  const most = Math.floor(left / 6.2);
  for (const i of namedRows(names, row)) {
    const name = names[i];
    shape("text", svg, {x: left - 6, y: i * row + Math.max(row, 6) / 2 + 3.5, "text-anchor": "end",
                        style: "font-size:9px"},
          name.length > most ? `…${name.slice(1 - most)}` : name);
  }
  drawCells(svg, norms, left, row, column);
  const labels = Math.max(3, Math.floor((width - left) / 90));
  for (const j of ticks(0, steps.length - 1, labels).filter(Number.isInteger)) {
    shape("text", svg, {x: left + (j + 0.5) * column, y: names.length * row + 14,
                        "text-anchor": "middle"}, `${number(steps[j])}`);
  }
  onPointer(svg, (x, y) => {
    const i = Math.floor(y / row);
    const j = Math.floor((x - left) / column);
    if (x === null || !(i in names) || !(j in steps)) return "";
    return `${names[i]}\nstep ${number(steps[j])}: ${number(values[j][i])}`;
  });
}

function normsSection(parent, run) {
  const {steps} = run.norms;
  if (steps.length === 0) return;
  const order = run.norms.names.map((_, i) => i).sort((a, b) => run.norms.names[a].localeCompare(
    run.norms.names[b], "en", {numeric: true}));
  const names = order.map((i) => run.norms.names[i]);
  const values = run.norms.values.map((row) => order.map((i) => row[i]));
  const node = section(parent, "norms", "Norm of each parameter's gradient",
    "One row for each parameter, one column for each recorded step.");
  const [low, high] = extent(values.flat().filter((v) => v > 0));
  if (low > high) return;
  const scale = element("p", node, {}, number(low));
  element("span", scale, {class: "scale",
    style: `background:linear-gradient(to right in oklab, ${heat(0)}, ${heat(1)})`});
  scale.append(`${number(high)} (logarithmic)`);
  const share = (value) => Math.log(value / low) / (Math.log(high / low) || 1);
  drawAtWidth(node, (place, width) => drawNorms(place, width, {names, steps, values, share}));
}

function settingsSection(parent, run) {
  const node = section(parent, "settings", "Settings", "");
  const rows = [];
  const add = (prefix, object) => {
    for (const [name, value] of Object.entries(object)) {
      if (value !== null && typeof value === "object") add(`${prefix}${name}.`, value);
      else if (value !== "") rows.push([prefix + name, String(value)]);
    }
  };
  add("", run.header);
  const events = [["resumed after step", run.resumes], ["checkpoints at steps", run.checkpoints],
                  ["weights saved at steps", run.saves], ["steps without an update", run.skipped]];
  for (const [text, steps] of events) {
    if (!steps) continue;
    rows.push([text, steps.slice(0, 50).map(number).join(", ") + (steps.length > 50 ? ", …" : "")]);
  }
  tableOf(node, "all settings of the run", ["", ""], rows);
}

function showRun(parent, run) {
  parent.replaceChildren();
  normsSection(parent, run);
  imagesSection(parent, run);
  timelineSection(parent, run);
  ownershipSection(parent, run);
  memorySection(parent, run);
  trafficSection(parent, run);
  settingsSection(parent, run);
}

function themeButton(parent) {
  const button = element("button", parent, {type: "button", title: "light or dark"}, "◐");
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark"
                                    : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
}

// Adds a number to the name of a run if an earlier run has the same name.
function nameApart() {
  const known = new Set();
  for (const run of runs) {
    const name = run.name;
    for (let i = 2; known.has(run.name); ++i) run.name = `${name} (${i})`;
    known.add(run.name);
  }
}

function showPage() {
  nameApart();
  const head = element("header", page);
  const title = element("div", head);
  const names = runs.length > mostWithTiles ? `${runs.length} runs`
                                            : runs.map((run) => run.name).join(", ");
  element("h1", title, {}, names);
  document.title = `${names} – Tessera`;
  themeButton(head);
  runs.forEach((run, i) => {
    const line = element("p", runs.length > 1 ? page : title);
    if (runs.length > 1) {
      lineSample(line, lineStyle(i));
      line.append(`${run.name}: `);
    }
    line.append(describeRun(run));
    if (runs.length <= mostWithTiles) tiles(page, run);
  });
  if (runs.length > mostWithTiles) figuresTable(element("div", page, {class: "wide"}));
  const curves = section(page, "curves", "Curves", "");
  charts(curves);
  const chosen = element("div");
  if (runs.length > 1) {
    const choice = section(page, "run", "One run", "");
    const select = element("select", choice, {"aria-label": "run"});
    runs.forEach((run, i) => element("option", select, {value: i}, run.name));
    select.addEventListener("change", () => showRun(chosen, runs[select.value]));
  }
  page.append(chosen);
  showRun(chosen, runs[0]);
  element("p", page, {}, `Drawn by Tessera ${version} from the log of the run.`);
  document.body.dataset.ready = "true";
}

showPage();
