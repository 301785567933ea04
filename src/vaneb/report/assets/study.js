// The page of the simulation study.

function studyPage(data) {
  const parts = data.notes.map((text) => element("p", { class: "note" }, text));
  if (data.curves) {
    const { prior, mean } = data.curves;
    const view = { prior, own: mean.map((values) => values.map(() => null)), mean, ids: mean[0].map((_, k) => `client ${k + 1}`), noise: [0, 0, 0], noun: ["client", "clients"], describe: (k) => [mean.map((values) => say(values[k], 3)).join(", ")], words: ["", "clients drawn from it"], single: true };
    parts.push(priorSection("curves", "Five curves in space", null, view));
  }
  const series = data.estimators.map((name) => ({ name, index: (data.scenarios[0].panels[0].rmse.find((s) => s.name === name) || {}).index }));
  data.scenarios.forEach((scenario, i) => parts.push(section(
    `Scenario: ${scenario.name}`,
    i ? null : "Above: root mean squared error over clients, averaged over replicates, with one standard error. Below: the share of parameters that the 90% intervals contain. Click a name to switch it off.",
    seriesLegend(series),
    element("div", { class: "grid" }, ...scenario.panels.map((panel) => sweepFigure(panel))),
  )));
  if (data.theory) {
    parts.push(section("The theory's rates", "On logarithmic scales a rate is a slope. Excess risk over the oracle should fall as 1/K and 1/n, the squared Hellinger distance of the marginals as 1/K, up to powers of log K.",
      seriesLegend([{ name: "vaneb", index: 0 }, { name: "local", index: 1 }]),
      element("div", { class: "grid" }, ...data.theory.panels.map((panel) => titled(panel.title, lineChart({ series: panel.series, xlabel: panel.along === "K" ? "clients K" : "sample size n", logX: true, logY: true, height: 220, places: panel.series[0].points.map((p) => p[0]), label: panel.title })))),
      plainTable(data.theory.head, data.theory.slopes)));
  }
  if (data.table && data.table.rows.length) parts.push(section("All numbers", "The best of each cell but the oracle is marked.", plainTable(data.table.head, data.table.rows, (i, j) => `${data.table.best[i] ? "best" : ""}${j === 3 ? " left" : ""}`)));
  return parts;
}

function sweepFigure(panel) {
  const error = lineChart({ series: panel.rmse, ylabel: "RMSE", height: 260, logX: true, places: panel.places, domainY: [0, panel.ceiling], label: "RMSE" });
  const coverage = lineChart({ series: panel.coverage, xlabel: panel.label, ylabel: "coverage", height: 190, logX: true, places: panel.places, domainY: [0, 1.02], domainX: [panel.places[0] / 1.25, panel.places[panel.places.length - 1] * 1.25], label: "Coverage" });
  return titled(panel.label, element("figure", {}, error, coverage), panel.off.length ? `Partly off the scale of errors: ${panel.off.join(", ")}.` : null);
}
