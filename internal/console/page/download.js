// @ts-check
import { element } from "./element.js";

/**
 * A button that downloads a file. A link could not send the caller's token.
 *
 * @param {string} label what the button says
 * @param {string} what it downloads, for those who only hear the button
 * @param {string} name of the file
 * @param {() => Promise<Blob>} load
 */
export function downloadButton(label, what, name, load) {
  const says = element("span", {}, label);
  const button = element("button", { type: "button", class: "link copy" }, says, element("span", { class: "unseen" }, ` ${what}`));
  const failure = element("span", { class: "small", role: "alert" });
  button.addEventListener("click", async () => {
    if (button.getAttribute("aria-disabled") === "true") return;
    button.setAttribute("aria-disabled", "true"); // and not disabled, which would lose the focus
    says.textContent = "Loading";
    failure.textContent = "";
    try {
      save(await load(), name);
    } catch (error) {
      failure.textContent = ` ${error instanceof Error ? error.message : error}`;
    }
    says.textContent = label;
    button.removeAttribute("aria-disabled");
  });
  return element("span", {}, button, failure);
}

/**
 * @param {Blob} data
 * @param {string} name
 */
function save(data, name) {
  const address = URL.createObjectURL(data);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // the browser reads it after click returns
}
