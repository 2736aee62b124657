// The page's own script: it draws clocks, watches over the live stream, puts
// rows in their place and opens the dialog. What the page shows comes from the
// server; nothing here decides anything.
(() => {
  'use strict';

  const $ = id => document.getElementById(id);
  const feedKept = 300;     // entries
  const lostAfter = 3000;   // ms without a stream until the banner is shown
  const silentAfter = 25000; // ms without a sign of life until the stream is taken for dead
  const goneStays = 1200;   // ms that a removed row is still seen
  const pointerRests = 1500; // ms after which a pointer over the table counts as resting

  // ---- Clocks. Deadlines are the server's; so is the time they are held against.

  let offset = Number(document.body.dataset.now) - Date.now();

  // What arrives is a little old, so the largest difference is the best; a
  // smaller one by far means that a clock was set.
  function learn(serverNow) {
    const seen = serverNow - Date.now();
    if (seen > offset || offset - seen > 1500) offset = seen;
  }

  const pad = n => String(n).padStart(2, '0');

  function span(ms) {
    const s = Math.floor(Math.max(ms, 0) / 1000);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min`;
    if (s < 48 * 3600) return `${Math.floor(s / 3600)} h`;
    return `${Math.floor(s / 86400)} d`;
  }

  function left(ms) {
    if (ms <= 0) return '0:00';
    const s = Math.ceil(ms / 1000);
    if (s < 3600) return `${Math.floor(s / 60)}:${pad(s % 60)}`;
    if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ${pad(Math.floor(s / 60) % 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
  }

  function write(el, text) {
    if (el.textContent !== text) el.textContent = text;
  }

  const clockFormat = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });

  function draw() {
    const now = Date.now() + offset;
    for (const el of document.querySelectorAll('[data-left]')) {
      const ms = el.dataset.left - now;
      write(el, left(ms));
      el.classList.toggle('soon', ms < 30000);
    }
    for (const el of document.querySelectorAll('[data-bar]')) {
      const ms = Math.max(el.dataset.bar - now, 0);
      el.value = ms;
      el.classList.toggle('soon', ms < 30000);
    }
    for (const el of document.querySelectorAll('[data-until]')) write(el, left(el.dataset.until - now));
    for (const el of document.querySelectorAll('[data-ago]')) write(el, span(now - el.dataset.ago));
    for (const el of document.querySelectorAll('[data-clock]')) {
      const at = new Date(Number(el.dataset.clock));
      write(el, clockFormat.format(at));
      el.title = at.toLocaleString();
      el.removeAttribute('data-clock');
    }
    for (const el of document.querySelectorAll('[data-copy][hidden]')) el.hidden = false;
  }

  function tick() {
    draw();
    settle();
    watch();
    setTimeout(tick, 1000 - (Date.now() + offset) % 1000);
  }

  // ---- Rows. New ones wait aside, and removed ones stay, while the pointer
  // moves over the table: nothing slips away under it.

  const rows = $('rows'), arrivals = $('arrivals'), table = $('table'), pill = $('arrived');
  let movedAt = -Infinity;
  const goneSince = new WeakMap();

  function settle(force) {
    if (!rows) return;
    const now = Date.now();
    const resting = force === true || now - movedAt > pointerRests;
    for (const row of rows.querySelectorAll('tr.gone')) {
      if (!goneSince.has(row)) {
        goneSince.set(row, now);
        setTimeout(settle, goneStays + 20);
      } else if (resting && now - goneSince.get(row) >= goneStays && !row.contains(document.activeElement)) {
        row.remove();
      }
    }
    if (resting) {
      for (const row of [...arrivals.children]) place(row);
    }
    const waiting = arrivals.children.length;
    pill.hidden = waiting === 0;
    if (waiting) write(pill, `${waiting} new`);
  }

  // Rows stand newest first; the order is text that compares so.
  function place(row) {
    for (const other of rows.children) {
      if (other.id === row.id) { other.remove(); break; }
    }
    let before = rows.firstElementChild;
    while (before && before.dataset.order > row.dataset.order) before = before.nextElementSibling;
    rows.insertBefore(row, before);
  }

  if (table) {
    table.addEventListener('pointermove', () => { movedAt = Date.now(); });
    table.addEventListener('pointerleave', () => { movedAt = -Infinity; settle(); });
    pill.addEventListener('click', () => settle(true));
  }

  // ---- The stream. It resumes by itself once it stood; until then, and when
  // it is given up, it is up to us to ask again.

  const stream = $('stream'), live = $('live'), lost = $('lost');
  let connection = null, lastID = '', heardAt = Date.now(), lostAt = 0, retry = 0, leaving = false;

  function say(state, word) {
    live.dataset.live = state;
    write($('live-word'), word);
  }

  function up() {
    lostAt = 0;
    heardAt = Date.now();
    lost.hidden = true;
    say('up', 'Live');
  }

  function down() {
    if (leaving || lostAt) return;
    lostAt = Date.now();
    say('waiting', 'Connecting');
    setTimeout(watch, lostAfter + 20);
  }

  // again asks for the stream unless one is being kept up.
  function again() {
    clearTimeout(retry);
    retry = setTimeout(() => {
      if (!leaving && !connection) htmx.trigger(stream, 'sandkeeper:connect');
    }, 1000);
  }

  function refused(status) {
    if (status !== 401 && status !== 403) return;
    lost.hidden = false;
    const hope = $('lost-hope');
    if (hope.querySelector('a')) return;
    const link = document.createElement('a');
    link.href = '/sign-in?next=' + encodeURIComponent(location.pathname + location.search);
    link.textContent = 'Sign in again';
    hope.replaceChildren(link);
  }

  function watch() {
    if (!stream) return;
    const now = Date.now();
    if (lostAt) {
      if (now - lostAt >= lostAfter) {
        lost.hidden = false;
        say('down', 'Offline');
        write($('lost-age'), span(now - heardAt));
      }
    } else if (connection && now - heardAt > silentAfter && !document.hidden) {
      heardAt = now;
      down();
      connection.reader?.cancel(); // a line that died without a word: the extension dials anew
    }
  }

  if (stream) {
    const on = (name, fn) => stream.addEventListener(name, fn);
    on('htmx:config:request', e => {
      if (lastID) e.detail.ctx.request.headers['Last-Event-ID'] = lastID;
    });
    on('htmx:sse:before:connection', e => { if (e.detail.connection.attempt > 0) down(); });
    on('htmx:sse:after:connection', e => { connection = e.detail.connection; up(); });
    on('htmx:sse:error', e => { down(); refused(e.detail.status); });
    on('htmx:sse:close', () => { connection = null; down(); again(); });
    on('htmx:sse:after:message', e => {
      if (e.detail.message.id) lastID = e.detail.message.id;
      heardAt = Date.now();
      draw();
      settle();
    });
    on('htmx:error', () => { if (!connection) { down(); again(); } });
    on('htmx:response:error', e => { down(); refused(e.detail.ctx.response.status); again(); });
    on('sandkeeper:beat', e => {
      const beat = JSON.parse(e.detail.data);
      learn(beat.now);
      if (beat.edition !== document.body.dataset.edition && !$('dialog').open) location.reload();
    });
    addEventListener('pagehide', () => { leaving = true; });
    addEventListener('pageshow', e => { if (e.persisted) location.reload(); });
  }

  // ---- The feed forgets its oldest entries.

  const feed = $('feed');
  if (feed) {
    new MutationObserver(() => {
      while (feed.childElementCount > feedKept) feed.lastElementChild.remove();
    }).observe(feed, { childList: true });
  }

  // ---- The dialog: it opens when the server fills it.

  const dialog = $('dialog');
  if (dialog) {
    dialog.addEventListener('htmx:after:settle', e => {
      if (e.target === dialog && !dialog.open && dialog.childElementCount) dialog.showModal();
    });
    // It is told late, when the dialog may be open again.
    dialog.addEventListener('close', () => { if (!dialog.open) dialog.replaceChildren(); });
    document.addEventListener('htmx:after:request', e => {
      const ctx = e.detail.ctx;
      if (ctx?.response?.status < 400 && ctx.sourceElement.matches?.('[data-closes]') && dialog.open) dialog.close();
    });
  }

  // ---- What went wrong is shown for a while.

  let noticeTimer = 0;
  document.addEventListener('htmx:after:settle', e => {
    if (e.target.id !== 'notice') return;
    clearTimeout(noticeTimer);
    noticeTimer = setTimeout(() => e.target.replaceChildren(), 8000);
  });
  document.addEventListener('htmx:error', e => {
    if (e.target === stream || !$('notice')) return;
    const p = document.createElement('p');
    p.textContent = 'The server did not answer. Nothing was changed.';
    $('notice').replaceChildren(p);
    clearTimeout(noticeTimer);
    noticeTimer = setTimeout(() => $('notice').replaceChildren(), 8000);
  });

  // ---- Small comforts.

  document.addEventListener('keydown', e => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || e.altKey || e.target.closest?.('input, select, textarea')) return;
    const q = $('q');
    if (q) { e.preventDefault(); q.select(); q.focus(); }
  });
  $('state')?.addEventListener('change', e => e.target.form.requestSubmit());

  document.addEventListener('click', async e => {
    const button = e.target.closest?.('[data-copy]');
    if (!button) return;
    try {
      await navigator.clipboard.writeText($(button.dataset.copy).textContent);
      write(button, 'Copied');
    } catch {
      getSelection().selectAllChildren($(button.dataset.copy));
    }
  });

  const only = $('only-reaper');
  if (only) {
    try { only.checked = localStorage.getItem('only-reaper') === 'yes'; } catch { /* storage may be shut off */ }
    only.addEventListener('change', () => {
      try { localStorage.setItem('only-reaper', only.checked ? 'yes' : 'no'); } catch { /* as above */ }
    });
  }

  tick();
})();
