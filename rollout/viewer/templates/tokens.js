// An episode as the model saw and sampled it, id by id.

const SOURCES = ['prompt', 'sampled', 'observation', 'scaffold'];
const WHO = {
  prompt: 'the opening prompt',
  sampled: 'drawn by the agent',
  observation: 'what a tool or a user wrote',
  scaffold: "the chat template's own text around it",
};
const LEAST = [0.99, 0.9, 0.5, 0.1, 0.01, 0]; // probabilities at which the shades begin
const shadeOf = probability => LEAST.findIndex(p => probability >= p);
const utf8 = new TextDecoder('utf-8', { fatal: true });

let words = null;
const vocabulary = () => words ??= (v => ({ ...v, control: new Set(v.control) }))(read('vocabulary'));

function unpack(text, Kind) {
  return new Kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
}

/** The text of each id.  Where several together make a character the first one has it, and the others have none. */
function spell(places, texts) {
  const out = new Array(places.length);
  for (let i = 0; i < places.length; i++) {
    const own = texts[places[i]];
    if (!Array.isArray(own)) { out[i] = own; continue; }
    const bytes = [];
    let next = i, whole = null;
    while (whole === null && next < places.length && next < i + 4 && Array.isArray(texts[places[next]])) {
      bytes.push(...texts[places[next++]]);
      try { whole = utf8.decode(Uint8Array.from(bytes)); } catch { /* more bytes are needed, or they make no text */ }
    }
    out[i] = whole ?? own.map(b => `\\x${b.toString(16).padStart(2, '0')}`).join('');
    if (whole !== null) while (i + 1 < next) out[++i] = '';
  }
  return out;
}

function decodeTokens(packed) {
  const v = vocabulary();
  const places = unpack(packed.places, v.width === 2 ? Uint16Array : Uint32Array);
  const logprobs = packed.logprobs && unpack(packed.logprobs, Float32Array);
  const model = packed.model_logprobs && unpack(packed.model_logprobs, Float32Array);
  const texts = v.texts && spell(places, v.texts);
  const items = [];
  let run = -1, drawn = 0;
  for (let i = 0; i < places.length; i++) {
    if (run + 1 < packed.runs.length && packed.runs[run + 1][0] === i) run += 1;
    const [, source, turn, version] = packed.runs[run];
    const item = { at: i, id: v.ids[places[i]], source: SOURCES[source], turn, version, control: v.control.has(places[i]) };
    item.text = texts ? texts[i] : null;
    if (source === 1) {
      item.logprob = logprobs ? logprobs[drawn] : null;
      item.model = model ? model[drawn] : item.logprob;
      drawn += 1;
    }
    items.push(item);
  }
  return items;
}

const shown = text => visible(text).replace(/\n/g, '\u21b5\n').replace(/\t/g, '\u21e5\t');

function tokenSpan(item) {
  const kind = [`t ${item.source}`];
  if (item.control) kind.push('control');
  if (item.source === 'sampled' && item.logprob !== null) kind.push(`p${shadeOf(Math.exp(item.logprob))}`);
  let text = shown(item.text ?? '');
  if (item.text === null || item.text === undefined) { text = String(item.id); kind.push('bare'); }
  else if (text === '') { text = '\u00b7'; kind.push('rest'); }
  const span = make('span', { class: kind.join(' '), text, tabindex: '-1' });
  span.item = item;
  return span;
}

function tipRows(item) {
  const rows = [['id', String(item.id)]];
  if (item.text != null) rows.push(['text', item.text === '' ? 'part of the character before' : visible(JSON.stringify(item.text))]);
  rows.push(['source', item.source]);
  if (item.source === 'sampled') {
    rows.push(['log-prob', item.logprob === null ? 'not told' : `${number(item.logprob, 4)}  (p ${number(Math.exp(item.logprob), 4)})`]);
    if (item.model !== item.logprob) rows.push(['plain model', `${number(item.model, 4)}  (p ${number(Math.exp(item.model), 4)})`]);
  }
  rows.push(['turn', String(item.turn)]);
  rows.push(['version', item.version < 0 ? '\u2013' : String(item.version)], ['position', whole(item.at)]);
  return rows;
}

let told = null; // the span whose tip is shown

function showTip(span) {
  const tip = byId('tip');
  told = span;
  tip.replaceChildren(make('dl', {}, ...tipRows(span.item).flatMap(([k, v]) => [make('dt', { text: k }), make('dd', { text: v })])));
  tip.hidden = false;
  const at = span.getClientRects()[0], box = tip.getBoundingClientRect(), room = document.documentElement;
  const below = at.bottom + 8, above = at.top - 8 - box.height;
  tip.style.left = `${Math.max(8, Math.min(at.left, room.clientWidth - box.width - 8))}px`;
  tip.style.top = `${below + box.height > room.clientHeight && above > 0 ? above : below}px`;
}

const hideTip = () => { byId('tip').hidden = true; told = null; };
/** After a scroll: the tip goes with its span, unless that is neither pointed at nor focused any more. */
const followTip = () => told && (told === document.activeElement || told.matches(':hover')) ? showTip(told) : hideTip();

/** Where an arrow key leads from the span at `from`: to a neighbour, or to the nearest one in the next line. */
function step(spans, from, key) {
  if (key === 'Home') return 0;
  if (key === 'End') return spans.length - 1;
  const way = key === 'ArrowLeft' || key === 'ArrowUp' ? -1 : 1;
  if (key === 'ArrowLeft' || key === 'ArrowRight') return Math.min(Math.max(from + way, 0), spans.length - 1);
  const start = spans[from].getBoundingClientRect();
  let best = from, top = null, least = Infinity;
  for (let i = from + way; i >= 0 && i < spans.length; i += way) {
    const box = spans[i].getBoundingClientRect();
    if (Math.abs(box.top - start.top) < 4) continue;
    if (top === null) top = box.top;
    if (Math.abs(box.top - top) >= 4) break;
    const away = Math.abs(box.left - start.left);
    if (away < least) { least = away; best = i; }
  }
  return best;
}

function legend(items) {
  const list = make('ul', { class: 'legend', 'aria-label': 'Colours' });
  for (const source of SOURCES) {
    const n = items.filter(item => item.source === source).length;
    if (n) list.append(make('li', { title: WHO[source] }, make('span', { class: `t ${source}`, text: source }), ` ${whole(n)}`));
  }
  if (items.some(item => item.logprob != null)) {
    const scale = make('li', { class: 'scale' }, 'probability ');
    LEAST.forEach((p, k) => scale.append(make('span', { class: `t sampled p${k}`, text: p ? `\u2265 ${p}` : 'less' })));
    list.append(scale);
  } else if (items.some(item => item.source === 'sampled')) {
    list.append(make('li', { text: 'no log-probabilities: a script wrote these turns' }));
  }
  return list;
}

function turnTitle(items) {
  const drawn = items.filter(item => item.source === 'sampled');
  const parts = [`turn ${items[0].turn}`, `${whole(items.length - drawn.length)} read`, `${whole(drawn.length)} sampled`];
  if (drawn.length && drawn[0].logprob !== null) {
    parts.push(`mean log-prob ${number(drawn.reduce((sum, item) => sum + item.logprob, 0) / drawn.length, 4)}`);
  }
  return parts.join(' \u00b7 ');
}

function tokenView(packed) {
  const items = decodeTokens(packed), begins = new Set(packed.segments.slice(1)), spans = items.map(tokenSpan);
  const text = make('div', { class: 'tokens', tabindex: '0', role: 'group', 'aria-label': 'Tokens. Arrow keys go from one to the next.' });
  for (let i = 0; i < items.length;) {
    let end = i + 1;
    while (end < items.length && items[end].turn === items[i].turn && !begins.has(end)) end += 1;
    if (begins.has(i)) text.append(make('p', { class: 'segment', text: 'the context begins anew here' }));
    text.append(make('h4', { text: turnTitle(items.slice(i, end)) }), make('p', { class: 'run' }, ...spans.slice(i, end)));
    i = end;
  }
  let current = -1;
  text.addEventListener('pointerover', event => event.target.item ? showTip(event.target) : hideTip());
  text.addEventListener('pointerleave', hideTip);
  text.addEventListener('focusin', event => {
    if (!event.target.item) return;
    current = event.target.item.at;
    event.target.setAttribute('aria-describedby', 'tip');
    showTip(event.target);
  });
  text.addEventListener('focusout', hideTip);
  text.addEventListener('keydown', event => {
    if (event.key === 'Escape') return hideTip();
    if (!/^(Arrow(Left|Right|Up|Down)|Home|End)$/.test(event.key)) return;
    event.preventDefault();
    spans[current < 0 ? 0 : step(spans, current, event.key)].focus();
  });
  const out = make('div', { class: 'token-view' }, legend(items));
  if (vocabulary().texts === null) out.append(make('p', { class: 'note', text: 'The tokenizer of this run was not at hand when this page was made: ids are shown as numbers.' }));
  out.append(text);
  return out;
}
