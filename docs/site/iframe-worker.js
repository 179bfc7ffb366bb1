// The search runs in a worker, and a browser starts none for a page that it opened as a file. There a hidden frame of
// the page takes its place: it loads the same program, and both ends get copies of what the other one posts.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const send = (target, data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        setTimeout(() => {
          target.dispatchEvent(event);
          target.onmessage?.(event);
        });
      };
      const program = inside.document.createElement("script");
      program.src = new URL(url, location);
      const loaded = new Promise((resolve) => {
        program.onload = resolve;
      });
      inside.postMessage = (data) => send(this, data);
      this.postMessage = (data) => loaded.then(() => send(inside, data));
      this.terminate = () => frame.remove();
      inside.document.head.append(program);
    }
  };
}
