// Changes to SPIR-V modules that naga has written, for features that naga does not offer: specialization constants,
// loops without a counter of iterations, workgroup memory that is not cleared. Opcodes and layouts: SPIR-V
// specification, section 3.
const op = {
  nop: 0, decorate: 71, typeInt: 21, typeBool: 20, constant: 43, constantNull: 46, specConstant: 50, variable: 59,
  load: 61, store: 62, copyObject: 83, iEqual: 170, all: 155, loopMerge: 246, selectionMerge: 247, branch: 249,
  branchConditional: 250,
};
const workgroup_storage = 4;
const spec_id = 1;

function parse(words) {
  const instructions = [];
  for (let at = 5; at < words.length; at += words[at] >>> 16)
    instructions.push({ op: words[at] & 0xffff, words: Array.from(words.slice(at + 1, at + (words[at] >>> 16))) });
  return { header: Array.from(words.slice(0, 5)), instructions };
}
function assemble({ header, instructions }) {
  const words = [...header];
  for (const { op: code, words: operands } of instructions)
    words.push((((operands.length + 1) << 16) | code) >>> 0, ...operands);
  return Uint32Array.from(words);
}

// Turns the private variable with the initial value `sentinel + i` into the specialization constant of id i, for all i.
function specialize(module, sentinel, count) {
  const constants = new Map();   // result id of the constant -> its specialization id
  for (const one of module.instructions)
    if (one.op === op.constant && one.words[2] >= sentinel && one.words[2] < sentinel + count) {
      constants.set(one.words[1], one.words[2] - sentinel);
      one.op = op.specConstant;
    }
  const variables = new Map();   // result id of a private variable -> result id of its constant
  for (const one of module.instructions)
    if (one.op === op.variable && constants.has(one.words[3])) variables.set(one.words[1], one.words[3]);
  for (const one of module.instructions)
    if (one.op === op.load && variables.has(one.words[2])) {
      one.op = op.copyObject;
      one.words = [one.words[0], one.words[1], variables.get(one.words[2])];
    }
  const decorations = Array.from(constants, ([id, index]) => ({ op: op.decorate, words: [id, spec_id, index] }));
  const first = module.instructions.findIndex((one) => one.op === op.decorate);
  module.instructions.splice(first, 0, ...decorations);
}

// Removes loop counters. naga counts the iterations of every loop down from 2^64, so that an endless loop ends. The
// loops of our kernels end by themselves.
function uncount(module) {
  const { instructions } = module;
  const counters = new Set();
  for (let i = 0; i + 4 < instructions.length; i += 1) {
    const [load, equal, all, merge, branch] = instructions.slice(i, i + 5);
    if (load.op !== op.load || equal.op !== op.iEqual || all.op !== op.all || merge.op !== op.selectionMerge
        || branch.op !== op.branchConditional || branch.words[0] !== all.words[1]) continue;
    counters.add(load.words[2]);
    instructions.splice(i + 3, 2, { op: op.branch, words: [branch.words[2]] });
  }
  module.instructions = instructions.filter((one) => one.op !== op.store || !counters.has(one.words[0]));
}

// Removes the clearing of workgroup memory. naga lets one thread clear it at the start. Our kernels write this memory
// before they read it.
function keepWorkgroupMemory(module) {
  const nulls = new Set();
  const variables = new Set();
  for (const one of module.instructions) {
    if (one.op === op.constantNull) nulls.add(one.words[1]);
    if (one.op === op.variable && one.words[2] === workgroup_storage) variables.add(one.words[1]);
  }
  module.instructions = module.instructions.filter((one) => one.op !== op.store || !variables.has(one.words[0])
    || !nulls.has(one.words[1]));
}

// Applies all changes to a module. `words` is a module of naga, in which override i of `count` is a private variable
// with the initial value sentinel + i.
export function finish(words, sentinel, count) {
  const module = parse(words);
  module.header[1] = 0x00010300;   // naga writes version 1.0, in which subgroup operations are invalid
  if (count > 0) specialize(module, sentinel, count);
  uncount(module);
  keepWorkgroupMemory(module);
  return assemble(module);
}
