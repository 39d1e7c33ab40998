// Small things that the other parts are made of.  Nothing here or there ever turns text into markup.
const byId = id => document.getElementById(id);
const read = id => { const found = byId(id); return found && JSON.parse(found.textContent); };

/** An element; `options`: class, text, and attributes by name. */
function make(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (name === 'class') made.className = value;
    else if (name === 'text') made.textContent = value;
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children);
  return made;
}

const number = (value, digits = 3) => value.toFixed(digits).replace('-', '\u2212');
const whole = value => value.toLocaleString('en-US');
const count = (n, noun) => `${whole(n)} ${noun}${n === 1 ? '' : 's'}`;

// Characters that steer a terminal or the direction of text, or can't be seen, are written by their numbers.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\p{Cs}]/gu;
const visible = text => text.replace(HIDDEN, c => `\u27e8${c.codePointAt(0).toString(16).padStart(4, '0')}\u27e9`);

// Characters of a text that are shown at once (a browser takes a minute to lay out millions), and before what was found.
const PART = 20000, BEFORE = 200;
const lowered = text => { const lower = text.toLowerCase(); return lower.length === text.length ? lower : ''; };
/** `at`, or behind the pair of surrogates that it would cut. */
const between = (text, at) => /[\ud800-\udbff]/.test(text[at - 1] ?? '') ? at + 1 : at;

/** Put `text` behind what `parent` holds, each occurrence of the query marked.  Returns whether there is one.
 *
 * Of a long text the beginning is shown, and where the query is found first; buttons show the rest, part by part. */
function write(parent, text, query) {
  const shown = visible(text), first = query ? lowered(shown).indexOf(query) : -1;
  const behind = first < 0 ? 0 : first + query.length, cut = behind > PART && first < PART ? first : PART;
  const head = between(shown, cut), from = behind > head ? between(shown, Math.max(head, first - BEFORE)) : shown.length;
  parent.append(marked(shown.slice(0, head), query));
  const to = between(shown, from + PART);
  parent.append(unshown(shown.slice(head, from), query), marked(shown.slice(from, to), query), unshown(shown.slice(to), query));
  return first >= 0;
}

function marked(text, query) {
  const made = document.createDocumentFragment(), lower = query ? lowered(text) : '';
  let from = 0;
  for (let at = query ? lower.indexOf(query) : -1; at >= 0; at = lower.indexOf(query, from)) {
    made.append(text.slice(from, at), make('mark', { text: text.slice(at, at + query.length) }));
    from = at + query.length;
  }
  made.append(text.slice(from));
  return made;
}

/** A button in the place of a text that is not shown yet; '' for none. */
function unshown(text, query) {
  if (!text) return '';
  const end = between(text, PART), button = make('button', { class: 'unshown', type: 'button', text: count(text.length, 'more character') });
  button.addEventListener('click', () => {
    const next = unshown(text.slice(end), query), parent = button.parentElement;
    button.replaceWith(marked(text.slice(0, end), query), next);
    (next || parent).focus({ preventScroll: true });
  });
  return button;
}
