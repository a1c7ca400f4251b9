// Draws the results of a classifier on the validation images: the confusion matrix (for at most 40
// classes), the most frequent confusions, and the wrong predictions with the highest probabilities.
"use strict";

const mostClassesDrawn = 40;

// Returns the colour of the number in a cell. `strength` is the opacity of the cell's fill. `right`
// is true if the cell counts right guesses. The colour must be readable on a fill of this strength.
function inkOn(strength, right) {
  if (strength < 0.58) return "var(--ink)";
  return right && strength > 0.85 ? "var(--on-c0)" : "var(--on-fill)";
}

function confusionMatrix(parent, confusion) {
  const {classes, counts} = confusion;
  const matrix = classes.map(() => new Array(classes.length).fill(0));
  for (const [truth, guess, count] of counts) matrix[truth][guess] = count;
  const figure = element("figure", parent);
  element("figcaption", figure, {}, "Rows: the true class. Columns: the model's guess.");
  drawAtWidth(figure, (node, width) => drawMatrix(node, width, classes, matrix));
}

function drawMatrix(parent, room, classes, matrix) {
  const n = classes.length;
  const sums = matrix.map((row) => row.reduce((a, b) => a + b, 0));
  const left = 110;
  const top = 84;
  const cell = Math.max(9, Math.min(38, 620 / n, (room - left - 60) / n));
  const width = left + n * cell + 60;
  const svg = drawing(parent, width, top + n * cell + 4, "Confusion matrix");
  svg.style.maxWidth = `${width}px`;
  classes.forEach((name, i) => {
    const short = name.length > 15 ? `${name.slice(0, 14)}…` : name;
    const y = top + i * cell + cell / 2 + 4;
    const x = left + i * cell + cell / 2 + 4;
    shape("text", svg, {x: left - 6, y, "text-anchor": "end"}, short);
    shape("text", svg, {x, y: top - 6, transform: `rotate(-50 ${x} ${top - 6})`}, short);
  });
  matrix.forEach((row, i) => row.forEach((count, j) => {
    const strength = sums[i] ? Math.sqrt(count / sums[i]) : 0;
    const box = {x: left + j * cell, y: top + i * cell, width: cell - 1, height: cell - 1};
    shape("rect", svg, {...box, fill: "var(--empty)"});
    shape("rect", svg, {...box, fill: i === j ? "var(--c0)" : "var(--c1)",
                        "fill-opacity": strength});
    const text = String(count);
    const size = Math.min(11, (cell - 3) / (0.65 * text.length));
    if (size < 6.5 || count === 0) return;
    shape("text", svg, {x: left + j * cell + cell / 2 - 0.5, y: top + i * cell + cell / 2 + 4,
                        "text-anchor": "middle",
                        style: `font-size:${size}px;fill:${inkOn(strength, i === j)}`}, text);
  }));
  onPointer(svg, (x, y) => {
    if (x === null) return "";
    const truth = Math.floor((y - top) / cell);
    const guess = Math.floor((x - left) / cell);
    if (!(truth in matrix) || !(guess in matrix)) return "";
    const count = matrix[truth][guess];
    return `${classes[truth]} taken for ${classes[guess]}: ${count} of ${sums[truth]}`;
  });
}

function mostConfused(parent, confusion) {
  const {classes, counts} = confusion;
  const pairs = counts.filter(([truth, guess]) => truth !== guess)
    .sort((a, b) => b[2] - a[2]).slice(0, 20);
  const details = tableOf(parent, "most frequent confusions", ["true class", "guess", "images"],
    pairs.map(([truth, guess, count]) => [classes[truth], classes[guess], number(count)]));
  details.parentNode.open = classes.length > mostClassesDrawn;
}

// `pixels` is the base64 text of bytes [height, width, channels].
function thumbnail(parent, {width, height, channels, pixels}) {
  const canvas = element("canvas", parent, {width, height});
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const values = atob(pixels);
  for (let i = 0; i < width * height; ++i) {
    for (let c = 0; c < 3; ++c) {
      image.data[4 * i + c] = values.charCodeAt(i * channels + Math.min(c, channels - 1));
    }
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function imagesSection(page, run) {
  if (!run.confusion) return;
  const {counts, images} = run.confusion;
  const right = counts.reduce((sum, [truth, guess, n]) => sum + (truth === guess ? n : 0), 0);
  const share = ((100 * right) / images).toFixed(2);
  const node = section(page, "classes", "Classes", `${number(right)} of ${number(images)} ` +
    `validation images have the right class: ${share} %.`);
  if (run.confusion.classes.length <= mostClassesDrawn) confusionMatrix(node, run.confusion);
  mostConfused(node, run.confusion);
  if (!run.mistakes || run.mistakes.images.length === 0) return;
  element("p", node, {}, "The surest mistakes: the guess, its probability, and the true class.");
  const list = element("div", node, {class: "mistakes"});
  for (const mistake of run.mistakes.images) {
    const item = element("div", list, {class: "mistake", title: mistake.name});
    thumbnail(item, mistake);
    const share = (100 * mistake.probability).toFixed(1);
    item.append(`${mistake.guess}, ${share} % – is ${mistake.truth}`);
  }
}
