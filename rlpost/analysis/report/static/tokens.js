// The tokens of a response, coloured by a measure, with a cursor that keys and the pointer move.

/** The colour of a number; none for usual numbers and without a number. */
function colourOf(scale, value) {
  if (value === null || value === undefined) return '';
  const at = scale.size ? Math.abs(value) : value;
  const step = scale.steps.filter((one) => one.above === null || at >= one.above).pop();
  return step ? step.colour : '';
}

function legendOf(scale) {
  const steps = scale.steps.map((step) => {
    const shown = make('span', { class: step.colour ? 'coloured' : null }, step.label);
    if (step.colour) shown.style.backgroundColor = step.colour;
    return shown;
  });
  return make('div', { class: 'legend' }, ...steps, make('span', { class: 'observed' }, 'observation'));
}

/** Elements of the tokens, and notes where tokens are left out. */
function tokensOf(response) {
  const gaps = new Set(response.gap);
  const parts = [];
  const tokens = response.pieces.map((piece, index) => {
    const kind = response.mask[index] === '0' ? ' observed' : '';
    const token = make('span', { class: `token${kind}`, 'data-index': index }, piece);
    if (gaps.has(index)) parts.push(make('span', { class: 'gap' }, ` … ${response.left_out} tokens left out … `));
    parts.push(token);
    if (piece.endsWith('⏎')) parts.push('\n');
    return token;
  });
  if (response.left_out && !gaps.size) parts.push(make('span', { class: 'gap' }, ` … ${response.left_out} tokens more`));
  return { tokens, parts };
}

/** The numbers of the token at the cursor. */
function readoutOf(response, scales, index) {
  const first = response.gap[0] ?? Infinity;
  const number = index < first ? index : index + response.left_out;
  const numbers = Object.entries(response.numbers).map(([name, values]) => [
    `${scales[name].name} `, make('span', { class: 'number' }, values[index] === null ? '–' : String(values[index])),
  ]);
  const parts = [`token ${number} `, make('span', { class: 'number' }, `“${response.pieces[index]}”`)];
  if (response.mask[index] === '0') parts.push(', an observation');
  for (const pair of numbers) parts.push(' · ', ...pair);
  return parts;
}

/** Buttons for the measures, the legend, the tokens, and the numbers of the token at the cursor. */
function stripOf(response, scales) {
  const names = Object.keys(response.numbers);
  const { tokens, parts } = tokensOf(response);
  const strip = make('div', {
    class: response.words ? 'text strip' : 'text strip apart', tabindex: 0, role: 'group',
    'aria-label': 'Tokens; arrow keys move from one to the next',
  }, ...parts);
  const readout = make('p', { class: 'readout', 'aria-live': 'polite' }, 'Point at a token, or move with the arrow keys.');
  const legend = make('div');
  const buttons = names.map((name) => make('button', { type: 'button', 'data-measure': name }, scales[name].name));
  const colour = (measure) => {
    buttons.forEach((button) => button.setAttribute('aria-pressed', String(button.dataset.measure === measure)));
    legend.replaceChildren(legendOf(scales[measure]));
    tokens.forEach((token, index) => {
      const background = response.mask[index] === '0' ? '' : colourOf(scales[measure], response.numbers[measure][index]);
      token.style.backgroundColor = background;
      token.classList.toggle('coloured', background !== '');
    });
  };
  let cursor = -1;
  const move = (index) => {
    if (index < 0 || index >= tokens.length) return;
    tokens[cursor]?.classList.remove('cursor');
    cursor = index;
    tokens[cursor].classList.add('cursor');
    readout.replaceChildren(...readoutOf(response, scales, index));
  };
  strip.addEventListener('pointerover', (event) => {
    const token = event.target.closest('.token');
    if (token) move(Number(token.dataset.index));
  });
  strip.addEventListener('keydown', (event) => {
    const to = { ArrowRight: cursor + 1, ArrowLeft: cursor - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(to);
    tokens[cursor]?.scrollIntoView({ block: 'nearest' });
  });
  buttons.forEach((button) => button.addEventListener('click', () => colour(button.dataset.measure)));
  if (names.length) colour(names[0]);
  return [names.length ? make('div', { class: 'buttons' }, ...buttons) : null, legend, strip, readout].filter(Boolean);
}
