// An episode as a conversation.

const PEEK = 200;
const line = text => visible(text.slice(0, 4 * PEEK).replace(/\s+/g, ' ').trim()).slice(0, PEEK);
const asText = value => typeof value === 'string' ? value : value == null ? '' : JSON.stringify(value, null, 2);

/** What the environment answers to a call that failed; a tool may write the same. */
function errorOf(text) {
  if (!text.startsWith('{"error":')) return null;
  try {
    const { error, message } = JSON.parse(text);
    return typeof error === 'string' && typeof message === 'string' ? { error, message } : null;
  } catch {
    return null;
  }
}

function fold(kind, title, name, peek, text, query, failed) {
  const body = make('pre', { tabindex: '0' });
  const found = write(body, text, query);
  const summary = make('summary', {}, make('span', { class: 'kind', text: title }));
  if (name) summary.append(make('b', { text: visible(name) }));
  if (failed) summary.append(make('span', { class: 'failed', text: failed }));
  if (peek) summary.append(make('code', { class: 'peek', text: peek }));
  return make('details', { class: `fold ${kind}`, open: found }, summary, body);
}

function callFold(call, query) {
  const name = call.function?.name ?? '', args = call.function?.arguments;
  const text = asText(args);
  const short = typeof args === 'string' ? args : JSON.stringify(args ?? {});
  return fold('call', 'call', name || 'unreadable', name ? line(short) : '', text, query);
}

function resultFold(message, query) {
  const text = asText(message.content), error = errorOf(text);
  const peek = error ? error.message : text;
  return fold('result', 'result', message.name, line(peek) || '(empty)', text, query, error?.error);
}

/** One message, or the results of one turn; `label` holds what is said of it. */
function messageBlock(message, label, query, results = [message]) {
  const role = String(message.role ?? ''), body = make('div', { class: 'body' });
  const thought = asText(message.reasoning_content);
  if (thought) body.append(fold('thought', 'thought', '', line(thought), thought, query));
  const content = asText(message.content);
  if (role === 'tool') body.append(...results.map(result => resultFold(result, query)));
  else if (content || !(message.tool_calls ?? []).length) {
    const text = make('p', { class: content ? 'text' : 'text empty' });
    write(text, content || '(empty)', content ? query : '');
    body.append(text);
  }
  for (const call of message.tool_calls ?? []) body.append(callFold(call, query));
  const known = ['system', 'user', 'assistant', 'tool'].includes(role) ? role : 'other';
  return make('li', { class: `message ${known}` }, make('div', { class: 'label' }, make('b', { text: role }), ...label), body);
}

function conversation(row, detail, query) {
  const list = make('ol', { class: 'conversation' });
  const { messages, opening, rewards } = detail;
  // Examples in the prompt are many and alike: folded, but for the question itself.
  const asked = messages.slice(0, opening).findLastIndex(m => m.role === 'user');
  const earlier = asked > 2 ? messages.slice(0, asked) : [];
  if (earlier.length) {
    const inner = make('ol', { class: 'conversation' }, ...earlier.map(m => messageBlock(m, [], query)));
    const open = query !== '' && inner.querySelector('mark') !== null;
    list.append(make('li', { class: 'earlier' }, make('details', { class: 'fold', open },
      make('summary', { text: `${count(earlier.length, 'message')} before the question` }), inner)));
  }
  let turn = 0;
  for (let i = earlier.length; i < messages.length; i++) {
    const message = messages[i], label = [], results = [message];
    if (message.role === 'tool') while (messages[i + 1]?.role === 'tool') results.push(messages[++i]);
    if (message.role === 'assistant' && i >= opening) {
      label.push(make('span', { text: `turn ${turn}` }));
      if (rewards[turn]) label.push(make('span', { text: `reward ${number(rewards[turn])}` }));
      turn += 1;
    }
    list.append(messageBlock(message, label, query, results));
  }
  const end = `${row.stop} \u00b7 ${row.ended} after ${count(row.turns, 'turn')} \u00b7 reward ${number(row.reward)}`;
  const last = make('li', { class: 'end' }, make('span', { text: visible(end) }));
  if (detail.error) {
    const said = make('pre', { class: 'error', tabindex: '0' });
    write(said, detail.error, query);
    last.append(said);
  }
  list.append(last);
  return list;
}

/** All that a search looks at, in lower case. */
function searchable(row, detail) {
  const parts = [row.task, row.stop, row.status, ...Object.values(row.tags), String(row.seed), detail?.error ?? ''];
  for (const m of detail?.messages ?? []) {
    parts.push(asText(m.reasoning_content), asText(m.content), m.name ?? '');
    for (const call of m.tool_calls ?? []) parts.push(call.function?.name ?? '', asText(call.function?.arguments));
  }
  return visible(parts.join('\n')).toLowerCase();
}
