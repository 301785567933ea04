// The page of a fit: who differs, everybody, the population; what it rests on is folded away below.

function fitPage(data) {
  const chosen = (k) => { if (k !== undefined) state.chosen = k; return state.chosen ?? -1; };
  const view = { prior: data.prior, own: data.points.own, mean: data.points.mean, ids: data.clients.ids, usual: data.clients.flag.map((flag) => !flag.includes("unexplained")), noise: data.noise, chosen, noun: data.noun, describe: (k) => describeClient(data, k), words: ["own estimates", "personalised"], opens: data.prior.opens };
  const [one, many] = data.noun;
  rebuilds.clear();
  return [
    ...data.notes.map((text) => element("p", { class: "note" }, text)),
    whoSection(data, chosen),
    data.held_out ? section("Predictions of held-out rows", null, heldOutFigure(data.held_out, one)) : null,
    clientsSection(data, chosen),
    priorSection("prior", `The population, and where each ${one} moves`, `Each ${one} moves towards the others. Those with the least certain estimates move furthest.`, view),
    methodsSection(data),
    howGood(data),
  ].filter(Boolean);
}

function methodsSection({ methods, citation }) {
  const told = element("span", { class: "told", role: "status" });
  const copy = element("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(`${methods}\n\n${citation}`); told.textContent = "Copied."; } catch { getSelection().selectAllChildren(text); told.textContent = "Selected: copy it with the keyboard."; }
  } }, "Copy");
  const text = element("div", { class: "paper" }, element("p", {}, methods), element("p", {}, citation));
  return section("For a paper", null, text, element("div", { class: "controls" }, copy, told));
}

function howGood(data) {
  const parts = [];
  if (data.trace) parts.push(traceFigure(data));
  if (data.gap) parts.push(gapFigure(data));
  if (data.sampling) parts.push(samplingFigure(data.sampling, data.noun[0]));
  parts.push(data.calibration ? calibrationFigure(data) : element("div", {}, element("h3", {}, "Calibration"), element("p", { class: "lead" }, `This fit used the likelihood of the ${data.noun[1]}' own rows. There are no estimates with standard errors whose distribution could be checked here.`)));
  const reading = data.reading.length ? [element("h3", {}, "How the input was read"), ...data.reading.map((text) => element("p", { class: "lead" }, text))] : [];
  return element("section", {}, folded("How good the fit is", element("p", { class: "lead" }, ...bold(data.details)), element("div", { class: "grid" }, ...parts), ...reading));
}

function titled(title, figure, caption) {
  if (caption) figure.append(element("figcaption", {}, caption));
  return element("div", {}, element("h3", {}, title), figure);
}

function traceFigure({ trace, tolerance }) {
  const last = trace[trace.length - 1];
  if (trace.length < 2) {
    return element("div", {}, element("h3", {}, "Likelihood"), element("p", {}, `Average log-likelihood ${say(last[0], 6)} with ${last[1]} ${last[1] === 1 ? "component" : "atoms"}; largest gap ${say(last[2], 3)}. The solver needed a single step.`));
  }
  const shown = trace.map((step, i) => [i + 1, step[0], 0, `${step[1]} atoms, gap ${say(step[2], 3)}`]);
  const gaps = trace.map((step, i) => [i + 1, Math.max(step[2] ?? 0, tolerance / 100), 0, `${step[1]} atoms`]).filter((p) => p[1] > 0);
  const low = Math.min(tolerance, ...gaps.map((p) => p[1])) / 2, high = Math.max(tolerance, ...gaps.map((p) => p[1])) * 2;
  const holder = element("figure", {},
    lineChart({ series: [{ name: "average log-likelihood", points: shown, index: 0 }], ylabel: "log-likelihood", height: 170, whole: true, label: "Likelihood trace" }),
    lineChart({ series: [{ name: "largest gap", points: gaps, index: 3 }, { name: "tolerance", points: [[1, tolerance], [trace.length, tolerance]], index: 8, dashed: true }], xlabel: "step", ylabel: "gap", height: 180, logY: true, whole: true, domainY: [low, high], label: "Gap trace" }));
  return titled("Likelihood, step by step", holder, `Ends at ${say(last[0], 6)} on average, with ${last[1]} atoms. The gap bounds how much any other set of atoms could still add.`);
}

function gapFigure({ gap, tolerance, prior }) {
  const kinds = gap.plane ? ["Plane", ...gap.lines.map((each) => gap.names[each.coordinate])] : gap.lines.map((each) => gap.names[each.coordinate]);
  const holder = element("div");
  const show = () => {
    const i = state["gap:kind"], plane = gap.plane && i === 0;
    for (const drawn of holder.querySelectorAll("figure")) redraws.delete(drawn.redraw);
    const figure = plane ? gapPlane(gap) : gapLine(gap, gap.lines[gap.plane ? i - 1 : i], tolerance);
    holder.replaceChildren(figure);
    figure.redraw();
  };
  const select = choice("gap:kind", "along", kinds, show);
  queueMicrotask(show);
  const where = gap.location.slice(0, 4).map((v) => say(v, 3)).join(", ") + (gap.location.length > 4 ? ", …" : "");
  const slice = gap.whole ? "" : " Lines and the plane pass through that point.";
  return element("div", {}, element("h3", {}, "The gap D over the space"), element("div", { class: "controls" }, kinds.length > 1 ? select : null), holder,
    element("figcaption", {}, `Wherever D is above zero, mass put there would raise the likelihood. Largest found: ${say(gap.gap, 3)} at (${where}).${slice}`));
}

function gapLine(gap, { coordinate, at, gap: values }, tolerance) {
  let x, y;
  return picture(270, (context, width, height) => {
    const top = Math.max(gap.gap, 0, ...values.filter((v) => v != null));
    x = linear([at[0], at[at.length - 1]], [MARGIN.left, width - MARGIN.right]);
    y = linear(extent([...values, 0, top], 0.08), [height - MARGIN.bottom, MARGIN.top]);
    frame(context, x, y, { xlabel: gap.names[coordinate], ylabel: "D" });
    context.strokeStyle = colour("ink"); context.lineWidth = 1; context.setLineDash([4, 4]);
    line(context, x.range[0], y(0), x.range[1], y(0));
    context.setLineDash([]);
    clipped(context, x, y, () => {
      context.strokeStyle = colour("after"); context.lineWidth = 1.8;
      context.beginPath();
      let open = false;
      at.forEach((v, i) => { if (values[i] == null) { open = false; return; } context[open ? "lineTo" : "moveTo"](x(v), y(values[i])); open = true; });
      context.stroke();
    });
    maximum(context, x(gap.location[coordinate]), y(gap.gap));
  }, { label: "Gap along a line", hover: (px) => { const v = x.invert(px); let i = 0; at.forEach((a, n) => { if (Math.abs(a - v) < Math.abs(at[i] - v)) i = n; }); return [`D = ${say(values[i], 3)}`, [`${gap.names[coordinate]} = ${say(at[i], 3)}`]]; } });
}

function gapPlane(gap) {
  const { x: xs, y: ys, gap: values } = gap.plane;
  let x, y;
  return picture(330, (context, width, height) => {
    x = linear([xs[0], xs[xs.length - 1]], [MARGIN.left, width - MARGIN.right]);
    y = linear([ys[0], ys[ys.length - 1]], [height - MARGIN.bottom, MARGIN.top]);
    const [dx, dy] = [(x.range[1] - x.range[0]) / (xs.length - 1), (y.range[0] - y.range[1]) / (ys.length - 1)];
    // From -1 (nobody is near) to 0 (as good as the atoms), one pixel for each point, then stretched.
    const image = element("canvas", { width: xs.length, height: ys.length }), pixels = image.getContext("2d").createImageData(xs.length, ys.length);
    const [red, green, blue] = faded("after", 1).match(/\d+/g).map(Number);
    values.forEach((v, i) => {
      const at = 4 * ((ys.length - 1 - Math.floor(i / xs.length)) * xs.length + (i % xs.length)), shade = v == null ? 1 : Math.max(0, Math.min(1, 1 + v));
      pixels.data.set([red, green, blue, Math.round(190 * shade ** 1.5)], at);
    });
    image.getContext("2d").putImageData(pixels, 0, 0);
    clipped(context, x, y, () => {
      context.drawImage(image, x.range[0] - dx / 2, y.range[1] - dy / 2, x.range[1] - x.range[0] + dx, y.range[0] - y.range[1] + dy);
      const largest = Math.max(...gap.weights);
      if (gap.whole) gap.atoms.forEach((a, j) => { context.strokeStyle = colour("atom"); context.lineWidth = 1.3; context.beginPath(); context.arc(x(a[0]), y(a[1]), atomRadius(gap.weights[j], largest, gap.weights.length) * 0.7, 0, 7); context.stroke(); });
    });
    frame(context, x, y, { xlabel: gap.names[0], ylabel: gap.names[1], grid: false });
    maximum(context, x(gap.location[0]), y(gap.location[1]));
  }, { label: "Gap over a plane", hover: (px, py) => {
    const q = Math.round(((x.invert(px) - xs[0]) / (xs[xs.length - 1] - xs[0])) * (xs.length - 1)), r = Math.round(((y.invert(py) - ys[0]) / (ys[ys.length - 1] - ys[0])) * (ys.length - 1));
    if (q < 0 || r < 0 || q >= xs.length || r >= ys.length) return null;
    return [`D = ${say(values[r * xs.length + q], 3)}`, [`${gap.names[0]} = ${say(xs[q], 3)}`, `${gap.names[1]} = ${say(ys[r], 3)}`]];
  } });
}

function maximum(context, px, py) {
  context.strokeStyle = colour("ink"); context.lineWidth = 2;
  line(context, px - 6, py - 6, px + 6, py + 6);
  line(context, px - 6, py + 6, px + 6, py - 6);
}

function samplingFigure({ error, sweeps, populations, groups }, one) {
  const total = groups.reduce((sum, [, count]) => sum + count, 0);
  const rows = groups.map(([group, count]) => [String(group), `${say((100 * count) / total, 2)}%`]);
  return titled("How many groups are there?", element("figure", {}, plainTable(["Groups", "Share of populations"], rows)),
    `${populations.toLocaleString("en")} populations were drawn in ${sweeps.toLocaleString("en")} sweeps. Each ${one}'s numbers are averages over all of them. The Monte Carlo error of 95% of the estimates is below ${say(error, 2)} posterior standard deviations.`);
}

function calibrationFigure(data) {
  const { calibration, calibrated, noun: [one, many] } = data;
  const holder = element("div");
  const show = () => {
    for (const drawn of holder.querySelectorAll("figure")) redraws.delete(drawn.redraw);
    const counts = calibration.counts[state["pit:parameter"]], total = counts.reduce((a, b) => a + b, 0), bins = counts.length;
    const mean = total / bins, half = 1.645 * Math.sqrt((total / bins) * (1 - 1 / bins));
    let x, y;
    const figure = picture(240, (context, width, height) => {
      x = linear([0, 1], [MARGIN.left, width - MARGIN.right]);
      y = linear([0, Math.max(...counts, mean + half) * 1.1], [height - MARGIN.bottom, MARGIN.top]);
      frame(context, x, y, { xlabel: `predicted probability of a lower estimate of ${calibrated[state["pit:parameter"]]}`, ylabel: many });
      context.fillStyle = faded("muted", 0.22);
      context.fillRect(x.range[0], y(mean + half), x.range[1] - x.range[0], y(Math.max(mean - half, 0)) - y(mean + half));
      context.fillStyle = faded("after", 0.65);
      counts.forEach((n, i) => context.fillRect(x(i / bins) + 1, y(n), x(1 / bins) - x(0) - 2, y(0) - y(n)));
    }, { label: "Calibration", hover: (px) => { const i = Math.floor(x.invert(px) * bins); return i < 0 || i >= bins ? null : [`${counts[i]} ${many}`, [`between ${say(i / bins)} and ${say((i + 1) / bins)}; ${say(mean, 3)} expected`]]; } });
    holder.replaceChildren(figure);
    figure.redraw();
  };
  const select = choice("pit:parameter", "Parameter", calibrated, show, data.prior.opens);
  queueMicrotask(show);
  return element("div", {}, element("h3", {}, "Calibration"), calibrated.length > 1 ? element("div", { class: "controls" }, select) : null, holder,
    element("figcaption", {}, `Where each ${one}'s own estimate falls in the distribution predicted by the population and the noise (PIT). If both are right, about 90% of the bars end within the grey band. A hump in the middle means that the noise is overstated; a dip, that it is understated. The fit saw the same ${many}, so this looks slightly too good.`));
}

function heldOutFigure(held, one) {
  const names = Object.keys(held.values), values = names.map((name) => held.values[name]), best = Math.min(...values);
  const figure = picture(44 * names.length + 50, (context, width, height) => {
    const room = 130, kept = values.filter((v) => v <= 20 * best), top = Math.max(...kept);
    const x = linear([0, top * 1.08], [room, width - 90]);
    context.textBaseline = "middle";
    const called = { local: `each ${one} alone`, pooled: "one model for all" };
    names.forEach((name, i) => {
      const y = 12 + 44 * i, long = values[i] > 20 * best;
      context.fillStyle = faded(name === "personalised" ? "after" : "own", 0.75);
      context.fillRect(room, y, x(long ? top * 1.08 : values[i]) - room, 26);
      context.fillStyle = colour("ink");
      context.textAlign = "right"; context.fillText(fitted(context, called[name] || name, room - 12), room - 8, y + 13);
      context.textAlign = "left"; context.fillText(`${say(values[i], 5)}${long ? " (cut)" : ""}`, Math.min(x(long ? top * 1.08 : values[i]) + 6, width - 84), y + 13);
    });
    context.fillStyle = colour("muted"); context.textAlign = "left"; context.fillText(`${held.loss}: smaller is better`, room, height - 22);
  }, { label: "Held-out losses" });
  figure.append(element("figcaption", {}, `${held.rows.toLocaleString("en")} test rows, predicted by each ${one}'s own fit, by one fit of all rows, and by the personalised coefficients.${held.new_clients ? ` ${held.new_clients} have test rows only: predicted by the population's mean.` : ""}`));
  return figure;
}
