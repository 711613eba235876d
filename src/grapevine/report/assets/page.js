(() => {
  const all = (words, inside = document) => [...inside.querySelectorAll(words)];

  // A command wraps between its words, not inside a flag as after the first hyphen of --budget.
  for (const pre of all("pre")) pre.replaceChildren(...pre.textContent.split(/(\s+)/).filter(Boolean).map(word => {
    if (!word.trim()) return word;
    const span = document.createElement("span");
    span.textContent = word;
    return span;
  }));

  // What a mark is, told beside the pointer or by arrow keys.
  const tip = document.getElementById("tip");
  let on = null;
  function tell(mark, x, y) {
    if (on) on.classList.remove("on");
    on = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16) + "px";
  }
  const under = e => e.target.closest ? e.target.closest("[data-tip]") : null;
  for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, e => tell(under(e), e.clientX, e.clientY));
  document.addEventListener("scroll", () => tell(null), true);
  document.addEventListener("focusout", () => tell(null));
  document.addEventListener("keydown", e => {
    if (e.key === "Escape") return tell(null);
    const chart = document.activeElement;
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity}[e.key];
    if (!step || !chart || chart.tagName !== "svg") return;
    const marks = all("[data-tip]:not(.dim)", chart);
    if (!marks.length) return;
    e.preventDefault();
    const at = marks.indexOf(on);
    const mark = marks[Math.max(0, Math.min(marks.length - 1, at < 0 && step === 1 ? 0 : at + step))];
    const box = mark.getBoundingClientRect();
    tell(mark, box.x + box.width / 2, box.y + Math.min(box.height / 2, 40));
  });

  // Buttons hide a series in their figure, check boxes on the whole page, menus dim points.
  const hide = (number, inside, gone) => all(`[data-of="${number}"]`, inside).forEach(mark => mark.classList.toggle("gone", gone));
  for (const button of all("[data-series]")) button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    hide(button.dataset.series, button.closest("figure"), !shown);
  });
  for (const box of all("[data-pick]")) box.addEventListener("change", () => hide(box.dataset.pick, document, !box.checked));
  for (const menu of all("[data-choose]")) menu.addEventListener("change", () => {
    const figure = menu.closest("figure");
    const wanted = all("[data-choose]", figure).filter(m => m.value);
    for (const point of all("[data-kind]", figure))
      point.classList.toggle("dim", wanted.some(m => point.dataset[m.dataset.choose] !== m.value));
  });

  // Heads of a table sort it: numbers with their units, the largest first; words by the alphabet; what is neither at the end.
  const units = {kB: 1e3, MB: 1e6, GB: 1e9, M: 1e6, G: 1e9, T: 1e12, P: 1e15, min: 60, h: 3600};
  const number = words => {
    const found = /^[< ]*([-+]?[\d.,]+)[^a-z]*([a-z]*)/i.exec(words.replace("−", "-"));
    return found ? found[1].replace(",", "") * (units[found[2]] || 1) : NaN;
  };
  for (const button of all(".sorted th button")) button.addEventListener("click", () => {
    const head = button.closest("th"), body = button.closest("table").tBodies[0], at = head.cellIndex;
    const counted = head.classList.contains("n");
    const up = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "descending" : !counted;
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const words = row => row.cells[at].textContent.trim();
    const order = (a, b) => counted ? number(words(a)) - number(words(b)) : words(a).localeCompare(words(b), "en", {numeric: true});
    const missing = row => counted ? isNaN(number(words(row))) : words(row) === "—";
    body.append(...[...body.rows].sort((a, b) => missing(a) - missing(b) || (up ? order(a, b) : order(b, a))));
  });

  // Filters of a table: menus, and words that a row must have. What is chosen stays when the page loads itself again.
  for (const bar of all("[role=search]")) {
    const table = bar.nextElementSibling.querySelector("table"), rows = [...table.tBodies[0].rows];
    const find = bar.querySelector("[data-find]"), menus = all("[data-filter]", bar), sort = bar.querySelector("[data-sort]");
    const filter = () => {
      const wanted = find.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of rows) {
        const fits = wanted.every(word => row.textContent.toLowerCase().includes(word))
          && menus.every(menu => !menu.value || row.cells[menu.dataset.filter].textContent.trim() === menu.value);
        row.classList.toggle("gone", !fits);
        shown += fits;
      }
      bar.querySelector("[data-count]").textContent = `${shown} of ${rows.length} shown`;
      history.replaceState(null, "", "#" + new URLSearchParams([find, ...menus].map((each, i) => [i, each.value]).filter(pair => pair[1])));
    };
    for (const [i, value] of new URLSearchParams(location.hash.slice(1))) if ([find, ...menus][i]) [find, ...menus][i].value = value;
    find.addEventListener("input", filter);
    menus.forEach(menu => menu.addEventListener("change", filter));
    sort.addEventListener("change", () => table.tHead.rows[0].cells[+sort.value].querySelector("button").click());
    filter();
  }

  // A watched page asks what there is now, and loads itself again when that has changed; where it was read to, it stays.
  const live = document.body.dataset.live;
  if (live) setInterval(async () => {
    try {
      const now = await (await fetch("version", {cache: "no-store"})).text();
      if (now && now !== live) location.reload();
    } catch { document.title = "stopped: " + document.title.replace("stopped: ", ""); }
  }, 2000);
})();
