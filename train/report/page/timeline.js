// Draws the timeline of one step: for each logged rank the computation, the waits for other ranks
// (exposed communication), and the work of the communication thread.
"use strict";

const laneHeight = 12;
const trackColors = {op: "var(--c5)", pass: "var(--c0)", wait: "var(--exposed)", comm: "var(--c2)",
                     repeat: "var(--line)"};
// The event in which a rank without a micro-batch of its own repeats the step's last micro-batch.
const repeated = "no micro-batch";

// Returns each event of the compute track with its depth: the number of other events that contain
// the event. `repeats` is true within a repeated micro-batch. The log rounds times, so an event may
// seem to begin before the previous event has ended.
function withDepth(events) {
  const rounding = 0.15;  // microseconds
  const open = [];
  return events.filter(([track]) => track === 0)
    .sort((a, b) => a[2] - b[2] || b[3] - a[3])
    .map((event) => {
      while (open.length > 0 && event[2] >= open.at(-1).end - rounding) open.pop();
      const repeats = event[1] === repeated || (open.at(-1)?.repeats ?? false);
      open.push({end: event[2] + event[3], repeats});
      return {event, depth: open.length - 1, repeats};
    });
}

// Returns how much of the time [0, length] the events cover.
function covered(events, length) {
  let sum = 0;
  let end = 0;
  for (const [, , begin, time] of [...events].sort((a, b) => a[2] - b[2])) {
    const from = Math.max(begin, end);
    const to = Math.min(begin + time, length);
    if (to > from) sum += to - from;
    end = Math.max(end, to);
  }
  return sum;
}

function drawRank(svg, rank, y, x, lanes, texts) {
  const add = (event, lane, fill, ink = "var(--paper)") => {
    const [, name, begin, time, bucket] = event;
    const from = x(Math.max(0, begin));
    const to = x(begin + time);
    if (to - from < 0.15) return;
    const rect = shape("rect", svg, {x: from, y: y + lane * laneHeight, height: laneHeight - 1.5,
                                     width: Math.max(0.4, to - from), fill});
    texts.set(rect, `rank ${rank.rank}: ${name}${bucket >= 0 ? `, bucket ${bucket}` : ""}\n` +
      `${(time / 1000).toFixed(3)} ms, from ${(begin / 1000).toFixed(3)} ms`);
    if (to - from > 6.2 * name.length + 6 && lane < lanes.depth) {
      shape("text", svg, {x: (from + to) / 2, y: y + lane * laneHeight + 9, "text-anchor": "middle",
                          style: `font-size:9px;fill:${ink};pointer-events:none`}, name);
    }
  };
  for (const {event, depth, repeats} of withDepth(rank.events)) {
    if (depth >= lanes.depth) continue;
    if (repeats) add(event, depth, trackColors.repeat, "var(--ink)");
    else add(event, depth, depth < 3 ? trackColors.pass : trackColors.op);
  }
  for (const event of rank.events) {
    if (event[0] === 1) add(event, lanes.depth, trackColors.wait);
    if (event[0] === 2) add(event, lanes.depth + 1, trackColors.comm);
  }
}

// Ranks begin a step at different times. Converts the times of all events to times since the first
// rank began the step. `waits` and `sends` are the times that a rank spends on waits and
// communication within its own step.
function alignedRanks({ranks}) {
  const first = Math.min(...ranks.map((rank) => rank.begin_us));
  return ranks.map((rank) => {
    const late = rank.begin_us - first;
    const move = ([track, name, begin, time, bucket]) => [track, name, begin + late, time, bucket];
    const within = (wanted) => covered(rank.events.filter(([track]) => track === wanted),
                                       rank.length_us);
    return {rank: rank.rank, events: rank.events.map(move), end: late + rank.length_us,
            length: rank.length_us, waits: within(1), sends: within(2)};
  });
}

function timelineSection(page, run) {
  const timeline = run.timeline;
  if (!timeline?.ranks?.length) return;
  const ranks = alignedRanks(timeline);
  const hidden = (run.header.ranks ?? 0) - ranks.length;
  const shown = 1.2 * Math.max(...ranks.map((rank) => rank.end));
  const ms = (us) => (us / 1000).toFixed(3);
  const node = section(page, "timeline", `The timeline of step ${number(timeline.step)}`,
    `${ms(ranks[0].length)} ms on rank 0. Dashed lines are the ends of the ranks' steps. ` +
    "Orange: the rank computes nothing, because it waits for others: " +
    `exposed communication.${hidden > 0 ? ` Ranks from ${ranks.length} on are not drawn.` : ""}`);
  const entries = [[trackColors.pass, "step, passes, layers"], [trackColors.op, "within layers"],
                   [trackColors.wait, "waits"], [trackColors.comm, "communication"]];
  if (ranks.some((rank) => rank.events.some(([, name]) => name === repeated))) {
    entries.push([trackColors.repeat, "no micro-batch left: the rank repeats one"]);
  }
  legend(node, entries);
  const width = 1140;
  const left = 74;
  const lanes = {depth: 5};
  const height = (lanes.depth + 2) * laneHeight + 12;
  const bottom = ranks.length * height;
  const svg = wideDrawing(node, width, bottom + 22, "Timeline");
  const x = scaleOf(0, shown, left, width - 4, false);
  const texts = new Map();
  const clip = shape("clipPath", shape("defs", svg), {id: "timeline-clip"});
  shape("rect", clip, {x: left, y: 0, width: width - 4 - left, height: bottom});
  const body = shape("g", svg, {"clip-path": "url(#timeline-clip)"});
  const rows = ranks.map((rank, i) => {
    const y = i * height + 4;
    shape("text", svg, {x: left - 8, y: y + 12, "text-anchor": "end", class: "strong"},
          `rank ${rank.rank}`);
    shape("text", svg, {x: left - 8, y: y + 28, "text-anchor": "end"},
          `${Math.round((100 * rank.waits) / rank.length)} % waits`);
    drawRank(body, rank, y, x, lanes, texts);
    const end = x(rank.end);
    shape("line", svg, {x1: end, x2: end, y1: y - 4, y2: y + height - 4, class: "cursor"});
    return [`rank ${rank.rank}`, ms(rank.length), ms(rank.waits), ms(rank.sends)];
  });
  for (const value of ticks(0, shown / 1000, 10)) {
    shape("text", svg, {x: x(value * 1000), y: bottom + 15, "text-anchor": "middle"},
          `${number(value)} ms`);
  }
  onPointer(svg, (px, py, event) => (event ? texts.get(event.target) ?? "" : ""));
  tableOf(node, "numbers", ["", "ms of the step", "exposed communication", "communication"], rows);
}
