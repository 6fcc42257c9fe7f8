// Groups, their responses, and what a response says: each level opens the next.

function badges(whys) {
  return whys.map((why) => make('span', { class: 'badge' }, why));
}

/** The rewards of a group, the highest first, between the page's lowest and highest. */
function rewardBars(rewards, low, high) {
  const bars = rewards.filter((reward) => reward !== null).map((reward) => {
    const bar = make('i');
    bar.style.height = `${high > low ? 8 + (92 * (reward - low)) / (high - low) : 50}%`;
    return bar;
  });
  return make('span', { class: 'bars', role: 'img', 'aria-label': `rewards ${rewards.join(', ')}` }, ...bars);
}

function responseOf(response, scales) {
  const facts = response.facts.map(([name, value]) => `${name} ${value}`).join(' · ');
  const summary = make('summary', {}, make('span', {}, `row ${response.row} · ${facts} `, ...badges(response.why)));
  const details = make('details', { class: 'response', id: `row-${response.row}`, 'data-row': response.row }, summary);
  return onceOpen(details, () => {
    const shown = [];
    const same = response.words && response.pieces.length > 0;
    if (response.text && !same) {
      shown.push(make('p', { class: 'label' }, 'Response'), make('pre', { class: 'text', dir: 'auto', tabindex: 0 }, response.text));
    }
    if (response.pieces.length) shown.push(make('p', { class: 'label' }, 'Tokens'), ...stripOf(response, scales));
    const more = make('details', { class: 'numbers' }, make('summary', {}, 'Text and other columns'));
    if (same && response.text) more.append(make('pre', { class: 'text', dir: 'auto' }, response.text));
    more.append(tableOf({ title: '', headings: ['column', 'value'], rows: [['file', response.place], ...response.fields], words: [0, 1] }));
    return [...shown, more];
  });
}

function groupOf(group, scales, low, high) {
  const step = group.step === null ? '' : `step ${group.step} · `;
  const whys = [...new Set(group.responses.flatMap((response) => response.why))];
  const head = make('span', { class: 'head' },
    make('span', { class: 'title', dir: 'auto' }, `${step}${group.title} `), ...badges(whys),
    make('div', { class: 'said' }, group.said));
  const summary = make('summary', {}, head, rewardBars(group.rewards, low, high));
  const details = make('details', { class: 'group card', 'data-why': whys.join('|') }, summary);
  return onceOpen(details, () => {
    const shown = group.prompt
      ? [make('p', { class: 'label' }, 'Prompt'), make('pre', { class: 'text', dir: 'auto', tabindex: 0 }, group.prompt)]
      : [];
    return [...shown, ...group.responses.map((response) => responseOf(response, scales))];
  });
}

/** Buttons that choose which groups are seen. */
function chooserOf(whys, groups) {
  const there = whys.filter((why) => groups.some((group) => group.dataset.why.split('|').includes(why)));
  const buttons = ['all', ...there].map((why) => make('button', { type: 'button', 'aria-pressed': String(why === 'all') }, why));
  buttons.forEach((button) => button.addEventListener('click', () => {
    const why = button.textContent;
    buttons.forEach((other) => other.setAttribute('aria-pressed', String(other === button)));
    groups.forEach((group) => { group.hidden = why !== 'all' && !group.dataset.why.split('|').includes(why); });
  }));
  return make('div', { class: 'buttons', role: 'group', 'aria-label': 'Which examples' }, ...buttons);
}

/** Open a row's group and the row itself, and bring it into view. */
function openRow(row, groups, shown) {
  const place = groups.findIndex((group) => group.responses.some((response) => response.row === row));
  if (place < 0) return;
  shown[place].hidden = false;
  shown[place].open = true;
  shown[place].fill();
  const details = byId(`row-${row}`);
  details.open = true;
  details.fill();
  details.scrollIntoView({ block: 'center' });
  details.querySelector('summary').focus({ preventScroll: true });
}
