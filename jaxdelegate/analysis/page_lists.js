"use strict";
// Lists of operators and tensors, details and advice.

// ---- lists: only the visible rows exist

function list(section, columns, rowsOf, onChoose) {
  const head = make("div", { className: "head" }), body = make("div", { className: "body" });
  let sort = { column: 0, down: false }, rows = [];
  const template = columns.map((c) => c.width).join(" ");
  head.style.gridTemplateColumns = template;
  columns.forEach((column, i) => head.append(make("span", {
    className: column.number ? "number" : "", title: `Sort by ${column.label}`,
    onclick: () => { sort = { column: i, down: sort.column === i ? !sort.down : Boolean(column.number) }; refresh(); },
  }, column.label)));
  section.append(head, body);
  section.addEventListener("scroll", show);

  function refresh() {
    const key = columns[sort.column].key;
    rows = rowsOf().slice().sort((a, b) => compare(key(a), key(b)) * (sort.down ? -1 : 1));
    [...head.children].forEach((cell, i) => {
      cell.textContent = columns[i].label + (i === sort.column ? (sort.down ? " ▾" : " ▴") : "");
    });
    body.style.height = `${rows.length * ROW}px`;
    section.dataset.rows = String(rows.length);
    show();
  }

  function show() {
    const first = Math.max(0, Math.floor(section.scrollTop / ROW) - 5);
    const count = Math.ceil((section.clientHeight || 600) / ROW) + 10;
    body.replaceChildren(...rows.slice(first, first + count).map((row, k) => {
      const line = make("div", { className: "row", onclick: () => onChoose(row) });
      if (state.chosen === row.index && section.id === "operators") line.classList.add("chosen");
      line.style.top = `${(first + k) * ROW}px`;
      line.style.gridTemplateColumns = template;
      for (const column of columns) line.append(column.cell(row));
      return line;
    }));
  }
  return { refresh, show };
}

function compare(a, b) {
  const missing = (v) => v === null || v === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

const text = (value, number) => make("span", { className: number ? "number" : "", title: value }, value);
const textColumn = (label, width, key) => ({ label, width, key, cell: (row) => text(String(key(row) ?? "")) });
const numberColumn = (label, width, key, show) => ({
  label, width, key, number: true, cell: (row) => text(key(row) === null ? "" : show(key(row)), true),
});

function operatorColumns() {
  const some = (key) => DATA.subgraphs.some((s) => s.operators.some((op) => op[key] !== null));
  const columns = [
    numberColumn("#", "44px", (op) => op.index, String),
    { label: "operator", width: "minmax(178px, 1.2fr)", key: (op) => op.name, cell: nameCell },
    textColumn("runs on", "82px", where),
    numberColumn("FLOP", "64px", (op) => op.cost.flops, (n) => scaled(n, "")),
    numberColumn("bytes", "70px", (op) => op.cost.bytes, bytes),
    numberColumn("FLOP/B", "58px", (op) => (op.cost.bytes && op.cost.flops !== null ? op.cost.flops / op.cost.bytes : null),
      (n) => String(Number(n.toPrecision(3)))),
  ];
  if (some("latency_ms")) columns.push(numberColumn("latency", "78px", (op) => op.latency_ms, milliseconds));
  if (some("error")) columns.push(numberColumn("error", "70px", (op) => numeric(op.error), (n) => n.toExponential(2)));
  columns.push(textColumn("output", "minmax(118px, 150px)", (op) => {
    const out = op.outputs.find((t) => t >= 0);
    return out === undefined ? "" : shapeOf(subgraph().tensors[out]);
  }));
  columns.push(textColumn("why not delegated, notes", "minmax(140px, 3fr)",
    (op) => [op.partition === null ? op.reason : null, op.cost.note].filter(Boolean).join("; ")));
  return columns;
}

function nameCell(op) {
  const mode = MODES[state.color], dot = make("i", { className: "dot" });
  dot.style.background = colorOf(op, mode.value ? range(mode) : null);
  return make("span", { title: op.name }, dot, op.name);
}

function foundTensors() {
  const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  return subgraph().tensors.filter((t) => {
    const all = `${ref(t.index)} ${t.name} ${t.type} ${t.kind}`.toLowerCase();
    return words.every((w) => all.includes(w));
  });
}

const TENSOR_COLUMNS = [
  numberColumn("T#", "44px", (t) => t.index, String),
  textColumn("name", "minmax(160px, 2fr)", (t) => t.name),
  textColumn("kind", "84px", (t) => t.kind),
  textColumn("type", "84px", (t) => t.type),
  textColumn("shape", "minmax(100px, 1fr)", shapeOf),
  numberColumn("bytes", "84px", (t) => t.nbytes, bytes),
  numberColumn("in the file", "88px", (t) => t.stored_bytes || null, bytes),
  textColumn("quantization", "minmax(100px, 1fr)", (t) => t.quantization || ""),
  textColumn("data", "minmax(100px, 1fr)", (t) => t.data || ""),
];

// ---- details and advice

function pairs(entries) {
  const box = make("dl");
  for (const [key, value] of entries) {
    if (value === null || value === undefined || value === "") continue;
    box.append(make("dt", {}, key), make("dd", {}, String(value)));
  }
  return box;
}

function tensorItem(index) {
  if (index < 0) return make("li", {}, "absent");
  const t = subgraph().tensors[index];
  const small = [t.type.toLowerCase(), shapeOf(t), t.kind === "constant" ? "constant" : "",
    bytes(t.nbytes), t.quantization || ""].filter(Boolean).join("  ·  ");
  return make("li", {}, `${ref(index)} ${t.name}`, make("small", {}, small));
}

function details() {
  const panel = at("details"), op = state.chosen === null ? null : subgraph().operators[state.chosen];
  panel.replaceChildren();
  if (!op) { overview(panel); return; }
  panel.append(make("h2", {}, `#${op.index} ${op.name}`), make("div", {}, where(op)));
  if (op.partition === null && op.reason) panel.append(make("p", { className: "why" }, op.reason));
  if (op.other_reason && op.other_reason !== op.reason) {
    const mode = subgraph().other_mode.quant_mode;
    panel.append(make("p", { className: "why" }, `With quant_mode=${mode}: ${op.other_reason}`));
  }
  panel.append(make("h3", {}, "Cost"), pairs([
    ["arithmetic", flop(op.cost.flops)], ["read", bytes(op.cost.bytes_read)],
    ["written", bytes(op.cost.bytes_written)],
    ["intensity", op.cost.bytes && op.cost.flops !== null ? `${Number((op.cost.flops / op.cost.bytes).toPrecision(3))} FLOP/B` : ""],
    ["transcendental", op.cost.transcendentals ? scaled(op.cost.transcendentals, "") : ""],
    ["note", op.cost.note], ["latency", op.latency_ms === null ? "" : milliseconds(op.latency_ms)],
    ["error", numeric(op.error) === null ? "" : MODES.error.show(numeric(op.error))],
  ]));
  panel.append(make("h3", {}, "Inputs"), make("ul", {}, ...op.inputs.map(tensorItem)));
  panel.append(make("h3", {}, "Outputs"), make("ul", {}, ...op.outputs.map(tensorItem)));
  const options = Object.entries(op.options).map(([k, v]) => [k, Array.isArray(v) ? `[${v.join(", ")}]` : v]);
  panel.append(make("h3", {}, `Options, version ${op.version}${op.custom ? ", custom" : ""}`), pairs(options));
  for (const [field, callee] of op.subgraphs) {
    panel.append(make("p", {}, `${field}: `, make("a", { className: "go", onclick: () => open(callee) }, `Subgraph#${callee}`)));
  }
}

function overview(panel) {
  const s = subgraph();
  panel.append(make("h2", {}, `Subgraph#${s.index} ${s.name}`), make("div", {}, s.summary));
  if (s.problem) panel.append(make("p", { className: "why" }, s.problem));
  if (s.other_mode) {
    panel.append(make("p", {}, `With quant_mode=${s.other_mode.quant_mode}: ${s.other_mode.delegated} of ${s.operators.length} delegated, ${s.other_mode.partitions} partition(s).`));
  }
  panel.append(make("h3", {}, "Inputs"), make("ul", {}, ...s.inputs.map(tensorItem)));
  panel.append(make("h3", {}, "Outputs"), make("ul", {}, ...s.outputs.map(tensorItem)));
  if (s.partitions.length) {
    panel.append(make("h3", {}, "Partitions"), make("ul", {}, ...s.partitions.map((p) => make("li", {},
      `${p.number}: ${p.operators.length} operators, ${flop(p.flops)}`,
      make("small", {}, `${bytes(p.bytes_in)} in, ${bytes(p.bytes_out)} out`)))));
  }
  const totals = new Map();
  for (const op of s.operators) {
    const entry = totals.get(op.name) || [0, 0];
    const more = op.cost.flops === null ? null : entry[1];
    totals.set(op.name, [entry[0] + 1, more === null ? null : more + op.cost.flops]);
  }
  const ordered = [...totals].sort((a, b) => b[1][1] - a[1][1] || b[1][0] - a[1][0]);
  panel.append(make("h3", {}, "By operator"), pairs(ordered.map(([name, [n, f]]) => [`${n} × ${name}`, flop(f)])));
  panel.append(make("h3", {}, `Options of ${DATA.delegate}`), pairs(Object.entries(DATA.options)));
}

function advice() {
  const section = at("advice");
  if (!DATA.findings.length) { section.append(make("p", {}, "Nothing found.")); return; }
  for (const finding of DATA.findings) {
    const links = finding.operators.slice(0, 12).map((i) => make("a", { className: "go",
      onclick: () => { open(finding.subgraph); tab("graph"); choose(i, true); } }, `#${i} `));
    section.append(make("article", {}, make("h2", {}, finding.kind.replaceAll("_", " ")),
      make("p", {}, finding.message), make("p", { className: "remedy" }, finding.remedy),
      links.length ? make("p", {}, ...links) : null));
  }
}
