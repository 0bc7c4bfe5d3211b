// What pages do beside htmx: theme, keys, charts, the live tail.  All of it can be missed.
(() => {
  "use strict";
  const root = document.documentElement;
  const theme = localStorage.getItem("theme");
  if (theme) root.dataset.theme = theme;

  document.addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme");
    if (toggle) {
      toggle.hidden = false;
      toggle.addEventListener("click", () => {
        const dark = root.dataset.theme
          ? root.dataset.theme === "dark"
          : matchMedia("(prefers-color-scheme: dark)").matches;
        root.dataset.theme = dark ? "light" : "dark";
        localStorage.setItem("theme", root.dataset.theme);
      });
    }
    // A narrow window shows a part of the pages: that with the one that is open.
    for (const link of document.querySelectorAll("nav a[aria-current]")) {
      const row = link.parentElement;
      row.scrollLeft = link.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
    }
    startTail();
    startChart();
  });

  // "/" goes to the search, "g" and a letter to a page, "?" to the list of keys.
  let waitsForLetter = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(input|select|textarea)$/i.test(event.target.tagName)) return;
    if (waitsForLetter) {
      waitsForLetter = false;
      const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
    } else if (event.key === "g") {
      waitsForLetter = true;
    } else if (event.key === "/") {
      const field = document.querySelector("main input[type=search], main input[type=text]");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "?") {
      const keys = document.getElementById("keys");
      if (keys) keys.open = !keys.open;
    }
  });

  function startTail() {
    const place = document.getElementById("tail");
    if (!place) return;
    const list = place.querySelector("tbody");
    const pause = document.getElementById("pause");
    const filter = document.getElementById("filter");
    const told = document.getElementById("told");
    const kept = 500;
    let paused = false, seen = 0, source = null;
    // Numbers that JavaScript would round stay as they were sent.
    const exact = (_name, value, was) =>
      (typeof value === "number" && was?.source && JSON.rawJSON && String(value) !== was.source
        ? JSON.rawJSON(was.source) : value);
    pause.hidden = false;
    const show = (record) => {
      const row = list.insertRow(0);
      let text = record.text !== undefined ? record.text : `base64:${record.base64}`;
      if (record.decoded !== undefined) text = JSON.stringify(record.decoded);
      else if (record.decode_error) text += `\nnot decoded: ${record.decode_error}`;
      for (const value of [record.sequence_id, record.position, record.key ?? "", text]) {
        const cell = row.insertCell();
        cell.textContent = value;
      }
      row.lastChild.className = "wide";
      while (list.rows.length > kept) list.deleteRow(-1);
    };
    const follow = () => {
      told.textContent = "connecting";
      source = new EventSource(place.dataset.url);
      source.onopen = () => { told.textContent = "following"; };
      source.onerror = () => { told.textContent = "the connection broke; it is tried again"; };
      source.onmessage = (event) => {
        const record = JSON.parse(event.data, exact);
        seen += 1;
        const wanted = filter.value;
        if (!paused && (!wanted || JSON.stringify(record).includes(wanted))) show(record);
        told.textContent = `${seen} records${paused ? ", paused" : ""}`;
      };
    };
    pause.addEventListener("click", () => {
      paused = !paused;
      pause.textContent = paused ? "Go on" : "Pause";
      pause.setAttribute("aria-pressed", String(paused));
    });
    follow();
    addEventListener("pagehide", () => source && source.close());
  }

  function startChart() {
    const place = document.getElementById("rates");
    if (!place || typeof uPlot === "undefined") return;
    const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
    const axis = (more) => ({ stroke: color("--soft"), grid: { stroke: color("--line") }, ...more });
    const clock = (at_s) => new Date(at_s * 1000).toTimeString().slice(0, 8);
    // Whole seconds, minutes and hours, as far apart as their labels are wide.
    const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
    const series = (label, name) => ({ label, stroke: color(name), width: 2 });
    let plot = null;
    const unread = document.getElementById("unread");
    const tell = (samples) => {
      const missing = samples.bookies_up - samples.bookies_read;
      const parts = [];
      if (!samples.at_s.length) parts.push("The first numbers come in a few seconds.");
      if (missing) parts.push(`${missing} of ${samples.bookies_up} bookies do not tell their counts over HTTP, so the chart lacks them: set http.enabled = true.`);
      unread.textContent = parts.join(" ");
      unread.hidden = !parts.length;
    };
    const draw = (samples) => {
      tell(samples);
      const data = [samples.at_s, samples.adds_per_s, samples.reads_per_s];
      if (plot) { plot.setData(data); return; }
      plot = new uPlot({
        width: place.clientWidth, height: 200,
        series: [{ value: (_, at_s) => (at_s == null ? "--" : clock(at_s)) }, series("adds/s", "--ok"), series("reads/s", "--mark")],
        axes: [axis({ space: 80, incrs: steps, values: (_, ticks) => ticks.map(clock) }), axis()],
        scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      }, data, place);
    };
    const ask = async () => {
      try {
        const answer = await fetch(`${document.body.dataset.base}/ui/samples`, { headers: { Accept: "application/json" } });
        if (answer.ok) draw(await answer.json());
      } catch { /* the server is away; the page says so itself */ }
    };
    ask();
    setInterval(ask, 2000);
    addEventListener("resize", () => plot && plot.setSize({ width: place.clientWidth, height: 200 }));
  }
})();
