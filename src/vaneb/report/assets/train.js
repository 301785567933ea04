// The page of federated training.

function trainPage(data) {
  const parts = data.notes.map((text) => element("p", { class: "note" }, text));
  if (data.running.length) {
    parts.push(section("Under way", null, plainTable(["Stage", "Algorithm", "Rounds", "Seconds so far", "Seconds left"], data.running.map((s) => [s.title, s.algorithm, `${s.done} of ${s.rounds}`, say(s.seconds), say(s.left)]))));
  }
  if (data.settings.length) {
    const holder = element("div");
    const show = () => {
      const setting = data.settings[state["train:setting"] ?? 0];
      holder.replaceChildren(...settingSections(setting));
    };
    const select = choice("train:setting", "Setting", data.settings.map((s) => s.name), show, data.settings.length - 1);
    if (data.settings.length > 1) parts.push(element("div", { class: "controls" }, select));
    show();
    parts.push(holder);
  }
  if (data.heads.length) parts.push(headsSection(data.heads));
  return parts;
}

function settingSections(setting) {
  const all = setting.protocols[0].rounds;
  const curves = all.some((s) => s.points.length > 1);
  const made = [
    section("Methods side by side", "Accuracy of each client's own network after the last round. Dot: mean over clients; bar: from the first to the ninth decile; small dots: clients; tick: mean of the worst tenth.",
      element("div", { class: "grid" }, ...setting.protocols.map((protocol) => titled(`Test labels: ${protocol.words}`, sideBySide(protocol))))),
    section("Accuracy by round", curves ? "Rounds over all stages of a method. Click a name to switch it off." : "Methods were evaluated after their last round only. With --evaluate-every they are drawn here.",
      curves ? seriesLegend(all) : null,
      element("div", { class: "grid" }, ...(curves ? setting.protocols : []).map((protocol) => titled(`Test labels: ${protocol.name}`, lineChart({ series: protocol.rounds, xlabel: "round", ylabel: "accuracy (%)", unit: "%", whole: true, domainX: [0, 1.03 * Math.max(...all.flatMap((s) => s.points.map((p) => p[0])))], label: `Accuracy by round, ${protocol.name}` }))))),
    section("All numbers", null, numbersTable(setting), element("h3", { style: "margin-top:14px" }, "What was evaluated"),
      ...setting.details.map(({ name, evaluated }) => element("p", { style: "margin:2px 0" }, element("strong", {}, name), `: ${evaluated}.`))),
  ];
  return made;
}

function sideBySide({ methods }) {
  const sorted = methods.slice().sort((a, b) => b.mean - a.mean), row = 34;
  let spots = [];
  const figure = picture(row * sorted.length + 52, (context, width, height) => {
    const room = Math.min(180, width * 0.36);
    const low = Math.min(...sorted.map((m) => Math.min(m.worst, m.deciles[0], ...m.clients)));
    const x = linear([Math.max(0, Math.floor((low - 2) / 10) * 10), 100], [room, width - 44]), y = linear([0, 1], [height - 40, 4]);
    frame(context, x, Object.assign(y, { ticks: () => [] }), { xlabel: "accuracy (%)" });
    spots = [];
    sorted.forEach((m, i) => {
      const at = 6 + row * (i + 0.5), hue = seriesColour(m.index);
      context.textAlign = "right"; context.textBaseline = "middle"; context.fillStyle = colour("ink");
      context.fillText(fitted(context, m.name, room - 14), room - 8, at);
      context.fillStyle = hue;
      context.globalAlpha = Math.max(0.12, Math.min(0.5, 20 / (m.clients.length || 1)));
      // The same height for the same client in every row: nothing is random here.
      m.clients.forEach((value, k) => disc(context, x(value), at + (((k * 0.618034) % 1) - 0.5) * 18, 1.8));
      context.globalAlpha = 0.55;
      context.fillRect(x(m.deciles[0]), at - 3, x(m.deciles[8]) - x(m.deciles[0]), 6);
      context.globalAlpha = 1;
      context.fillRect(x(m.worst) - 1, at - 9, 2, 18);
      disc(context, x(m.mean), at, 6);
      context.strokeStyle = colour("panel"); context.lineWidth = 1.5; context.stroke();
      context.fillStyle = colour("ink"); context.textAlign = "left";
      context.fillText(m.mean.toFixed(1), width - 38, at);
      spots.push([at, m]);
    });
  }, { label: "Accuracy of methods", hover: (px, py) => {
    const found = spots.find(([at]) => Math.abs(at - py) < row / 2);
    return found ? [found[1].name, [`mean ${found[1].mean.toFixed(2)}%`, `deciles 1, 5, 9: ${[0, 4, 8].map((i) => found[1].deciles[i].toFixed(1)).join(", ")}`, `worst tenth ${found[1].worst.toFixed(1)}%`, found[1].seeds > 1 ? `${found[1].seeds} seeds` : null].filter(Boolean)] : null;
  } });
  return figure;
}

function numbersTable(setting) {
  const [a, b] = setting.protocols, best = setting.protocols.map((p) => Math.max(...p.methods.map((m) => m.mean)));
  const of = (protocol, name) => protocol.methods.find((m) => m.name === name);
  const rows = setting.details.map(({ name, seconds }) => {
    const both = [of(a, name), of(b, name)];
    return [name, ...both.flatMap((m) => (m ? [m.mean.toFixed(2), m.deciles[4].toFixed(1), m.worst.toFixed(1)] : ["–", "–", "–"])), say(seconds, 3)];
  });
  return plainTable(["Method", `${a.name}: mean`, "median", "worst tenth", `${b.name}: mean`, "median", "worst tenth", "seconds, last stage"], rows,
    (i, j) => ((j === 1 && rows[i][1] === best[0].toFixed(2)) || (j === 4 && rows[i][4] === best[1].toFixed(2)) ? "best" : ""));
}

function headsSection(heads) {
  const holder = element("div");
  const show = () => {
    const head = heads[state["heads:which"]];
    const view = { prior: head.prior, own: head.own, mean: head.mean, ids: head.own[0].map((_, k) => `client ${k}`), noise: head.prior.axes.map(() => 0), noun: ["client", "clients"], describe: (k) => [`largest share of one atom ${percent(head.largest[k])}`], words: ["fine-tuned heads", "posterior means"] };
    holder.replaceChildren(priorSection("heads", "The heads and their prior", `Heads of ${head.parameters.toLocaleString("en")} weights in their first principal components: ${head.title}. ${percent(head.largest.filter((v) => v > 0.99).length / head.largest.length)} of the clients almost surely belong to a single atom.`, view));
  };
  const select = choice("heads:which", "Heads of", heads.map((h) => h.title), show);
  show();
  return element("div", {}, heads.length > 1 ? element("div", { class: "controls" }, select) : null, holder);
}
