// Puts the page together: what the runs are, their curves in common charts, and for one chosen run
// its memory, traffic, owners, timeline, classes and settings.
"use strict";

const {runs, version} = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");

function last(points) {
  return points && points.length > 0 ? points.at(-1)[1] : undefined;
}

function medianOf(points) {
  if (!points || points.length === 0) return undefined;
  const sorted = points.map((p) => p[1]).sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

const speedOf = (run) => Object.keys(run.steps.series).find((name) => name.endsWith("_per_s"));

function describeRun({header}) {
  const model = header.model ?? {};
  const parts = [header.program, header.preset ?? model.name,
    model.parameters === undefined ? null : `${number(model.parameters)} parameters`,
    header.precision, header.stage === undefined ? null : `stage ${header.stage}`,
    header.ranks === undefined ? null : `${header.ranks} rank${header.ranks === 1 ? "" : "s"} × ` +
      `${header.threads} thread${header.threads === 1 ? "" : "s"}`,
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

function tiles(parent, run) {
  const node = element("div", parent, {class: "tiles"});
  const {series, count} = run.steps;
  tile(node, number(count), `steps of ${number(run.header.steps)}`);
  tile(node, number(last(series.loss)), "loss of the last step");
  const best = bestOf(run);
  if (best) tile(node, number(best.value), `best ${words(best.name)}, step ${number(best.step)}`);
  const speed = speedOf(run);
  if (speed) tile(node, number(Math.round(medianOf(series[speed]))), `${words(speed)}, median`);
  const times = series.step_ms;
  if (times) tile(node, `${number(medianOf(times))} ms`, "a step, median");
  if (run.summary) {
    tile(node, bytes(Math.max(...run.summary.ranks.map((rank) => rank.peak_total))),
         "peak memory of a rank");
    tile(node, run.summary.equal ? "equal" : "DIFFERS", "planned and measured bytes");
  } else {
    tile(node, "not ended", "memory and traffic come at the end");
  }
}

// lines of one series in all runs
function linesOf(kind, name, label = words(name)) {
  return runs.map((run, i) => ({
    name: runs.length > 1 ? `${run.name}, ${label}` : label,
    color: color(i),
    dotted: kind === "evals",
    points: (kind === "evals" ? run.evals[name] : run.steps.series[name]) ?? [],
  }));
}

function namesOf(kind) {
  const all = runs.flatMap((run) => Object.keys(kind === "evals" ? run.evals : run.steps.series));
  return [...new Set(all)].filter((name) => name !== "epoch");
}

function charts(parent) {
  const node = element("div", parent, {class: "charts"});
  const evaluations = namesOf("evals");
  const loss = linesOf("steps", "loss", "loss");
  const validation = linesOf("evals", "val_loss", "validation loss").map((line, i) => ({
    ...line, color: runs.length > 1 ? color(i) : color(1)}));
  chart(node, "Loss", [...loss, ...validation]);
  // Perplexity and bits per byte have the shape of the loss.
  const drawn = ["val_loss", "perplexity", "bits_per_byte"];
  for (const name of evaluations.filter((key) => !drawn.includes(key))) {
    chart(node, `Evaluation: ${words(name)}`, linesOf("evals", name));
  }
  chart(node, "Learning rate", linesOf("steps", "lr"));
  chart(node, "Norm of the gradient", linesOf("steps", "grad_norm"));
  const speeds = namesOf("steps").filter((name) => name.endsWith("_per_s"));
  const warm = (line) => ({...line, warm: true});
  for (const name of speeds) chart(node, `Speed: ${words(name)}`, linesOf("steps", name).map(warm));
  const exposed = linesOf("steps", "comm_exposed_ms", "exposed communication").map((line, i) => ({
    ...line, dash: runs.length > 1, color: runs.length > 1 ? color(i) : "var(--exposed)"}));
  const times = [...linesOf("steps", "step_ms", "step"), ...exposed];
  chart(node, "Milliseconds of a step", times.map(warm));
  const known = ["loss", "lr", "grad_norm", "step_ms", "comm_exposed_ms", ...speeds];
  for (const name of namesOf("steps").filter((key) => !known.includes(key))) {
    chart(node, words(name), linesOf("steps", name));
  }
}

function heat(share) {
  return `color-mix(in oklab, var(--c0) ${Math.round(100 * share)}%, var(--empty))`;
}

function normsSection(parent, run) {
  const {steps} = run.norms;
  if (steps.length === 0) return;
  const order = run.norms.names.map((_, i) => i).sort((a, b) => run.norms.names[a].localeCompare(
    run.norms.names[b], "en", {numeric: true}));
  const names = order.map((i) => run.norms.names[i]);
  const values = run.norms.values.map((row) => order.map((i) => row[i]));
  const node = section(parent, "norms", "Norm of each parameter's gradient",
    "One row for each parameter, one column for each recorded step; stronger colour is larger " +
    "(logarithmic).");
  const width = 1140;
  const left = 190;
  const row = Math.max(3, Math.min(14, 640 / names.length));
  const column = (width - left) / steps.length;
  const svg = drawing(node, width, names.length * row + 20, "Norms of gradients");
  const logs = values.map((list) => list.map((v) => (v > 0 ? Math.log10(v) : null)));
  const [low, high] = extent(logs.flat().filter((v) => v !== null));
  names.forEach((name, i) => {
    if (row >= 9) {
      shape("text", svg, {x: left - 6, y: i * row + row / 2 + 3.5, "text-anchor": "end",
                          style: "font-size:9.5px"},
            name.length > 32 ? `…${name.slice(-31)}` : name);
    }
    steps.forEach((step, j) => {
      const value = logs[j][i];
      shape("rect", svg, {x: left + j * column, y: i * row, width: column + 0.3, height: row - 0.5,
                          fill: value === null ? "none" : heat((value - low) / (high - low || 1))});
    });
  });
  for (const j of ticks(0, steps.length - 1, 8).filter(Number.isInteger)) {
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

function showPage() {
  const head = element("header", page);
  const title = element("div", head);
  const names = runs.map((run) => run.name);
  element("h1", title, {}, names.join(", "));
  document.title = `${names.join(", ")} – Tessera`;
  themeButton(head);
  runs.forEach((run, i) => {
    const line = element("p", runs.length > 1 ? page : title);
    if (runs.length > 1) {
      element("span", line, {class: "swatch", style: `background:${color(i)}`});
      line.append(`${run.name}: `);
    }
    line.append(describeRun(run));
    tiles(page, run);
  });
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
