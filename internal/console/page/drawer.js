// @ts-check

/**
 * Where the window is narrow a part of the page is a drawer. Its button opens it, Escape,
 * its own button and a click beside it close it, and the focus goes in and comes back.
 *
 * @param {string} id of the part
 * @param {string} openerID
 * @param {string} closerID
 */
export function drawer(id, openerID, closerID) {
  const part = /** @type {HTMLElement} */ (document.getElementById(id));
  const opener = /** @type {HTMLElement} */ (document.getElementById(openerID));
  const closer = /** @type {HTMLElement} */ (document.getElementById(closerID));
  const isOpen = () => part.classList.contains("open");
  /** @param {boolean} open */
  const set = (open) => {
    part.classList.toggle("open", open);
    opener.setAttribute("aria-expanded", String(open));
    (open ? closer : opener).focus();
  };
  opener.addEventListener("click", () => set(!isOpen()));
  closer.addEventListener("click", () => set(false));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isOpen()) set(false);
  });
  document.addEventListener("pointerdown", (event) => {
    if (isOpen() && event.target instanceof Node && !part.contains(event.target) && !opener.contains(event.target)) set(false);
  });
  return { close: () => isOpen() && set(false) };
}
