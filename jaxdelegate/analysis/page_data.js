"use strict";
// The analysis, the state of the page, colors, and finding operators.

window.addEventListener("error", (e) => { document.body.dataset.error = e.message; });

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = DATA.node_size;
const ROW = 28;
const PARTITIONS = ["#3f7fd6", "#2f9e72", "#8a63c9", "#c2558f", "#2a93a5", "#7c8b2f", "#a5683f",
  "#5a6acb"];
const CPU = "#e9a23b", UNKNOWN = "#b9c0ca";
const RAMP = [[255, 247, 222], [253, 205, 121], [243, 135, 79], [200, 60, 92], [110, 24, 104]];
const at = (id) => document.getElementById(id);
const state = { subgraph: 0, color: "partition", chosen: null, find: "", tab: "graph" };

// ---- small helpers

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "onclick") element.addEventListener("click", value);
    else if (key === "className") element.className = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function scaled(value, unit) {
  if (value === null || value === undefined) return "?";
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let power = 0;
  while (Math.abs(value) >= 999.5 && power < prefixes.length - 1) { value /= 1000; power++; }
  const digits = Number.isInteger(value) && power === 0 ? value : Number(value.toPrecision(3));
  return `${digits} ${prefixes[power]}${unit}`;
}
const bytes = (n) => scaled(n, "B");
const flop = (n) => scaled(n, "FLOP");
const milliseconds = (n) => (n === null ? "" : `${Number(n.toPrecision(3))} ms`);
const dims = (shape) => (shape.length ? shape.join("×") : "scalar");

const subgraph = () => DATA.subgraphs[state.subgraph];
const ref = (tensor) => (state.subgraph ? `T#${state.subgraph}_${tensor}` : `T#${tensor}`);
const where = (op) => (op.partition === null ? "CPU" : `partition ${op.partition}`);
const shapeOf = (tensor) => (tensor.is_dynamic ? "by data" : dims(tensor.shape));

// ---- colors

const MODES = {
  partition: { label: "partition", value: null },
  flops: { label: "FLOP", value: (op) => op.cost.flops, show: flop },
  bytes: { label: "bytes", value: (op) => op.cost.bytes, show: bytes },
  latency: { label: "latency", value: (op) => op.latency_ms, show: milliseconds },
  error: { label: "error", value: (op) => op.error, show: (n) => n.toExponential(2), log: true },
};

function numeric(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  return value === "inf" ? Infinity : null;
}

function range(mode) {
  const values = subgraph().operators.map((op) => numeric(mode.value(op)))
    .filter((v) => v !== null && Number.isFinite(v) && (!mode.log || v > 0));
  return values.length ? [Math.min(...values), Math.max(...values)] : null;
}

function ramp(t) {
  const place = Math.max(0, Math.min(1, t)) * (RAMP.length - 1);
  const i = Math.min(Math.floor(place), RAMP.length - 2);
  return RAMP[i].map((c, k) => Math.round(c + (RAMP[i + 1][k] - c) * (place - i)));
}

function colorOf(op, limits) {
  const mode = MODES[state.color];
  if (!mode.value) {
    return op.partition === null ? CPU : PARTITIONS[op.partition % PARTITIONS.length];
  }
  const value = numeric(mode.value(op));
  if (value === null || !limits) return UNKNOWN;
  if (value === Infinity) return `rgb(${RAMP[RAMP.length - 1]})`;
  const [low, high] = limits;
  if (mode.log) {
    const t = value > 0 && high > low ? Math.log(value / low) / Math.log(high / low) : 0;
    return `rgb(${ramp(t)})`;
  }
  return `rgb(${ramp(high > 0 ? Math.sqrt(value / high) : 0)})`;
}

function inkOn(color) {
  const rgb = color.startsWith("#")
    ? [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16))
    : color.match(/\d+/g).map(Number);
  return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] > 150 ? "#1d232b" : "#ffffff";
}

function legend() {
  const mode = MODES[state.color], box = at("legend");
  box.replaceChildren();
  if (!mode.value) {
    const shown = subgraph().partitions.slice(0, PARTITIONS.length);
    for (const p of shown) box.append(swatch(PARTITIONS[p.number], `partition ${p.number}`));
    if (subgraph().partitions.length > shown.length) box.append("…");
    if (subgraph().operators.some((op) => op.partition === null)) box.append(swatch(CPU, "CPU"));
    return;
  }
  const limits = range(mode);
  if (!limits) { box.append("not measured"); return; }
  const strip = make("span", { className: "ramp" });
  const stops = RAMP.map((c) => `rgb(${c})`).join(",");
  strip.style.background = `linear-gradient(90deg,${stops})`;
  box.append(mode.show(mode.log ? limits[0] : 0), strip, mode.show(limits[1]));
}

function swatch(color, text) {
  const mark = make("i");
  mark.style.background = color;
  return make("span", {}, mark, text);
}

// ---- finding

function matches(op) {
  const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const tensors = subgraph().tensors;
  const names = [...op.inputs, ...op.outputs].filter((t) => t >= 0).map((t) => tensors[t].name);
  const text = [op.name, where(op), op.reason || "", ...names].join("\n").toLowerCase();
  return words.every((w) => (/^#\d+$/.test(w) ? `#${op.index}` === w : text.includes(w)));
}

function found() { return subgraph().operators.filter(matches); }
