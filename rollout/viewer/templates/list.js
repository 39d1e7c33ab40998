// The list of episodes: search, filters, and the one that is open.

const ROWS = read('rows');
const PAGE = 500; // rows put into the list at a time
const MARKS = { success: '\u2713', failure: '\u2717', error: '!' };
const ORDERS = {
  'in order': () => 0,
  'reward, lowest first': (a, b) => a.reward - b.reward,
  'reward, highest first': (a, b) => b.reward - a.reward,
  'most turns': (a, b) => b.turns - a.turns,
  'most tokens': (a, b) => b.context - a.context,
};
const names = ROWS.reduce((seen, row) => { Object.keys(row.tags).forEach(tag => seen.add(tag)); return seen; }, new Set());
const SAMPLES = ROWS.some(row => row.sample > 0);
const natural = new Intl.Collator('en', { numeric: true }).compare;
const distinct = values => [...new Set(values.filter(v => v !== undefined))].sort(natural);

const texts = new Map();
const details = number => read(`detail-${number}`);
const textOf = row => {
  if (!texts.has(row.number)) texts.set(row.number, searchable(row, details(row.number)));
  return texts.get(row.number);
};

const form = byId('filters'), list = byId('list').querySelector('ol'), reader = byId('reader');
let matches = ROWS, view = 'conversation', opened = null;

function choice(id, label, values) {
  const box = make('select', { id }, make('option', { value: '', text: 'any' }));
  values.forEach(value => box.append(make('option', { value, text: visible(value) })));
  form.append(make('label', {}, make('span', { text: visible(label) }), box));
  return box;
}

function fillFilters() {
  const search = make('input', { id: 'query', type: 'search', autocomplete: 'off', spellcheck: 'false', placeholder: 'task, message, tool, argument' });
  form.append(make('label', { class: 'grow' }, make('span', { text: 'search' }), search));
  choice('outcome', 'outcome', ['success', 'failure', 'error'].filter(o => ROWS.some(row => row.outcome === o)));
  choice('stop', 'stop reason', distinct(ROWS.map(row => row.stop)));
  for (const tag of names) {
    const values = distinct(ROWS.map(row => row.tags[tag]));
    if (values.length > 1 && values.length <= 100) choice(`tag-${tag}`, tag, values);
  }
  const order = make('select', { id: 'order' }, ...Object.keys(ORDERS).map(text => make('option', { text })));
  form.append(make('label', {}, make('span', { text: 'order' }), order));
  form.append(make('button', { type: 'reset', text: 'Reset' }));
  let waiting = 0;
  form.addEventListener('submit', event => event.preventDefault());
  form.addEventListener('reset', () => setTimeout(apply));
  // Not the search box: it tells of a change when a click elsewhere takes its focus, and a list that is made anew between
  // the two halves of a click never gets it.
  form.addEventListener('change', event => { if (event.target !== search) apply(); });
  search.addEventListener('input', () => { clearTimeout(waiting); waiting = setTimeout(apply, 150); });
}

const query = () => visible(form.querySelector('#query').value.trim()).toLowerCase();

function apply() {
  const wanted = query(), tests = [];
  for (const box of form.querySelectorAll('select')) {
    if (box.value === '' || box.id === 'order') continue;
    const tag = box.id.startsWith('tag-') ? box.id.slice(4) : null;
    tests.push(row => (tag === null ? row[box.id] : row.tags[tag]) === box.value);
  }
  matches = ROWS.filter(row => tests.every(test => test(row)) && (!wanted || textOf(row).includes(wanted)));
  matches.sort(ORDERS[form.querySelector('#order').value]);
  const all = matches.length === ROWS.length;
  byId('count').textContent = all ? count(ROWS.length, 'episode') : `${whole(matches.length)} of ${count(ROWS.length, 'episode')}`;
  list.replaceChildren();
  more();
  if (opened !== null) open(opened, false);
}

function entry(row) {
  const tags = Object.entries(row.tags).map(([k, v]) => `${k} ${v}`);
  if (SAMPLES) tags.push(`sample ${row.sample}`);
  const facts = [visible(row.stop), count(row.turns, 'turn')];
  if (row.context) facts.push(count(row.context, 'token'));
  return make('li', {}, make('a', { href: `#episode-${row.number}`, tabindex: '-1' },
    make('span', { class: `mark ${row.outcome}`, role: 'img', 'aria-label': row.outcome, text: MARKS[row.outcome] }),
    make('span', { class: 'number', text: `#${row.number}` }),
    make('span', { class: 'tags', text: visible(tags.join(' \u00b7 ')) }),
    make('span', { class: 'reward', 'aria-label': `reward ${number(row.reward)}`, text: number(row.reward) }),
    make('span', { class: 'preview', text: visible(row.preview || row.task) }),
    make('span', { class: 'facts', text: facts.join(' \u00b7 ') })));
}

function more() {
  list.querySelector('.more')?.remove();
  const from = list.children.length;
  list.append(...matches.slice(from, from + PAGE).map(entry));
  if (matches.length > list.children.length) {
    const button = make('button', { type: 'button', text: `Show more (${whole(matches.length - list.children.length)})` });
    button.addEventListener('click', more);
    list.append(make('li', { class: 'more' }, button));
  }
  markCurrent();
}

/** One link of the list is reached by Tab: that of the open episode, else the first. */
function markCurrent() {
  let reached = null;
  for (const link of list.querySelectorAll('a')) {
    const here = opened !== null && link.hash === `#episode-${opened}`;
    link.tabIndex = -1;
    here ? link.setAttribute('aria-current', 'true') : link.removeAttribute('aria-current');
    if (here || reached === null) reached = here ? link : reached ?? link;
  }
  if (reached) reached.tabIndex = 0;
  return reached;
}

function walk(event) {
  const links = [...list.querySelectorAll('a')], from = links.indexOf(document.activeElement);
  const to = { ArrowDown: from + 1, ArrowUp: from - 1, Home: 0, End: links.length - 1 }[event.key];
  if (from < 0 || to === undefined || !links[to]) return;
  event.preventDefault();
  links.forEach(link => { link.tabIndex = -1; });
  links[to].tabIndex = 0;
  links[to].focus();
}

function pressed(text, chosen, choose) {
  const button = make('button', { type: 'button', text, 'aria-pressed': String(chosen) });
  button.addEventListener('click', choose);
  return button;
}

function bar(row, hasTokens) {
  const place = matches.indexOf(row), tools = make('div', { class: 'tools' });
  const to = (next, text) => {
    const link = make('a', { class: 'button', text, 'aria-disabled': String(!next), role: next ? undefined : 'link' });
    if (next) link.href = `#episode-${next.number}`;
    return link;
  };
  tools.append(make('a', { class: 'back button', href: '#episodes', text: 'All episodes' }),
    to(matches[place - 1], 'Previous'), to(place < 0 ? undefined : matches[place + 1], 'Next'));
  if (hasTokens) {
    const show = name => () => { view = name; open(row.number, false); reader.querySelector('[aria-pressed=true]').focus(); };
    tools.append(make('span', { class: 'switch', role: 'group', 'aria-label': 'View' },
      pressed('Conversation', view === 'conversation', show('conversation')),
      pressed('Tokens', view === 'tokens', show('tokens'))));
  }
  if (view === 'conversation' || !hasTokens) {
    const all = make('button', { type: 'button', text: 'Unfold all' });
    all.addEventListener('click', () => {
      const folds = [...reader.querySelectorAll('details.fold')], open_ = folds.some(f => !f.open);
      folds.forEach(f => { f.open = open_; });
      all.textContent = open_ ? 'Fold all' : 'Unfold all';
    });
    tools.append(all);
  }
  return tools;
}

function aboutEpisode(row, detail) {
  const facts = [['task', row.task], ...Object.entries(row.tags), ['seed', String(row.seed)]];
  if (row.group !== null) facts.push(['group', String(row.group)], ['sample', String(row.sample)]);
  if (row.status !== 'ok') facts.push(['status', row.status]);
  if (detail.history !== 'keep') facts.push(['history', detail.history]);
  const calls = Object.entries(detail.calls).map(([status, n]) => `${status} ${n}`).join(', ');
  if (calls) facts.push(['calls', calls]);
  const numbers = Object.entries(detail.metrics).map(([k, v]) => [k, String(Math.round(v * 1e6) / 1e6)]);
  const table = rows => make('dl', { class: 'about' }, ...rows.map(([k, v]) => make('div', {}, make('dt', { text: visible(k) }), make('dd', { text: visible(v) }))));
  return make('div', {}, table(facts), make('details', { class: 'metrics' }, make('summary', { text: 'Metrics' }), table(numbers)));
}

function open(episode, focus) {
  const row = ROWS[episode], detail = details(episode);
  opened = episode;
  hideTip();
  const title = make('h3', { id: 'reader-title', tabindex: '-1' },
    make('span', { class: `mark ${row.outcome}`, 'aria-hidden': 'true', text: MARKS[row.outcome] }),
    `Episode ${episode}`, make('span', { class: 'outcome', text: `${row.outcome}, reward ${number(row.reward)}` }));
  const hasTokens = detail !== null && detail.tokens !== null;
  reader.replaceChildren(bar(row, hasTokens), title);
  if (detail === null) {
    reader.append(make('p', { class: 'notice', text: 'This episode is not in the page, which would be too large with it; it is in episodes.jsonl.' }));
  } else {
    reader.append(aboutEpisode(row, detail));
    if (!hasTokens) reader.append(make('p', { class: 'note', text: 'No token view: the agent plays in text, so there are no token ids.' }));
    reader.append(hasTokens && view === 'tokens' ? tokenView(detail.tokens) : conversation(row, detail, query()));
  }
  markCurrent();
  if (focus) {
    title.focus({ preventScroll: true });
    title.scrollIntoView({ block: 'nearest' });
  }
}

function route(focus) {
  const found = /^#episode-(\d+)$/.exec(location.hash), episode = found && Number(found[1]);
  const reading = found !== null && episode < ROWS.length;
  document.body.classList.toggle('reading', reading);
  if (reading) open(episode, focus);
  else if (opened !== null) markCurrent()?.focus({ preventScroll: true });
  if (opened !== null && reading) list.querySelector('[aria-current]')?.scrollIntoView({ block: 'nearest' });
}

fillFilters();
apply();
list.addEventListener('keydown', walk);
addEventListener('hashchange', () => route(true));
addEventListener('scroll', followTip, { passive: true });
for (const link of document.querySelectorAll('a[data-filter]')) {
  link.addEventListener('click', () => {
    const box = byId(link.dataset.filter);
    if (!box) return;
    form.reset();
    box.value = link.dataset.value;
    apply();
  });
}
route(false);
if (opened === null && ROWS.length) open(matches[0].number, false);
document.documentElement.dataset.ready = 'true';
