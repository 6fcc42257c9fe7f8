// DOM elements; text of the data is only ever inserted as text.

const byId = (id) => document.getElementById(id);

/** Create an element with attributes and children, which are elements or text. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return text as nodes; what stands in backticks is code. One backtick without a partner is text. */
function marked(text) {
  const pieces = text.split('`');
  if (pieces.length % 2 === 0) return [text];
  return pieces.map((piece, index) => (index % 2 ? make('code', {}, piece) : piece));
}

/** Create a table; columns that are not in `words` are aligned as numbers. */
function tableOf({ title, headings, rows, words }) {
  const kind = (index) => (words.includes(index) ? 'word' : 'rlpost-number');
  const head = make('tr', {}, ...headings.map((text, index) => make('th', { scope: 'col', class: kind(index) }, text)));
  const cell = (text, index) => (index === 0 && words.includes(0)
    ? make('th', { scope: 'row', class: 'word', dir: 'auto' }, ...marked(text))
    : make('td', { class: kind(index), dir: words.includes(index) ? 'auto' : null }, ...marked(text)));
  const body = rows.map((row) => make('tr', {}, ...row.map(cell)));
  const table = make('table', { class: 'rlpost-table' }, title ? make('caption', {}, make('span', {}, title)) : null, make('thead', {}, head), make('tbody', {}, ...body));
  return make('div', { class: 'rlpost-wide', tabindex: 0, role: 'region', 'aria-label': title || headings.join(', ') }, table);
}

/** Fill a details element when it is opened for the first time. */
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

/** Show the label of a bar or point beside the pointer. */
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
