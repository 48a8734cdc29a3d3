// @ts-check
// Server-Sent Events out of a fetch body (HTML standard, section 9.2.6). A browser's
// own EventSource can neither POST a question nor send a token.

/** @typedef {{id: string, event: string, data: string}} Frame */

/** The longest event taken, in UTF-16 units; the service's own bounds are far below. */
const maxEvent = 16 << 20;

/** Takes text as it arrives and gives whole frames. LF, CR and CRLF end a line. */
export class FrameParser {
  #rest = ""; // of a line whose end has not come
  #afterCR = false; // the last line ended in CR: an LF that follows belongs to it
  #id = "";
  #event = "";
  /** @type {string[]} */
  #data = [];
  #size = 0;

  /**
   * @param {string} text
   * @returns {Frame[]} the frames that text completes
   * @throws {RangeError} an event is longer than maxEvent
   */
  push(text) {
    if (text === "") return [];
    if (this.#afterCR && text.startsWith("\n")) text = text.slice(1);
    this.#afterCR = text.endsWith("\r");
    const lines = text.split(/\r\n|\n|\r/);
    lines[0] = this.#rest + lines[0];
    this.#rest = lines.pop() ?? "";
    /** @type {Frame[]} */
    const frames = [];
    for (const line of lines) {
      if (line === "") this.#dispatch(frames);
      else this.#field(line);
    }
    if (this.#size + this.#rest.length > maxEvent) throw new RangeError("an event of the stream is too large");
    return frames;
  }

  /** @param {string} line */
  #field(line) {
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment, which is what heartbeats are
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
    this.#size += line.length;
    if (name === "data") this.#data.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
  }

  /** @param {Frame[]} frames */
  #dispatch(frames) {
    // The standard drops an event without data.
    if (this.#data.length > 0) frames.push({ id: this.#id, event: this.#event, data: this.#data.join("\n") });
    this.#event = "";
    this.#data = [];
    this.#size = 0;
  }
}

/**
 * The frames of a response body until it ends. A body that is silent for too long,
 * heartbeats included, ends too: a connection that died without a word, as after a
 * laptop's sleep, never says so itself. What was cut in the middle is not given.
 *
 * @param {ReadableStream<Uint8Array>} body
 * @param {number} silence in milliseconds
 * @returns {AsyncGenerator<Frame, void, void>}
 */
export async function* readFrames(body, silence) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new FrameParser();
  const giveUp = () => void reader.cancel().catch(() => {}); // read() then says done
  let timer = setTimeout(giveUp, silence);
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(giveUp, silence);
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    clearTimeout(timer);
    giveUp();
  }
}
