// What the theme leaves out for those who use a keyboard or a screen reader.
addEventListener("load", () => {
  // A block of code that scrolls sideways can be reached with the keyboard, so that the arrow keys scroll it. The theme
  // removes that again where no mouse is.
  const reach = (part) => {
    if (part.scrollWidth > part.clientWidth && !part.hasAttribute("tabindex")) part.tabIndex = 0;
  };
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => reach(entry.target)));
  const changed = new MutationObserver((records) => records.forEach((record) => reach(record.target)));
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    resized.observe(part);
    changed.observe(part, { attributeFilter: ["tabindex"] });
  }
  // On narrow pages labels of hidden boxes open the navigation, the search and the contents: no key reaches them.
  const names = { __drawer: "Navigation", __search: "Search", __toc: "On this page" };
  for (const label of document.querySelectorAll(".md-header__button[for], .md-sidebar-button[for]")) {
    if (!(label.htmlFor in names)) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = label.className;
    button.setAttribute("for", label.htmlFor);
    button.setAttribute("aria-label", names[label.htmlFor]);
    button.append(...[...label.childNodes].map((child) => child.cloneNode(true)));
    button.addEventListener("click", () => label.click());
    label.before(button);
    label.style.display = "none";
  }
  // There the sections of the navigation open and close, and the theme acts on Enter, but the Tab key passes them by.
  const narrow = matchMedia("(max-width: 76.234375em)");
  const stops = () => {
    for (const section of document.querySelectorAll(".md-nav__item--section > label.md-nav__link")) {
      section.tabIndex = narrow.matches ? 0 : -1;
    }
  };
  narrow.addEventListener("change", stops);
  stops();
  // The corner of a table names nothing, and the buttons beside a block of code are no part of the page's navigation.
  for (const part of document.querySelectorAll("th:empty, .md-code__nav")) part.setAttribute("role", "presentation");
});

// The paths of search results have a contrast of 3.4; WCAG asks for 4.5. They are in a tree of their own, made later.
new MutationObserver((_, observer) => {
  const tree = [...document.body.children].find((part) => part.shadowRoot)?.shadowRoot;
  if (!tree) return;
  observer.disconnect();
  const style = document.createElement("style");
  style.textContent = '[id$="-path"] { color: rgb(var(--color-foreground) / 0.7) !important; }';
  tree.append(style);
}).observe(document.body, { childList: true });
