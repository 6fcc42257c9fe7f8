// The page: findings, examples, links to the sections, and the light and dark themes.

const data = JSON.parse(byId('data').textContent);

function sectionOf(name, title, ...children) {
  const heading = make('h2', { id: `${name}-title` }, title);
  return make('section', { id: name, 'aria-labelledby': `${name}-title` }, heading, ...children);
}

function findingsSection(open, shownRows) {
  const place = ({ row, text }) => {
    if (!shownRows.has(row)) return make('li', { dir: 'auto' }, ...marked(text));
    const link = make('a', { href: `#row-${row}` }, ...marked(text));
    link.addEventListener('click', (event) => { event.preventDefault(); open(row); });
    return make('li', { dir: 'auto' }, link);
  };
  const one = ({ check, level, text, advice, rows }) => make('li', { class: `finding card ${level}`, 'data-name': check },
    make('p', { class: 'problem' }, make('span', { class: `badge ${level}` }, level), make('span', { class: 'check' }, check)),
    make('p', {}, ...marked(text)),
    make('p', { class: 'soft' }, ...marked(advice)),
    rows.length ? make('ul', {}, ...rows.map(place)) : null);
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
  const open = (row) => openRow(row, data.groups, shown);
  if (data.findings.length) byId('overview').before(findingsSection(open, shownRows));
  byId('checks').before(examplesSection(data.groups, shown));
  const sections = [...byId('main').querySelectorAll(':scope > section')];
  byId('nav').append(...sections.map((section) => make('li', {}, make('a', { href: `#${section.id}` }, section.querySelector('h2').textContent))));
}

followTheme();
show();
showTips();
