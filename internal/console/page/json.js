// @ts-check
// JSON whose large integers stay as they are written. A number of JavaScript rounds those beyond 2^53, and ids have more
// digits: a person would approve a call for another record. Browsers without JSON.rawJSON (before 2025) round them.

const rawJSON = /** @type {{rawJSON?: (text: string) => object, isRawJSON?: (value: unknown) => boolean}} */ (JSON);

/**
 * Parses JSON. An integer that a number would round becomes an object that JSON.stringify writes as it was.
 *
 * @param {string} text
 * @returns {any}
 */
export function parseExact(text) {
  if (!rawJSON.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  const revive = (/** @type {string} */ _, /** @type {any} */ value, /** @type {{source: string}} */ { source }) => (typeof value === "number" ? integer(source) ?? value : value);
  return JSON.parse(text, /** @type {any} */ (revive));
}

/**
 * Returns an integer for JSON.stringify if a number would round it; null for any other text.
 *
 * @param {string} text
 * @returns {object | null}
 */
export function integer(text) {
  return rawJSON.rawJSON && /^-?[1-9]\d*$/.test(text) && !Number.isSafeInteger(Number(text)) ? rawJSON.rawJSON(text) : null;
}

/** Reports whether a value is such an integer. @param {unknown} value */
export function isInteger(value) {
  return rawJSON.isRawJSON?.(value) ?? false;
}
