// Groups, their responses, and the content of a response; each level opens the next.

function badges(reasons) {
  return reasons.map((reason) => make('span', { class: 'badge' }, reason));
}

/** Bars of a group's rewards, the highest first, on the scale of all rewards of the page. */
function rewardBars(rewards, low, high) {
  const bars = rewards.filter((reward) => reward !== null).map((reward) => {
    const bar = make('i');
    bar.style.height = `${high > low ? 8 + (92 * (reward - low)) / (high - low) : 50}%`;
    return bar;
  });
  return make('span', { class: 'bars', role: 'img', 'aria-label': `rewards ${rewards.join(', ')}` }, ...bars);
}

/** The rows of a response's rollout, and a link to the next one, if the page shows it. */
function rolloutOf(rollout) {
  const next = rollout.following === null || !byId(`row-${rollout.following}`) ? null
    : make('a', { href: `#row-${rollout.following}` }, `next: row ${rollout.following}`);
  return [tableOf(rollout.table), make('p', { class: 'soft' }, next)];
}

function responseOf(response, scales) {
  const summary = make('summary', {}, make('span', {}, `${response.line} `, ...badges(response.reasons)));
  const details = make('details', { class: 'response', id: `row-${response.row}`, 'data-row': response.row }, summary);
  return onceOpen(details, () => {
    const shown = [];
    const same = response.words && response.pieces.length > 0;
    if (response.rollout) shown.push(...rolloutOf(response.rollout));
    if (response.text && !same) {
      shown.push(make('p', { class: 'label' }, 'Response'), make('pre', { class: 'text', dir: 'auto', tabindex: 0 }, response.text));
    }
    if (response.pieces.length) shown.push(make('p', { class: 'label' }, 'Tokens'), ...stripOf(response, scales));
    const more = make('details', { class: 'numbers' }, make('summary', {}, 'Text and other columns'));
    if (same && response.text) more.append(make('pre', { class: 'text', dir: 'auto' }, response.text));
    more.append(tableOf({ title: '', headings: ['column', 'value'], rows: [['file', response.location], ...response.fields], words: [0, 1] }));
    return [...shown, more];
  });
}

function groupOf(group, scales, low, high) {
  const step = group.step === null ? '' : `step ${group.step} · `;
  const reasons = [...new Set(group.responses.flatMap((response) => response.reasons))];
  const head = make('span', { class: 'head' },
    make('span', { class: 'title', dir: 'auto' }, `${step}${group.title} `), ...badges(reasons),
    make('div', { class: 'summary' }, group.line));
  const summary = make('summary', {}, head, rewardBars(group.rewards, low, high));
  const details = make('details', { class: 'group card', 'data-reasons': reasons.join('|') }, summary);
  return onceOpen(details, () => {
    const shown = group.prompt
      ? [make('p', { class: 'label' }, 'Prompt'), make('pre', { class: 'text', dir: 'auto', tabindex: 0 }, group.prompt)]
      : [];
    return [...shown, ...group.responses.map((response) => responseOf(response, scales))];
  });
}

/** Buttons that filter the groups. */
function chooserOf(reasons, groups) {
  const present = reasons.filter((reason) => groups.some((group) => group.dataset.reasons.split('|').includes(reason)));
  const buttons = ['all', ...present].map((reason) => make('button', { type: 'button', 'aria-pressed': String(reason === 'all') }, reason));
  buttons.forEach((button) => button.addEventListener('click', () => {
    const reason = button.textContent;
    buttons.forEach((other) => other.setAttribute('aria-pressed', String(other === button)));
    groups.forEach((group) => { group.hidden = reason !== 'all' && !group.dataset.reasons.split('|').includes(reason); });
  }));
  return make('div', { class: 'buttons', role: 'group', 'aria-label': 'Filter examples' }, ...buttons);
}

/** Open the group of a row and the row, and scroll to it. */
function openRow(row, groups, shown) {
  const index = groups.findIndex((group) => group.responses.some((response) => response.row === row));
  if (index < 0) return;
  shown[index].hidden = false;
  shown[index].open = true;
  shown[index].fill();
  const details = byId(`row-${row}`);
  details.open = true;
  details.fill();
  details.scrollIntoView({ block: 'center' });
  details.querySelector('summary').focus({ preventScroll: true });
}
