"use strict";
// ---- the page as a whole

let operators = null, tensors = null;

function choose(index, centered) {
  state.chosen = index;
  paint();
  details();
  operators.show();
  if (centered && index !== null) center(index);
}

function open(index) {
  state.subgraph = index;
  state.chosen = null;
  at("subgraph").value = String(index);
  drawGraph();
  fit(false);
  refresh();
}

function refresh() {
  const hits = found();
  at("hits").textContent = state.find ? `${hits.length} found` : "";
  operators.refresh();
  tensors.refresh();
  paint();
  details();
}

function tab(name) {
  state.tab = name;
  for (const button of at("tabs").children) button.classList.toggle("on", button.dataset.tab === name);
  for (const id of ["graph", "operators", "tensors", "advice"]) at(id).hidden = id !== name;
  operators.show();
  tensors.show();
  if (name === "graph" && view.isOpened) fit(false);
}

function head() {
  const main = DATA.subgraphs[0];
  at("name").textContent = DATA.source.split("/").pop();
  at("summary").textContent = [main.summary, DATA.description].filter(Boolean).join("  ");
  const card = (value, label) => make("div", { className: "card" }, make("b", {}, value), make("span", {}, label));
  at("cards").append(card(String(main.operators.length), "operators"), card(flop(main.flops), "per invoke"),
    card(bytes(main.bytes), "moved"), card(bytes(DATA.sizes.file), "file"), card(String(DATA.findings.length), "advice"));
  DATA.subgraphs.forEach((s) => at("subgraph").append(make("option", { value: s.index }, `${s.index} ${s.name}`)));
  at("pick").hidden = DATA.subgraphs.length < 2;
  for (const [key, mode] of Object.entries(MODES)) {
    const measured = !mode.value || DATA.subgraphs.some((s) => s.operators.some((op) => mode.value(op) !== null));
    if (measured || key === "flops") at("color").append(make("option", { value: key }, mode.label));
  }
}

function start() {
  head();
  operators = list(at("operators"), operatorColumns(), found, (op) => choose(op.index, false));
  tensors = list(at("tensors"), TENSOR_COLUMNS, foundTensors, () => {});
  at("subgraph").addEventListener("change", (e) => open(Number(e.target.value)));
  at("color").addEventListener("change", (e) => { state.color = e.target.value; refresh(); });
  at("search").addEventListener("input", (e) => { state.find = e.target.value; refresh(); });
  at("search").addEventListener("keydown", (e) => {
    if (e.key === "Enter" && found().length) choose(found()[0].index, true);
  });
  at("tabs").addEventListener("click", (e) => { if (e.target.dataset.tab) tab(e.target.dataset.tab); });
  handleGraph();
  handleMap();
  advice();
  open(0);
  const [wanted, color, node] = location.hash.slice(1).split(",");  // #graph,latency,12
  if (color in MODES) { state.color = color; at("color").value = color; refresh(); }
  if (["operators", "tensors", "advice"].includes(wanted)) tab(wanted);
  if (node in subgraph().operators) choose(Number(node), true);
  document.body.dataset.ready = "true";
}

start();
