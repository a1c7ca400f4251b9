// Draws curves over steps. A chart has a line for each run and series. A cursor names the values of
// the nearest steps. The scale of the values is linear or logarithmic.
"use strict";

const chartHeight = 240;
const mostMarks = 300;  // a sentence replaces the marks if a run has more skipped steps
const thinnedBeyond = 2000;  // runs of at most 2000 steps have all points (thinned_series.h)
const pointsOfBands = 1500;  // a noisy curve with more points is drawn as a band and its mean

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// Returns a function that maps a value in [low, high] to a place between `from` and `to`.
function scaleOf(low, high, from, to, logarithmic) {
  const of = logarithmic ? Math.log : (value) => value;
  const span = of(high) - of(low) || 1;
  return (value) => from + (to - from) * ((of(value) - of(low)) / span);
}

// Returns the ticks of a logarithmic axis: 1, 2, 5, 10, ... if at most seven of these are in the
// range, else powers of ten. If fewer than three of 1, 2, 5, 10, ... are in the range, returns
// evenly spaced numbers.
function logTicks(low, high) {
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); ++power) {
    powers.push(power);
  }
  const inside = (value) => value >= low && value <= high;
  const list = powers.flatMap((p) => [1, 2, 5].map((f) => Number(`${f}e${p}`))).filter(inside);
  if (list.length < 3) return ticks(low, high, 5);
  if (list.length <= 7) return list;
  const every = Math.ceil(powers.length / 7);
  return powers.filter((p) => p % every === 0).map((p) => Number(`1e${p}`)).filter(inside);
}

// Returns the text of a tick. `largest` is the largest absolute value on the axis. Ticks are round
// numbers, so their texts are short.
function axisLabel(value, largest) {
  const size = Math.abs(value);
  if (size > 0 && (size < 1e-3 || largest < 1e-2 || size >= 1e15)) {
    return value.toExponential().replace("e+", "e");
  }
  const units = [[1e12, "T"], [1e9, "G"], [1e6, "M"]];
  const [unit, letter] = units.find(([of]) => size >= of) ?? [1, ""];
  return (value / unit).toLocaleString("en-US", {maximumSignificantDigits: 12}) + letter;
}

function nearest(points, x) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return Math.abs(points[low][0] - x) <= Math.abs(points[high][0] - x) ? points[low] : points[high];
}

// Returns the points of a series. Adds a null for each step at which the longest series has a value
// and this series has none. For example, a skipped step can have an infinite norm, and series have
// only finite values. Thinned series get no nulls.
function withGaps({series, count}, name) {
  const points = series[name] ?? [];
  if (points.length === 0 || count > thinnedBeyond) return points;
  const known = new Set(points.map(([step]) => step));
  const longest = Object.values(series).reduce((a, b) => (b.length > a.length ? b : a));
  const gaps = longest.filter(([step]) => !known.has(step)).map(([step]) => [step, null]);
  return [...points, ...gaps].sort((a, b) => a[0] - b[0]);
}

// Returns the places of points, split into parts at nulls. Gaps of less than two pixels are
// ignored: they would be invisible, and would split a long curve into too many parts.
function partsOf(points, place) {
  const parts = [];
  let broken = true;
  for (const [x, y] of points) {
    if (y !== null) {
      const at = [place.x(x), place.y(y)];
      const begins = parts.length === 0 || (broken && at[0] - parts.at(-1).at(-1)[0] >= 2);
      if (begins) parts.push([at]);
      else parts.at(-1).push(at);
    }
    broken = y === null;
  }
  return parts;
}

// Replaces each value by the mean of a window around its point. The window has about a hundredth of
// all points, but at least nine. At the ends of the curve, the window has fewer points.
function movingMean(points) {
  const reach = Math.max(4, Math.round(points.length / 200));
  const sums = [0];
  for (const [, y] of points) sums.push(sums.at(-1) + y);
  return points.map(([x], i) => {
    const begin = Math.max(0, i - reach);
    const end = Math.min(points.length, i + reach + 1);
    return [x, (sums[end] - sums[begin]) / (end - begin)];
  });
}

// True if the points are close together and go up and down many times.
function isNoisy(parts, height) {
  let count = 0;
  let travelled = 0;
  for (const part of parts) {
    count += part.length;
    for (let i = 1; i < part.length; ++i) travelled += Math.abs(part[i][1] - part[i - 1][1]);
  }
  const width = parts.at(-1).at(-1)[0] - parts[0][0][0];
  return count > 60 && width < 3 * count && travelled > 6 * height;
}

function drawAxes(svg, place, domain, frame) {
  const values = domain.logarithmic ? logTicks(...domain.y) : ticks(...domain.y, 5);
  const largest = Math.max(...values.map(Math.abs));
  for (const value of values) {
    const y = place.y(value);
    shape("line", svg, {x1: frame.left, x2: frame.right, y1: y, y2: y, class: "axis"});
    shape("text", svg, {x: frame.left - 6, y: y + 4, "text-anchor": "end"},
          axisLabel(value, largest));
  }
  const count = Math.max(3, Math.floor((frame.right - frame.left) / 75));
  for (const value of ticks(...domain.x, count).filter(Number.isInteger)) {
    shape("text", svg, {x: place.x(value), y: frame.bottom + 17, "text-anchor": "middle"},
          axisLabel(value, domain.x[1]));
  }
}

// Fills the range between the least and the largest value in each column of two pixels.
function drawBand(svg, points, color) {
  const columns = new Map();
  for (const [x, y] of points) {
    const column = Math.floor(x / 2);
    const [low, high] = columns.get(column) ?? [y, y];
    columns.set(column, [Math.min(low, y), Math.max(high, y)]);
  }
  const edge = (side) => [...columns].map(
    ([column, range]) => `${2 * column + 1},${range[side].toFixed(1)}`);
  shape("polygon", svg, {points: [...edge(0), ...edge(1).reverse()].join(" "), fill: color,
                         "fill-opacity": 0.22});
}

// Returns the stroke of a line. Equal lines share one curve, and their dashes take turns, so that
// each colour is visible.
function strokeOf({color, dash, turn, turns}) {
  if (turn === 0) return {stroke: color, "stroke-dasharray": dash};
  const dashes = `7 ${7 * (turns - 1)}`;
  return {stroke: color, "stroke-dasharray": dashes, "stroke-dashoffset": -7 * turn};
}

function drawCurve(svg, points, attributes) {
  const places = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
  shape("polyline", svg, {points: places, fill: "none", "stroke-linejoin": "round", ...attributes});
}

// Draws a dot. The dots of equal lines are rings around each other.
function drawDot(svg, [cx, cy], {color, turn}) {
  const r = 2.6 + 2 * Math.min(turn, 4);
  shape("circle", svg, {cx, cy, r, fill: turn === 0 ? color : "none", stroke: color});
}

function drawLine(svg, line, place, frame) {
  const parts = partsOf(line.points, place);
  const noisy = isNoisy(parts, frame.bottom - frame.top);
  const stroke = {...strokeOf(line), "stroke-width": line.dotted || noisy ? 1.8 : 1.3};
  for (const part of parts) {
    if (!noisy) {
      drawCurve(svg, part, stroke);
    } else {
      if (line.known.length > pointsOfBands) drawBand(svg, part, line.color);
      else drawCurve(svg, part, {stroke: line.color, "stroke-opacity": 0.3});
      drawCurve(svg, movingMean(part), stroke);
    }
    const dotted = part.length === 1 || (line.dotted && line.known.length <= 60);
    for (const point of dotted ? part : []) drawDot(svg, point, line);
  }
}

// Marks the steps after which the run was resumed, and the steps without an update.
function drawMarks(svg, {resumes, skipped}, place, frame) {
  let free = frame.left;
  for (const step of resumes) {
    const x = place.x(step);
    shape("line", svg, {x1: x, x2: x, y1: frame.top, y2: frame.bottom, class: "resumed"});
    if (x < free || x > frame.right - 54) continue;
    shape("text", svg, {x: x + 4, y: frame.top + 9, class: "over"}, "resumed");
    free = x + 60;
  }
  for (const {step, color} of skipped) {
    shape("path", svg, {d: `M${place.x(step) - 4} ${frame.bottom}h8l-4 -8z`, fill: color});
  }
}

// Adds a margin to a range without extent.
function widened([low, high]) {
  if (high - low > 1e-9 * Math.abs(high)) return [low, high];
  const margin = Math.abs(high) / 10;
  return margin > 0 ? [low - margin, high + margin] : [0, 1];
}

function domainOf(lines, steps, logarithmic) {
  const scaled = lines.flatMap((line) => line.known.slice(line.warm ? 1 : 0));
  const points = scaled.length > 0 ? scaled : lines.flatMap((line) => line.known);
  const x = steps[0] < steps[1] ? steps : [steps[0] - 0.5, steps[1] + 0.5];
  return {logarithmic, x, y: widened(extent(points.map((p) => p[1])))};
}

// Adds a cursor that names the values nearest to the pointer, and the marks near the cursor.
function addCursor(svg, lines, marks, domain, place, frame) {
  const cursor = shape("line", svg, {y1: frame.top, y2: frame.bottom, class: "cursor",
                                     visibility: "hidden"});
  onPointer(svg, (x) => {
    cursor.setAttribute("visibility", x === null ? "hidden" : "visible");
    if (x === null) return "";
    const share = (x - frame.left) / (frame.right - frame.left);
    const step = domain.x[0] + (domain.x[1] - domain.x[0]) * Math.min(1, Math.max(0, share));
    const found = lines.map((line) => ({line, point: nearest(line.known, step)}));
    const at = nearest(found.map(({point}) => point).sort((a, b) => a[0] - b[0]), step)[0];
    cursor.setAttribute("x1", place.x(at));
    cursor.setAttribute("x2", place.x(at));
    const text = ({line, point}) =>
      `step ${number(point[0])}  ${line.name}: ${number(point[1])}`;
    const near = marks.filter((mark) => mark.step === at || Math.abs(place.x(mark.step) - x) < 4);
    return [...found.map(text), ...near.slice(0, 5).map((mark) => mark.text)].join("\n");
  });
}

let clips = 0;  // the number of clipping paths so far, because each needs a unique id

function drawChart(parent, width, {title, lines, steps, resumes, skipped, logarithmic}) {
  const svg = drawing(parent, width, chartHeight, title);
  const frame = {left: 62, right: width - 14, top: 10, bottom: chartHeight - 26};
  const visible = (y) => (y !== null && (y > 0 || !logarithmic) ? y : null);
  const shown = lines.map((line) => {
    const points = line.points.map(([x, y]) => [x, visible(y)]);
    return {...line, points, known: points.filter(([, y]) => y !== null)};
  }).filter((line) => line.known.length > 0);
  const domain = domainOf(shown, steps, logarithmic);
  const place = {x: scaleOf(...domain.x, frame.left, frame.right, false),
                 y: scaleOf(...domain.y, frame.bottom, frame.top, logarithmic)};
  drawAxes(svg, place, domain, frame);
  const clip = shape("clipPath", shape("defs", svg), {id: `clip-${++clips}`});
  shape("rect", clip, {x: frame.left - 4, y: frame.top - 4, width: frame.right - frame.left + 8,
                       height: frame.bottom - frame.top + 8});
  const curves = shape("g", svg, {"clip-path": `url(#clip-${clips})`});
  for (const line of shown) drawLine(curves, line, place, frame);
  drawMarks(svg, {resumes, skipped}, place, frame);
  const ofResumes = resumes.map((step) => ({step, text: `resumed after step ${number(step)}`}));
  addCursor(svg, shown, [...ofResumes, ...skipped], domain, place, frame);
}

// Groups lines with equal points. Runs with equal results have such lines. Sets each line's number
// in the group (`turn`) and the size of the group (`turns`).
function markEqual(lines) {
  const groups = new Map();
  for (const line of lines) {
    const values = JSON.stringify(line.points);
    groups.set(values, [...(groups.get(values) ?? []), line]);
  }
  for (const group of groups.values()) {
    group.forEach((line, turn) => {
      Object.assign(line, {turn, turns: group.length});
      if (turn > 0) line.equal = ` (equal to ${group[0].label})`;
    });
  }
}

function chartLegend(figure, lines, skipped) {
  const named = lines.length > 1 || lines[0].label !== lines[0].name ? lines : [];
  if (named.length + skipped.length === 0) return;
  const node = element("div", figure, {class: "legend"});
  for (const line of named) {
    const item = element("span", node);
    lineSample(item, line);
    item.append(line.label + (line.equal ?? ""));
  }
  if (skipped.length > 0) element("span", node, {}, "▲ step without an update");
}

// Returns the marks of steps without an update, and a note about runs with too many of these steps.
function skippedSteps(runs) {
  const several = runs.length > 1;
  const skipped = [];
  const notes = [];
  runs.forEach((run, i) => {
    const name = several ? `${run.name}: ` : "";
    const steps = run.skipped ?? [];
    if (steps.length > mostMarks) {
      notes.push(`${name}${number(steps.length)} steps without an update are not marked.`);
      return;
    }
    for (const step of steps) {
      skipped.push({step, color: several ? lineStyle(i).color : "var(--ink)",
                    text: `${name}no update in step ${number(step)}: the loss or ` +
                          `gradients overflowed, or no micro-batch had data`});
    }
  });
  return {skipped, note: notes.join(" ")};
}

// Adds a chart.
// lines: [{name, label: the name in the legend, color, dash, points: [[step, value or null]],
//          dotted: true if the series has few points,
//          warm: true if the first step may be left out of the scale, because that step is slow:
//                it touches memory for the first time}]
// options: {steps: [first step, last step] of the x axis, resumes: [step],
//           skipped: [{step, color, text}], note}
function chart(parent, title, lines, {steps, resumes = [], skipped = [], note = ""}) {
  const drawn = lines.map((line) => ({...line})).filter(
    (line) => line.points.some(([, y]) => y !== null));
  if (drawn.length === 0) return;
  markEqual(drawn);
  const values = drawn.map((l) => l.points.map((p) => p[1]).filter((y) => y !== null));
  const [low, high] = extent(values.flat());
  const view = {title, lines: drawn, steps, resumes, skipped,
                logarithmic: low > 0 && high / low > 30};
  const figure = element("figure", parent);
  const caption = element("figcaption", figure, {}, title);
  const redraw = drawAtWidth(figure, (node, width) => drawChart(node, width, view));
  if (low > 0 && high > low) {
    const nameOfScale = () => (view.logarithmic ? "logarithmic" : "linear");
    const button = element("button", caption, {type: "button"}, nameOfScale());
    button.addEventListener("click", () => {
      view.logarithmic = !view.logarithmic;
      button.textContent = nameOfScale();
      redraw();
    });
  }
  chartLegend(figure, drawn, skipped);
  if (note) element("p", figure, {}, note);
  tableOf(figure, "numbers", ["", "first", "least", "largest", "last"], drawn.map((line, i) => {
    const [least, largest] = extent(values[i]);
    return [line.name + (line.equal ?? ""), number(values[i][0]), number(least), number(largest),
            number(values[i].at(-1))];
  }));
}
