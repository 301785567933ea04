// Clients: a table that holds only the rows in sight, the same clients as a caterpillar, and CSV.

const ROW = 32;

function clientsSection(data, chosen) {
  const c = data.clients, count = c.ids.length, z = c.z;
  const order = { rows: Int32Array.from({ length: count }, (_, k) => k) };
  const parameter = () => state["clients:parameter"];
  const own = (k) => c.own[parameter()][k], after = (k) => c.mean[parameter()][k];
  const half = (k) => (c.error[parameter()][k] == null ? null : z * c.error[parameter()][k]);
  const has = (values) => values && values.some((v) => v);
  const columns = [
    { name: "client", title: "Client", width: "minmax(110px, 1fr)", left: true, value: (k) => c.ids[k], cell: (k) => c.ids[k] },
    c.n ? { name: "n", title: "n", width: "72px", value: (k) => c.n[k], cell: (k) => say(c.n[k]) } : null,
    { name: "own", title: "Own estimate", width: "minmax(205px, 1fr)", value: own, cell: (k) => interval(own(k), half(k) == null ? null : own(k) - half(k), half(k) == null ? null : own(k) + half(k)) },
    { name: "after", title: "Personalised", width: "minmax(205px, 1fr)", value: after, cell: (k) => interval(after(k), c.lower[parameter()][k], c.upper[parameter()][k]) },
    { name: "picture", title: "Before and after", width: "minmax(130px, 1.3fr)", value: (k) => (own(k) == null ? -1 : Math.abs(after(k) - own(k))), cell: (k) => small(k) },
    { name: "shrinkage", title: "Shrinkage", width: "96px", value: (k) => c.shrinkage[k], cell: (k) => percent(c.shrinkage[k]) },
    { name: "log_marginal", title: "Log marginal", width: "112px", value: (k) => c.log_marginal[k], cell: (k) => say(c.log_marginal[k], 4) },
    has(c.flag) ? { name: "flag", title: "Flag", width: "minmax(118px, .7fr)", left: true, value: (k) => c.flag[k], cell: (k) => c.flag[k] } : null,
  ].filter(Boolean);
  state["clients:sort"] = state["clients:sort"] || ["client", 0];
  let scale = null;

  function interval(value, low, high) {
    if (value == null) return [element("small", {}, "none")];
    return [say(value, 3), " ", element("small", {}, low == null ? "(no interval)" : `(${say(low, 3)} to ${say(high, 3)})`)];
  }
  function small(k) {
    const svg = (tag, attributes) => { const made = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const [a, v] of Object.entries(attributes)) made.setAttribute(a, v); return made; };
    const at = (v) => 100 * Math.max(-0.02, Math.min(1.02, scale(v)));
    const made = svg("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" });
    const bar = (low, high, y, hue, width) => made.append(svg("line", { x1: at(low), x2: at(high), y1: y, y2: y, stroke: `var(--${hue})`, "stroke-width": width, "vector-effect": "non-scaling-stroke" }));
    const point = (v, y, hue) => made.append(svg("line", { x1: at(v), x2: at(v), y1: y - 4, y2: y + 4, stroke: `var(--${hue})`, "stroke-width": 3, "vector-effect": "non-scaling-stroke" }));
    if (own(k) != null && half(k) != null) { bar(own(k) - half(k), own(k) + half(k), 6, "own", 1.5); point(own(k), 6, "own"); }
    bar(c.lower[parameter()][k], c.upper[parameter()][k], 16, "after", 2); point(after(k), 16, "after");
    return [made];
  }

  const head = element("div", { class: "head", role: "row" }, ...columns.map((column) => element("button", {
    type: "button", role: "columnheader", class: column.left ? "left" : "", "data-column": column.name,
    onclick: () => { const [name, down] = state["clients:sort"]; state["clients:sort"] = [column.name, name === column.name ? 1 - down : column.left ? 0 : 1]; arrange(); },
  }, column.title)));
  const body = element("div", { class: "body", role: "rowgroup" });
  const table = element("div", { class: "table", role: "table", "aria-label": "Clients", "aria-rowcount": count, tabindex: 0, onscroll: () => paint() }, head, body);
  table.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
  table.style.setProperty("--least", `${columns.length > 6 ? 960 : 820}px`);
  const found = element("span", { class: "found", role: "status" });
  const search = element("input", { type: "search", placeholder: "Search clients or flags", "aria-label": "Search clients", value: state["clients:search"] || "", oninput: () => { state["clients:search"] = search.value; arrange(); } });

  let first = -1, last = -1;
  function paint(force = false) {
    const top = Math.max(0, Math.floor((table.scrollTop - 10) / ROW) - 6), bottom = Math.min(order.rows.length, top + Math.ceil((table.clientHeight || 470) / ROW) + 14);
    if (!force && top === first && bottom === last) return;
    [first, last] = [top, bottom];
    const made = [];
    for (let r = top; r < bottom; r++) {
      const k = order.rows[r];
      made.push(element("div", { class: `row${chosen() === k ? " chosen" : ""}`, role: "row", "aria-rowindex": r + 1, style: `top:${r * ROW}px`, onclick: () => { chosen(chosen() === k ? -1 : k); paint(true); redrawAll(); } },
        ...columns.map((column) => element("div", { class: `cell ${column.name}${column.left ? " left" : ""}`, role: "cell", title: column.name === "client" || column.name === "flag" ? c[column.name === "client" ? "ids" : "flag"][k] : null }, ...[].concat(column.cell(k))))));
    }
    body.replaceChildren(...made);
  }
  function arrange() {
    const wanted = (state["clients:search"] || "").trim().toLowerCase();
    const kept = [];
    for (let k = 0; k < count; k++) if (!wanted || c.ids[k].toLowerCase().includes(wanted) || c.flag[k].toLowerCase().includes(wanted)) kept.push(k);
    const [name, down] = state["clients:sort"], column = columns.find((each) => each.name === name) || columns[0], sign = down ? -1 : 1;
    const values = kept.map((k) => [column.value(k), k]);
    const natural = new Intl.Collator("en", { numeric: true });
    // What is missing comes last, whichever way the rest is sorted.
    values.sort(([a, i], [b, j]) => {
      if (a == null || b == null) return (a == null) - (b == null) || i - j;
      return (typeof a === "string" ? sign * natural.compare(a, b) : sign * (a - b)) || i - j;
    });
    order.rows = Int32Array.from(values, (pair) => pair[1]);
    for (const button of head.children) {
      const sorted = button.dataset.column === column.name;
      if (sorted) button.dataset.sorted = down ? "down" : "up"; else delete button.dataset.sorted;
      button.setAttribute("aria-sort", sorted ? (down ? "descending" : "ascending") : "none");
      button.textContent = columns.find((each) => each.name === button.dataset.column).title + (sorted ? (down ? " ↓" : " ↑") : "");
    }
    body.style.height = `${order.rows.length * ROW}px`;
    found.textContent = order.rows.length === count ? `${count.toLocaleString("en")} clients` : `${order.rows.length.toLocaleString("en")} of ${count.toLocaleString("en")} clients`;
    table.scrollTop = 0;
    paint(true);
    caterpillar.redraw();
  }
  function rescale() {
    const p = parameter();
    const usual = (_, k) => !c.flag[k].includes("unexplained");
    const range = robustExtent(c.lower[p].filter(usual).concat(c.upper[p].filter(usual)), c.own[p].flatMap((v, k) => (v == null || c.error[p][k] == null ? [] : [v - z * c.error[p][k], v + z * c.error[p][k]])), 0.04);
    scale = linear(range, [0, 1]);
  }

  let spots = [];
  const caterpillar = picture(280, (context, width, height) => {
    const p = parameter(), rows = Array.from(order.rows).sort((a, b) => c.mean[p][a] - c.mean[p][b]);
    const x = linear([-0.5, Math.max(rows.length - 0.5, 0.5)], [MARGIN.left, width - MARGIN.right]), y = linear(scale.domain, [height - MARGIN.bottom, MARGIN.top]);
    frame(context, Object.assign(x, { ticks: () => [] }), y, { xlabel: `${rows.length.toLocaleString("en")} clients by personalised ${c.parameters[p]}`, ylabel: c.parameters[p] });
    const each = (x.range[1] - x.range[0]) / Math.max(rows.length, 1), thin = Math.min(1, Math.max(0.25, each / 3));
    spots = [];
    clipped(context, x, y, () => {
      context.strokeStyle = faded("own", each > 3 ? 0.7 : 0.35);
      context.lineWidth = Math.max(0.5, Math.min(1.5, each * 0.3));
      context.beginPath();
      rows.forEach((k, r) => { if (c.own[p][k] != null && c.error[p][k] != null) { context.moveTo(x(r), y(c.own[p][k] - z * c.error[p][k])); context.lineTo(x(r), y(c.own[p][k] + z * c.error[p][k])); } });
      context.stroke();
      context.strokeStyle = faded("after", each > 3 ? 0.8 : 0.3 + 0.3 * thin);
      context.lineWidth = Math.max(0.6, Math.min(3, each * 0.5));
      context.beginPath();
      rows.forEach((k, r) => { context.moveTo(x(r), y(c.lower[p][k])); context.lineTo(x(r), y(c.upper[p][k])); });
      context.stroke();
      for (const [values, hue] of [[c.own[p], "own"], [c.mean[p], "after"]]) {
        context.fillStyle = colour(hue);
        rows.forEach((k, r) => { if (values[k] != null) { const size = Math.max(0.7, Math.min(3, each * 0.45)); context.fillRect(x(r) - size, y(values[k]) - size, 2 * size, 2 * size); spots.push(x(r), y(values[k]), k); } });
      }
      const k = chosen(), r = rows.indexOf(k);
      if (r >= 0) { context.strokeStyle = colour("ink"); context.lineWidth = 1.5; line(context, x(r), y.range[0], x(r), y.range[1]); }
    });
  }, { label: "Caterpillar plot", hover: (px, py) => { const k = nearest(spots, px, py, 14); return k < 0 ? null : [c.ids[k], describeClient(data, k)]; } });

  const again = () => { rescale(); arrange(); };
  const controls = element("div", { class: "controls" }, search, choice("clients:parameter", "Parameter", c.parameters, again), element("button", { type: "button", class: "csv", onclick: () => download(data, order.rows) }, "Download CSV"), found);
  const printed = element("div", { class: "printed" });
  addEventListener("beforeprint", () => {
    const rows = Array.from(order.rows.slice(0, 200)), text = (cell) => [].concat(cell).map((part) => part.textContent ?? part).join("");
    printed.replaceChildren(plainTable(columns.filter((each) => each.name !== "picture").map((each) => each.title), rows.map((k) => columns.filter((each) => each.name !== "picture").map((each) => text(each.cell(k))))),
      element("p", {}, rows.length < order.rows.length ? `The first ${rows.length} of ${order.rows.length} clients of ${c.parameters[parameter()]}, in the order chosen on screen.` : `Estimates of ${c.parameters[parameter()]}.`));
  });
  again();
  const words = data.exact
    ? `Intervals hold ${percent(data.level)}. A client's own interval is the usual one of its own fit (estimate and curvature there; where a flag says that no estimate exists, the point that a weak penalty picks); the personalised ones come from the clients' rows themselves, not from these summaries.`
    : `Intervals hold ${percent(data.level)}, before (from the client's own report) and after.`;
  queueMicrotask(() => paint(true));
  return section("Clients", `${words} Click a row to find the client in the pictures.`, controls, table,
    element("div", { class: "legend", style: "margin-top:14px" }, key("own")("own estimate and interval"), key("after")("personalised")), caterpillar, printed);
}

function describeClient(data, k) {
  const c = data.clients, lines = [];
  c.parameters.slice(0, 4).forEach((name, p) => lines.push(`${name}: ${say(c.own[p][k], 3)} → ${say(c.mean[p][k], 3)} (${say(c.lower[p][k], 3)} to ${say(c.upper[p][k], 3)})`));
  lines.push(`shrinkage ${percent(c.shrinkage[k])}${c.n ? `, n ${say(c.n[k])}` : ""}`);
  if (c.flag[k]) lines.push(c.flag[k]);
  return lines;
}

function download(data, rows) {
  const c = data.clients, quoted = (v) => (v == null ? "" : /[",\r\n]|^\s|\s$/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
  const blocks = { own: c.own, own_se: c.error, theta: c.mean, sd: c.sd, lower: c.lower, upper: c.upper };
  const head = ["client", ...(c.n ? ["n"] : []), ...Object.keys(blocks).flatMap((b) => c.parameters.map((p) => `${b}_${p}`)), "shrinkage", "log_marginal", "flag"];
  const lines = Array.from(rows, (k) => [c.ids[k], ...(c.n ? [c.n[k]] : []), ...Object.values(blocks).flatMap((b) => b.map((values) => values[k])), c.shrinkage[k], c.log_marginal[k], c.flag[k]].map(quoted).join(","));
  const link = element("a", { href: URL.createObjectURL(new Blob([[head.map(quoted).join(","), ...lines, ""].join("\n")], { type: "text/csv" })), download: "clients.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
