"use strict";
// The graph, and the map beside it.

// ---- the graph

const view = { x: 0, y: 0, scale: 1 };
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
  const text = name.length > 24 ? `${name.slice(0, 23)}…` : name;
  group.append(draw("text", { x: WIDTH / 2, y: 18 }, text));
  return group;
}

function operatorBox(op, x, y) {
  const group = box(x, y, `${op.index}  ${op.name}`);
  group.dataset.index = op.index;
  const out = op.outputs.find((t) => t >= 0);
  const shape = out === undefined ? "" : shapeOf(subgraph().tensors[out]);
  const cost = op.folded ? "folded" : op.cost.flops ? flop(op.cost.flops) : "";
  const small = [shape, cost].filter(Boolean).join("  ·  ");
  group.append(draw("text", { class: "small", x: WIDTH / 2, y: 34 }, small));
  group.append(draw("title", {}, `#${op.index} ${op.name}\n${where(op)}${op.reason ? `: ${op.reason}` : ""}`));
  return group;
}

function endBox(index, x, y) {
  const tensors = index === -1 ? subgraph().inputs : subgraph().outputs;
  const group = box(x, y, index === -1 ? "inputs" : "outputs");
  group.classList.add("end");
  const shapes = tensors.map((t) => shapeOf(subgraph().tensors[t]));
  const text = shapes.join(", ");
  group.append(draw("text", { class: "small", x: WIDTH / 2, y: 34 },
    text.length > 28 ? `${text.slice(0, 27)}…` : text));
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

// ---- the map: all of the graph in its colors, and what of it is in sight

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
  const area = at("drawing").getBoundingClientRect();
  pen.strokeStyle = getComputedStyle(document.body).color;
  pen.strokeRect(-view.x / view.scale * s.x, -view.y / view.scale * s.y,
    area.width / view.scale * s.x, area.height / view.scale * s.y);
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
    place();
  };
  canvas.addEventListener("pointerdown", go);
  canvas.addEventListener("pointermove", go);
  window.addEventListener("resize", drawMap);
}

function fit(whole) {
  const area = at("graph").getBoundingClientRect(), plan = DATA.layouts[state.subgraph];
  const wide = (area.width - 320) / plan.width, high = (area.height - 60) / plan.height;
  view.scale = Math.min(whole ? high : Infinity, wide, 1.15);
  if (!whole) view.scale = Math.max(view.scale, 0.7);
  view.x = (area.width - plan.width * view.scale) / 2;
  if (!whole && view.scale > wide) {  // too wide: begin where the inputs are, within the graph
    const inputs = area.width / 2 - plan.boxes[0][1] * view.scale;
    view.x = Math.min(24, Math.max(inputs, area.width - 150 - plan.width * view.scale));
  }
  view.y = whole ? Math.max((area.height - plan.height * view.scale) / 2, 20) : 24;
  place();
}

function zoom(factor, x, y) {
  const scale = Math.max(0.02, Math.min(4, view.scale * factor)), by = scale / view.scale;
  view.x = x - (x - view.x) * by;
  view.y = y - (y - view.y) * by;
  view.scale = scale;
  place();
}

function center(index) {
  const entry = DATA.layouts[state.subgraph].boxes.find((b) => b[0] === index);
  const area = at("graph").getBoundingClientRect();
  if (!entry || !area.width) return;
  view.scale = Math.max(view.scale, 0.6);
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
    else { view.x -= e.deltaX; view.y -= e.deltaY; place(); }
  }, { passive: false });
  at("zoom").addEventListener("click", (e) => {
    const kind = e.target.dataset.zoom, area = svg.getBoundingClientRect();
    if (kind === "fit") fit(true);
    else if (kind) zoom(kind === "in" ? 1.3 : 1 / 1.3, area.width / 2, area.height / 2);
  });
}
