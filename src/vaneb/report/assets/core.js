// Elements, numbers and colours.

const state = {};            // what the user has chosen, by name; kept when a live page gets new content
const redraws = new Set();   // pictures, to be drawn again when colours or sizes change
let printing = false;

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

function section(title, lead, ...children) {
  return element("section", {}, element("h2", {}, title), lead ? element("p", { class: "lead" }, lead) : null, ...children);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// Told apart by most eyes; lines also differ in their marks.
const SERIES = ["#2463c9", "#d1571b", "#1f8a5b", "#b8255f", "#7a55c7", "#8c7a12", "#1592a8", "#8d5a3b", "#5f6b7a", "#c94f9b"];
const SERIES_DARK = ["#7aa9f7", "#f39a5f", "#64c795", "#f27aa6", "#b79bf5", "#d3c04f", "#5cc9dc", "#cf9c7b", "#a5b0bf", "#f094cf"];
function isDark() {
  if (printing) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function seriesColour(i) {
  return (isDark() ? SERIES_DARK : SERIES)[i % SERIES.length];
}

function say(value, digits = 4) {
  if (value == null || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace("-", "−").replace("e-", "e−");
  const text = size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: size >= 1e5 ? 0 : 1 }) : Number(value.toPrecision(digits)).toString();
  return text.replace("-", "−");
}
const percent = (value) => (value == null ? "–" : `${(100 * value).toFixed(value !== 0 && (value > 0.995 || value < 0.005) ? 1 : 0)}%`);

// Numbers of a quantity: plain, or a rate in percent.
const inUnit = (isPercent, value, digits = 3) => (value == null ? "–" : isPercent ? `${say(100 * value, digits)}%` : say(value, digits));

// Decimals with which the typical interval of a quantity has two digits or a little more.
function decimalsOf(clients, p) {
  const widths = clients.mean[p].map((_, k) => clients.upper[p][k] - clients.lower[p][k]).filter((width) => width > 0).sort((a, b) => a - b);
  const typical = (clients.percent[p] ? 100 : 1) * (widths[widths.length >> 1] || 1);
  return Math.max(0, Math.min(6, Math.ceil(1.3 - Math.log10(typical))));
}

// As inUnit, with the same decimals for all clients.
function withDecimals(isPercent, value, decimals) {
  if (value == null) return "–";
  const scaled = isPercent ? 100 * value : value;
  if (Math.abs(scaled) >= 1e6) return inUnit(isPercent, value, 3);
  const text = scaled.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals, signDisplay: "negative" });
  return `${text.replace("-", "−")}${isPercent ? "%" : ""}`;
}

// Folded away until it is asked for.
function folded(title, ...children) {
  return element("details", {}, element("summary", {}, title), ...children);
}

function choice(name, label, options, redraw, initial = 0) {
  if (!(name in state) || state[name] >= options.length) state[name] = initial;
  const select = element("select", { "data-name": name, onchange: () => { state[name] = Number(select.value); redraw(); } },
    ...options.map((text, i) => element("option", { value: i, selected: i === state[name] }, text)));
  return element("label", {}, label, select);
}

function checkbox(name, label, redraw, initial = true) {
  if (!(name in state)) state[name] = initial;
  const box = element("input", { type: "checkbox", "data-name": name, checked: state[name], onchange: () => { state[name] = box.checked; redraw(); } });
  return element("label", {}, box, label);
}

function segments(name, options, redraw, initial = 0) {
  if (!(name in state) || state[name] >= options.length) state[name] = initial;
  const buttons = options.map((text, i) => element("button", {
    type: "button", "aria-pressed": String(i === state[name]),
    onclick: () => { state[name] = i; buttons.forEach((b, j) => b.setAttribute("aria-pressed", String(i === j))); redraw(); },
  }, text));
  return element("span", { class: "segments", role: "group" }, ...buttons);
}

function key(name, kind = "dot") {
  return (label) => element("span", { class: "item" }, element("i", { class: `swatch ${kind}`, style: `background: var(--${name})` }), label);
}

const tip = {
  show(x, y, title, lines) {
    const box = document.getElementById("tip");
    box.replaceChildren(element("b", {}, title), ...lines.flatMap((line) => [line, element("br")]).slice(0, -1));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 6))}px`;
    box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 12) : y + 18}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

function redrawAll() {
  for (const redraw of redraws) redraw();
}

function bold(text) {
  return text.split("**").map((part, i) => (i % 2 ? element("strong", {}, part) : part));
}

function plainTable(head, rows, mark = () => "") {
  // On a phone rows of many columns are cards.
  return element("div", { class: "plain" }, element("table", { class: head.length > 4 ? "wide" : "" },
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", {}, text)))),
    element("tbody", {}, ...rows.map((row, i) => element("tr", {}, ...row.map((text, j) => element("td", { class: mark(i, j), "data-title": head[j] }, text)))))));
}
