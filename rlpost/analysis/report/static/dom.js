// Elements, made so that text of the data can only ever become text.

const byId = (id) => document.getElementById(id);

/** An element; `attributes` are set as they are, children are elements or text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A table; columns that are not in `words` are aligned as numbers. */
function tableOf({ title, headings, rows, words }) {
  const kind = (place) => (words.includes(place) ? 'word' : null);
  const head = make('tr', {}, ...headings.map((text, place) => make('th', { scope: 'col', class: kind(place) }, text)));
  const cell = (text, place) => (place === 0 && words.includes(0)
    ? make('th', { scope: 'row', class: 'word', dir: 'auto' }, text)
    : make('td', { class: kind(place), dir: words.includes(place) ? 'auto' : null }, text));
  const body = rows.map((row) => make('tr', {}, ...row.map(cell)));
  const table = make('table', {}, title ? make('caption', {}, title) : null, make('thead', {}, head), make('tbody', {}, ...body));
  return make('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': title || headings.join(', ') }, table);
}

/** Fill an element the first time that it is opened. */
function onceOpen(details, fill) {
  let filled = false;
  const open = () => {
    if (details.open && !filled) {
      filled = true;
      details.append(...fill());
    }
  };
  details.addEventListener('toggle', open);
  details.fill = open;
  return details;
}

/** An SVG drawing from its source; as XML it runs nothing, whatever it holds. */
function drawingOf(source, label) {
  const parsed = new DOMParser().parseFromString(source, 'image/svg+xml').documentElement;
  if (parsed.localName !== 'svg') return make('p', { class: 'soft' }, 'This chart could not be drawn.');
  parsed.setAttribute('role', 'img');
  parsed.setAttribute('aria-label', label);
  return document.importNode(parsed, true);
}

/** The text of a mark beside the pointer. */
function showTips() {
  const tip = byId('tip');
  const show = (event) => {
    const mark = event.target.closest?.('svg [aria-roledescription="bar"], svg [aria-roledescription="point"]');
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.getAttribute('aria-label');
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 12, window.innerWidth - width - 8);
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${event.clientY > height + 20 ? event.clientY - height - 10 : event.clientY + 18}px`;
  };
  document.addEventListener('pointermove', show);
  document.addEventListener('pointerdown', show);
  document.addEventListener('scroll', () => { tip.hidden = true; }, { passive: true });
}
