// Draws the Mermaid pictures of a page, as GitHub does by itself. The library comes from the site's
// own root, and only on pages that have a picture.
(() => {
  const blocks = document.querySelectorAll("code.language-mermaid");
  if (blocks.length === 0) {
    return;
  }
  for (const code of blocks) {
    const picture = document.createElement("pre");
    picture.className = "mermaid";
    picture.textContent = code.textContent;
    code.parentElement.replaceWith(picture);
  }
  const isDark = ["ayu", "coal", "navy"].some((theme) => document.documentElement.classList.contains(theme));
  const library = document.createElement("script");
  library.src = `${path_to_root}mermaid.min.js`;
  library.onload = () => {
    mermaid.initialize({ startOnLoad: false, theme: isDark ? "dark" : "default" });
    mermaid.run();
  };
  document.head.append(library);
})();
