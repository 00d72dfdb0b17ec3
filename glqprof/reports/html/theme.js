"use strict";
// The theme: as the system has it, or as the reader chose (kept where the browser lets a file keep something).
(() => {
  const choice = document.getElementById("theme");
  const apply = (value) => {
    if (value === "light" || value === "dark") document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    document.dispatchEvent(new Event("themechange"));
  };
  let kept = null;
  try { kept = localStorage.getItem("glqprof-theme"); } catch { /* a file:// page may have no storage */ }
  if (kept === "light" || kept === "dark") choice.value = kept;
  apply(choice.value);
  choice.addEventListener("change", () => {
    try { localStorage.setItem("glqprof-theme", choice.value); } catch { /* then it lasts until the page closes */ }
    apply(choice.value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(choice.value));
  // Paper has no clicks: what is folded away is printed too.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details.view:not([open])")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
})();
