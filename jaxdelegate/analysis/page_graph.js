"use strict";
// The graph and its map.

// ---- the graph

// `isOpened`: the user has not moved the view yet.
const view = { x: 0, y: 0, scale: 1, isOpened: true };
const READABLE = 0.85;  // the smallest scale to open with
const ruler = document.createElement("canvas").getContext("2d");
let nodes = new Map(), edges = [], stage = null;

function drawGraph() {
  const svg = at("drawing"), plan = DATA.layouts[state.subgraph];
  svg.replaceChildren();
  stage = draw("g", {});
  svg.append(stage);
  nodes = new Map();
  const byIndex = subgraph().operators;
  edges = plan.edges.map(([source, target, tensor, points]) => {
    const path = draw("path", { class: "edge", d: curve(points) });
    const cut = source >= 0 && target >= 0 && !byIndex[source].folded
      && (byIndex[source].partition === null) !== (byIndex[target].partition === null);
    if (cut) path.classList.add("crossing");
    path.append(draw("title", {}, `${ref(tensor)} ${subgraph().tensors[tensor].name}`));
    stage.append(path);
    return { source, target, path };
  });
  for (const [index, x, y] of plan.boxes) {
    const group = index < 0 ? endBox(index, x, y) : operatorBox(byIndex[index], x, y);
    stage.append(group);
    nodes.set(index, group);
  }
  document.body.dataset.nodes = String(byIndex.length);
  document.body.dataset.edges = String(edges.length);
  paint();
}

function curve(points) {
  let path = "";
  points.forEach(([x, y], i) => {
    const last = i === points.length - 1;
    if (i === 0) { path += `M${x} ${y + HEIGHT / 2}`; return; }
    const [px, py] = points[i - 1];
    const from = py + (i === 1 ? HEIGHT / 2 : 0), to = last ? y - HEIGHT / 2 : y;
    const middle = (from + to) / 2;
    path += `C${px} ${middle} ${x} ${middle} ${x} ${to}`;
  });
  return path;
}

function box(x, y, name) {
  const group = draw("g", { class: "node", transform: `translate(${x - WIDTH / 2} ${y - HEIGHT / 2})` });
  group.append(draw("rect", { width: WIDTH, height: HEIGHT, rx: 8 }));
  group.append(draw("text", { x: WIDTH / 2, y: 18 }, fitting(name, "600 13px")));
  return group;
}

// As much of a text as a box is wide.
function fitting(text, font) {
  ruler.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  const room = WIDTH - 10;
  if (ruler.measureText(text).width <= room) return text;
  let length = text.length - 1;
  while (length > 1 && ruler.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return `${text.slice(0, length)}…`;
}

function operatorBox(op, x, y) {
  const group = box(x, y, `${op.index}  ${op.name}`);
  group.dataset.index = op.index;
  const out = op.outputs.find((t) => t >= 0);
  const shape = out === undefined ? "" : shapeOf(subgraph().tensors[out]);
  const cost = op.folded ? "folded" : op.cost.flops ? flop(op.cost.flops) : "";
  const small = [shape, cost].filter(Boolean).join("  ·  ");
  group.append(draw("text", { class: "small", x: WIDTH / 2, y: 34 }, fitting(small, "11.5px")));
  group.append(draw("title", {}, `#${op.index} ${op.name}\n${where(op)}${op.reason ? `: ${op.reason}` : ""}`));
  return group;
}

function endBox(index, x, y) {
  const tensors = index === -1 ? subgraph().inputs : subgraph().outputs;
  const group = box(x, y, index === -1 ? "inputs" : "outputs");
  group.classList.add("end");
  const shapes = tensors.map((t) => shapeOf(subgraph().tensors[t]));
  const text = shapes.join(", ");
  group.append(draw("text", { class: "small", x: WIDTH / 2, y: 34 }, fitting(text, "11.5px")));
  return group;
}

function paint() {
  const mode = MODES[state.color], limits = mode.value ? range(mode) : null;
  for (const op of subgraph().operators) {
    const group = nodes.get(op.index), color = colorOf(op, limits);
    group.firstChild.setAttribute("fill", color);
    group.setAttribute("fill", inkOn(color));
    group.classList.toggle("faded", !matches(op));
    group.classList.toggle("chosen", state.chosen === op.index);
  }
  for (const edge of edges) {
    const near = state.chosen !== null && [edge.source, edge.target].includes(state.chosen);
    edge.path.classList.toggle("near", near);
  }
  legend();
  drawMap();
}

function place() {
  stage.setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
  drawMap();
}

// ---- the map: the whole graph in its colors, and a frame around the visible part

function mapScale() {
  const canvas = at("map"), plan = DATA.layouts[state.subgraph];
  const x = (canvas.clientWidth - 16) / plan.width, y = (canvas.clientHeight - 16) / plan.height;
  return { x: Math.min(x, 4 * y, 0.3), y: Math.min(y, 4 * x, 0.3) };
}

function drawMap() {
  const canvas = at("map"), plan = DATA.layouts[state.subgraph], dpr = window.devicePixelRatio || 1;
  if (!canvas.clientWidth) return;
  canvas.width = canvas.clientWidth * dpr;
  canvas.height = canvas.clientHeight * dpr;
  const pen = canvas.getContext("2d"), s = mapScale();
  pen.scale(dpr, dpr);
  pen.translate((canvas.clientWidth - plan.width * s.x) / 2, 8);
  for (const [index, x, y] of plan.boxes) {
    const group = nodes.get(index);
    pen.globalAlpha = group.classList.contains("faded") ? 0.2 : 1;
    pen.fillStyle = index < 0 ? UNKNOWN : group.firstChild.getAttribute("fill");
    const width = Math.max(WIDTH * s.x, 2), height = Math.max(HEIGHT * s.y, 1);
    pen.fillRect(x * s.x - width / 2, y * s.y - height / 2, width, height);
  }
  pen.globalAlpha = 1;
  const area = at("drawing").getBoundingClientRect(), edge = 7;  // of the map, outside the graph
  const clamp = (value, extent) => Math.max(-edge, Math.min(extent + edge, value));
  const left = clamp(-view.x / view.scale * s.x, plan.width * s.x);
  const right = clamp((area.width - view.x) / view.scale * s.x, plan.width * s.x);
  const top = clamp(-view.y / view.scale * s.y, plan.height * s.y);
  const bottom = clamp((area.height - view.y) / view.scale * s.y, plan.height * s.y);
  pen.strokeStyle = getComputedStyle(document.body).color;
  pen.strokeRect(left, top, right - left, bottom - top);
}

function handleMap() {
  const canvas = at("map");
  const go = (e) => {
    if (!(e.buttons & 1)) return;
    const area = canvas.getBoundingClientRect(), s = mapScale();
    const plan = DATA.layouts[state.subgraph], frame = at("drawing").getBoundingClientRect();
    const x = (e.clientX - area.left - (area.width - plan.width * s.x) / 2) / s.x;
    view.x = frame.width / 2 - x * view.scale;
    view.y = frame.height / 2 - (e.clientY - area.top - 8) / s.y * view.scale;
    view.isOpened = false;
    place();
  };
  canvas.addEventListener("pointerdown", go);
  canvas.addEventListener("pointermove", go);
  window.addEventListener("resize", () => (view.isOpened ? fit(false) : drawMap()));
}

// Center all of the graph, or its first nodes at a readable scale.
function fit(whole) {
  const area = at("drawing").getBoundingClientRect(), plan = DATA.layouts[state.subgraph];
  view.isOpened = !whole;
  if (!area.width) return;  // hidden; it is fitted when its tab is shown
  const all = Math.min((area.width - 40) / plan.width, (area.height - 40) / plan.height);
  view.scale = Math.min(whole ? all : Math.max(all, READABLE), 1.15);
  const high = plan.height * view.scale, isAll = whole || view.scale <= all;
  view.x = area.width / 2 - (isAll ? plan.width / 2 : middle(area, plan)) * view.scale;
  view.y = isAll ? (area.height - high) / 2 : 20;
  place();
}

// The middle of the visible nodes; if they are too wide, the inputs, but without empty margins.
function middle(area, plan) {
  const bottom = area.height / view.scale, half = (area.width / 2 - 10) / view.scale;
  const places = plan.boxes.filter((b) => b[2] < bottom).map((b) => b[1]);
  const left = Math.min(...places) - WIDTH / 2, right = Math.max(...places) + WIDTH / 2;
  if (right - left <= 2 * half) return (left + right) / 2;
  return Math.max(left + half, Math.min(right - half, plan.boxes[0][1]));
}

function zoom(factor, x, y) {
  const scale = Math.max(0.02, Math.min(4, view.scale * factor)), by = scale / view.scale;
  view.x = x - (x - view.x) * by;
  view.y = y - (y - view.y) * by;
  view.scale = scale;
  view.isOpened = false;
  place();
}

function center(index) {
  const entry = DATA.layouts[state.subgraph].boxes.find((b) => b[0] === index);
  const area = at("drawing").getBoundingClientRect();
  if (!entry || !area.width) return;
  view.isOpened = false;
  view.scale = Math.max(view.scale, READABLE);
  view.x = area.width / 2 - entry[1] * view.scale;
  view.y = area.height / 2 - entry[2] * view.scale;
  place();
}

function handleGraph() {
  const svg = at("drawing");
  let from = null, moved = false;
  svg.addEventListener("pointerdown", (e) => { from = [e.clientX - view.x, e.clientY - view.y]; moved = false; });
  svg.addEventListener("pointermove", (e) => {
    if (!from) return;
    const x = e.clientX - from[0], y = e.clientY - from[1];
    if (!moved && Math.hypot(x - view.x, y - view.y) < 4) return;
    if (!moved) svg.setPointerCapture(e.pointerId);
    moved = true;
    svg.classList.add("moving");
    view.x = x; view.y = y;
    view.isOpened = false;
    place();
  });
  const stop = () => { from = null; svg.classList.remove("moving"); };
  svg.addEventListener("pointerup", stop);
  svg.addEventListener("pointercancel", stop);
  svg.addEventListener("click", (e) => {
    if (moved) return;
    const node = e.target.closest("[data-index]");
    choose(node ? Number(node.dataset.index) : null, false);
  });
  svg.addEventListener("wheel", (e) => {
    e.preventDefault();
    const area = svg.getBoundingClientRect();
    if (e.ctrlKey || e.metaKey) zoom(Math.exp(-e.deltaY / 250), e.clientX - area.left, e.clientY - area.top);
    else { view.x -= e.deltaX; view.y -= e.deltaY; view.isOpened = false; place(); }
  }, { passive: false });
  at("zoom").addEventListener("click", (e) => {
    const kind = e.target.dataset.zoom, area = svg.getBoundingClientRect();
    if (kind === "fit") fit(true);
    else if (kind) zoom(kind === "in" ? 1.3 : 1 / 1.3, area.width / 2, area.height / 2);
  });
}
