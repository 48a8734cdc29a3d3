// Chats of the AI SDK without React: what useChat is made of, with plain fields for its
// state. The class is the SDK's own in every version.

/** The versions of the SDK, by their major number. */
export const versions = {
  5: await import("ai-5"),
  6: await import("ai-6"),
  7: await import("ai"),
};

class State {
  #status = "ready";
  #waiting = [];
  error = undefined;

  constructor(messages) {
    this.messages = messages;
  }

  get status() {
    return this.#status;
  }

  set status(status) {
    this.#status = status;
    this.#waiting = this.#waiting.filter((waiting) => !waiting());
  }

  /** Resolves when the condition holds; it is looked at whenever the status changes. */
  until(condition) {
    return new Promise((resolve) => {
      const waiting = () => condition() && (setImmediate(resolve), true);
      if (!waiting()) this.#waiting.push(waiting);
    });
  }

  pushMessage = (message) => (this.messages = this.messages.concat(message));
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, structuredClone(message)));
  snapshot = (value) => structuredClone(value);
}

/**
 * A chat that sends by itself what the SDK's own helpers say is complete. It counts its
 * requests in `posts` and keeps the calls that it is told to execute in `calls`.
 */
export function newChat(sdk, { id, api, body, messages = [], onToolCall, onData }) {
  const posts = [];
  const calls = [];
  const transport = new sdk.DefaultChatTransport({
    api,
    body,
    fetch: (url, init) => {
      if (init.method === "POST") posts.push(JSON.parse(init.body));
      return fetch(url, init);
    },
  });
  const helpers = [sdk.lastAssistantMessageIsCompleteWithToolCalls, sdk.lastAssistantMessageIsCompleteWithApprovalResponses];
  class Chat extends sdk.AbstractChat {}
  const chat = new Chat({
    id,
    transport,
    onData,
    state: new State(messages),
    sendAutomaticallyWhen: (options) => posts.length < 20 && helpers.some((helper) => helper?.(options)),
    onToolCall: ({ toolCall }) => {
      calls.push(toolCall.toolName);
      // Not awaited: the SDK would wait for itself.
      void onToolCall?.(chat, toolCall);
    },
  });
  return Object.assign(chat, { posts, calls });
}

/** Waits until the chat has sent that many requests and received their answers. */
export const settled = (chat, posts) => chat.state.until(() => chat.posts.length >= posts && ["ready", "error"].includes(chat.status));

/** The last message's text. */
export const textOf = (chat) => chat.lastMessage.parts.filter((part) => part.type === "text").map((part) => part.text).join("|");

/** The last message's tool calls, each as name:state. */
export const toolsOf = (chat) => chat.lastMessage.parts.filter((part) => "toolCallId" in part).map((part) => `${part.toolName ?? part.type}:${part.state}`);
