// Reports the tests of one file of node's own test runner over descriptor 3, in frames as `guest/exchange/wire.py` states them.
//
// Loaded twice by one path: before the file, by --require, where it takes what it needs out of the reach of the code under
// test and hooks into the runner; and by the runner, as its --test-reporter. Every frame carries a key that was read from
// descriptor 4 and is nowhere else. `guest/process/runner.py` reads the frames; nothing here decides what they mean.
'use strict';

const assert = require('node:assert');
const { EventEmitter } = require('node:events');
const fs = require('node:fs');
const Module = require('node:module');
const { Readable } = require('node:stream');
const test = require('node:test');
const { inspect } = require('node:util');
const { isMainThread } = require('node:worker_threads');

const REPORT = 3;
const KEY = 4;
const KEY_BYTES = 32;
// Characters, as the contract states them for each field.
const MESSAGE = 4096;
const TRACEBACK = 16384;
const SIDE = 1024;
const CAPTURED = 8192;
const ID = 1024;
const MISSING = 64; // names of tests that did not report
const UNCAUGHT = 8; // exceptions that no test has to answer for
const CAUSES = 5;
const ROOTS = ['/work/', '/tests/'];

const { stringify } = JSON;
const { writeSync } = fs;
const bytesOf = Buffer.from;
const sizeOf = Buffer.byteLength;

function readKey() {
  const bytes = Buffer.alloc(KEY_BYTES);
  fs.readSync(KEY, bytes);
  fs.closeSync(KEY);
  return bytes.toString('latin1');
}

const key = isMainThread ? readKey() : '';

// One frame. The key is put before the JSON text and not into it, so that no `toJSON` of a stranger ever sees it.
function send(message) {
  const body = `{"key":"${key}",${stringify(message).slice(1)}`;
  const size = sizeOf(body);
  const head = bytesOf([size >>> 24, (size >>> 16) & 255, (size >>> 8) & 255, size & 255]);
  for (const part of [head, bytesOf(body)]) {
    for (let sent = 0; sent < part.length; ) sent += writeSync(REPORT, part, sent);
  }
}

function cut(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}

function textOf(make) {
  try {
    return String(make());
  } catch (error) {
    return '<its text raises an exception>';
  }
}

// What the code under test could turn against the runner is frozen or watched. Tests that replace these for their own ends
// are rare, and see an exception that says so.
const WATCHED = [
  [EventEmitter.prototype, 'emit'],
  [Readable.prototype, 'push'],
  [Readable.prototype, 'read'],
  [Readable.prototype, Symbol.asyncIterator],
  [process, 'reallyExit'],
  [process, 'exit'],
].map(([owner, name]) => ({ owner, name, value: owner[name] }));

function guard() {
  const exported = [assert, assert.strict, assert.AssertionError, assert.AssertionError.prototype, test];
  for (const part of exported) Object.freeze(part);
  let load = Module._load;
  const first = load;
  const own = new Set(['assert', 'node:assert', 'assert/strict', 'node:assert/strict', 'node:test']);
  Object.defineProperty(Module, '_load', {
    get: () => load,
    set(replacement) {
      load = function _load(request, ...rest) {
        return own.has(request) ? first.call(Module, request, ...rest) : replacement.call(this, request, ...rest);
      };
    },
  });
}

// A test that skips itself, or is to do, says so in the tests' own files: the code under test could do it in a hook.
let guardsContexts = false;

function guardContexts(context) {
  if (guardsContexts || context === undefined) return;
  guardsContexts = true;
  const prototype = Object.getPrototypeOf(context);
  for (const name of ['skip', 'todo']) {
    const own = prototype[name];
    const value = function giveUp(...rest) {
      return isCalledByTests() ? Reflect.apply(own, this, rest) : undefined;
    };
    Object.defineProperty(prototype, name, { value, writable: false, configurable: false });
  }
}

// Whether the innermost file that called this function's caller is one of the tests'.
function isCalledByTests() {
  const given = Error.prepareStackTrace;
  Error.prepareStackTrace = (_error, sites) => sites.map((site) => site.getFileName() ?? '');
  const names = new Error().stack;
  Error.prepareStackTrace = given;
  const caller = Array.isArray(names) && names.find((name) => name !== __filename && !name.startsWith('node:'));
  return typeof caller === 'string' && /^(file:\/\/)?\/tests\//.test(caller);
}

function patched() {
  return WATCHED.filter(({ owner, name, value }) => owner[name] !== value).map(({ name }) => String(name));
}

// What a test prints is kept with it, its tail at least, and not passed on; what is printed outside of tests is.
const open = [];
const captured = new Map();

function keyOf(context) {
  return context.fullName ?? context.name;
}

function begin(context) {
  guardContexts(context);
  const id = keyOf(context);
  open.push({ id, stdout: '', stderr: '' });
  send({ kind: 'begin', id: cut(id, ID) });
}

function finish(context) {
  const id = keyOf(context);
  const index = open.findLastIndex((entry) => entry.id === id);
  if (index < 0) return;
  const [entry] = open.splice(index, 1);
  const waiting = captured.get(id) ?? [];
  waiting.push(entry);
  captured.set(id, waiting);
}

function capture(name) {
  const stream = process[name];
  const write = stream.write.bind(stream);
  stream.write = (chunk, encoding, done) => {
    const current = open.at(-1);
    if (current === undefined) return write(chunk, encoding, done);
    const text = typeof chunk === 'string' ? chunk : bytesOf(chunk).toString('latin1');
    current[name] = (current[name] + text).slice(-CAPTURED);
    const callback = typeof encoding === 'function' ? encoding : done;
    if (typeof callback === 'function') process.nextTick(callback);
    return true;
  };
}

const OPERATORS = {
  __proto__: null,
  equal: '==',
  notEqual: '!=',
  strictEqual: '===',
  notStrictEqual: '!==',
  notDeepEqual: '!deepEqual',
  notDeepStrictEqual: '!deepStrictEqual',
};

function comparisonOf(error) {
  if (!(error instanceof assert.AssertionError) || error.operator === 'fail') return null;
  const show = (value) =>
    cut(textOf(() => inspect(value, { depth: 6, maxStringLength: SIDE, breakLength: Infinity, customInspect: false })), SIDE);
  const operator = String(error.operator);
  return { operator: OPERATORS[operator] ?? operator, left: show(error.actual), right: show(error.expected) };
}

// The stack without the lines of node itself, then those of what the error was caused by.
function stackOf(error) {
  const texts = [];
  for (let at = error; at instanceof Error && texts.length < CAUSES; at = at.cause) {
    const lines = textOf(() => at.stack).split('\n');
    texts.push(lines.filter((line) => !/^\s+at .*(\(|\s)node:/.test(line)).join('\n'));
  }
  return texts.join('\ncaused by ');
}

function locationOf(stack) {
  for (const line of stack.split('\n')) {
    const found = /(?:^|[\s(]|file:\/\/)(\/[^():]+):(\d+)(?::\d+)?\)?$/.exec(line);
    const root = found && ROOTS.find((place) => found[1].startsWith(place));
    if (root) return `${found[1].slice(root.length)}:${found[2]}`;
  }
  return '';
}

function failureOf(error) {
  const isError = error instanceof Error;
  const stack = isError ? stackOf(error) : '';
  return {
    type: cut(isError ? textOf(() => error.name || error.constructor.name) : typeof error, ID),
    message: cut(isError ? textOf(() => error.message) : textOf(() => inspect(error, { customInspect: false })), MESSAGE),
    location: cut(locationOf(stack), ID),
    traceback: cut(stack, TRACEBACK),
    comparison: comparisonOf(error),
  };
}

function plainFailure(message) {
  return { type: '', message: cut(message, MESSAGE), location: '', traceback: '', comparison: null };
}

// Names of the tests around the one that an event is about, by depth.
const started = [];
const declared = [];
const waiting = new Map();
const seen = new Map();
let reported = 0;

function pathOf(names, { nesting, name }) {
  names.length = nesting;
  names.push(name);
  return names.join(' > ');
}

function countDeclared(data, step) {
  const id = pathOf(declared, data);
  waiting.set(id, (waiting.get(id) ?? 0) + step);
}

function outcomeOf(data, failureType) {
  const failed = failureType !== undefined;
  if (data.todo !== undefined && data.todo !== false) return failed ? 'XFAILED' : 'SKIPPED';
  if (data.skip !== undefined && data.skip !== false) return 'SKIPPED';
  if (!failed) return 'PASSED';
  return failureType === 'hookFailed' ? 'ERROR' : 'FAILED';
}

function ended(data, failed) {
  const path = pathOf(started, data);
  waiting.set(path, 0);
  const error = data.details.error;
  const failureType = failed ? String(error?.failureType) : undefined;
  if (data.details.type === 'suite' && (!failed || failureType === 'subtestsFailed')) return;
  const outcome = outcomeOf(data, failureType);
  const outputs = captured.get(path) ?? captured.get(data.name) ?? [];
  const output = outputs.shift() ?? { stdout: '', stderr: '' };
  const times = (seen.get(path) ?? 0) + 1;
  seen.set(path, times);
  const message = {
    kind: 'test',
    id: times === 1 ? path : `${path} (${times})`,
    outcome: data.details.type === 'suite' ? 'ERROR' : outcome,
    duration: Math.max(data.details.duration_ms, 0) / 1000,
    stdout: output.stdout,
    stderr: output.stderr,
  };
  if (failed && OF_THE_RUNNER.has(failureType)) message.failure = plainFailure(String(error.cause));
  else if (failed) message.failure = failureOf(error?.cause ?? error);
  else if (outcome === 'SKIPPED') message.failure = plainFailure(String(reasonOf(data)));
  reported += 1;
  send(message);
}

// Kinds of failure whose cause is a sentence of node's and nothing that was thrown.
const OF_THE_RUNNER = new Set([
  'subtestsFailed',
  'cancelledByParent',
  'parentAlreadyFinished',
  'testTimeoutFailure',
]);

function reasonOf({ skip, todo }) {
  if (typeof skip === 'string') return skip;
  if (typeof todo === 'string') return `todo: ${todo}`;
  return todo ? 'todo' : '';
}

let hasEnded = false;
let uncaught = 0;

module.exports = async function* report(source) {
  for await (const { type, data } of source) {
    if (type === 'test:enqueue') countDeclared(data, 1);
    else if (type === 'test:start') pathOf(started, data);
    else if (type === 'test:pass') ended(data, false);
    else if (type === 'test:fail') ended(data, true);
  }
  hasEnded = true;
  send({ kind: 'done', reported, patched: patched() });
};

// What only the process of the test file itself does: not its worker threads, nor the processes that it forks.
function start() {
  process.execArgv = process.execArgv.filter((argument) => !argument.includes(__filename));
  guard();
  test.before(guardContexts);
  test.beforeEach(begin);
  test.afterEach(finish);
  capture('stdout');
  capture('stderr');
  process.on('uncaughtExceptionMonitor', (error) => {
    // At once: node ends without a further word where the file itself raises it.
    uncaught += 1;
    if (uncaught <= UNCAUGHT) send({ kind: 'uncaught', failure: failureOf(error) });
  });
  process.on('exit', () => {
    if (hasEnded) return;
    const missing = [...waiting].filter(([, number]) => number > 0).map(([id]) => cut(id, ID));
    send({ kind: 'left', missing: missing.slice(0, MISSING) });
  });
  send({ kind: 'session', framework: `node --test ${process.version.slice(1)}` });
}

if (isMainThread) start();
