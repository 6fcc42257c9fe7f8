// The page: sections, findings, examples, and the light and dark themes.

const data = JSON.parse(byId('data').textContent);

function tilesOf(tiles) {
  const one = ({ label, value, note, key }) => make('div', { class: 'tile card', 'data-key': key || null },
    make('dt', {}, label), make('dd', { class: 'value' }, value), note ? make('dd', { class: 'note' }, ...marked(note)) : null);
  return tiles.length ? [make('dl', { class: 'tiles' }, ...tiles.map(one))] : [];
}

function chartOf({ title, svg, note, numbers }) {
  const details = make('details', { class: 'numbers' }, make('summary', {}, 'Numbers'));
  onceOpen(details, () => [tableOf(numbers)]);
  return make('figure', { class: 'chart card' },
    make('figcaption', {}, make('h3', {}, title), note ? make('p', { class: 'soft' }, ...marked(note)) : null),
    drawingOf(svg, note ? `${title}; ${note}` : title), details);
}

function sectionOf(name, title, ...children) {
  const heading = make('h2', { id: `${name}-title` }, title);
  return make('section', { id: name, 'aria-labelledby': `${name}-title` }, heading, ...children);
}

/** A table of more than 12 rows is collapsed. */
function folded(table) {
  if (table.rows.length <= 12) return make('div', { class: 'card' }, tableOf(table));
  const details = make('details', { class: 'card numbers' }, make('summary', {}, `${table.title}, ${table.rows.length} rows`));
  return onceOpen(details, () => [tableOf(table)]);
}

function plainSection({ name, title, lines, tiles, charts, tables }) {
  const children = [...lines.map((line) => make('p', { class: 'soft line' }, ...marked(line))), ...tilesOf(tiles)];
  if (charts.length) children.push(make('div', { class: 'charts' }, ...charts.map(chartOf)));
  if (tables.length) children.push(make('div', { class: 'tables' }, ...tables.map(folded)));
  return sectionOf(name, title, ...children);
}

function findingsSection(open, shownRows) {
  const evidence = ({ row, text }) => {
    if (!shownRows.has(row)) return make('li', { dir: 'auto' }, ...marked(text));
    const link = make('a', { href: `#row-${row}` }, ...marked(text));
    link.addEventListener('click', (event) => { event.preventDefault(); open(row); });
    return make('li', { dir: 'auto' }, link);
  };
  const one = ({ name, severity, text, advice, evidence: rows }) => make('li', { class: `finding card ${severity}`, 'data-name': name },
    make('p', { class: 'problem' }, make('span', { class: `badge ${severity}` }, severity), make('span', { class: 'check' }, name)),
    make('p', {}, ...marked(text)),
    make('p', { class: 'soft' }, ...marked(advice)),
    rows.length ? make('ul', {}, ...rows.map(evidence)) : null);
  return sectionOf('findings', 'Findings', make('ul', { class: 'findings' }, ...data.findings.map(one)));
}

function examplesSection(groups, shown) {
  const tokens = groups.some((group) => group.responses.some((one) => one.pieces.length));
  const intro = `Open a group to see its prompt and responses, and a response to see its ${tokens ? 'tokens' : 'text'}.`;
  return sectionOf('examples', 'Examples', make('p', { class: 'soft' }, intro),
    chooserOf(data.reasons, shown), make('div', { class: 'groups' }, ...shown));
}

/** Follow the theme of the system until the button is used; nothing is stored. */
function followTheme() {
  const button = byId('theme');
  const system = window.matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  const apply = () => {
    const dark = chosen === null ? system.matches : chosen === 'dark';
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    button.textContent = dark ? 'Light' : 'Dark';
    button.setAttribute('aria-label', `Switch to ${dark ? 'light' : 'dark'} colours`);
  };
  button.addEventListener('click', () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    apply();
  });
  system.addEventListener('change', apply);
  apply();
}

function show() {
  const rewards = data.groups.flatMap((group) => group.rewards).filter((reward) => reward !== null);
  const low = Math.min(...rewards);
  const high = Math.max(...rewards);
  const shown = data.groups.map((group) => groupOf(group, data.scales, low, high));
  const shownRows = new Set(data.groups.flatMap((group) => group.responses.map((response) => response.row)));
  const sections = data.sections.map(plainSection);
  const overview = sections.findIndex((section) => section.id === 'overview');
  const open = (row) => openRow(row, data.groups, shown);
  if (data.findings.length) sections.splice(overview, 0, findingsSection(open, shownRows));
  sections.splice(-1, 0, examplesSection(data.groups, shown));
  byId('main').append(...sections);
  byId('nav').append(...sections.map((section) => make('li', {}, make('a', { href: `#${section.id}` }, section.querySelector('h2').textContent))));
  byId('inputs').textContent = data.inputs.join(', ');
  byId('recipe').append(...marked(data.recipe));
  byId('recipe').hidden = !data.recipe;
  byId('verdict').className = `rlpost-verdict ${data.verdict.severity}`;
  byId('verdict').textContent = data.verdict.text;
  byId('foot').textContent = `Written by rlpost ${data.version}. Log-probs and KL are in nats.`;
}

followTheme();
show();
showTips();
