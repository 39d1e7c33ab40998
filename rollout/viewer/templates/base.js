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

/** Put `text` behind what `parent` holds, each occurrence of the query marked.  Returns how many there are. */
function write(parent, text, query) {
  const shown = visible(text), lower = query ? shown.toLowerCase() : '';
  let from = 0, found = 0;
  if (query && lower.length === shown.length) {
    for (let at = lower.indexOf(query); at >= 0; at = lower.indexOf(query, from)) {
      parent.append(shown.slice(from, at), make('mark', { text: shown.slice(at, at + query.length) }));
      from = at + query.length;
      found += 1;
    }
  }
  parent.append(shown.slice(from));
  return found;
}
