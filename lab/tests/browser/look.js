// What the page that is open looks like, as the tests read it.
(() => {
  document.querySelectorAll("details").forEach((details) => { details.open = true; });
  const root = document.documentElement;
  const shown = (element) => element.getClientRects().length > 0;
  const named = (element) => {
    const text = (element.textContent || "").trim().slice(0, 40);
    return `${element.tagName.toLowerCase()} "${text}"`;
  };
  const scrolls = (element) => {
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };

  // WCAG 2.1, relative luminance and contrast.
  const parts = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = (color) => {
    const [r, g, b] = parts(color).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (color) => {
    const own = luminance(color);
    return (Math.max(own, ground) + 0.05) / (Math.min(own, ground) + 0.05);
  };

  const all = [...document.body.querySelectorAll("*")].filter(shown);
  const inside = (element) => element.closest("svg");
  const outside = all.filter((element) => !inside(element) && !scrolls(element))
    .filter((element) => element.getBoundingClientRect().right > root.clientWidth + 0.5).map(named);
  const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const pale = all.filter((element) => hasText(element) && !["title"].includes(element.tagName)).filter((element) => {
    const style = getComputedStyle(element);
    return contrast(inside(element) ? style.fill : style.color) < 4.5;
  }).map(named);

  const plots = [...document.querySelectorAll("svg")].filter(shown).map((svg) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    const overlaps = [];
    texts.forEach(([a, one], i) => texts.slice(i + 1).forEach(([b, other]) => {
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      // Boxes are taller than the letters in them.
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (across > 0 && down > 0.35 * Math.min(one.height, other.height)) overlaps.push(`${named(a)} on ${named(b)}`);
    }));
    const cut = texts.filter(([, text]) => text.left < box.left - 0.5 || text.right > box.right + 0.5
      || text.top < box.top - 1 || text.bottom > box.bottom + 1).map(([text]) => named(text));
    const small = texts.filter(([text]) => parseFloat(getComputedStyle(text).fontSize) * scale < 9).map(([text]) => named(text));
    const marks = [...svg.querySelectorAll(".mark")];
    const within = (mark) => {
      const at = mark.getBoundingClientRect();
      return at.width > 3 && at.height > 3 && at.left >= box.left && at.right <= box.right && at.top >= box.top
        && at.bottom <= box.bottom;
    };
    const lines = [...svg.querySelectorAll("path")];
    return {
      name: svg.getAttribute("aria-label"), width: box.width, height: box.height, overlaps, cut, small,
      marks: marks.length,
      unseen: marks.filter((mark) => !within(mark)).length,
      faint: marks.concat(lines).filter((mark) => contrast(getComputedStyle(mark).stroke) < 3 && !mark.classList.contains("band")).length,
      lines: lines.length,
      empty: lines.filter((path) => !(path.getTotalLength() >= 0) || !path.getAttribute("d")).length,
    };
  });
  const tables = [...document.querySelectorAll("table")].filter(shown).map((table) => ({
    columns: table.querySelectorAll("thead th").length,
    rows: table.querySelectorAll("tbody tr").length,
    cells: [...table.querySelectorAll("tbody tr")].map((row) => row.children.length),
  }));
  const header = (level) => [...document.querySelectorAll(level)].map((title) => title.textContent);
  return {
    width: innerWidth, room: root.clientWidth, scroll: root.scrollWidth, ground: getComputedStyle(document.body).backgroundColor,
    outside, pale, plots, tables, titles: header("h1").concat(header("h2")), links: document.querySelectorAll("a[href]").length,
  };
})()
