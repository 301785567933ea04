// Put the page together; on a live page, again whenever there is something new.

const PAGES = { fit: fitPage, study: studyPage, train: trainPage, federation: federationPage, waiting: () => [] };

function render(data) {
  redraws.clear();
  document.title = document.querySelector("h1").textContent = data.title;
  document.getElementById("sentence").replaceChildren(...bold(data.sentence));
  document.getElementById("main").replaceChildren(...PAGES[data.kind](data));
}

document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  redrawAll();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
addEventListener("beforeprint", () => { printing = true; redrawAll(); });
addEventListener("afterprint", () => { printing = false; redrawAll(); });

render(JSON.parse(document.getElementById("data").textContent));

if (LIVE) {
  const told = document.getElementById("live");
  let version = null;
  const look = async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      const newest = (await answer.json()).version;
      if (version !== null && newest !== version) {
        const top = scrollY;
        render(await (await fetch("content.json", { cache: "no-store" })).json());
        scrollTo(0, top);
      }
      version = newest;
      const seconds = Math.max(0, Math.round((Date.now() - Number(newest) / 1e6) / 1000));
      told.textContent = newest === "0" ? "live" : `live · last result ${seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`} ago`;
    } catch {
      told.textContent = "the server has stopped; this is the last that it said";
    }
    told.hidden = false;
    setTimeout(look, 2000);
  };
  look();
}
