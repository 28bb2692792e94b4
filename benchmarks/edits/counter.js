// Counts clicks and remembers them between visits.
const STORAGE_KEY = "clicks";

class ClickCounter {
  constructor(button, label) {
    this.button = button;
    this.label = label;
    this.count = Number(localStorage.getItem(STORAGE_KEY) || 0);
    this.button.addEventListener("click", () => this.increment());
    this.render();
  }

  increment() {
    this.count += 1;
    localStorage.setItem(STORAGE_KEY, String(this.count));
    this.render();
  }

  render() {
    this.label.textContent = this.count === 1 ? "1 click" : `${this.count} clicks`;
  }
}

new ClickCounter(document.querySelector("#button"), document.querySelector("#label"));
