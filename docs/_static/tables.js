/* A cell gets the heading of its column as a label, which site.css shows on a phone. */
for (const table of document.querySelectorAll("article table")) {
  const headings = [...table.querySelectorAll("thead th")].map((th) => th.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.children].forEach((cell, column) => {
      if (column && headings[column]) cell.dataset.label = headings[column];
    });
  }
}
