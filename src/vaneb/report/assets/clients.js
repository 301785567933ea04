// Clients: a table that holds only the rows in sight (cards, on a phone), and CSV.

const PHONE = matchMedia("(max-width: 640px)");
const rowHeight = () => (PHONE.matches ? 136 : 32);

function clientsSection(data, chosen) {
  const c = data.clients, count = c.ids.length, [one, many] = data.noun;
  const order = { rows: Int32Array.from({ length: count }, (_, k) => k) };
  const parameter = () => state["clients:parameter"];
  const of = (name, k) => c[name][parameter()][k];
  const own = (k) => of("own", k), after = (k) => of("mean", k);
  let decimals = 0;
  const unit = (value) => withDecimals(c.percent[parameter()], value, decimals);
  const has = (values) => values && values.some((v) => v);
  const differs = (k) => ({ "-1": "below", 0: "", 1: "above" })[of("differs", k)];
  const columns = [
    { name: "client", title: one[0].toUpperCase() + one.slice(1), width: "minmax(110px, 1fr)", left: true, value: (k) => c.ids[k], cell: (k) => c.ids[k] },
    c.n ? { name: "n", title: "n", width: "72px", value: (k) => c.n[k], cell: (k) => say(c.n[k]) } : null,
    { name: "own", title: "Own estimate", width: "minmax(196px, 1fr)", value: own, cell: (k) => interval(own(k), of("own_lower", k), of("own_upper", k)) },
    { name: "after", title: "Personalised", width: "minmax(196px, 1fr)", value: after, cell: (k) => interval(after(k), of("lower", k), of("upper", k)) },
    { name: "picture", title: "Before and after", width: "minmax(120px, 1.2fr)", value: (k) => (own(k) == null ? -1 : Math.abs(after(k) - own(k))), cell: (k) => small(k) },
    { name: "rank", title: "Rank", width: count > 999 ? "164px" : "118px", value: (k) => -of("rank", k), cell: (k) => [say(Math.round(of("rank", k))), " ", element("small", {}, `(${say(of("rank_lower", k))} to ${say(of("rank_upper", k))})`)] },
    { name: "differs", title: "Differs", width: "84px", left: true, value: (k) => of("differs", k), cell: (k) => (differs(k) ? [element("span", { style: `color:var(--${differHue(of("differs", k))})` }, differs(k))] : "") },
    { name: "shrinkage", title: "Shrinkage", width: "96px", value: (k) => c.shrinkage[k], cell: (k) => percent(c.shrinkage[k]) },
    has(c.flag) ? { name: "flag", title: "Flag", width: "minmax(118px, .7fr)", left: true, value: (k) => c.flag[k], cell: (k) => c.flag[k] } : null,
  ].filter(Boolean);
  state["clients:sort"] = state["clients:sort"] || ["after", 1];
  let scale = null;

  function interval(value, low, high) {
    if (value == null) return [element("small", {}, "none")];
    return [unit(value), " ", element("small", {}, low == null || high == null ? "(no interval)" : `(${unit(low)} to ${unit(high)})`)];
  }
  function small(k) {
    const svg = (tag, attributes) => { const made = document.createElementNS("http://www.w3.org/2000/svg", tag); for (const [a, v] of Object.entries(attributes)) made.setAttribute(a, v); return made; };
    const at = (v) => 100 * Math.max(-0.02, Math.min(1.02, scale(v)));
    const made = svg("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" });
    const bar = (low, high, y, hue, width) => made.append(svg("line", { x1: at(low), x2: at(high), y1: y, y2: y, stroke: `var(--${hue})`, "stroke-width": width, "vector-effect": "non-scaling-stroke" }));
    const point = (v, y, hue) => made.append(svg("line", { x1: at(v), x2: at(v), y1: y - 4, y2: y + 4, stroke: `var(--${hue})`, "stroke-width": 3, "vector-effect": "non-scaling-stroke" }));
    if (own(k) != null) { if (of("own_lower", k) != null && of("own_upper", k) != null) bar(of("own_lower", k), of("own_upper", k), 6, "own", 1.5); point(own(k), 6, "own"); }
    bar(of("lower", k), of("upper", k), 16, "after", 2); point(after(k), 16, "after");
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
  const search = element("input", { type: "search", placeholder: "Search", "aria-label": "Search clients", value: state["clients:search"] || "", oninput: () => { state["clients:search"] = search.value; arrange(); } });

  let first = -1, last = -1;
  function paint(force = false) {
    const tall = rowHeight(), top = Math.max(0, Math.floor((table.scrollTop - 10) / tall) - 6), bottom = Math.min(order.rows.length, top + Math.ceil((table.clientHeight || 470) / tall) + 14);
    if (!force && top === first && bottom === last) return;
    [first, last] = [top, bottom];
    const made = [];
    for (let r = top; r < bottom; r++) {
      const k = order.rows[r];
      made.push(element("div", { class: `row${chosen() === k ? " chosen" : ""}`, role: "row", "aria-rowindex": r + 1, style: `top:${r * tall}px`, onclick: () => { chosen(chosen() === k ? -1 : k); paint(true); redrawAll(); } },
        ...columns.map((column) => element("div", { class: `cell ${column.name}${column.left ? " left" : ""}`, role: "cell", "data-title": column.title, title: column.name === "client" || column.name === "flag" ? c[column.name === "client" ? "ids" : "flag"][k] : null }, ...[].concat(column.cell(k))))));
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
    body.style.height = `${order.rows.length * rowHeight()}px`;
    found.textContent = order.rows.length === count ? `${count.toLocaleString("en")} ${many}` : `${order.rows.length.toLocaleString("en")} of ${count.toLocaleString("en")} ${many}`;
    table.scrollTop = 0;
    paint(true);
  }
  const again = () => { decimals = decimalsOf(c, parameter()); scale = linear(scaleOf(data, parameter()), [0, 1]); arrange(); };
  rebuilds.add(again);
  PHONE.addEventListener("change", arrange);
  // The head of the table is not there on a phone.
  const sorting = element("label", { class: "sorting" }, "Sort by", element("select", { "data-name": "clients:sorting", onchange: (event) => { state["clients:sort"] = [columns[event.target.value].name, columns[event.target.value].left ? 0 : 1]; arrange(); } }, ...columns.map((column, i) => element("option", { value: i, selected: column.name === state["clients:sort"][0] }, column.title))));
  const controls = element("div", { class: "controls" }, search, sorting, element("button", { type: "button", class: "csv", onclick: () => download(data, order.rows) }, "Download CSV"), found);
  const printed = element("div", { class: "printed" });
  addEventListener("beforeprint", () => {
    const rows = Array.from(order.rows.slice(0, 200)), text = (cell) => [].concat(cell).map((part) => part.textContent ?? part).join("");
    printed.replaceChildren(plainTable(columns.filter((each) => each.name !== "picture").map((each) => each.title), rows.map((k) => columns.filter((each) => each.name !== "picture").map((each) => text(each.cell(k))))),
      element("p", {}, rows.length < order.rows.length ? `The first ${rows.length} of ${order.rows.length.toLocaleString("en")} ${many}, in the order chosen on screen: ${c.parameters[parameter()]}.` : `Estimates of ${c.parameters[parameter()]}.`));
  });
  again();
  const words = data.exact
    ? `Intervals are ${percent(data.level)} intervals. The own interval is the usual one of the ${one}'s own fit. Where a flag says that there is no estimate, a weak penalty has chosen one.`
    : `${percent(data.level)} intervals, before (from the ${one}'s own report) and after.`;
  queueMicrotask(() => paint(true));
  return section(`All ${many}`, `${words} Rank 1 is the highest. Click a row to find it in the pictures.`, controls, table, printed);
}

function describeClient(data, k) {
  const c = data.clients, first = state["clients:parameter"] ?? 0, lines = [];
  const shown = [first, ...c.parameters.map((_, p) => p).filter((p) => p !== first)].slice(0, 4);
  for (const p of shown) {
    const decimals = decimalsOf(c, p), unit = (value) => withDecimals(c.percent[p], value, decimals);
    lines.push(`${c.parameters[p]}: ${c.own[p][k] == null ? "" : `${unit(c.own[p][k])} → `}${unit(c.mean[p][k])} (${unit(c.lower[p][k])} to ${unit(c.upper[p][k])})`);
  }
  lines.push(`rank ${say(c.rank_lower[first][k])} to ${say(c.rank_upper[first][k])} of ${c.ids.length.toLocaleString("en")}${c.n ? `, n ${say(c.n[k])}` : ""}`);
  if (c.flag[k]) lines.push(c.flag[k]);
  return lines;
}

function download(data, rows) {
  const c = data.clients, quoted = (v) => (v == null ? "" : /[",\r\n]|^\s|\s$/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v));
  const blocks = { own: c.own, own_se: c.error, theta: c.mean, sd: c.sd, lower: c.lower, upper: c.upper, rank: c.rank, differs: c.differs };
  const head = ["client", ...(c.n ? ["n"] : []), ...Object.keys(blocks).flatMap((b) => c.parameters.map((p) => `${b}_${p}`)), "shrinkage", "log_marginal", "flag"];
  const lines = Array.from(rows, (k) => [c.ids[k], ...(c.n ? [c.n[k]] : []), ...Object.values(blocks).flatMap((b) => b.map((values) => values[k])), c.shrinkage[k], c.log_marginal[k], c.flag[k]].map(quoted).join(","));
  const link = element("a", { href: URL.createObjectURL(new Blob([[head.map(quoted).join(","), ...lines, ""].join("\n")], { type: "text/csv" })), download: "clients.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
