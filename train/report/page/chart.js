// Curves over steps: one chart with a line for each run and series, a cursor that names the values
// of the nearest steps, and a scale that is linear or logarithmic.
"use strict";

const chartSize = {width: 560, height: 240, left: 58, right: 12, top: 10, bottom: 26};

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

// The place of a value between `from` and `to`.
function scaleOf(low, high, from, to, logarithmic) {
  const of = logarithmic ? Math.log : (value) => value;
  const span = of(high) - of(low) || 1;
  return (value) => from + (to - from) * ((of(value) - of(low)) / span);
}

function logTicks(low, high) {
  const list = [];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; ++power) {
    for (const factor of [1, 2, 5]) {
      const value = Number((factor * 10 ** power).toPrecision(6));
      if (value >= low && value <= high) list.push(value);
    }
  }
  return list.length > 7 ? list.filter((value) => Number.isInteger(Math.log10(value))) : list;
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

function drawAxes(svg, place, domain) {
  const {left, right, width, height, bottom} = chartSize;
  const values = domain.logarithmic ? logTicks(...domain.y) : ticks(...domain.y, 5);
  for (const value of values) {
    const y = place.y(value);
    shape("line", svg, {x1: left, x2: width - right, y1: y, y2: y, class: "axis"});
    shape("text", svg, {x: left - 6, y: y + 4, "text-anchor": "end"}, number(value));
  }
  for (const value of ticks(...domain.x, 6)) {
    shape("text", svg, {x: place.x(value), y: height - bottom + 17, "text-anchor": "middle"},
          number(value));
  }
}

function drawLine(svg, line, place) {
  const at = ([x, y]) => `${place.x(x).toFixed(1)},${place.y(y).toFixed(1)}`;
  if (line.points.length > 1) {
    shape("polyline", svg, {points: line.points.map(at).join(" "), fill: "none",
                            stroke: line.color, "stroke-width": line.dotted ? 1.8 : 1.3,
                            "stroke-linejoin": "round",
                            "stroke-dasharray": line.dash ? "6 4" : "none"});
  }
  if (!line.dotted || line.points.length > 60) return;
  for (const [x, y] of line.points) {
    shape("circle", svg, {cx: place.x(x), cy: place.y(y), r: 2.6, fill: line.color});
  }
}

// The names of several lines, in their colours, where curves of losses leave room.
function drawLegend(svg, lines) {
  if (lines.length < 2 || lines.length > 8) return;
  lines.forEach((line, i) => {
    const y = chartSize.top + 12 + i * 15;
    shape("text", svg, {x: chartSize.width - chartSize.right - 4, y, "text-anchor": "end",
                        style: `fill:${line.color};font-weight:600;stroke:var(--paper);` +
                          "stroke-width:3px;paint-order:stroke"}, line.name);
  });
}

let clips = 0;  // every clipping path of the page has an id

function drawChart(figure, lines, logarithmic) {
  figure.querySelector("svg")?.remove();
  const {width, height, left, right, top, bottom} = chartSize;
  const svg = drawing(null, width, height, figure.dataset.title);
  figure.querySelector("figcaption").after(svg);
  const shown = lines.map((line) => ({
    ...line, points: line.points.filter(([, y]) => y !== null && (!logarithmic || y > 0))}))
    .filter((line) => line.points.length > 0);
  if (shown.length === 0) return;
  const xs = shown.flatMap((line) => line.points.map((p) => p[0]));
  const scaled = (line) => line.points.filter((p) => !line.warm || p[0] > line.points[0][0]);
  const ys = shown.flatMap((line) => scaled(line).map((p) => p[1]));
  const domain = {logarithmic, x: extent(xs),
                  y: extent(ys.length > 0 ? ys : shown.flatMap((l) => l.points.map((p) => p[1])))};
  if (domain.y[0] === domain.y[1]) {
    const margin = Math.abs(domain.y[0]) / 10;
    domain.y = margin > 0 ? [domain.y[0] - margin, domain.y[1] + margin] : [0, 1];
  }
  const place = {x: scaleOf(...domain.x, left, width - right, false),
                 y: scaleOf(...domain.y, height - bottom, top, logarithmic)};
  drawAxes(svg, place, domain);
  const clip = shape("clipPath", shape("defs", svg), {id: `clip-${++clips}`});
  shape("rect", clip, {x: left - 3, y: top - 4, width: width - left - right + 6,
                       height: height - top - bottom + 8});
  const curves = shape("g", svg, {"clip-path": `url(#clip-${clips})`});
  for (const line of shown) drawLine(curves, line, place);
  drawLegend(svg, shown);
  const cursor = shape("line", svg, {y1: top, y2: height - bottom, class: "cursor",
                                     visibility: "hidden"});
  onPointer(svg, (x) => {
    cursor.setAttribute("visibility", x === null ? "hidden" : "visible");
    if (x === null) return "";
    const share = (x - left) / (width - left - right);
    const step = domain.x[0] + (domain.x[1] - domain.x[0]) * Math.min(1, Math.max(0, share));
    const found = shown.map((line) => ({line, point: nearest(line.points, step)}));
    const at = nearest(found.map(({point}) => point).sort((a, b) => a[0] - b[0]), step)[0];
    cursor.setAttribute("x1", place.x(at));
    cursor.setAttribute("x2", place.x(at));
    const text = ({line, point}) =>
      `step ${number(point[0])}  ${line.name}: ${number(point[1])}`;
    return found.map(text).join("\n");
  });
}

// Equal runs have the same curve. The later one is dashed, so that both are seen.
function markEqual(lines) {
  const known = new Set();
  for (const line of lines) {
    const values = JSON.stringify(line.points);
    if (known.has(values)) {
      line.dash = true;
      line.name += " (equal values)";
    } else {
      known.add(values);
    }
  }
}

// lines: [{name, color, points: [[step, value]], dotted: few points, dash,
//          warm: the first step, in which memory is touched first, does not stretch the scale}]
function chart(parent, title, lines) {
  const drawn = lines.filter((line) => line.points.length > 0).map((line) => ({...line}));
  if (drawn.length === 0) return;
  markEqual(drawn);
  const figure = element("figure", parent);
  figure.dataset.title = title;
  const caption = element("figcaption", figure, {}, title);
  const [low, high] = extent(drawn.flatMap((l) => l.points.map((p) => p[1])));
  let logarithmic = low > 0 && high / low > 30;
  if (low > 0 && high > low) {
    const button = element("button", caption, {type: "button"});
    const draw = () => {
      button.textContent = logarithmic ? "logarithmic" : "linear";
      drawChart(figure, drawn, logarithmic);
    };
    button.addEventListener("click", () => {
      logarithmic = !logarithmic;
      draw();
    });
    draw();
  } else {
    drawChart(figure, drawn, logarithmic);
  }
  tableOf(figure, "numbers", ["", "first", "least", "largest", "last"], drawn.map((line) => {
    const values = line.points.map((p) => p[1]).filter((v) => v !== null);
    const [least, largest] = extent(values);
    return [line.name, number(values[0]), number(least), number(largest), number(values.at(-1))];
  }));
}
