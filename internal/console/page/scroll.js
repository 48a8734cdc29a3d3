// @ts-check

const near = 90; // pixels from the end that still count as being there

/**
 * Keeps the end of the page in view while content grows, as long as the reader is
 * there; whoever scrolls up to read is left in peace.
 *
 * @param {HTMLElement} content
 * @returns {() => void} goes to the end, and stays there
 */
export function stickToEnd(content) {
  const page = document.documentElement;
  let atEnd = true;
  let height = page.scrollHeight;
  const toEnd = () => window.scrollTo({ top: page.scrollHeight, behavior: "instant" });
  window.addEventListener(
    "scroll",
    () => {
      // Content that shrinks moves the page too; that is not the reader.
      if (page.scrollHeight === height) atEnd = window.innerHeight + window.scrollY >= page.scrollHeight - near;
      height = page.scrollHeight;
    },
    { passive: true },
  );
  new ResizeObserver(() => {
    height = page.scrollHeight;
    if (atEnd) toEnd();
  }).observe(content);
  return () => {
    atEnd = true;
    toEnd();
  };
}
