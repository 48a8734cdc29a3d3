// @ts-check

/** Where the window is narrow the panel is a drawer. Its button opens it, Escape and
 * its own button close it, and the focus goes in and comes back. */
export function drawer() {
  const panel = /** @type {HTMLElement} */ (document.querySelector("#panel"));
  const opener = /** @type {HTMLElement} */ (document.querySelector("#panel-open"));
  const closer = /** @type {HTMLElement} */ (document.querySelector("#panel-close"));
  /** @param {boolean} open */
  const set = (open) => {
    panel.classList.toggle("open", open);
    opener.setAttribute("aria-expanded", String(open));
    (open ? closer : opener).focus();
  };
  opener.addEventListener("click", () => set(!panel.classList.contains("open")));
  closer.addEventListener("click", () => set(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && panel.classList.contains("open")) set(false);
  });
}
