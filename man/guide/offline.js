// A browser starts no worker from file://. The search works there, too: its script runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      this.loaded = new Promise(done => (script.onload = done))
      script.src = new URL(url, location.href)
      frame.contentDocument.body.appendChild(script)
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
