// Shows which rank stores which bytes. The top row is the flat memory of all parameters, to scale.
// Below, each of the first 16 ranks has rows with its parts of parameters, gradients, sums of
// gradients and optimizer state.
"use strict";

const elementBytes = {f32: 4, bf16: 2, f16: 2};

// True if gradients have no memory beside that of their sums: the only micro-batch of a step writes
// them into the sums. Logs of earlier versions lack `gradients_in_sums`.
function onlySums(group, header) {
  return Boolean(group.gradients_in_sums) && header.global_batch === header.micro_batch;
}

// Returns all elements as one sequence of parts: first the buckets of parameters, then the
// row-sparse tables. At stages 2 and 3 no rank holds a whole gradient.
function flatParts({header, layout}) {
  const {ranks, stage} = header;
  const parts = [];
  let begin = 0;
  layout.groups.forEach((group) => group.buckets.forEach((bucket, b) => {
    parts.push({begin, size: bucket.elements, shard: bucket.shard, label: `bucket ${b}`,
                values: elementBytes[group.dtype],
                gradients: group.trainable && stage < 2 && !onlySums(group, header)
                  ? elementBytes[group.dtype] : 0,
                sums: group.sum_bytes, state: group.state_bytes, parameters: bucket.parameters});
    begin += bucket.elements;
  }));
  for (const table of layout.tables ?? []) {
    const size = table.rows * table.width;
    parts.push({begin, size, shard: table.rows_per_rank * table.width, label: "row-sparse table",
                values: elementBytes[table.dtype], gradients: 0, sums: 0,
                state: table.row_state_bytes / table.width, parameters: [[table.name, 0, size]]});
    begin += size;
  }
  for (const part of parts) {
    part.ranges = Array.from({length: ranks}, (_, r) => [
      Math.min(part.size, r * part.shard), Math.min(part.size, (r + 1) * part.shard)]);
  }
  return {parts, size: begin};
}

// Returns the kinds of memory that a rank holds. `of` is the name of a part's member with the bytes
// per element. Frozen parameters have neither gradients nor state. The gradients of row-sparse
// tables are not drawn, because they are only of rows that a step looks up.
function kindsOf(stage, {parts}) {
  const kinds = [
    {name: "parameters", of: "values", sharded: stage >= 3, color: color(0)},
    {name: "gradients", of: "gradients", sharded: false, color: color(4)},
    {name: "sums of gradients", of: "sums", sharded: true, color: color(3)},
    {name: "optimizer state", of: "state", sharded: stage >= 1, color: color(2)},
  ];
  return kinds.filter((kind) => parts.some((part) => part[kind.of] > 0));
}

// Names the parameter at an element, and the parameter's elements that are in `range`.
function describe(part, element, range) {
  const found = part.parameters.find(
    ([, offset, size]) => element >= offset && element < offset + size);
  if (!found) return "padding";
  const [name, offset, size] = found;
  const begin = Math.max(range[0], offset) - offset;
  const end = Math.min(range[1], offset + size) - offset;
  return `${name}: elements ${number(begin)} to ${number(end)} of ${number(size)}`;
}

function drawParts(svg, flat, x, y, height) {
  let index = 0;
  for (const part of flat.parts) {
    for (const [, offset, size] of part.parameters) {
      const from = x(part.begin + offset);
      shape("rect", svg, {x: from, y, width: Math.max(0.4, x(part.begin + offset + size) - from),
                          height, fill: index++ % 2 ? "var(--faint)" : "var(--c6)",
                          "fill-opacity": 0.75});
    }
    const end = x(part.begin + part.size);
    shape("line", svg, {x1: end, x2: end, y1: y - 5, y2: y + height + 5, stroke: "var(--ink)",
                        "stroke-width": 0.7});
  }
}

// Draws a rank's memory of one kind, and returns the number of bytes.
function drawHeld(svg, flat, rank, kind, x, y) {
  let sum = 0;
  shape("rect", svg, {x: x(0), y, width: x(flat.size) - x(0), height: 7, fill: "var(--empty)"});
  for (const part of flat.parts) {
    if (part[kind.of] === 0) continue;
    const [begin, end] = kind.sharded ? part.ranges[rank] : [0, part.size];
    if (end <= begin) continue;
    sum += (end - begin) * part[kind.of];
    const from = x(part.begin + begin);
    shape("rect", svg, {x: from, y, width: Math.max(0.5, x(part.begin + end) - from), height: 7,
                        fill: kind.color});
  }
  return sum;
}

function ownershipText({header, layout}, flat, hidden) {
  const {stage} = header;
  const sparse = flat.parts.some((part) => part.label === "row-sparse table");
  const trained = layout.groups.filter((group) => group.trainable);
  const beside = trained.some((group) => !onlySums(group, header));
  const texts = [
    `Stage ${stage}: all ${number(flat.size)} elements, to scale, in the order of the buckets ` +
      "(thin lines end a bucket). Below, for each rank, what it holds.",
    hidden > 0 ? `${hidden} more ranks are not drawn.` : "",
    trained.length === 0 ? "" : beside
      ? "The sum of gradients over the micro-batches of a step is kept by its owner alone."
      : "The only micro-batch of a step writes its gradients into their sums.",
    trained.length > 0 && header.device === "cpu"
      ? `On a CPU, ${beside && stage < 2 ? "gradients and their sums" : "the sums"} have memory ` +
        "only within a step." : "",
    beside && stage >= 2
      ? "A rank also has room for the buckets of gradients that are being filled or sent." : "",
    sparse ? "Of row-sparse tables it also has room for rows that a micro-batch looks up, and " +
      "for their gradients and sums." : "",
    stage >= 3 ? "In forward and backward it also holds gathered blocks of parameters." : "",
  ];
  return texts.filter(Boolean).join(" ");
}

function ownershipSection(page, run) {
  const {ranks, stage} = run.header;
  if (!run.layout?.groups || !(ranks > 0) || stage === undefined) return;
  const drawn = Math.min(ranks, mostPanels);
  const flat = flatParts(run);
  const kinds = kindsOf(stage, flat);
  const node = section(page, "owners", "Who holds what",
                       ownershipText(run, flat, ranks - drawn));
  legend(node, kinds.map((kind) =>
    [kind.color, `${kind.name}: ${kind.sharded ? `1 shard of ${ranks}` : "all"}`]));
  const width = 1140;
  const left = 74;
  const top = 34;
  const bar = kinds.length * 8 + 8;
  const svg = wideDrawing(node, width, top + drawn * bar, "Who holds what");
  const x = scaleOf(0, flat.size, left, width - 4, false);
  shape("text", svg, {x: left - 8, y: 20, "text-anchor": "end"}, "parameters");
  drawParts(svg, flat, x, 8, 16);
  const held = Array.from({length: drawn}, (_, rank) => {
    const y = top + rank * bar;
    shape("text", svg, {x: left - 8, y: y + bar / 2, "text-anchor": "end", class: "strong"},
          `rank ${rank}`);
    return kinds.map((kind, k) => drawHeld(svg, flat, rank, kind, x, y + k * 8));
  });
  onPointer(svg, (px, py) => {
    if (px === null || px < left) return "";
    const at = ((px - left) / (width - 4 - left)) * flat.size;
    const part = flat.parts.find((p) => at >= p.begin && at < p.begin + p.size);
    if (!part) return "";
    const inside = at - part.begin;
    if (py < top - 4) return `${part.label}\n${describe(part, inside, [0, part.size])}`;
    const rank = Math.floor((py - top) / bar);
    const kind = kinds[Math.floor((py - top - rank * bar) / 8)];
    if (rank < 0 || rank >= drawn || !kind) return "";
    const range = kind.sharded ? part.ranges[rank] : [0, part.size];
    const owner = part.ranges.findIndex(([begin, end]) => inside >= begin && inside < end);
    const holds = inside >= range[0] && inside < range[1];
    if (part[kind.of] === 0) return `rank ${rank}: ${part.label} has no ${kind.name}`;
    return `rank ${rank}, ${kind.name}, ${part.label}\n` +
      (holds ? describe(part, inside, range) : `held by rank ${owner}`);
  });
  tableOf(node, "numbers", ["bytes", ...kinds.map((kind) => kind.name)],
          held.map((row, rank) => [`rank ${rank}`, ...row.map(number)]));
}
