// The page around the charts: their controls, the colours, the filter of the journal.
(() => {
  const byId = (id) => document.getElementById(id);
  const make = (name, className, text) => {
    const made = document.createElement(name);
    made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  });

  function filterJournal() {
    const chosen = new Set([...document.querySelectorAll("#kinds input:checked")].map((box) => box.value));
    const wanted = byId("find").value.toLowerCase();
    let shown = 0;
    for (const row of document.querySelectorAll("#events tr")) {
      const fits = chosen.has(row.dataset.kind) && row.textContent.toLowerCase().includes(wanted);
      row.hidden = !fits;
      shown += fits;
    }
    byId("shown").textContent = shown ? `${Charts.count(shown)} shown` : "no matching lines";
  }
  if (byId("kinds")) {
    byId("kinds").addEventListener("change", filterJournal);
    byId("find").addEventListener("input", filterJournal);
    filterJournal();
  }

  const data = JSON.parse(byId("data").textContent);
  if (!data) return;
  const tip = byId("tip");
  let asked = false;
  const shared = {
    start: data.first,
    end: Math.max(data.last, data.first + 1),
    cursor: null,
    weight: Number(byId("smoothing").value),
    scale: "auto",
    place(chart, first) {
      const figure = make("figure", first ? "chart first" : "chart");
      figure.dataset.name = chart.name;
      const caption = make("figcaption", "");
      caption.append(make("span", "title", chart.title), make("output", "readout", ""));
      figure.append(caption);
      byId("charts").append(figure);
      return figure;
    },
    setWindow(window) {
      const [first, last] = [data.first, Math.max(data.last, data.first + 1)];
      // Below some columns there would be nothing to see.
      const least = Math.min(Math.max(8, (4 * (last - first)) / data.columns), last - first);
      let [start, end] = window ?? [first, last];
      if (end - start < least) [start, end] = [(start + end - least) / 2, (start + end + least) / 2];
      [start, end] = [Math.max(first, start), Math.min(last, end)];
      if (end - start < least) [start, end] = start === first ? [first, first + least] : [last - least, last];
      Object.assign(shared, { start, end });
      byId("whole").disabled = start <= first && end >= last;
      redraw();
    },
    setCursor(step) {
      shared.cursor = step;
      if (step === null) tip.hidden = true;
      charts.forEach((chart) => chart.drawCursor());
    },
    tell(event, title, words, marks) {
      tip.replaceChildren(make("b", "", `step ${Charts.count(shared.cursor)}`), make("span", "", words.join(" · ")));
      for (const mark of marks) tip.append(make("span", mark.fault ? "mark fault" : "mark", mark.text));
      tip.hidden = false;
      const beside = event.clientX + 18 + tip.offsetWidth > innerWidth ? event.clientX - 18 - tip.offsetWidth : event.clientX + 18;
      tip.style.left = `${Math.max(4, beside)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 4)}px`;
    },
  };
  const charts = data.charts.map((chart, place) => new Charts.Chart(data, chart, shared, place === 0));

  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      charts.forEach((chart) => chart.draw());
    });
  }

  byId("smoothing").addEventListener("change", (event) => {
    shared.weight = Number(event.target.value);
    redraw();
  });
  byId("scale").addEventListener("change", (event) => {
    shared.scale = event.target.value;
    redraw();
  });
  byId("whole").addEventListener("click", () => shared.setWindow(null));
  byId("metric").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase();
    for (const figure of document.querySelectorAll("figure.chart")) {
      figure.hidden = !`${figure.dataset.name} ${figure.querySelector(".title").textContent}`.toLowerCase().includes(wanted);
    }
    redraw();
  });
  addEventListener("resize", redraw);
  addEventListener("beforeprint", () => charts.forEach((chart) => chart.draw()));
  charts.forEach((chart) => chart.draw());
  shared.setWindow(null);
})();
