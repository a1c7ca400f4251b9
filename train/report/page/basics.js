// Functions for all parts of the page: elements, formatting of numbers, and the tooltip. Texts from
// the logs become text nodes, never markup.
"use strict";

const svgNamespace = "http://www.w3.org/2000/svg";

function addTo(parent, node) {
  if (parent) parent.append(node);
  return node;
}

function element(name, parent, attributes = {}, text = null) {
  const node = addTo(parent, document.createElement(name));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function shape(name, parent, attributes = {}, text = null) {
  const node = addTo(parent, document.createElementNS(svgNamespace, name));
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function drawing(parent, width, height, title) {
  const viewBox = `0 0 ${width} ${height}`;
  return shape("svg", parent, {viewBox, role: "img", "aria-label": title});
}

// Adds a wide drawing. On a narrow screen the drawing scrolls sideways, so that its texts can be
// read.
function wideDrawing(parent, width, height, title) {
  const svg = drawing(element("div", parent, {class: "wide"}), width, height, title);
  svg.style.minWidth = "820px";
  return svg;
}

// Adds an element to `node` and draws into it at the element's width. Draws again when the width
// changes, so that texts have the same size on every screen. Returns a function that redraws.
function drawAtWidth(node, draw) {
  const place = element("div", node);
  let width = 0;
  const redraw = () => {
    width = place.clientWidth;
    place.replaceChildren();
    draw(place, Math.max(width, 240));
  };
  redraw();
  // Redraws in the next frame, because a redraw inside the observer's callback may change the size
  // that is observed.
  new ResizeObserver(() => requestAnimationFrame(() => {
    if (place.isConnected && place.clientWidth !== width) redraw();
  })).observe(place);
  return redraw;
}

const color = (index) => `var(--c${index % 7})`;

// Lines after the first six repeat the colours, with dashes. The colour c5 is left out, because it
// is too close to c0 for thin lines.
const lineColors = [0, 1, 2, 3, 4, 6];
const dashes = ["none", "8 3", "2 3", "9 3 2 3"];
const lineStyle = (index) => ({color: color(lineColors[index % 6]),
                               dash: dashes[Math.floor(index / 6) % 4]});

// Draws a short piece of a line, to be shown beside the line's name.
function lineSample(parent, line) {
  const svg = shape("svg", parent, {class: "sample", viewBox: "0 0 26 10"});
  shape("line", svg, {x1: 0, x2: 26, y1: 5, y2: 5, stroke: line.color, "stroke-width": 2.4,
                      "stroke-dasharray": line.dash});
  if (line.dotted) shape("circle", svg, {cx: 13, cy: 5, r: 4, fill: line.color});
}

// Formats a number for people. Integers and large numbers have commas between groups of digits.
// Other numbers have at most five significant digits.
function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e5) return Math.round(value).toLocaleString("en-US");
  if (size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(5)));
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  let size = value;
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; size >= 1024 && unit < units.length - 1; ++unit) size /= 1024;
  return unit === 0 ? `${size} bytes` : `${size.toPrecision(3)} ${units[unit]}`;
}

const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// Turns a name from the log into words: "grad_norm" becomes "grad norm".
const words = (name) => name.replaceAll("_", " ");

// Returns about `count` round numbers from `low` to `high`.
function ticks(low, high, count) {
  const span = high - low || Math.abs(high) || 1;
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((s) => span / s <= count);
  const list = [];
  for (let i = Math.ceil(low / step); i * step <= high + step / 1e6; ++i) {
    list.push(Number((i * step).toPrecision(12)));
  }
  return list;
}

const tip = element("div", document.body, {id: "tip", role: "status"});

function showTip(event, text) {
  tip.textContent = text;
  tip.style.display = "block";
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width
                                                           : event.clientX + 14;
  const top = Math.min(event.clientY + 14, innerHeight - box.height - 4);
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${Math.max(0, top)}px`;
}

function hideTip() {
  tip.style.display = "none";
}

// Shows the result of text(x, y, event) beside the pointer. x and y are in the units of the
// drawing's view box. Calls text(null, null, null) when the pointer leaves the drawing.
function onPointer(svg, text) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const said = text((event.clientX - box.left) * scale, (event.clientY - box.top) * scale, event);
    if (said) showTip(event, said);
    else hideTip();
  });
  svg.addEventListener("pointerleave", () => {
    text(null, null, null);
    hideTip();
  });
}

// Adds a table that is hidden until its caption is clicked, for instance the numbers of a drawing.
function tableOf(parent, caption, heading, rows) {
  const details = element("details", parent);
  element("summary", details, {}, caption);
  const table = element("table", details);
  const head = element("tr", table);
  heading.forEach((text, i) => element("th", head, i > 0 ? {class: "number"} : {}, text));
  for (const row of rows) {
    const line = element("tr", table);
    row.forEach((text, i) => element("td", line, i > 0 ? {class: "number"} : {}, text));
  }
  return table;
}

// `entries` is a list of [color, text].
function legend(parent, entries) {
  const node = element("div", parent, {class: "runs"});
  for (const [fill, text] of entries) {
    const item = element("span", node);
    element("span", item, {class: "swatch", style: `background:${fill}`});
    item.append(text);
  }
}

function section(page, id, title, text) {
  const node = element("section", page, {id});
  element("h2", node, {}, title);
  if (text) element("p", node, {}, text);
  return node;
}
