// Tables sort by the buttons in their headers, and those with a search field show only the rows that match.
(() => {
  const textOf = (cell) => (cell.querySelector("summary") ?? cell).textContent.trim().toLowerCase();
  const keyOf = (cell) => ("v" in cell.dataset ? Number(cell.dataset.v) : textOf(cell));
  const compare = (a, b) => {
    const numbers = [typeof a === "number", typeof b === "number"];
    if (numbers[0] && numbers[1]) return a - b;
    if (numbers[0] !== numbers[1]) return numbers[0] ? -1 : 1; // an absent value (a dash) comes after every number
    return a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const numeric = head.classList.contains("num");
        const before = head.getAttribute("aria-sort");
        const order = before === "none" ? (numeric ? "descending" : "ascending")
          : before === "descending" ? "ascending" : "descending";
        const sign = order === "ascending" ? 1 : -1;
        const body = table.tBodies[0];
        const rows = [...body.rows].map((row, at) => ({ row, at, key: keyOf(row.cells[column]) }));
        rows.sort((a, b) => sign * compare(a.key, b.key) || a.at - b.at);
        body.append(...rows.map((entry) => entry.row));
        for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
      });
    });
  }
  for (const field of document.querySelectorAll("input[data-table]")) {
    const rows = [...document.getElementById(field.dataset.table).tBodies[0].rows];
    const texts = rows.map((row) => `${row.cells[0].textContent} ${row.cells[1].textContent}`.toLowerCase());
    const said = field.parentElement.querySelector("output");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !words.every((word) => texts[i].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      said.textContent = words.length ? `${shown} of ${rows.length} kinds` : `${rows.length} kinds`;
    });
  }
})();
