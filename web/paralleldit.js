// Made by `python3 dev.py bundle` of main.mjs and what it imports: change those, not this file.
import { app } from '../../scripts/app.js';
import { api } from '../../scripts/api.js';

// Pure: follows the links of a graph, through reroutes and the Set and Get nodes of KJNodes and Easy-Use, and into and
// out of subgraphs.

const MUTED$2 = 2;
const BYPASSED$1 = 4;
const SETS = ['SetNode', 'easy setNode'];
const GETS = ['GetNode', 'easy getNode'];
const PASSING$1 = ['Reroute', ...SETS, ...GETS];

/** Lists the graph of a workflow and its subgraphs. */
const listGraphs = (root) => [root, ...root.subgraphs.values()];

/** Finds the node of an execution id, such as "6", or "5:12" in a subgraph; null if there is none. */
function findNode$1(root, id) {
  const [own, ...hosts] = id.split(':').reverse();
  const graph = hosts.reduceRight((within, host) => within?.getNodeById(host)?.subgraph, root);
  return graph?.getNodeById(own) ?? null
}

/** Lists the nodes that show a subgraph in other graphs. */
const listHosts$1 = (graph) =>
  listGraphs(graph.rootGraph)
    .flatMap(({ nodes }) => nodes)
    .filter(({ subgraph }) => subgraph === graph);

/** Lists the nodes at the end of these links. A subgraph's node is replaced by its inner nodes, unless it is muted or
 * bypassed. */
function* listTargets(graph, ids) {
  for (const id of ids ?? []) {
    const link = graph.getLink(id);
    const target = link && graph.getNodeById(link.target_id);
    if (link?.targetIsIoNode) {
      for (const host of listHosts$1(graph)) yield* listTargets(host.graph, host.outputs[link.target_slot]?.links);
    } else if (target?.subgraph && !target.mode) {
      yield* listTargets(target.subgraph, target.subgraph.inputs[link.target_slot]?.linkIds);
    } else if (target) yield target;
  }
}

/** Lists the nodes of these types with the name that a Set or Get node has. They stand for links. Missing nodes have no
 * widgets. */
function listNamesakes(node, types) {
  const read = ({ widgets, widgets_values }) => widgets?.[0]?.value ?? widgets_values?.[0];
  const nodes = listGraphs(node.graph.rootGraph).flatMap((each) => each.nodes);
  return nodes.filter((other) => types.includes(other.type) && read(other) === read(node))
}

/**
 * Lists the nodes behind a node's outputs of these types, except those in `seen`. It looks through reroutes, Set and
 * Get, and bypassed nodes.
 */
function* followOutputs(node, types, seen) {
  const isPassing = PASSING$1.includes(node.type);
  for (const output of node.outputs ?? []) {
    if (!isPassing && !types.includes(output.type)) continue
    for (const target of listTargets(node.graph, output.links)) {
      if (seen.has(target) || target.mode === MUTED$2) continue
      seen.add(target);
      const gets = SETS.includes(target.type) ? listNamesakes(target, GETS) : [];
      for (const get of gets) yield* followOutputs(get, types, seen);
      if (PASSING$1.includes(target.type)) yield* followOutputs(target, types, seen);
      else if (target.mode === BYPASSED$1) yield* followOutputs(target, isPassing ? types : [output.type], seen);
      else yield target;
    }
  }
}

/**
 * Finds what is linked to an input, behind reroutes: the `node`, or else the `value` that a person sets at the
 * subgraph's node. `isOpen`: only a run can tell, since the subgraph is used more than once. Null if nothing is linked.
 */
function findOrigin(node, name) {
  return findSource(
    node.graph,
    node.inputs?.find((slot) => slot.name === name)
  )
}

function findSource(graph, input) {
  const link = input?.link == null ? null : graph?.getLink(input.link);
  return link ? findStart(graph, link) : null
}

function findStart(graph, link) {
  if (link.originIsIoNode) {
    const [host, ...others] = listHosts$1(graph);
    const input = host?.inputs[link.origin_slot];
    if (!input || others.length) return { isOpen: true }
    return findSource(host.graph, input) ?? { value: host.getWidgetFromSlot(input)?.value }
  }
  const node = graph.getNodeById(link.origin_id);
  if (GETS.includes(node?.type)) {
    const [set] = listNamesakes(node, SETS);
    return set ? findSource(set.graph, set.inputs[0]) : null
  }
  if (PASSING$1.includes(node?.type)) return findSource(graph, node.inputs[0])
  if (!node?.subgraph || node.mode) return node ? { node } : null
  const inner = node.subgraph.getLink(node.subgraph.outputs[link.origin_slot]?.linkIds[0]);
  return inner ? findStart(node.subgraph, inner) : null
}

// Pure: follows a model or a VAE through a workflow, up to where it is made and down to where it is used.


/** By type of output, the node that stands behind it and makes it parallel. */
const PARALLELIZERS = { MODEL: 'ParallelDiT_Parallelize', VAE: 'ParallelDiT_ParallelizeVAE' };

const PASSING = ['Reroute', ...SETS, ...GETS];
const PIPE = /PIPE|CONTEXT|BUS/i; // types of many packs that hold several things, a model among them

/** Returns whether a slot of this type may pass on what `kind` names. */
const isPassing = (type, kind) => type === kind || type === '*' || PIPE.test(type);

function* listNext(node, kind) {
  for (const { type, links } of node.outputs ?? []) {
    if (isPassing(type, kind)) yield* listTargets(node.graph, links);
  }
  if (SETS.includes(node.type)) yield* listNamesakes(node, GETS);
}

function* listBefore(node, kind) {
  for (const { type, name } of node.inputs ?? []) {
    const origin = isPassing(type, kind) && findOrigin(node, name)?.node;
    if (origin) yield origin;
  }
  if (GETS.includes(node.type)) yield* listNamesakes(node, SETS);
}

/** Lists a node and all that `listMore` leads to. */
function* walk(node, kind, listMore, seen = new Set()) {
  if (seen.has(node)) return
  seen.add(node);
  yield node;
  for (const next of listMore(node, kind)) yield* walk(next, kind, listMore, seen);
}

/** Lists the nodes that make a node's model or VAE parallel, before it or behind it. It may be one itself. */
function listParallelizers(node, kind) {
  const found = [...walk(node, kind, listBefore), ...walk(node, kind, listNext)];
  return [...new Set(found)].filter(({ type }) => type === PARALLELIZERS[kind])
}

/** Lists the slots of a node's outputs of this type: the linked ones, or all if none is linked. */
function listSlots(node, kind) {
  const slots = (node.outputs ?? []).flatMap(({ type }, slot) => (type === kind ? [slot] : []));
  const linked = slots.filter((slot) => node.outputs[slot].links?.length);
  return linked.length ? linked : slots
}

const isUsed = (node, kind) => listSlots(node, kind).some((slot) => node.outputs[slot].links?.length);

/** Returns whether a node has an input for what `kind` names, or such an output is linked to it. */
function takes(node, kind) {
  const findType = ({ origin_id, origin_slot }) => node.graph.getNodeById(origin_id)?.outputs?.[origin_slot]?.type;
  const isLinked = (link) => link != null && findType(node.graph.getLink(link) ?? {}) === kind;
  return node.inputs?.some(({ type, link }) => type === kind || isLinked(link))
}

/** Returns whether a node makes a MODEL and has none to make it of. */
function makesModel(node) {
  if (node.subgraph || PASSING.includes(node.type) || !listSlots(node, 'MODEL').length) return false
  return ![...walk(node, 'MODEL', listBefore)].some((each) => takes(each, 'MODEL'))
}

/** Returns whether a node gives its model to others only inside of a pipe, where no node can stand behind the model. */
const isPiped = (node) =>
  !isUsed(node, 'MODEL') && node.outputs.some(({ type, links }) => PIPE.test(type) && links?.length);

// Nodes whose models ranks cannot run: by what loads them, the locale's key of what to use instead.
const INSTEAD = [
  { instead: 'wan', makes: 'WANVIDEOMODEL' }, // WanVideoWrapper
  { instead: 'hunyuan', makes: 'HYVIDEOMODEL' }, // HunyuanVideoWrapper
  { instead: 'cogvideo', makes: 'COGVIDEOMODEL' }, // CogVideoXWrapper
  { instead: 'fun', makes: 'FunModels' }, // VideoX-Fun
  { instead: 'quantised', type: /^Nunchaku\w*DiTLoader/ }
];

/** Returns the key of what to use instead of a node whose model ranks cannot run; undefined for other nodes. */
function findInstead(node) {
  const has = (slots, makes) => slots?.some(({ type }) => type === makes);
  const isMeant = ({ makes, type }) =>
    makes ? has(node.outputs, makes) && !has(node.inputs, makes) : type.test(node.type);
  return INSTEAD.find(isMeant)?.instead
}

/** Returns whether a node is an old group node that holds a loader. The editor could not open it. */
function isClosed({ type, graph }) {
  const [, name] = /^workflow[>/]?(.+)/.exec(type) ?? []; // the editor drops the > of a missing type
  return Boolean(graph.rootGraph.extra?.groupNodes?.[name]?.nodes.some((node) => listSlots(node, 'MODEL').length))
}

/**
 * Sorts these nodes by what becomes of them as the workflow is made parallel. makers: those to put a node behind.
 * insteads: those to use something else for. piped: those whose model is inside of a pipe. closed: old group nodes.
 */
function sortNodes(nodes) {
  const insteads = nodes.filter(findInstead);
  const stock = nodes.filter((node) => makesModel(node) && !listParallelizers(node, 'MODEL').length);
  const others = stock.filter((node) => !insteads.includes(node));
  const [piped, free] = [others.filter(isPiped), others.filter((node) => !isPiped(node))];
  const used = free.filter((node) => isUsed(node, 'MODEL'));
  const hasUsed = nodes.some((node) => makesModel(node) && isUsed(node, 'MODEL'));
  const closed = nodes.filter((node) => isClosed(node) && !makesModel(node));
  return { makers: hasUsed ? used : free, insteads, piped, closed }
}

// Pure: finds a place for a new node beside another.

const TITLE = 30;
const GAP$3 = 40;
const MARGIN$1 = 10;
const TRIES$1 = 40; // places above, and as many below
const OUTSIDE = 1000; // a place outside of the group counts as so much farther
const OVERLAP = 1000; // a pixel that is covered counts as so much farther

const makeBox$2 = ({ pos, size }) => ({ x: pos[0], y: pos[1] - TITLE, width: size[0], height: size[1] + TITLE });

/** Returns a node's box with its title. A collapsed node has little else. */
const boxOf = ({ pos, size, flags }) => makeBox$2({ pos, size: flags?.collapsed ? [size[0], 0] : size });

const overlap = (one, other) => {
  const side = (start, length) =>
    Math.max(0, Math.min(one[start] + one[length], other[start] + other[length]) - Math.max(one[start], other[start]));
  return side('x', 'width') * side('y', 'height')
};

const hasCenter = (group, { x, y, width, height }) => {
  const [left, top] = group.pos;
  const [across, down] = [x + width / 2 - left, y + height / 2 - top];
  return across > 0 && across < group.size[0] && down > 0 && down < group.size[1]
};

/**
 * Returns the position for a node of this size, right of another or else near to it, where it covers no other node if
 * that can be, and preferably in the same groups. others: the nodes around. groups: the graph's.
 */
function findPlace(node, size, others, groups) {
  const home = boxOf(node);
  const [left, top] = [home.x, home.y + TITLE];
  const right = left + home.width + GAP$3;
  const steps = Array.from({ length: 2 * TRIES$1 + 1 }, (_, at) => top + (at % 2 ? GAP$3 : -GAP$3) * Math.ceil(at / 2));
  const positions = [right, left].flatMap((x) => steps.map((y) => [x, y]));
  const boxes = others.map(boxOf);
  const around = groups.filter((group) => hasCenter(group, home));
  const rate = (pos) => {
    const box = makeBox$2({ pos: pos.map((side) => side - MARGIN$1), size: size.map((side) => side + 2 * MARGIN$1) });
    const covered = boxes.reduce((sum, other) => sum + overlap(box, other), 0);
    const isOutside = around.some((group) => !hasCenter(group, box));
    return covered * OVERLAP + Math.abs(pos[0] - right) + Math.abs(pos[1] - top) + (isOutside ? OUTSIDE : 0)
  };
  return positions.reduce((best, pos) => (rate(pos) < rate(best) ? pos : best))
}

// Puts a node behind another one's output in the open graph, and takes it out again. Links keep their ids, so that the
// nodes behind them see no change: some packs' nodes change their inputs as links come and go.


const MUTED$1 = 2;
const SAID = 200; // pixels, for what the node says below its widgets once the server has answered

/** Puts a node behind a node's outputs of this type, see `listSlots`. Returns how many were put. */
const insert = (node, kind) => listSlots(node, kind).filter((slot) => insertBehind(node, slot, kind)).length;

function insertBehind(node, slot, kind) {
  const { graph } = node;
  const added = window.LiteGraph.createNode(PARALLELIZERS[kind]);
  const passesNothing = node.mode === MUTED$1 || !node.inputs?.some(({ type }) => type === kind);
  if (passesNothing) added.mode = node.mode;
  graph.add(added);
  const others = graph.nodes.filter((other) => other !== added);
  added.pos = findPlace(node, [added.size[0], added.size[1] + SAID], others, graph.groups);
  const link = node.connect(slot, added, findInput(added, kind));
  if (!link) {
    graph.remove(added); // the other node refuses links
    return false
  }
  const moved = node.outputs[slot].links.filter((id) => id !== link.id);
  moveLinks(graph, moved, added.id, 0);
  added.outputs[0].links = moved;
  setLinks(node, slot, [link.id]);
  graph.updateExecutionOrder();
  return true
}

/** Removes a node that makes parallel. Its links start where its own model or VAE came from. */
function remove(node, kind) {
  const { graph, id } = node;
  const link = graph.getLink(node.inputs[findInput(node, kind)]?.link);
  const origin = link && graph.getNodeById(link.origin_id);
  const before = link?.originIsIoNode ? graph.inputs[link.origin_slot].linkIds : origin?.outputs[link.origin_slot].links;
  if (!before) return graph.remove(node)
  const moved = node.outputs[0].links ?? [];
  const place = before.indexOf(link.id);
  keepReroutes(graph, link, moved);
  moveLinks(graph, moved, link.origin_id, link.origin_slot);
  node.outputs[0].links = null; // else the graph would remove them, too
  graph.remove(node);
  before.splice(place, 0, ...moved);
  if (origin) setLinks(origin, link.origin_slot, before.length ? before : null);
  takeBack(graph.state, 'lastLinkId', link.id);
  takeBack(graph.state, 'lastNodeId', id);
  graph.updateExecutionOrder();
}

const findInput = (node, kind) => node.inputs.findIndex(({ type }) => type === kind);

function moveLinks(graph, ids, origin, slot) {
  for (const id of ids) {
    const link = graph.getLink(id);
    if (link) Object.assign(link, { origin_id: origin, origin_slot: slot });
  }
}

/** Sets the ids of an output's links. The editor saves a missing node as it was loaded, so they are set there, too. */
function setLinks(node, slot, ids) {
  node.outputs[slot].links = ids;
  const saved = node.last_serialization?.outputs?.[slot];
  if (saved) saved.links = ids && [...ids];
}

/** Lets links run through the reroutes of the link before them. */
function keepReroutes(graph, link, moved) {
  const listChain = (segment) =>
    segment ? [segment, ...listChain(segment.parentId == null ? null : graph.reroutes.get(segment.parentId))] : [];
  const [, ...reroutes] = listChain(link);
  const links = moved.map((id) => graph.getLink(id)).filter(Boolean);
  if (!reroutes.length) return
  for (const first of new Set(links.map((each) => listChain(each).at(-1)))) first.parentId = link.parentId;
  for (const reroute of reroutes) for (const { id } of links) reroute.linkIds.add(id);
}

/** Gives the graph's newest id back, so that the saved file is as before. */
function takeBack(state, name, id) {
  if (Number(state[name]) === Number(id)) state[name] -= 1;
}

// Pure: reads the graph around a Parallelize Model node, and makes the question for POST /paralleldit/plan.


const PARALLELIZE = 'ParallelDiT_Parallelize';
const LOAD_DIT = 'ParallelDiT_LoadDiT'; // it offers folders
const MODEL_FILE = /\.(safetensors|sft|gguf|ckpt|pt|pt2|pth|bin|pkl)$/i;
const [MUTED, BYPASSED] = [2, 4];
const FIRST_GROUP = 1;
const MODEL = 'MODEL';
const CARRIES_MODEL = [MODEL, 'GUIDER'];
const LATENT = 'LATENT';
const SAMPLED = [LATENT, 'IMAGE'];
const NEEDED = ['width', 'height']; // of an empty latent: pixels
const SIZES = [...NEEDED, 'length', 'batch_size']; // length: frames; batch_size: images

/**
 * Returns the `question` about a node; null if it does not run, or if only a run can tell. `why`: the text's path and
 * values that say why there is none; null if it does not run. plan: values in place of the node's own.
 */
function makeQuestion(node, plan) {
  const { values, open } = readWidgets(node);
  const { group, ...own } = values;
  const uses = [...listUses(node, new Set(), null)];
  const samplers = uses.filter(({ target }) => target.type !== PARALLELIZE);
  const isReplaced = uses.length > samplers.length && !samplers.length;
  if (node.mode) return { question: null, why: null }
  if (isReplaced) return { question: null, why: ['plan.replaced'] }
  if (!plan && open.length && own.mode !== 'auto')
    return { question: null, why: ['plan.open', { names: open.join(', ') }] }
  const question = { values: plan ?? own, group: keepType('number', group), ...findFiles(node) };
  return { question: { ...question, samplers: samplers.map(describeSampler) }, why: null }
}

/** Returns the worker group of a node and its model's file. Null if the node does not run, or if only a run can tell. */
function findRun$1(node) {
  const { question } = makeQuestion(node);
  const [model] = Object.values(question?.files ?? {});
  return model === undefined ? null : { group: question.group ?? FIRST_GROUP, model }
}

/** Lists the nodes that sample with a node's model. */
const listSamplers = (node) =>
  [...listUses(node, new Set(), null)].map(({ target }) => target).filter(({ type }) => type !== PARALLELIZE);

/** Returns the nodes in the order in which their models run, as the editor orders the nodes that sample. */
function sortByRun(nodes) {
  const first = (node) => Math.min(...listSamplers(node).map(({ order }) => order ?? Number.MAX_VALUE));
  const order = new Map(nodes.map((node) => [node, first(node)]));
  const compare = (one, other) => (one === other ? 0 : one < other ? -1 : 1);
  return [...nodes].sort((one, other) => compare(order.get(one), order.get(other)))
}

/**
 * Finds the node that makes a node's MODEL from none, up the line. Of several MODELs it follows the first. Returns the
 * model `files` that are chosen there, by widget, and the chosen `weight_dtype`.
 */
function findFiles(node) {
  const seen = new Set();
  let maker = null;
  for (let at = node; at && !seen.has(at) && at.mode !== MUTED; ) {
    seen.add(at);
    const input = at.inputs?.find(({ type, link }) => type === MODEL && link != null);
    if (!input && at !== node && at.mode !== BYPASSED) maker = at;
    at = input && findOrigin(at, input.name)?.node;
  }
  const { values } = maker ? readWidgets(maker) : { values: {} };
  const isFile = ({ name, type }) => type === 'combo' && (maker.type === LOAD_DIT || MODEL_FILE.test(values[name]));
  const names = (maker?.widgets ?? []).filter(isFile).map(({ name }) => name);
  const known = names.filter((name) => typeof values[name] === 'string');
  return {
    files: Object.fromEntries(known.map((name) => [name, values[name]])),
    weight_dtype: keepType('string', values.weight_dtype)
  }
}

const describeSampler = ({ target, guidance }) => ({
  type: target.type,
  cfg: keepType('number', guidance),
  picture: readPictureSize(target)
});

/**
 * Lists the nodes that sample with a node's model, also behind LoRAs, guiders and the like, and the next Parallelize
 * Model nodes. guidance: a guider's.
 */
function* listUses(node, seen, cfg) {
  for (const target of followOutputs(node, CARRIES_MODEL, seen)) {
    const { values } = readWidgets(target);
    const guidance = target.type === 'BasicGuider' ? 1 : (values.cfg ?? cfg);
    const gives = (target.outputs ?? []).map((output) => output.type);
    if (target.type === PARALLELIZE) yield { target, guidance };
    else if (gives.some((type) => CARRIES_MODEL.includes(type))) yield* listUses(target, seen, guidance);
    else if (gives.some((type) => SAMPLED.includes(type))) yield { target, guidance };
  }
}

/**
 * Reads the sizes of what a node samples, from the node that makes its empty latent; null if they are not known. A
 * sampler before it keeps the sizes.
 */
function readPictureSize(sampler, seen = new Set()) {
  const [latent] = listInputs(sampler, [LATENT]);
  const origin = findOrigin(sampler, latent?.name)?.node;
  if (!origin || origin.mode === BYPASSED || seen.has(origin)) return null
  if (listInputs(origin, [LATENT]).length)
    return listInputs(origin, CARRIES_MODEL).length ? readPictureSize(origin, seen.add(origin)) : null
  const { values } = readWidgets(origin);
  const sizes = SIZES.filter((name) => values[name] !== undefined);
  const areWhole = sizes.every((name) => Number.isInteger(values[name]) && values[name] > 0);
  if (!areWhole || !NEEDED.every((name) => sizes.includes(name))) return null
  return Object.fromEntries(sizes.map((name) => [name, values[name]]))
}

const listInputs = (node, types) => (node.inputs ?? []).filter(({ type }) => types.includes(type));

/** Returns whether a node is in auto mode. A mode that another node computes counts as not auto. */
const isAuto = (node) => readWidgets(node).values.mode === 'auto';

/**
 * Reads a node's values by widget. A linked widget gets its source's own `value`, as a primitive has one, or the value
 * that is set at the subgraph's node. A widget without any is open.
 */
function readWidgets(node) {
  const values = {};
  const open = [];
  for (const widget of node.widgets ?? []) {
    if (widget.serialize === false) continue
    const origin = findOrigin(node, widget.name);
    const value = !origin ? widget.value : origin.node ? readWidget(origin.node, 'value') : origin.value;
    if (value === undefined) open.push(widget.name);
    else values[widget.name] = value;
  }
  return { values, open }
}

/**
 * Returns a value only if the server takes its type, else null: another pack's node may use the name for another type.
 */
const keepType = (type, value) => (typeof value === type ? value : null);

function readWidget(node, name) {
  return node?.widgets?.find((widget) => widget.name === name)?.value
}

// Pure: finds the subgraph nodes that hold Parallelize Model nodes, and the nodes on the way to a node inside of subgraphs.


/** Lists the nodes inside of a subgraph's node, at any depth. A subgraph that is used more than once counts once. */
function listInner(host, seen = new Set()) {
  if (!host.subgraph || seen.has(host.subgraph)) return []
  seen.add(host.subgraph);
  return host.subgraph.nodes.flatMap((node) => [node, ...listInner(node, seen)])
}

/** Lists each subgraph's node of a workflow that holds Parallelize Model nodes, as `host` and `inner`. */
const listHosts = (root) =>
  listGraphs(root)
    .flatMap(({ nodes }) => nodes.filter(({ subgraph }) => subgraph))
    .map((host) => ({ host, inner: listInner(host).filter(({ type }) => type === PARALLELIZE) }))
    .filter(({ inner }) => inner.length);

/** Lists the subgraph nodes around the node of an execution id, such as "5:12", the outermost first. */
function listAround(root, id) {
  const around = [];
  let graph = root;
  for (const part of String(id).split(':').slice(0, -1)) {
    const host = graph?.getNodeById(part) ?? graph?.getNodeById(Number(part));
    if (!host?.subgraph) break
    around.push(host);
    graph = host.subgraph;
  }
  return around
}

// Pure: makes readable texts of the event of a failed node.

const DETAILS = '\n\nDetails:\n';

/**
 * Splits an error's text into {cause, advice, details}. `parallel_backend/errors.py` writes it so: one paragraph each,
 * and the details under a line of their own. Advice and details may be empty.
 */
function splitFields(text) {
  const [head, ...details] = text.trim().split(DETAILS);
  const [cause, ...advice] = head.split(/\n{2,}/);
  return { cause, advice: advice.join('\n'), details: details.join(DETAILS) }
}

/** The kind of each error class, by its name in `exception_type`. */
const KINDS = {
  'paralleldit.WorkerGroupError': 'group',
  'paralleldit.NoWorkerGroup': 'group',
  'paralleldit.OutOfMemory': 'memory',
  'paralleldit.RequestRefused': 'refused',
  'paralleldit.UnsendableError': 'refused',
  'paralleldit.SettingsError': 'settings',
  'paralleldit.PlanError': 'plan',
  'paralleldit.ModelFileError': 'file',
  'paralleldit.NoDenoiser': 'file',
  'paralleldit.UnknownModelError': 'model',
  'paralleldit.RequestError': 'refused',
  'paralleldit.Refused': 'refused'
};

/**
 * Returns the kind of an `execution_error`, a key of `errors.titles`; null for an error that is not this pack's.
 *
 * pack: the name of its folder. Any other error in the pack's code, or at one of its nodes, is `unforeseen`.
 */
function classifyError({ exception_type: type, node_type: node, traceback = [] }, pack) {
  if (KINDS[type]) return KINDS[type]
  const own = (traceback.at(-1) ?? '').replaceAll('\\', '/').includes(`/custom_nodes/${pack}/`);
  return own || (traceback.length && node.startsWith('ParallelDiT_')) ? 'unforeseen' : null
}

/** Returns {cause, advice, details} of an `execution_error`. Advice and details may be empty. */
function describeError$1({ exception_type: type, exception_message: message, traceback = [] }, kind) {
  if (kind !== 'unforeseen') return splitFields(message)
  return { cause: `${type.split('.').at(-1)}: ${message.trim()}`, advice: '', details: traceback.join('').trimEnd() }
}

/** Returns the whole error as text, for a bug report. */
function formatReport(title, { cause, advice, details }) {
  return [title, cause, advice, details].filter(Boolean).join('\n\n')
}

// Pure: finds texts of `locales/*/main.json` in the editor's language. `text.mjs` fetches them.

/**
 * Returns the trees of texts that `findText` and `translate` take: of the language, of the language without its region,
 * and of English, each once. all: what ComfyUI serves for each language.
 */
function selectTrees(all, language) {
  const found = new Set([all[language], all[language.split('-')[0]], all.en]);
  return [...found].filter(Boolean).map((tree) => ({
    ...tree.paralleldit,
    settings: { ...tree.settings, ...tree.paralleldit?.settings }
  }))
}

/**
 * Returns the text at a dotted path, from the first of these trees that has it, with values for its {names}. Without
 * such a text, returns the path.
 */
function findText(trees, path, values = {}) {
  for (const tree of trees) {
    const found = getAt(tree, path);
    if (typeof found === 'string') return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)
  }
  return path
}

/**
 * Translates an English text of the server that was made from templates. The last tree has the English templates, under
 * the path; the first tree that has a template's key gives the translation. So a text is its own key, as in gettext.
 *
 * Each line may be one sentence or several. Of the templates that make its start, up to the end of a sentence, the one
 * with the most words counts, and then the shortest such start. What fills a template is translated, too. A sentence
 * without a template is returned as it is. The parts of a plan are translated one by one.
 */
function translate(trees, path, text) {
  if (!text || trees[0] === trees.at(-1)) return text
  const templates = compileTemplates(getAt(trees.at(-1), path));
  const translateLine = (line) => {
    const ends = [...[...line.matchAll(SENTENCE_END)].map(({ 0: end, index }) => index + end.length), line.length];
    const found = findTemplate(templates, line, ends);
    const end = found?.end ?? ends[0];
    const rest = line.slice(end).trimStart();
    if (!found && rest) return joinSentences([line.slice(0, end), translateLine(rest)])
    if (!found) return line.includes(TIMES) ? line.split(TIMES).map(translateLine).join(TIMES) : line
    const values = Object.entries(found.values).map(([name, value]) => [name, translateLine(value)]);
    const words = findText(trees, `${path}.${found.key}`, Object.fromEntries(values));
    return joinSentences([words, translateLine(rest)])
  };
  return text.split('\n').map(translateLine).join('\n')
}

/** Joins sentences. After a full-width character there is no space. */
const joinSentences = (sentences) =>
  sentences
    .filter(Boolean)
    .reduce((said, next) => said + (FULL_WIDTH.test(said) ? '' : ' ') + next, '')
    .trimStart();

const getAt = (tree, path) => path.split('.').reduce((node, key) => node?.[key], tree);

const NAMES$1 = /\{(\w+)\}/g;
const FULL_WIDTH = /[\u3000-\u303f\uff00-\uffef]$/;
const TIMES = ' × '; // between the parts of a plan
const SENTENCE_END = /[.!?]\)?(?= )/g;

const compiled = new WeakMap(); // by the templates

/** Compiles each template to {key, names, pattern, fixed}, the one with the most characters of its own first. */
function compileTemplates(templates = {}) {
  if (!compiled.has(templates)) {
    const all = Object.entries(templates).map(([key, template]) => {
      const pieces = template.split(/\{\w+\}/).map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
      const names = [...template.matchAll(NAMES$1)].map(([, name]) => name);
      return { key, names, pattern: new RegExp(`^${pieces.join('(.+)')}$`), fixed: template.replace(NAMES$1, '').length }
    });
    compiled.set(
      templates,
      all.sort((one, other) => other.fixed - one.fixed)
    );
  }
  return compiled.get(templates)
}

/**
 * Finds the template that makes the line's start up to one of these ends, and the values of its {names}; undefined if
 * there is none.
 */
function findTemplate(templates, line, ends) {
  for (const { key, names, pattern } of templates) {
    for (const end of ends) {
      const found = line.slice(0, end).match(pattern);
      if (found) return { key, end, values: Object.fromEntries(names.map((name, index) => [name, found[index + 1]])) }
    }
  }
  return undefined
}

// The pack's own texts in the editor's language. ComfyUI serves them from `locales/*/main.json` and `settings.json`.


let trees = [];

/** Returns the editor's language. Times are formatted by it, too. */
const getLanguage = () => app.extensionManager.setting.get('Comfy.Locale') ?? 'en';

/** Fetches the texts once. Await it before the first call of `t`. */
const textsLoaded = (async () => {
  try {
    trees = selectTrees(await (await api.fetchApi('/i18n')).json(), getLanguage());
  } catch (error) {
    console.warn('[ParallelDiT]', error); // the editor then shows the names of the texts
  }
})();

/** Joins words as in "a, b or c". */
const joinWithOr = (words) => new Intl.ListFormat(getLanguage(), { type: 'disjunction' }).format(words);

/** Translates a text of the server, which is English, into the editor's language: `said` has the templates. */
const translateSaid = (text) => translate(trees, 'said', text);

/** Returns the text at a path like 'panel.stop', with values for its {names}. Some values are texts of the server. */
function t(path, values = {}) {
  const said = Object.entries(values).map(([name, value]) => [
    name,
    typeof value === 'string' ? translateSaid(value) : value
  ]);
  return findText(trees, path, Object.fromEntries(said))
}

/** Translates the fields of an error's text, see `splitFields`. Details stay as they are. */
const translateFields = ({ cause, advice, details }) => ({
  cause: translateSaid(cause),
  advice: translateSaid(advice),
  details
});

/** Returns an error's cause and advice in one line, without its details. */
function summarizeError(text) {
  const { cause, advice } = translateFields(splitFields(text));
  return joinSentences([cause, advice])
}

// Makes models and VAEs parallel by a node behind them, and stock again without it: from the menu of a node, of the
// canvas or of the editor, and by commands. One undo takes it back.


const PARALLEL = 'ParallelDiT.MakeWorkflowParallel';
const STOCK = 'ParallelDiT.MakeWorkflowStock';
const TOAST_MS = 8000;

app.registerExtension({
  name: 'ParallelDiT.Convert',

  // `commands.json` translates these labels, and `menuLabels` of `main.json` translates them in the editor's menu.
  commands: [
    { id: PARALLEL, label: 'Make this workflow parallel', icon: 'pi pi-server', function: () => makeParallel() },
    { id: STOCK, label: 'Make this workflow stock', icon: 'pi pi-undo', function: () => makeStock() }
  ],
  menuCommands: [{ path: ['Edit'], commands: [PARALLEL, STOCK] }],

  getNodeMenuItems(node) {
    const inside = node.subgraph ? makeItems(listInner(node), 'convert.parallel', 'convert.stock') : [];
    return inside.length ? inside : makeNodeItems(node)
  },

  getCanvasMenuItems() {
    return makeItems(listNodes(), 'convert.workflowParallel', 'convert.workflowStock')
  }
});

const listNodes = () => listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes);

/** Lists the nodes among these that make parallel, as `node` and what they do it to. */
const listAdded = (nodes) =>
  Object.entries(PARALLELIZERS).flatMap(([kind, type]) =>
    nodes.filter((node) => node.type === type).map((node) => ({ node, kind }))
  );

/** Takes nodes out, the newest first. */
function takeOut(added) {
  for (const { node, kind } of added.sort((one, other) => other.node.id - one.node.id)) remove(node, kind);
}

/** Makes the menu's items that change all models made by these nodes. */
function makeItems(nodes, parallelKey, stockKey) {
  const items = [];
  const found = Object.values(sortNodes(nodes));
  if (found.some(({ length }) => length)) items.push({ content: t(parallelKey), callback: () => makeParallel(nodes) });
  if (listAdded(nodes).length) items.push({ content: t(stockKey), callback: () => makeStock(nodes) });
  return items.length ? [null, ...items] : []
}

/** Makes an item for a node's models, and one for its VAEs. */
function makeNodeItems(node) {
  const instead = findInstead(node);
  if (instead)
    return [null, { content: t('convert.instead', { instead: t(`convert.use.${instead}`) }), disabled: true }]
  const kinds = Object.keys(PARALLELIZERS).filter(
    (kind) => PARALLELIZERS[kind] in window.LiteGraph.registered_node_types && listSlots(node, kind).length
  );
  const items = kinds.map((kind) => {
    const added = listAdded(node.type === PARALLELIZERS[kind] ? [node] : listParallelizers(node, kind));
    const keys = kinds.length > 1 && kind === 'VAE' ? ['vaeParallel', 'vaeStock'] : ['parallel', 'stock'];
    const act = () => (added.length ? takeOut(added) : insert(node, kind));
    return { content: t(`convert.${keys[Number(added.length > 0)]}`), callback: () => change(act) }
  });
  return items.length ? [null, ...items] : []
}

/** Makes all models parallel that these nodes make. */
async function makeParallel(nodes = listNodes()) {
  await textsLoaded;
  const { makers, insteads, piped, closed } = sortNodes(nodes);
  const count = change(() => makers.reduce((sum, node) => sum + insert(node, 'MODEL'), 0));
  if (count) showToast('success', `convert.madeParallel${count === 1 ? 'One' : ''}`, { count });
  for (const key of new Set(insteads.map(findInstead))) {
    const named = nameAll(insteads.filter((node) => findInstead(node) === key));
    showToast('warn', 'convert.leftForeign', { nodes: named, instead: t(`convert.use.${key}`) });
  }
  if (piped.length) showToast('warn', 'convert.leftPiped', { nodes: nameAll(piped) });
  if (closed.length) showToast('warn', 'convert.leftClosed', { nodes: nameAll(closed) });
  if (![makers, insteads, piped, closed].some(({ length }) => length)) showToast('info', 'convert.noneToMakeParallel');
}

/** Makes all models and VAEs stock that these nodes make parallel. */
async function makeStock(nodes = listNodes()) {
  await textsLoaded;
  const added = listAdded(nodes);
  change(() => takeOut(added));
  const count = added.length;
  showToast(count ? 'success' : 'info', count ? 'convert.madeStock' : 'convert.noneToMakeStock', { count });
}

const nameAll = (nodes) => [...new Set(nodes.map(({ title, type }) => title || type))].join(', ');

function showToast(severity, key, values) {
  app.extensionManager.toast.add({ severity, summary: 'ParallelDiT', detail: t(key, values), life: TOAST_MS });
}

/** Changes the open graph in one step that can be undone. */
function change(act) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
  tracker.beforeChange();
  tracker.afterChange(); // earlier changes get a step of their own
  tracker.beforeChange();
  try {
    return act()
  } finally {
    app.canvas.setDirty(true, true);
    tracker.afterChange();
  }
}

// Makes elements of the page, and adds the pack's style sheets to it.

const SVG = 'http://www.w3.org/2000/svg';

/** Makes an HTML element with these attributes and children. A string among the children becomes text. */
function element(tag, attributes = {}, ...children) {
  return fillElement(document.createElement(tag), attributes, children)
}

/** Makes an SVG element, as `element` makes an HTML one. */
function svg(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG, tag), attributes, children)
}

function fillElement(target, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) target.setAttribute(name, value);
  target.append(...children);
  return target
}

/**
 * Calls `act`, which fills an element anew. Folds that were open stay open. The focus goes to the fold or link with the
 * same words, or else to the first fold: not to a button, which may be that of another plan.
 */
function refill(target, act) {
  const focused = target.contains(document.activeElement) ? document.activeElement.textContent : null;
  const open = [...target.querySelectorAll('details')].map((details) => details.open);
  act();
  for (const [place, details] of target.querySelectorAll('details').entries()) details.open ||= open[place] ?? false;
  if (focused === null || target.contains(document.activeElement)) return
  const controls = [...target.querySelectorAll('summary, a')];
  const next = controls.find((control) => control.textContent === focused) ?? controls[0];
  next?.focus({ preventScroll: true });
}

/** Adds a style sheet to the page. url: absolute, made from the caller's `import.meta.url`. */
function addStyle(url) {
  document.head.append(element('link', { rel: 'stylesheet', href: url }));
}

// Copies to the clipboard. This also works on a page that the browser calls insecure, such as a ComfyUI on another
// machine over HTTP.


async function copyToClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element('textarea', { style: 'position: fixed; opacity: 0' });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
    focused?.focus();
  }
}

const COPIED_MS = 2000;

/** Makes a button copy what `read` returns. words: the button's text before a click, and for a moment after it. */
function copyOnClick(button, read, words) {
  button.addEventListener('click', async () => {
    await copyToClipboard(read());
    button.textContent = words.copied;
    setTimeout(() => {
      button.textContent = words.copy;
    }, COPIED_MS);
  });
}

// Makes the card that shows an error, with its buttons. `errors.mjs` puts it at the node.


/** Returns the attribute by which tests find a part of the card. */
const makeTestId = (part) => ({ 'data-testid': `paralleldit-error-${part}` });

/** label: says what an icon means; empty for a button with words. */
function makeButton$1(className, label, attributes, onclick, ...children) {
  const named = label ? { title: label, 'aria-label': label } : {};
  const target = element('button', { type: 'button', class: className, ...named, ...attributes }, ...children);
  if (onclick) target.addEventListener('click', onclick);
  return target
}

/**
 * Makes an alert. kind: see `classifyError`. text: {cause, advice, details}. node: the node's name. onDismiss is called
 * to take the card away, onShow to go to the node, and onRun to run the workflow again.
 */
function makeErrorCard(kind, text, node, { onDismiss, onShow, onRun }) {
  const title = t(`errors.titles.${kind}`);
  const words = { copy: t('errors.copy'), copied: t('errors.copied') };
  const copyButton = makeButton$1('paralleldit-error-action', '', makeTestId('copy'), null, words.copy);
  copyOnClick(copyButton, () => formatReport(`${title} (${node})`, text), words);
  const card = element(
    'section',
    { class: 'paralleldit-error', role: 'alert', 'data-testid': 'paralleldit-error', 'data-kind': kind },
    element(
      'header',
      {},
      makeIcon('pi-times-circle'),
      element('strong', {}, title),
      makeButton$1('paralleldit-error-close', t('errors.dismiss'), makeTestId('dismiss'), onDismiss, makeIcon('pi-times'))
    ),
    element('p', { class: 'paralleldit-error-cause', ...makeTestId('cause') }, text.cause)
  );
  if (text.advice) {
    const label = element('span', { class: 'paralleldit-error-label' }, t('errors.advice'));
    card.append(element('p', { class: 'paralleldit-error-advice', ...makeTestId('advice') }, label, text.advice));
  }
  if (text.details) {
    card.append(
      element(
        'details',
        makeTestId('details'),
        element('summary', {}, t('errors.details')),
        element('pre', { tabindex: 0 }, text.details)
      )
    );
  }
  card.append(
    element(
      'footer',
      {},
      makeButton$1('paralleldit-error-action paralleldit-error-run', '', makeTestId('run'), onRun, t('errors.run')),
      makeButton$1('paralleldit-error-action paralleldit-error-node', '', {}, onShow, t('errors.show', { node })),
      copyButton
    )
  );
  card.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return
    event.stopPropagation();
    onDismiss();
  });
  return card
}

function makeIcon(name) {
  return element('i', { class: `pi ${name}`, 'aria-hidden': true })
}

// Pure: finds the node of an error and the place of its card on the canvas. Rectangles are {x, y, width, height}.

const GAP$2 = 10;

/**
 * Finds the node of an execution id, such as '6', or '12:5' in a subgraph, in the graph on the screen; null if none.
 */
function findNode(shown, root, id) {
  let graph = root;
  for (const part of String(id).split(':')) {
    const node = graph?.getNodeById(part);
    if (!node || graph === shown) return node ?? null
    graph = node.subgraph;
  }
  return null
}

/**
 * Returns a node's rectangle in the canvas's pixels. scale, offset: the canvas's. titleHeight: in units of the graph.
 */
function getRectangle(node, { scale, offset }, titleHeight) {
  const collapsed = node.flags?.collapsed;
  const width = collapsed ? (node._collapsed_width ?? node.size[0]) : node.size[0];
  const height = titleHeight + (collapsed ? 0 : node.size[1]);
  return {
    x: (node.pos[0] + offset[0]) * scale,
    y: (node.pos[1] - titleHeight + offset[1]) * scale,
    width: width * scale,
    height: height * scale
  }
}

/**
 * Returns the card's upper left corner: next to the node, on the first side with room, and always inside the view.
 *
 * foldedSize: the card's size with folded details. It decides the side, so that unfolding does not move the card to
 * another one. node: null puts the card into the view's lower left corner. covered: rectangles along the view's right
 * edge that would cover the card; the card goes to the left of them.
 */
function placeCard(node, card, foldedSize, view, covered = []) {
  const corner = placeInView(node, card, foldedSize, view);
  const covers = ({ x, y, width, height }) =>
    x < corner.x + card.width && corner.x < x + width && y < corner.y + card.height && corner.y < y + height;
  const left = Math.min(...covered.filter(covers).map(({ x }) => x));
  return left < Infinity ? placeInView(node, card, foldedSize, { ...view, width: left - view.x }) : corner
}

function placeInView(node, card, foldedSize, view) {
  const right = view.x + view.width;
  const bottom = view.y + view.height;
  if (!node) return moveInside({ x: view.x, y: bottom }, card, view)
  const sides = [
    [node.y + node.height + 2 * GAP$2 + foldedSize.height <= bottom, { x: node.x, y: node.y + node.height + GAP$2 }],
    [node.x + node.width + 2 * GAP$2 + foldedSize.width <= right, { x: node.x + node.width + GAP$2, y: node.y }],
    [node.x - 2 * GAP$2 - foldedSize.width >= view.x, { x: node.x - GAP$2 - card.width, y: node.y }],
    [node.y - 2 * GAP$2 - foldedSize.height >= view.y, { x: node.x, y: node.y - GAP$2 - card.height }]
  ];
  const [, corner] = sides.find(([fits]) => fits) ?? sides[0];
  return moveInside(corner, card, view)
}

function moveInside({ x, y }, card, view) {
  const inside = (value, from, size, own) => Math.max(from + GAP$2, Math.min(value, from + size - own - GAP$2));
  return { x: inside(x, view.x, view.width, card.width), y: inside(y, view.y, view.height, card.height) }
}

// One error and its card. The card is shown at its node while the workflow that failed is the open one.


class Notice {
  /** event: the `execution_error`. onDismiss: called to take the card away. */
  constructor(kind, event, onDismiss) {
    this.kind = kind;
    this.event = event;
    this.onDismiss = onDismiss;
    this.card = null; // made when it is first shown, as it has the node's title
    this.onKey = (event) => this.dismissByKey(event);
  }

  /** Puts the card at the node's present place. */
  show() {
    this.card ??= this.makeCard();
    if (!this.card.isConnected) {
      document.addEventListener('keydown', this.onKey);
      app.canvas.canvas.parentElement.append(this.card);
      this.foldedSize ??= measureSize(this.card);
    }
    const node = this.node();
    const at = node ? getRectangle(node, app.canvas.ds, window.LiteGraph.NODE_TITLE_HEIGHT) : null;
    const { x, y } = placeCard(at, measureSize(this.card), this.foldedSize, measureView(), listCovered());
    this.card.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  hide() {
    document.removeEventListener('keydown', this.onKey);
    this.card?.remove();
  }

  makeCard() {
    const name = this.node()?.title ?? this.event.node_type;
    const text = describeError$1(this.event, this.kind);
    return makeErrorCard(this.kind, translateFields(text), name, {
      onDismiss: () => this.dismiss(),
      onShow: () => this.goToNode(),
      onRun: () => app.queuePrompt(0)
    })
  }

  /** Finds the node in the graph on the screen; undefined if the graph lacks it, or now has another node of its id. */
  node() {
    const { node_id: id, node_type: type } = this.event;
    const node = findNode(app.canvas.graph, app.rootGraph, id);
    const inside = String(id).includes(':');
    return node && (inside || node.type === type) ? node : undefined
  }

  /** Shows the node: leaves a subgraph that does not have it, then centres the canvas on it. */
  goToNode() {
    if (!this.node()) app.canvas.setGraph(app.rootGraph);
    if (this.node()) app.canvas.centerOnNode(this.node());
  }

  /** Takes the card away on Escape, unless something else has the focus. */
  dismissByKey(event) {
    const idle = document.activeElement === document.body || document.activeElement === app.canvas.canvas;
    if (event.key === 'Escape' && idle && !event.defaultPrevented) this.dismiss();
  }

  dismiss() {
    const focused = this.card.contains(document.activeElement);
    this.onDismiss();
    if (focused) app.canvas.canvas.focus();
  }
}

const measureSize = (element) => ({ width: element.offsetWidth, height: element.offsetHeight });

/**
 * Returns the part of the canvas that no panel covers, in the canvas's pixels. It starts at the upper edge: what the
 * editor shows there comes and goes.
 */
function measureView() {
  const canvas = app.canvas.canvas.getBoundingClientRect();
  const free = document.querySelector('.graph-canvas-panel')?.getBoundingClientRect() ?? canvas;
  return { x: free.x - canvas.x, y: 0, width: free.width, height: free.bottom - canvas.y }
}

/** Lists the editor's boxes in the canvas's lower right corner, in the canvas's pixels. */
function listCovered() {
  const canvas = app.canvas.canvas.getBoundingClientRect();
  const shown = ['minimap-interaction-overlay', 'zoom-controls-button']
    .map((id) => document.querySelector(`[data-testid="${id}"]`)?.parentElement.getBoundingClientRect())
    .filter((box) => box?.width);
  return shown.map(({ x, y, width, height }) => ({ x: x - canvas.x, y: y - canvas.y, width, height }))
}

// Pure: remembers which workflow each prompt came from. The server does not say that when a prompt fails.

const MOST = 200; // prompts to remember: the end of some is never heard, as of those cleared from the queue
const ANSWER_MS = 5000;

class Origins {
  /** saved: what `toJSON` returned before the page was reloaded. */
  constructor(saved = {}) {
    this.workflows = new Map(); // by the id of a prompt that has not ended
    this.paths = new Map(Object.entries(saved)); // by the id of a prompt from before the reload, its workflow's path
    this.unanswered = new Set();
  }

  /**
   * Notes that this workflow's prompt was sent. answer: a promise of the server's answer, which has the prompt's id.
   */
  noteSent(workflow, answer) {
    const noted = Promise.resolve(answer)
      .then(({ prompt_id: id }) => this.note(id, workflow))
      .catch(() => {}); // the server refused it, so there is no prompt
    this.unanswered.add(noted);
    noted.then(() => this.unanswered.delete(noted));
    return answer
  }

  note(id, workflow) {
    this.workflows.set(id, workflow);
    if (this.workflows.size > MOST) this.workflows.delete(this.workflows.keys().next().value);
  }

  /**
   * Finds the workflow of a prompt; null if it is no longer open. A prompt from elsewhere counts as the active
   * workflow's. A prompt may fail before the answer with its id arrives, so this waits for the answer. A workflow that
   * was renamed after a reload counts as closed.
   */
  async findWorkflow(id, { activeWorkflow, openWorkflows }) {
    if (!this.workflows.has(id)) await this.waitForAnswers();
    const isOrigin = this.workflows.has(id)
      ? (workflow) => workflow === this.workflows.get(id)
      : ({ path }) => path === this.paths.get(id);
    if (!this.workflows.has(id) && !this.paths.has(id)) return activeWorkflow
    return openWorkflows.find(isOrigin) ?? null
  }

  /** Forgets a prompt that has ended, even if the answer with its id has yet to arrive. */
  async forget(id) {
    this.paths.delete(id);
    if (!this.workflows.delete(id)) await this.waitForAnswers();
    this.workflows.delete(id);
  }

  /** Waits until all prompts sent so far are answered, at most ANSWER_MS. */
  waitForAnswers() {
    return Promise.race([Promise.all(this.unanswered), new Promise((done) => setTimeout(done, ANSWER_MS))])
  }

  /** Returns each prompt's workflow path, to be saved while the page is reloaded. */
  toJSON() {
    const paths = [...this.workflows].map(([id, { path }]) => [id, path]);
    return Object.fromEntries([...this.paths, ...paths].slice(-MOST))
  }
}

// Shows an error of this pack at the node that failed, in its workflow. The next press of Run there takes it away.


const PACK = decodeURIComponent(new URL('.', import.meta.url).pathname.split('/').at(-2));
const ORIGINS_KEY = 'paralleldit.origins'; // in the session's storage, while the page is reloaded

class Errors {
  constructor() {
    this.notices = new Map(); // by workflow, the last one
    this.origins = new Origins(readOrigins());
    this.frame = 0;
  }

  listen() {
    const { queuePrompt } = api; // no event carries the id of a prompt that is queued
    api.queuePrompt = (...request) =>
      this.origins.noteSent(app.extensionManager.workflow.activeWorkflow, queuePrompt.apply(api, request));
    window.addEventListener('pagehide', () => saveOrigins(this.origins));
    // The next press of Run takes the card away. The start of another queued prompt does not: it follows at once.
    api.addEventListener('promptQueueing', () => this.drop(app.extensionManager.workflow.activeWorkflow));
    api.addEventListener('execution_success', ({ detail }) => this.origins.forget(detail.prompt_id));
    api.addEventListener('execution_interrupted', ({ detail }) => this.origins.forget(detail.prompt_id));
    api.addEventListener('execution_error', ({ detail }) => this.show(detail));
  }

  async show(event) {
    const workflow = await this.origins.findWorkflow(event.prompt_id, app.extensionManager.workflow);
    this.origins.forget(event.prompt_id);
    const kind = classifyError(event, PACK);
    if (!kind || !workflow) return
    await textsLoaded;
    this.drop(workflow);
    this.notices.set(workflow, new Notice(kind, event, () => this.drop(workflow)));
    this.follow();
  }

  drop(workflow) {
    this.notices.get(workflow)?.hide();
    this.notices.delete(workflow);
  }

  /** In each frame, puts the card of the open workflow at its node, and drops the cards of closed workflows. */
  follow() {
    cancelAnimationFrame(this.frame);
    if (this.notices.size) this.frame = requestAnimationFrame(() => this.follow());
    const { activeWorkflow, openWorkflows } = app.extensionManager.workflow;
    for (const [workflow, notice] of this.notices) {
      if (!openWorkflows.includes(workflow)) this.drop(workflow);
      else if (workflow === activeWorkflow) notice.show();
      else notice.hide();
    }
  }
}

// A browser may forbid a page to store anything. A reload then forgets which workflow each running prompt came from.
function readOrigins() {
  try {
    return JSON.parse(sessionStorage.getItem(ORIGINS_KEY)) ?? {}
  } catch {
    return {}
  }
}

function saveOrigins(origins) {
  try {
    sessionStorage.setItem(ORIGINS_KEY, JSON.stringify(origins));
  } catch {
    /* forbidden */
  }
}

app.registerExtension({
  name: 'ParallelDiT.Errors',
  setup() {
    addStyle(new URL('./errors/card.css', import.meta.url));
    new Errors().listen();
  }
});

// Opens workflows that were saved when the pack's nodes had inputs that are gone.


const FORMER_PLAN = 'ParallelDiT_Plan'; // the editor offers to replace it, and reads its values as Parallelize Model's
const PLACE = 14; // of `group` among the saved values
const inputNames = new WeakMap(); // by node, the names of its inputs

app.registerExtension({
  name: 'ParallelDiT.Former',

  nodeCreated(node) {
    if (!node.comfyClass?.startsWith('ParallelDiT_')) return
    inputNames.set(node, new Set(node.inputs.map(({ name }) => name)));
    if (node.comfyClass !== PARALLELIZE) return
    const { configure } = node;
    node.configure = (saved) => {
      removeFormerValues(saved.widgets_values, true);
      configure.call(node, saved);
    };
  },

  afterConfigureGraph() {
    for (const node of listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes)) {
      if (node.type === FORMER_PLAN) removeFormerValues(node.last_serialization?.widgets_values);
      removeFormerInputs(node);
    }
  }
});

/**
 * Removes the values of inputs that are gone, which have no names: `sparse`, `lossy`, `compare` and `pieces`. In a
 * Parallelize Model they stood before `group`.
 */
function removeFormerValues(values, hasGroup) {
  values?.splice(PLACE, values.length - PLACE - (hasGroup ? 1 : 0));
}

/** Removes inputs that only the file has, and their links. */
function removeFormerInputs(node) {
  const names = inputNames.get(node);
  const former = names ? node.inputs.filter(({ name }) => !names.has(name)) : [];
  for (const input of former) node.removeInput(node.inputs.indexOf(input));
}

// A template's note and its own titles are in the editor's language alone: they bring their translations as a property.


const TRANSLATED = 'paralleldit_translated';

app.registerExtension({
  name: 'ParallelDiT.Notes',

  afterConfigureGraph() {
    for (const node of app.rootGraph.nodes) {
      const known = node.properties?.[TRANSLATED];
      if (!known) continue
      const language = getLanguage();
      const { title, text } = known[language] ?? known[language.split('-')[0]] ?? {};
      if (title) node.title = title;
      if (text) node.widgets[0].value = text;
      delete node.properties[TRANSLATED]; // from now on it is a node like any other
    }
  }
});

// Pure: makes prompts that differ in their plan, and sums up their runs.


const MARK = 'paralleldit_comparison'; // an input that no node reads

/** Returns the ids of a worker group's Parallelize Model nodes in a prompt in API format. */
const findNodes = (prompt, group) =>
  Object.keys(prompt).filter((id) => {
    const { class_type: type, inputs } = prompt[id];
    return type === PARALLELIZE && (inputs.group ?? 1) === group
  });

/** Returns a plan's values as a node has them. values: of a plan in JSON. */
function makeNodeValues({ speeds, ...values }) {
  return { ...values, ...(speeds ? { speeds: speeds.join(', ') } : {}), mode: 'manual' }
}

/**
 * Returns the plans to compare, as values of a node, in the order in which they run: one device; the node's own if it
 * changes the image; and those with the fastest predictions, or auto without a prediction. The fastest is the last, so
 * the ranks keep it. auto, own: the answers of POST /paralleldit/plan about an automatic plan and the node's own; null
 * for none.
 */
function listCandidates(auto, own) {
  const best = (auto?.predicted?.best ?? []).filter((each) => each.fits && !each.is_alone);
  const make = ({ values }) => ({ plans: [values], values: makeNodeValues(values), isAlone: false });
  const lossy = own?.is_lossy ? [{ ...make(own), isLossy: true }] : [];
  const alone = { plans: [{}], values: { mode: 'manual' }, isAlone: true };
  const open = { plans: [], values: { mode: 'auto' }, isAlone: false };
  return [alone, ...lossy, ...(best.length ? best.map(make).reverse() : [open])]
}

/**
 * Returns a copy of the prompt in which these nodes have a plan. mark: a value that differs from prompt to prompt.
 * Without it ComfyUI would reuse the last result instead of running again.
 */
function applyPlan(prompt, nodes, values, mark) {
  const changed = structuredClone(prompt);
  for (const id of nodes) {
    const { model, group } = prompt[id].inputs;
    changed[id].inputs = { model, group, ...values, [MARK]: mark };
  }
  return changed
}

/**
 * Sums up the runs of one prompt, the newest first: the seconds of sampling, those before it, in which ranks started and
 * loaded the model, and the last run's usual step.
 */
function summarizeRuns(runs) {
  const add = (name) => runs.reduce((sum, run) => sum + (run[name] ?? 0), 0);
  const startup = add('startup');
  const isDone = runs.length > 0 && runs.every(({ state }) => state === 'done');
  const [{ id: last, plans, usual: step = null } = {}] = runs;
  return { isDone, last, plans, startup, seconds: add('seconds') - startup, step }
}

/** Puts the rows that have run first, the fastest step first, and marks the fastest exact one. */
function sortRows(rows) {
  const stepOf = ({ state, result }) => (state === 'done' ? (result.step ?? Number.MAX_VALUE) : Infinity);
  const sorted = [...rows].sort((one, other) => stepOf(one) - stepOf(other) || 0);
  const fastest = sorted.find((row) => row.state === 'done' && !row.isLossy);
  return sorted.map((row) => ({ ...row, isFastest: row === fastest }))
}

/** Adds to each row how many times as fast as one device it was; null if either time is unknown. */
function addSpeedups(rows) {
  const alone = rows.find((row) => row.isAlone && row.result?.isDone)?.result.step;
  return rows.map((row) => {
    const isKnown = alone && row.result?.isDone && row.result.step;
    return { ...row, times: isKnown ? alone / row.result.step : null }
  })
}

// Keeps the server's answers about the plans of the open workflow, for views other than the node that asked.


const answers = new WeakMap(); // by node
const listeners$1 = [];

/** Keeps a node's last answer; null for none. */
function noteAnswer(node, answer) {
  answers.set(node, answer);
  for (const listener of listeners$1) listener();
}

/** Calls `listener` after each answer. */
const onAnswer = (listener) => listeners$1.push(listener);

/** Returns the last answer about a node; null or undefined if there is none. */
const findAnswer = (node) => answers.get(node);

/**
 * Returns, by worker group, what is known about its next run in the workflow with this graph: each answer, and the names
 * of the `models` that it is about, in the order in which they run. Answers that lack files are one.
 */
function findNextRuns(root) {
  const groups = new Map();
  for (const node of sortByRun(listGraphs(root).flatMap(({ nodes }) => nodes.filter(isParallelize)))) {
    const { group, model } = findRun$1(node) ?? {};
    const answer = model && answers.get(node);
    if (!answer) continue
    const runs = groups.get(group) ?? [];
    groups.set(group, runs);
    const known = lacksFiles(answer) && runs.find((run) => lacksFiles(run.answer));
    if (!known) {
      runs.push({ answer, models: [model] });
      continue
    }
    known.models.push(model);
    const others = answer.missing.filter((each) => !known.answer.missing.some((file) => file.model === each.model));
    known.answer = { ...known.answer, missing: [...known.answer.missing, ...others] };
  }
  return groups
}

const isParallelize = ({ type }) => type === PARALLELIZE;
const lacksFiles = ({ missing }) => Boolean(missing?.length);

// Sets the height of a node whose content comes and goes, and shows or hides its widgets. Both work whether the editor
// draws nodes on the canvas or as DOM.

const GAP$1 = 4; // LiteGraph leaves this below each widget

/**
 * A node's height: what its widgets need, plus the larger of two: what its content needs, and what a person has added
 * by resizing. The content's height is not saved, so that an answer of the server is no step to undo.
 */
class Height {
  /** content: returns the content's part of the height that the node computes. */
  constructor(node, content) {
    this.node = node;
    this.content = content;
    this.added = 0;
  }

  get ofWidgets() {
    return this.node.computeSize()[1] - this.content()
  }

  /** Calls `act`, which changes the height that the node needs, and then sets the new height. */
  change(act) {
    this.readAdded();
    act();
    this.apply();
  }

  /** Does the same for a node that was just opened. saved: its height in the file. */
  open(saved, act) {
    act();
    this.added = Math.max(0, saved - this.ofWidgets);
    this.apply();
  }

  /** The height to save. */
  get saved() {
    this.readAdded();
    return this.ofWidgets + this.added
  }

  /** Reads how much height a person has added. Where nodes are DOM, the node's height follows its content instead. */
  readAdded() {
    if (window.LiteGraph.vueNodesMode) return
    const rest = this.node.size[1] - this.ofWidgets;
    this.added = rest > this.content() ? rest : Math.min(this.added, this.content());
  }

  apply() {
    const { node } = this;
    node.setSize([node.size[0], this.ofWidgets + Math.max(this.added, this.content())]);
    node.graph?.setDirtyCanvas(true, true);
  }
}

/** Hides these widgets, or shows them. */
function setHidden(node, widgets, hidden) {
  for (const widget of widgets) {
    widget.hidden = hidden;
    widget.options.hidden = hidden;
  }
  // Where nodes are DOM, the editor reads widget options again only when the list of widgets changes its length.
  const all = node.widgets.splice(0);
  node.widgets.push(...all);
}

// A Parallelize Model node shows only its mode, and in manual mode its degrees. Others are advanced. Widgets that its
// mode does not use are hidden, and keep their values.


const DEGREES = ['dp', 'cfg', 'ring', 'ulysses', 'pipefusion'];
const ALWAYS_USED = 'group';

/**
 * Hides the widgets that the node does not use or that are folded, and shows the others. A linked widget stays, since
 * its link needs an end. A hidden one is not advanced: the editor would show a button that reveals nothing.
 */
function showUsedWidgets(node) {
  const auto = isAuto(node);
  const folds = !window.LiteGraph.vueNodesMode && !node.showAdvanced; // the canvas leaves room for what it folds
  const isLinked = ({ name }) => node.inputs?.some((input) => input.widget?.name === name && input.link != null);
  const widgets = node.widgets.filter(({ name, serialize }) => name !== 'mode' && serialize !== false);
  const turned = { true: [], false: [] };
  for (const widget of widgets) {
    const { name } = widget;
    const isUsed = isLinked(widget) || name === ALWAYS_USED || !auto;
    widget.advanced = widget.options.advanced = isUsed && !isLinked(widget) && !DEGREES.includes(name);
    const hidden = !isUsed || (widget.advanced && folds);
    if (Boolean(widget.hidden) !== hidden) turned[hidden].push(widget);
  }
  for (const hidden of [true, false]) if (turned[hidden].length) setHidden(node, turned[hidden], hidden);
}

// Gives Parallelize Model nodes a plan. One undo takes it back.


const ONE_DEVICE = Object.fromEntries(DEGREES.map((axis) => [axis, 1]));

/** Makes a button that uses a plan. */
function makeUseButton(use, words = t('plan.use'), help = t('plan.use_help')) {
  const attributes = { type: 'button', class: 'paralleldit-use', 'data-testid': 'paralleldit-use', title: help };
  const button = element('button', attributes, words);
  button.addEventListener('click', use);
  return button
}

/**
 * Adds buttons to a drawn answer: for the plans that it offers, and for each predicted plan, except one that does not
 * fit, and the plan that a person has chosen. use: takes a plan's values; null for auto.
 */
function addUseButtons(target, answer, use) {
  const buttons = (answer?.offers ?? []).map(({ plan, values }) =>
    values
      ? makeUseButton(() => use(values), t('plan.use_plan', { plan }))
      : makeUseButton(() => use(null), t('plan.use_auto'), t('plan.use_auto_help'))
  );
  const lines = [...target.querySelectorAll('.paralleldit-plan-error, .paralleldit-plan-step, .paralleldit-plan-note')];
  if (buttons.length) lines.at(-1)?.after(element('div', { class: 'paralleldit-plan-offers' }, ...buttons));
  for (const [place, row] of target.querySelectorAll('[data-testid="paralleldit-plan-predicted"] li').entries()) {
    const { fits, values } = answer.predicted.best[place];
    if (!fits || (!answer.is_auto && row.hasAttribute('aria-current'))) continue
    row.append(makeUseButton(() => use(values)));
  }
}

/** Sets a worker group's nodes in the open workflow to a plan. values: of the plan in JSON; {} for one device; null for
 * auto. */
const usePlan = (values, group) =>
  setPlan(
    listGraphs(app.rootGraph).flatMap(({ nodes }) => nodes.filter(isOf(group))),
    values
  );

/** Sets these nodes to a plan. values: as in `usePlan`. */
function setPlan(nodes, values) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
  tracker.beforeChange();
  const chosen = values ? makeNodeValues({ ...ONE_DEVICE, ...values }) : { mode: 'auto' };
  for (const node of nodes) setWidgets(node, chosen);
  app.canvas.setDirty(true, true);
  tracker.afterChange();
}

const isOf = (group) => (node) => node.type === PARALLELIZE && !node.mode && getWidget(node, 'group').value === group;

const getWidget = (node, name) => node.widgets.find((widget) => widget.name === name);

/** Gives a node that has just become manual the plan that auto had for it, unless a person has set its degrees. */
function takeAutoPlan(node) {
  const { is_auto: wasAuto, values } = findAnswer(node) ?? {};
  const isSet = Object.keys(ONE_DEVICE).some((axis) => getWidget(node, axis).value !== 1);
  if (isAuto(node) || !wasAuto || !values || isSet) return
  const { mode, ...others } = makeNodeValues(values);
  setWidgets(node, others);
}

function setWidgets(node, values) {
  for (const [name, value] of Object.entries(values)) {
    const widget = getWidget(node, name);
    if (!widget) continue
    widget.value = value;
    widget.callback?.(value, app.canvas, node);
  }
}

// Changes elements in place instead of making them anew, so that focus, selection and scroll position stay.


/** Sets an element's text, if it differs. */
function setText(target, words) {
  if (target.textContent !== words) target.textContent = words;
}

/** Sets an attribute, if it differs; null removes it. */
function setAttribute(target, name, value) {
  if (value === null) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

/** Shows an element, or hides it. */
function setShown(target, yes) {
  target.hidden = !yes;
}

/**
 * Keeps one child element for each item of a list: makes it once for the item's key, updates, orders and removes it.
 */
class Children {
  /** make: takes an item and returns an object with `element` and `update(item)`. */
  constructor(parent, keyOf, make) {
    this.parent = parent;
    this.keyOf = keyOf;
    this.make = make;
    this.views = new Map();
  }

  update(items) {
    const gone = new Set(this.views.keys());
    items.forEach((item, at) => {
      const key = this.keyOf(item);
      gone.delete(key);
      if (!this.views.has(key)) this.views.set(key, this.make(item));
      const view = this.views.get(key);
      const there = this.parent.children[at];
      if (there !== view.element) this.parent.insertBefore(view.element, there ?? null);
      view.update(item);
    });
    for (const key of gone) {
      this.views.get(key).element.remove();
      this.views.delete(key);
    }
  }
}

let lastId = 0;

/** Makes a unique id for `aria-labelledby` and `for`. */
const makeId = (name) => `paralleldit-${name}-${++lastId}`;

/** Makes a part of the panel that folds. `aside` is for a few words next to its heading. */
function makeFold(title, open, ...children) {
  const aside = element('span', { class: 'paralleldit-aside' });
  const summary = element('summary', {}, element('h4', {}, title), aside);
  const details = element('details', { class: 'paralleldit-fold', ...(open ? { open: '' } : {}) }, summary, ...children);
  return { element: details, aside }
}

// Pure: formats numbers, names and plans for the panel.

const MEBIBYTE = 2 ** 20;
const GIBIBYTE = 2 ** 30;
// The fields of a plan that are no degrees. All others are degrees, the outermost axis first.
const NO_AXES = [
  'patches',
  'sync_steps',
  'attention',
  'compile',
  'exchange_dtype',
  'balance',
  'weights',
  'weight_blocks',
  'speeds'
];

/** Formats bytes: "412 MiB", "1.2 GiB", "128 GiB". */
function formatBytes(count) {
  if (count < GIBIBYTE) return `${Math.round(count / MEBIBYTE)} MiB`
  const gibibytes = count / GIBIBYTE;
  return `${gibibytes.toFixed(gibibytes < 100 ? 1 : 0)} GiB`
}

/**
 * Formats "20.5 of 23.6 GiB", "812 MiB of 15.6 GiB": one unit stands only once. say: makes the words from the two
 * texts.
 */
function formatBytesOf(used, total, say) {
  const [[amount, unit], [, whole]] = [formatBytes(used), formatBytes(total)].map((words) => words.split(' '));
  return say(unit === whole ? amount : `${amount} ${unit}`, formatBytes(total))
}

// Words in a card's name that do not tell cards of one machine apart.
const OF_THE_MAKER = /\((R|TM)\)|\b(NVIDIA|GeForce|AMD|Radeon|Intel|Tesla|Graphics|Generation)\b/g;

/** Shortens "NVIDIA GeForce RTX 4090" to "RTX 4090". */
const shortenCardName = (name) => name.replace(OF_THE_MAKER, '').replace(/\s+/g, ' ').trim() || name;

/** Formats seconds: "3 ms", "0.42 s", "6 s", "12.3 s", "2 min 5 s". Who counts whole seconds rounds them up before. */
function formatSeconds(count) {
  if (count < 0.0995) return `${Math.round(count * 1000)} ms`
  const rounded = Number(count.toFixed(count < 10 ? 2 : 1));
  if (rounded < 60) return `${rounded} s`
  const whole = Math.round(count);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`
}

/** Formats a share: "18%". */
const formatPercent = (share) => `${Math.round(share * 100)}%`;

const OF_24_HOURS = { hourCycle: 'h23' };

/** Formats a time in the browser's time zone, as the language writes it: "15:04:05". */
const formatTime = (date, language) => date.toLocaleTimeString(language, OF_24_HOURS);

/** Formats a time with its date. */
const formatDateAndTime = (date, language) => date.toLocaleString(language, OF_24_HOURS);

/** Returns the last part of a path with slashes or backslashes. */
const getFileName = (path) => path.split(/[\\/]/).pop();

/** Returns communication's share of a run's steps. steps: each [seconds, its communication seconds]. */
function computeShare(steps) {
  const sum = (column) => steps.reduce((total, step) => total + step[column], 0);
  return sum(0) > 0 ? sum(1) / sum(0) : 0
}

/** Formats a speedup: "0.04", "1.8", "12". */
const formatSpeedup = (factor) => factor.toFixed(factor < 0.095 ? 2 : factor < 9.95 ? 1 : 0);

/** Formats speeds relative to the fastest: "1:0.5". */
const formatSpeeds = (speeds) => speeds.map((speed) => Number((speed / Math.max(...speeds)).toPrecision(3))).join(':');

/** Returns how many ranks a plan uses. */
const countRanks = (plan) =>
  Object.keys(plan).reduce((ranks, name) => (NO_AXES.includes(name) ? ranks : ranks * plan[name]), 1);

/** Describes a plan, with the field names of its Python class. t: finds the texts. */
function describePlan(plan, t) {
  const axes = Object.keys(plan).filter((name) => !NO_AXES.includes(name) && plan[name] > 1);
  const parts = axes.map((axis) => `${axis}=${plan[axis]}`);
  const patches = plan.patches || plan.pipefusion || 1;
  if (patches > 1) parts.push(t('panel.planPatches', { patches, steps: plan.sync_steps }));
  if (plan.pipefusion > 1 && plan.balance === 'memory') parts.push(t('panel.planByMemory'));
  if (plan.attention && plan.attention !== 'auto') parts.push(t('panel.planAttention', { name: plan.attention }));
  if (plan.weights && plan.weights !== 'auto') {
    const key = plan.weight_blocks ? 'panel.planWeightsOf' : 'panel.planWeights';
    parts.push(t(key, { name: plan.weights, blocks: plan.weight_blocks }));
  }
  if (plan.compile && plan.compile !== 'off') parts.push(t(`panel.planCompiled.${plan.compile}`));
  if (plan.exchange_dtype && plan.exchange_dtype !== 'model')
    parts.push(t('panel.planExchange', { name: plan.exchange_dtype }));
  if (plan.speeds?.length) parts.push(t('panel.planSpeeds', { speeds: formatSpeeds(plan.speeds) }));
  return parts.join(' × ') || t('panel.planOneRank')
}

/** Describes a run's plans, in order; "auto" before one is chosen. */
const describePlans = (plans, t) => plans.map((plan) => describePlan(plan, t)).join(', ') || 'auto';

// Runs the open workflow once under each of a few plans, one after the other, through ComfyUI's queue.


class Comparison {
  /**
   * queue: see queue.mjs. host: asks the page and its server. `prompt()` returns the open workflow as a prompt,
   * `about(id)` the open workflow's name and what is drawn with the node of that id, `answers(id)` what POST
   * /paralleldit/plan says about an automatic plan there and about its own, `runs(group)` the runs that the server keeps,
   * `error(group, run, exact)` the relative error of a run against an exact one, or null; `state(group)` returns the
   * group's state, and `restore(group, state)` brings it back. onChange: called after `rows`, `isRunning` or `problem`
   * changed.
   */
  constructor(queue, host, onChange) {
    this.queue = queue;
    this.host = host;
    this.onChange = onChange;
    // each {plans, isAlone, isLossy, isFastest, state: waiting, running, done, failed or leftOut, result, times, error}
    this.rows = [];
    this.isRunning = this.isCancelled = false;
    this.problem = '';
    this.about = null; // {workflow, picture}, once it runs
  }

  /** group: the worker group's number. noNode: the problem to show if the workflow has no node of this group. */
  async run(group, noNode) {
    if (this.isRunning) return
    this.set({ isRunning: true, isCancelled: false, problem: '', rows: [] });
    let before = null;
    try {
      before = await this.host.state(group);
      const { output, workflow } = await this.host.prompt();
      const nodes = findNodes(output, group);
      if (!nodes.length) throw new Error(noNode)
      const last = nodes.at(-1); // of two in a row, the one whose plan counts
      this.set({ about: this.host.about(last) });
      const plans = listCandidates(...(await this.host.answers(last)));
      this.set({ rows: plans.map((plan) => ({ ...plan, state: 'waiting', result: null, times: null })) });
      for (const [at, { values }] of plans.entries()) {
        this.change(at, { state: 'running' });
        const end = await this.runOne(group, at, {
          output: applyPlan(output, nodes, values, `${Date.now()}`),
          workflow
        });
        if (this.isCancelled || !['success', 'error'].includes(end)) break
      }
    } catch (error) {
      this.set({ problem: error.response ? String(error) : error.message }); // a refused prompt has several errors
    } finally {
      const rows = this.rows.map((row) =>
        ['waiting', 'running'].includes(row.state) ? { ...row, state: 'leftOut' } : row
      );
      if (rows.some(({ state }) => state !== 'leftOut')) await this.host.restore(group, before);
      this.set({ rows: sortRows(rows), isRunning: false });
    }
  }

  /** Ends the comparison: interrupts the prompt that runs, and leaves out the others. */
  cancel() {
    this.isCancelled = true;
    return this.queue.cancel()
  }

  /** Runs one prompt and returns how it ended. */
  async runOne(group, at, prompt) {
    const { end, from, to } = await this.queue.run(prompt);
    const runs = await this.host.runs(group);
    const found = summarizeRuns(runs.filter(({ began }) => from <= 1000 * began && 1000 * began <= to));
    const state = end === 'success' && found.isDone ? 'done' : ['success', 'error'].includes(end) ? 'failed' : 'leftOut';
    const exact = this.rows.findLast((row) => row.state === 'done' && !row.isLossy);
    const isKnown = state === 'done' && this.rows[at].isLossy && exact;
    const error = isKnown ? await this.host.error(group, found.last, exact.result.last) : null;
    this.change(at, { state, result: found, error });
    return end
  }

  change(at, values) {
    this.set({ rows: addSpeedups(this.rows.map((row, place) => (place === at ? { ...row, ...values } : row))) });
  }

  set(values) {
    Object.assign(this, values);
    this.onChange();
  }
}

// Sends POST /paralleldit/plan. A server of another version may lack this route.


const NO_ROUTE = 404;

let hasRoute = true;

/** Returns whether the server may have the route. */
const hasPlanRoute = () => hasRoute;

/** Tries the route again: the server may have been replaced by one that has it. */
function retryPlanRoute() {
  hasRoute = true;
}

/** Returns the server's answer about a plan. Throws an Error that says why there is none. */
async function askServer(question) {
  const response = await api.fetchApi('/paralleldit/plan', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(question)
  });
  if (response.ok) return response.json()
  hasRoute = response.status !== NO_ROUTE;
  throw new Error(hasRoute ? await response.text() : `HTTP ${NO_ROUTE}`)
}

// Answers a comparison's questions to the editor's page and to the server.


const AUTO = { mode: 'auto' };
const TO_STATE = { stopped: 'stop', parked: 'park' }; // what brings a ready group back to this state

/** Returns the `host` of a Comparison. app, api: the editor's. */
function makeHost(app, api) {
  const readGroup = async (group) => {
    const { groups } = await (await api.fetchApi('/paralleldit/groups')).json();
    return groups.find((each) => each.group === group)
  };
  return {
    prompt: () => app.graphToPrompt(),
    about: (id) => {
      const { samplers = [] } = makeQuestion(findNode$1(app.rootGraph, id), AUTO).question ?? {};
      const { picture } = samplers.find((sampler) => sampler.picture) ?? {};
      return { workflow: app.extensionManager.workflow.activeWorkflow.filename, picture: picture ?? null }
    },
    answers: (id) => {
      const node = findNode$1(app.rootGraph, id);
      const questions = [makeQuestion(node, AUTO), makeQuestion(node)];
      return Promise.all(questions.map(({ question }) => question && askServer(question)))
    },
    async error(group, run, exact) {
      const answer = await api.fetchApi(`/paralleldit/error?group=${group}&run=${run}&exact=${exact}`);
      return (await answer.json()).error
    },
    runs: async (group) => (await readGroup(group))?.runs ?? [],
    state: async (group) => (await readGroup(group))?.status.state ?? 'stopped',
    async restore(group, state) {
      const action = TO_STATE[state];
      if (action) await api.fetchApi(`/paralleldit/${action}?group=${group}`, { method: 'POST' });
    }
  }
}

// Queues prompts and waits until they have ended, or until somebody has removed them from the queue.

const START = 'execution_start';
const ENDS$1 = { execution_success: 'success', execution_error: 'error', execution_interrupted: 'interrupted' };
const WAKING = ['status', 'reconnected']; // the server sends a status whenever the length of its queue changes

class Queue {
  /** api: the editor's. */
  constructor(api) {
    this.api = api;
    this.id = null; // of the prompt that it waits for
  }

  /**
   * Queues a prompt, waits for it, and returns how it ended, see `readEnd`. Throws if the server refuses the prompt.
   */
  async run(prompt) {
    let resolveNext = () => {};
    const wake = () => resolveNext();
    for (const event of WAKING) this.api.addEventListener(event, wake);
    try {
      const { prompt_id: id } = await this.api.queuePrompt(0, prompt);
      this.id = id;
      for (;;) {
        const next = new Promise((resolve) => {
          resolveNext = resolve;
        });
        if (!(await this.isQueued(id))) return await this.readEnd(id)
        await next;
      }
    } finally {
      for (const event of WAKING) this.api.removeEventListener(event, wake);
    }
  }

  /** Takes the prompt out of the queue, or interrupts it. */
  async cancel() {
    const post = (path, body) => this.api.fetchApi(path, { method: 'POST', body: JSON.stringify(body) });
    await post('/queue', { delete: [this.id] });
    await post('/interrupt', { prompt_id: this.id });
  }

  /** Returns whether a prompt waits or runs. */
  async isQueued(id) {
    const { queue_running: running, queue_pending: pending } = await (await this.api.fetchApi('/queue')).json();
    return [...running, ...pending].some(([, each]) => each === id)
  }

  /**
   * Reads from the history how a prompt ended. end: success, error, interrupted, or gone if it never ran. from, to:
   * when it ran, in milliseconds since the epoch.
   */
  async readEnd(id) {
    const { [id]: entry } = await (await this.api.fetchApi(`/history/${id}`)).json();
    const messages = entry?.status?.messages ?? [];
    const at = (names) => messages.findLast(([name]) => names.includes(name)) ?? [];
    const [name, last] = at(Object.keys(ENDS$1));
    return { end: ENDS$1[name] ?? 'gone', from: at([START])[1]?.timestamp ?? 0, to: last?.timestamp ?? 0 }
  }
}

// The button that compares plans, and the table of their times. Each workflow has a table of its own, shown while it is
// open.


/** Makes the view of comparisons of the open workflow. app, api: the editor's. */
function makeComparisonView(app, api) {
  const make = (onChange) => new Comparison(new Queue(api), makeHost(app, api), onChange);
  return new ComparisonView(make, () => app.extensionManager.workflow.activeWorkflow)
}

const COLUMNS = ['plan', 'step', 'times', 'seconds'];

class ComparisonView {
  /** make: makes a Comparison that calls a function after each change. getWorkflow: returns the open workflow. */
  constructor(make, getWorkflow) {
    this.make = make;
    this.getWorkflow = getWorkflow;
    this.comparisons = new WeakMap(); // by workflow
    this.running = null;
    const attributes = { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-compare' };
    this.button = element('button', { ...attributes, title: t('panel.compare.help') }, t('panel.compare.start'));
    this.button.addEventListener('click', () => this.compare());
    this.progress = element('span', { role: 'status' });
    this.cancel = element('button', { type: 'button', class: 'paralleldit-small' }, t('panel.compare.cancel'));
    setAttribute(this.cancel, 'data-testid', 'paralleldit-compare-cancel');
    this.cancel.addEventListener('click', () => this.running?.cancel());
    this.job = element('div', { class: 'paralleldit-line' }, this.progress, this.cancel);
    this.problem = element('p', { class: 'paralleldit-notice paralleldit-bad', role: 'alert' });
    this.about = element('caption', { class: 'paralleldit-quiet' });
    this.body = element('tbody');
    const heads = COLUMNS.map((column) => element('th', { scope: 'col' }, t(`panel.compare.${column}`)));
    const head = element('thead', {}, element('tr', {}, ...heads, element('td')));
    const table = { class: 'paralleldit-table', 'data-testid': 'paralleldit-comparison' };
    this.table = element('table', table, this.about, head, this.body);
    this.element = element('div', {}, this.job, this.problem, this.table);
    this.draw();
  }

  /** group: the worker group's number. */
  update(group) {
    this.group = group;
    if (this.drawn !== this.getWorkflow()) this.draw();
  }

  async compare() {
    const workflow = this.getWorkflow();
    const comparison = this.comparisons.get(workflow) ?? this.make(() => this.draw());
    this.comparisons.set(workflow, comparison);
    this.running = comparison;
    try {
      await comparison.run(this.group, t('panel.compare.noNode'));
    } finally {
      this.running = null;
      this.draw();
    }
  }

  draw() {
    this.drawn = this.getWorkflow();
    const { problem = '', rows = [], about = null } = this.comparisons.get(this.drawn) ?? {};
    setAttribute(this.button, 'aria-busy', this.running ? 'true' : null);
    setShown(this.job, this.running);
    const at = (this.running?.rows ?? []).findIndex(({ state }) => state === 'running') + 1;
    setText(this.progress, at ? t('panel.compare.progress', { at, of: this.running.rows.length }) : '');
    this.button.disabled = Boolean(this.running);
    setText(this.problem, problem);
    setShown(this.problem, problem);
    setShown(this.table, rows.length);
    setText(this.about, about ? describeAbout(about) : '');
    this.body.replaceChildren(...rows.map((row) => makeRow(row, this.group)));
  }
}

/** Says what was compared: "flux · 1024 × 1024 · batch of 2". */
function describeAbout({ workflow, picture }) {
  const { width, height, length = 1, batch_size: images = 1 } = picture ?? {};
  const size = picture && [width, height, ...(length > 1 ? [length] : [])].join(' × ');
  return [workflow, size, images > 1 && t('panel.compare.images', { images })].filter(Boolean).join(' · ')
}

/** Says how far a plan's latents are from an exact one's: "error 2.4%". '' if that is not known. */
const describeError = (error) =>
  (error ?? null) === null ? '' : t('panel.compare.error', { error: `${(100 * error).toPrecision(2)}%` });

function makeRow({ plans, values, isAlone, isFastest, state, result, times: factor, error }, group) {
  const name = isAlone ? t('panel.compare.alone') : describePlans(result?.plans ?? plans, t);
  const isDone = state === 'done';
  const cells = [
    isDone && result.step !== null ? formatSeconds(result.step) : '',
    [factor && `${formatSpeedup(factor)}×`, describeError(error)].filter(Boolean).join(', '),
    isDone ? formatSeconds(result.seconds) : t(`panel.compare.state.${state}`)
  ].map((words) => element('td', {}, words));
  if (isDone) cells.at(-1).title = t('panel.compare.startup', { seconds: formatSeconds(result.startup) });
  const head = element('th', { scope: 'row' }, name);
  if (isFastest) head.append(' ', element('span', { class: 'paralleldit-fastest' }, t('panel.compare.fastest')));
  const use = element('td', {}, ...(values.mode === 'manual' ? [makeUseButton(() => usePlan(plans[0], group))] : []));
  return element('tr', { 'data-state': state }, head, ...cells, use)
}

// Sends the server what a button asks for. While a job runs, it asks the person first. It shows a refusal as a toast.


const TRACE_FILE = 'paralleldit-trace.json';
const ENDS_A_JOB = ['stop', 'restart', 'park'];

class Actions {
  /** app, api: the editor's. onChange: called when a request begins or ends; with true if the server has other groups. */
  constructor(app, api, onChange) {
    this.app = app;
    this.api = api;
    this.onChange = onChange;
    this.pending = new Set();
    this.stops = 0;
  }

  /** Returns whether the server has yet to answer this action of this group. */
  isPending(action, number) {
    return this.pending.has(`${action} ${number}`)
  }

  /** isBusy: whether a job runs. */
  async run(action, number, isBusy) {
    if (isBusy && ENDS_A_JOB.includes(action) && !(await this.confirm(action))) return
    if (this.isPending(action, number)) return
    if (action === 'stop') this.stops++;
    const stops = this.stops;
    this.pending.add(`${action} ${number}`);
    this.onChange();
    try {
      const response = await this.api.fetchApi(`/paralleldit/${action}?group=${number}`, { method: 'POST' });
      const wasStopped = action !== 'stop' && stops !== this.stops; // the person knows why it failed
      if (!response.ok && !wasStopped) this.showError(action, summarizeError(await response.text()));
    } catch (error) {
      this.showError(action, error.message);
    } finally {
      this.pending.delete(`${action} ${number}`);
      this.onChange(action === 'remove');
    }
  }

  /** Saves the ranks' timeline as a file, for Perfetto. */
  async saveTrace(number) {
    try {
      const response = await this.api.fetchApi(`/paralleldit/trace?group=${number}`);
      if (!response.ok) return this.showError('trace', summarizeError(await response.text()))
      const url = URL.createObjectURL(await response.blob());
      element('a', { href: url, download: TRACE_FILE }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      this.showError('trace', error.message);
    }
  }

  confirm(action) {
    const words = { title: t(`panel.confirm.${action}.title`), message: t(`panel.confirm.${action}.message`) };
    return this.app.extensionManager.dialog.confirm({ ...words, type: 'default' })
  }

  showError(action, detail) {
    this.app.extensionManager.toast.add({ severity: 'error', summary: t(`panel.refused.${action}`), detail });
  }
}

// Pure: the lines of a rank's log.

/** Returns the lines of a text. */
const splitLines = (text) => (text ? text.replace(/\n$/, '').split('\n') : []);

const PREFIX = /^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d{3} rank \d+ (INFO )?/;

/** Returns a line without its date and rank, which the panel shows beside it: "18:52:59 message". */
const shortenLine = (line) => line.replace(PREFIX, '$1 ');

// Pure: the panel's model of the worker groups. The answer of GET /paralleldit/groups and the events after it change
// it. Each function returns a new model and does not change its argument.


const RUNS = 10; // of a group are kept, as on the server
const SILENT_SECONDS = 3; // a rank gives four signs of life a second

const ALIVE = ['starting', 'ready', 'busy', 'cancelling', 'parked', 'restarting'];
const STOPPED = { state: 'stopped', deaths: 0, last_death: null, remarks: [] };

/** Returns the model of a page that has no answer yet. */
const createModel = () => ({ loaded: false, problem: '', connected: true, device: '', devices: 0, groups: [] });

const createGroup = (number) => ({ number, status: STOPPED, runs: [], logs: {} });

/** Applies the answer of GET /paralleldit/groups. Open logs must be read again after it. */
function applyAnswer(model, answer) {
  const groups = answer.groups.map(({ group: number, status, runs }) => ({ ...createGroup(number), status, runs }));
  return {
    ...model,
    loaded: true,
    problem: '',
    connected: true,
    device: answer.device,
    devices: answer.devices,
    groups: groups.length ? groups : [createGroup(1)]
  }
}

/** Applies an event `paralleldit.group`. */
function applyEvent(model, { group: number, status, runs }) {
  return changeGroup(model, number, (old) => ({
    ...old,
    status,
    runs: (runs ?? []).reduce(addRun$1, old.runs)
  }))
}

/** Whether a rank's log is to be read: it never was, or the group has changed since. */
function isLogOld(model, number, rank) {
  const group = model.groups.find((each) => each.number === number);
  const log = group?.logs[rank];
  return Boolean(group) && !log?.isReading && log?.status !== group.status
}

/** Notes that a rank's log is being read. Its lines stay until then. */
const openLog = (model, number, rank) =>
  changeLog(model, number, rank, (group) => ({ isReading: true, status: group.status }));

/** Applies the answer of GET /paralleldit/logs for a rank; null if there was none. */
const applyLog = (model, number, rank, text) =>
  changeLog(model, number, rank, () => ({ isReading: false, ...(text === null ? {} : { lines: splitLines(text) }) }));

const changeLog = (model, number, rank, change) =>
  changeGroup(model, number, (old) => {
    const log = { lines: [], ...old.logs[rank], ...change(old) };
    return { ...old, logs: { ...old.logs, [rank]: log } }
  });

function changeGroup(model, number, change) {
  const old = model.groups.find((each) => each.number === number) ?? createGroup(number);
  const others = model.groups.filter((each) => each.number !== number);
  return { ...model, groups: [...others, change(old)].sort((a, b) => a.number - b.number) }
}

function addRun$1(runs, run) {
  const others = runs.filter(({ id }) => id !== run.id);
  return [run, ...others].sort((a, b) => b.id - a.id).slice(0, RUNS)
}

/** Returns the running run, or null. */
const findRunning = ({ runs }) => (runs[0]?.state === 'running' ? runs[0] : null);

/**
 * Returns the group's state. A run that sends its forwards one by one counts as busy between them, too. A cancelled run
 * does not count as busy, though the ranks still finish its last request.
 */
function getState(group) {
  const { state, given_up: isGivenUp } = group.status;
  if (state === 'busy' && isGivenUp && !findRunning(group)) return 'cancelling'
  return state === 'ready' && findRunning(group) ? 'busy' : state
}

/** Returns the job's progress { at, of }; `of` is null if unknown. Null for a job without steps. */
function getStep(group) {
  const run = findRunning(group);
  if (group.status.step) return { at: group.status.step[0], of: group.status.step[1] }
  if (run?.total) return { at: run.at, of: run.total }
  return run?.made ? { at: run.made, of: null } : null
}

/** Returns how many percent of its weights the slowest rank has read; null if no rank reports it. */
function getReadPercent({ memory = [] }) {
  const shares = memory.map(({ read }) => read).filter((read) => read !== undefined);
  return shares.length ? Math.min(...shares) : null
}

/**
 * Lists the running ranks. Memory is in bytes; `placed` is the part of the weights on the device. `silent` is the
 * seconds since the last sign of life if they are too many, else 0. busy (percent), celsius: null if the driver does not
 * tell. index, name: of the rank's device. isSame: whether another rank's device has the same index, as on another
 * machine.
 */
function listRanks({ status }) {
  const { pids = [], memory = [], beats = [], devices = [], device } = status;
  const indexes = devices.map(({ index }) => index);
  return pids.map((pid, rank) => {
    const held = memory[rank] ?? {};
    const { resident = 0, accelerator = 0, total = 0, weights = 0, resident_weights = 0 } = held;
    const { busy = null, celsius = null } = held;
    const silent = beats[rank] > SILENT_SECONDS ? beats[rank] : 0;
    const [used, placed] = device === 'cpu' ? [resident, weights] : [accelerator, resident_weights];
    const { index = null, name = '' } = devices[rank] ?? {};
    const isSame = index === null || indexes.indexOf(index) !== indexes.lastIndexOf(index);
    return { rank, pid, device, index, name, isSame, used, total, weights, placed, silent, busy, celsius }
  })
}

/**
 * Returns which buttons can be used. A failed group can be restarted, not started: only that resets its count of
 * deaths.
 */
function listActions(group) {
  const state = getState(group);
  return {
    start: state === 'stopped',
    stop: ALIVE.includes(state),
    restart: state !== 'stopped' && state !== 'starting',
    park: ['busy', 'cancelling'].includes(state) || (state === 'ready' && Boolean(group.status.model))
  }
}

/** Returns whether the reason of the last end can be dismissed. A group that is down keeps showing it. */
const isDismissible = (group) => !['failed', 'restarting'].includes(getState(group));

/** Returns whether the group can be taken out of the list. The first stays. */
const isRemovable = (group) => group.number !== 1 && getState(group) === 'stopped';

/** Returns whether there are logs to read. A group that never started has none. */
function hasLogs({ status, runs }) {
  const started = status.pids || status.state === 'starting';
  return Boolean(started || status.deaths || status.last_death || runs.length)
}

/** Returns the badge of the tab's icon: whether any group has failed, or else any is busy. */
function getBadge({ groups }) {
  const states = groups.map(getState);
  if (states.includes('failed')) return '!'
  return states.some((state) => ['busy', 'cancelling'].includes(state)) ? '•' : ''
}

// Pure: limits how often a function is called.

/**
 * Returns a function that calls `act` at most once in `pause` milliseconds: at once if it can, else at the end of the
 * pause, once for all calls until then. clock: `now()` returns milliseconds; `wait(act, milliseconds)` calls `act`
 * after that time.
 */
function throttle(act, pause, clock) {
  let last = Number.NEGATIVE_INFINITY;
  let isDue = false;
  function actNow() {
    isDue = false;
    last = clock.now();
    act();
  }
  return () => {
    if (isDue) return
    const wait = last + pause - clock.now();
    if (wait <= 0) return actNow()
    isDue = true;
    clock.wait(actNow, wait);
  }
}

// Pure: makes the drawing of a plan, and its description in words, from the server's answer.


const COMPACT_ABOVE = 16;
const MOST_COLUMNS = 4;

/**
 * Nests the ranks: shares of the batch contain the pipeline's stages, and these contain the ranks.
 * A group's rows and a cell's tokens and heads are [start, stop] fractions; heads are null if they are not shared.
 */
function groupRanks({ ranks, memory }) {
  const oneOf = ([index, count]) => (count > 1 ? [index + 1, count] : null);
  const groups = [];
  for (const rank of ranks) {
    const [[batch], [stage]] = [rank.share, rank.stage];
    groups[batch] ??= { share: oneOf(rank.share), rows: rank.rows, branch: rank.branch, stages: [] };
    groups[batch].stages[stage] ??= { stage: oneOf(rank.stage), blocks: rank.blocks, cells: [] };
    groups[batch].stages[stage].cells.push({
      rank: rank.rank,
      card: rank.card,
      kept: memory?.kept[stage] ?? memory?.kept[0],
      tokens: rank.tokens,
      heads: rank.head_share,
      headRange: rank.heads
    });
  }
  return groups
}

/** Returns a group's caption; '' if there is only one group. say: `t`. */
function captionGroup(group, say) {
  if (group.branch) return say(`plan.${group.branch}`)
  if (!group.share) return ''
  const [[index, of], [start, stop]] = [group.share, group.rows];
  if (Math.abs((stop - start) * of - 1) < 1e-6) return say('plan.batch', { index, of })
  return say('plan.batch_by_speed', { index, of, percent: Math.round((stop - start) * 100) })
}

/** Returns a stage's caption: its blocks, or its number if the model is not known. */
function captionStage(stage, say) {
  if (!stage.stage) return ''
  const [first, last] = stage.blocks ?? [];
  if (first === last && stage.blocks) return say('plan.block', { first })
  if (stage.blocks) return say('plan.blocks', { first, last })
  return say('plan.stage', { index: stage.stage[0], of: stage.stage[1] })
}

/** Returns the number of columns for so many boxes, if possible one that fills all rows. */
function countColumns(count, most = MOST_COLUMNS) {
  if (count <= most) return count
  for (let columns = most; columns > 1; columns--) if (count % columns === 0) return columns
  return most
}

/** Names a rank's device in a word or two; '' for one of another machine. device: the answer's. */
function labelDevice(cell, device, say) {
  if (cell.card) return say('plan.gpu', { index: cell.card.index })
  return device === 'cpu' ? say('plan.cpu') : ''
}

/** Describes where a rank runs and what it holds. */
function describeCell(cell, group, stage, device, say) {
  const parts = [captionGroup(group, say), captionStage(stage, say), describeTokens(cell.tokens, say)];
  if (cell.heads && cell.headRange) {
    const [first, last] = cell.headRange;
    parts.push(first === last ? say('plan.head', { first }) : say('plan.heads_of', { first, last }));
  }
  if (cell.kept !== undefined) parts.push(say('plan.keeps', { size: formatBytes(cell.kept) }));
  const holds = parts.filter(Boolean).join(', ');
  const named = cell.card
    ? say('plan.gpus_named', { indices: cell.card.index, name: cell.card.name })
    : labelDevice(cell, device, say);
  return say(named ? 'plan.rank_on' : 'plan.rank', { rank: cell.rank, device: named, holds })
}

/** Describes the whole drawing. Above sixteen ranks it also counts the groups of each kind. */
function describeMesh(groups, world, say) {
  const count = say(world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: world });
  const drawn = groups.flatMap((group) => group.stages.flatMap((stage) => stage.cells)).length;
  if (drawn <= COMPACT_ABOVE) return count
  const each = groups[0].stages[0].cells.length;
  return `${count}: ${say('plan.summary', { shares: groups.length, stages: groups[0].stages.length, each })}`
}

/** Returns the plan in one line: "Automatic plan: 2 GPUs, ulysses=2". While auto tries plans, it says which this is. */
function describeTitle({ plan, world, device, is_auto: isAuto, tried }, say) {
  const kind = `plan.line.${device === 'cpu' ? 'cpu' : 'gpu'}${world === 1 ? '' : 's'}`;
  const [at, of] = tried ?? [];
  const which = at ? say('plan.trying', { plan: world > 1 ? plan : say(kind, { count: 1 }), at, of }) : plan;
  const words = [world > 1 || !at ? say(kind, { count: world }) : '', world > 1 || at ? which : ''];
  const line = words.filter(Boolean).join(say('plan.comma'));
  return isAuto ? say('plan.automatic', { words: line }) : line
}

/** Returns a remark in the editor's language, or in the server's words if it is not translated. */
function describeRemark(remark, say) {
  const path = `plan.remarks.${remark.key}`;
  const words = say(path, remark.values);
  return words === path ? remark.text : words
}

function describeTokens(tokens, say) {
  const share = tokens.reduce((sum, [start, stop]) => sum + stop - start, 0);
  if (share > 0.999) return say('plan.all_tokens')
  if (tokens.length > 1)
    return say('plan.tokens_of_patches', { percent: formatRange(0, share), patches: tokens.length })
  return say('plan.tokens_of', { percent: formatRange(...tokens[0]) })
}

function formatRange(start, stop) {
  const rounded = (value) => Math.round(value * 100);
  return start === 0 ? `0–${rounded(stop)}` : `${rounded(start)}–${rounded(stop)}`
}

// Pure: says in one line whether a plan fits, and what would fit instead, from the server's answer.


/**
 * Says what the plan needs where the least memory is left: the line's `text`, and whether it `lacks` memory. It names
 * the place only if cards differ, or for RAM. Null if no model is known. say: `t`.
 */
function describeFit({ memory, device, ranks = [] }, say) {
  if (!memory) return null
  const { needs, usable, card, fits } = memory.tight;
  const sizes = formatBytesOf(needs, usable, (used, total) => say('panel.memory', { used, total }));
  const cards = card && say('plan.gpus_named', { indices: card.index, name: card.name });
  const where = card ? say('plan.fit.on', { cards }) : say('plan.fit.ram');
  const isOpen = fits && memory.working === null && device !== 'cpu';
  const isAlike = new Set(ranks.map((rank) => `${rank.card?.name} ${rank.card?.total}`)).size <= 1;
  const lacking = card && isAlike ? 'lacks' : 'lacks_in';
  const verdict = fits === null ? 'part' : fits ? (isOpen ? 'open' : 'fits') : lacking;
  return { text: say(`plan.fit.${verdict}`, { sizes, where }), lacks: fits === false }
}

/** Names what would fit instead; null if the plan fits. either: joins words as in "a, b or c". */
function describeRemedies({ memory }, either, say) {
  const remedies = memory?.remedies;
  if (!remedies) return null
  return say(`plan.${remedies.words}`, { remedies: either(remedies.found.map((each) => describeRemark(each, say))) })
}

// Pure: says how long a step takes, and how many times as fast as on one device that is. All views use these words.


const EVEN = 0.05; // a factor this close to 1 says nothing

/** Returns a factor's words under a path, which has `factor` and `even`. */
function describeFactor$1(factor, path, say) {
  if (Math.abs(factor - 1) < EVEN) return say(`${path}.even`)
  return say(`${path}.factor`, { times: formatSpeedup(factor) })
}

/**
 * Describes a step: "0.42 s a step, 1.7× as fast as one device (measured)". seconds: of the step. alone: of a step on
 * one device; null if it is not to be compared. isRun, isAloneRun: whether each has run, and took that long. What has run
 * is not compared with what is predicted. isMeasured: whether predictions use this machine's measurements.
 */
function describeSpeed({ seconds, alone, isRun, isAloneRun, isMeasured }, say) {
  const step = say('plan.speed.step', { seconds: formatSeconds(seconds) });
  const factor = alone && isRun === Boolean(isAloneRun) ? describeFactor$1(alone / seconds, 'plan.speed', say) : null;
  const words = factor ? say('plan.speed.both', { step, factor }) : step;
  return say(`plan.speed.${isRun ? 'measured' : isMeasured ? 'predicted' : 'assumed'}`, { words })
}

// Pure: describes how long steps are predicted to take, from the server's answer about a plan.


/** Returns a title, a line for each of the best plans (`text`, and whether it `fits`), and a line for this plan if it is
 * not among them; null without a prediction. */
function describePrediction({ predicted }, say) {
  if (!predicted) return null
  const line = ({ values, seconds: length, bytes: size, fits }) => {
    const numbers = { plan: describePlan(values, say), seconds: formatSeconds(length), bytes: formatBytes(size) };
    return say(fits ? 'plan.predicted' : 'plan.predicted_too_large', numbers)
  };
  const chosen = predicted.best.findIndex(({ plan }) => plan === predicted.plan?.plan);
  return {
    step: describeStep$1(predicted, say),
    title: say(predicted.is_measured ? 'plan.fastest' : 'plan.fastest_assumed'),
    best: predicted.best.map((each) => ({ text: line(each), fits: each.fits })),
    chosen,
    own: chosen < 0 && predicted.plan ? say('plan.this_plan', { words: line(predicted.plan) }) : null
  }
}

/** Says how the last run of a node went: its plan, and what a step took. */
function describeRan(run, say) {
  const plan = run.is_stock ? say('panel.asStock') : describePlans(run.plans, say);
  const { usual: seconds } = run;
  if (!seconds) return say('plan.ran', { words: plan })
  const step = describeSpeed({ seconds, alone: run.alone, isRun: true, isAloneRun: run.is_alone_run }, say);
  return say('plan.ran', { words: `${plan}, ${step}` })
}

/** Says why there is no prediction for a known model; null if there is one, or if the model is not known. */
function explainNoPrediction({ memory, predicted, sized }, say) {
  if (!memory || predicted) return null
  return say(sized ? 'plan.step_uncounted' : 'plan.step_unsized')
}

/** Says how long a step takes with the plan, and how many times as fast as on one device, if that has the memory. */
function describeStep$1({ plan, one_device: one, is_measured: isMeasured }, say) {
  const alone = !plan.is_alone && (one.has_run || one.fits) ? one.seconds : null;
  const known = { seconds: plan.seconds, alone, isRun: plan.has_run, isAloneRun: one.has_run, isMeasured };
  const words = describeSpeed(known, say);
  return plan.is_alone || one.fits || one.has_run ? words : say('plan.step_alone_lacks', { words })
}

// Reads and changes the pack's settings, which the server keeps. A refusal is shown as a toast.


const ROUTE = '/paralleldit/settings';
const listeners = [];

/** Calls `listener` with the server's answer after each change. */
const onChange = (listener) => listeners.push(listener);

/** Returns the server's answer about the settings; null if there is none. */
const readSettings = () => ask('settings.unread');

/** Sets settings by name; null is the default. Returns the server's new answer, or null if it has refused. */
async function changeSettings(changes) {
  const answer = await ask('settings.refused', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(changes)
  });
  if (answer?.outdated.length) show('info', t('settings.changed'), t('settings.outdated'));
  if (answer) for (const listener of listeners) listener(answer);
  return answer
}

async function ask(problem, request) {
  try {
    const response = await api.fetchApi(ROUTE, request);
    if (response.ok) return await response.json()
    show('error', t(problem), summarizeError(await response.text()));
  } catch (error) {
    show('error', t(problem), error.message);
  }
  return null
}

function show(severity, summary, detail) {
  app.extensionManager.toast.add({ severity, summary, detail, life: 10_000 });
}

// The button that makes all GPUs of this machine take part, beside the remark that leaves some out.


const LEFT_OUT = 'left_out';

/** Returns how many GPUs a remark's button would use; 0 if it has none. */
const countOffered = ({ key, values }) => (key === LEFT_OUT && values.present) || 0;

/** Makes the button for so many GPUs. */
function makeUseAllButton(count) {
  const attributes = { type: 'button', class: 'paralleldit-use', 'data-testid': 'paralleldit-use-all' };
  const words = count === 2 ? t('plan.use_both') : t('plan.use_all', { count });
  const button = element('button', { ...attributes, title: t('plan.use_all_help') }, words);
  button.addEventListener('click', useAll);
  return button
}

async function useAll() {
  const known = await readSettings();
  if (known) await changeSettings({ gpus: known.cards.map(({ index }) => index) });
}

// Pure: says which model files are missing, and finds where a template says that they can be had.


const FILES = '{files}'; // where the names stand in a sentence that has none yet

/**
 * Says which files are missing, in the order in which they run; null if none is. answer: the server's. say: `t`. files:
 * their names; by default in words.
 */
function describeMissing(
  { missing = [] },
  say,
  files = missing.map(({ model }) => getFileName(model)).join(', ')
) {
  if (!missing.length) return null
  const folder = [...new Set(missing.map((each) => each.folder))].join(', ');
  return say('plan.missing', { folder, files })
}

/** Returns the address of a file by its name, as the nodes of these graphs have it from a template; null if unknown. */
function findAddress(graphs, model) {
  const known = graphs.flatMap(({ nodes }) => nodes).flatMap(({ properties }) => properties?.models ?? []);
  const address = known.find(({ name }) => name === getFileName(model))?.url;
  return typeof address === 'string' && address.startsWith('https://') ? address : null
}

// Draws an answer about a plan into an element: the mesh and its remarks, or the error.


const MAX_PATCHES_DRAWN = 16;

/**
 * Replaces what the element shows. answer: the server's, or null if nothing was asked. why: nothing was asked, see
 * `makeQuestion`. parts: makes the elements: `makeWhole`, or `makeBrief` for little room.
 */
function draw$1(target, answer, why, parts) {
  if (why) target.replaceChildren(makeLine('paralleldit-plan-remark', t(...why)));
  else if (!answer) target.replaceChildren();
  else if (answer.error) target.replaceChildren(makeErrorBox(summarizeError(answer.error)));
  else target.replaceChildren(...parts(answer));
}

/** Says that there is no answer. It does not look like an error. */
function drawNoAnswer(target, reason) {
  target.replaceChildren(makeLine('paralleldit-plan-remark', t('plan.unanswered', { reason })));
}

/** Makes the elements for a node, which include how the plan falls on the ranks. */
function* makeWhole(answer) {
  yield* makeSummary(answer);
  if (answer.ranks.length) yield* makeMesh(answer);
  yield* makeReasons(answer);
}

/** Makes the elements for little room: without the ranks. */
function* makeBrief(answer) {
  yield* makeSummary(answer);
  yield* makeReasons(answer);
}

/** Makes what is missing, then the plan, whether it fits, how fast it is, and what a person should know first. */
function* makeSummary(answer) {
  const missing = describeMissing(answer, t, FILES);
  if (missing) yield makeMissing(missing, answer.missing);
  for (const words of answer.unknown) yield makeLine('paralleldit-plan-note', summarizeError(words));
  if (answer.plan) yield makeLine('paralleldit-plan-title', describeTitle(answer, t));
  if (answer.ran) yield makeLine('paralleldit-plan-title', describeRan(answer.ran, t));
  const fit = describeFit(answer, t);
  if (fit) yield makeLine(`paralleldit-plan-fit${fit.lacks ? ' paralleldit-plan-lacks' : ''}`, fit.text);
  const step = describePrediction(answer, t)?.step ?? explainNoPrediction(answer, t);
  if (step) yield makeLine('paralleldit-plan-step', step);
  if (fit?.lacks) yield* makeRemedies(answer, 'paralleldit-plan-note');
  for (const remark of answer.note) yield makeLine('paralleldit-plan-note', describeRemark(remark, t));
}

/** Makes a line about missing files. The name of one that a template tells of is a link. words: with FILES. */
function makeMissing(words, missing) {
  const [before, after] = words.split(FILES);
  const names = missing.flatMap(({ model }) => [', ', makeFileName(getFileName(model), model)]).slice(1);
  return element('div', { class: 'paralleldit-plan-note paralleldit-plan-missing' }, before, ...names, after)
}

function makeFileName(name, model) {
  const address = findAddress(listGraphs(app.rootGraph), model);
  if (!address) return name
  const help = `${t('plan.download', { file: name })}\n${address}`;
  return element('a', { href: address, target: '_blank', rel: 'noreferrer', title: help }, name)
}

/** Makes the reasons and the best plans: folded where a plan is known, which is more important. Not folded is a remark
 * with a button. */
function* makeReasons(answer) {
  for (const remark of answer.remarks.filter(countOffered)) {
    const line = makeLine('paralleldit-plan-remark', describeRemark(remark, t));
    line.append(' ', makeUseAllButton(countOffered(remark)));
    yield line;
  }
  const others = answer.remarks.filter((remark) => !countOffered(remark));
  const remarks = others.map((remark) => makeLine('paralleldit-plan-remark', describeRemark(remark, t)));
  const whole = describeFit(answer, t)?.lacks ? [] : makeRemedies(answer, 'paralleldit-plan-remark');
  const reasons = [...makeBest(describePrediction(answer, t)), ...whole, ...remarks];
  if (!answer.plan) yield* reasons;
  else if (reasons.length) {
    yield element('details', { class: 'paralleldit-plan-why' }, element('summary', {}, t('plan.why')), ...reasons);
  }
}

function* makeRemedies(answer, className) {
  const remedies = describeRemedies(answer, joinWithOr, t);
  if (remedies) yield makeLine(className, remedies);
}

function* makeBest(words) {
  if (!words) return
  if (words.own) yield makeLine('paralleldit-plan-memory', words.own);
  yield makeLine('paralleldit-plan-memory', words.title);
  const rows = words.best.map((each, place) => {
    const row = element('li', each.fits ? {} : { class: 'paralleldit-plan-lacks' }, each.text);
    if (place === words.chosen) row.setAttribute('aria-current', 'true');
    return row
  });
  const list = element('ol', { class: 'paralleldit-plan-predicted' }, ...rows);
  list.dataset.testid = 'paralleldit-plan-predicted';
  yield list;
}

/** Makes a list of the ranks and what each holds. Above sixteen ranks, it is one picture. */
function* makeMesh(answer) {
  const groups = groupRanks(answer);
  const isCompact = answer.ranks.length > COMPACT_ABOVE;
  const [first] = groups[0].stages;
  const each = first.cells.length;
  const parts = groups.map((group) => {
    const stages = group.stages.map((part) => makeStage(part, group, answer.device, isCompact));
    return makeBox$1(
      'paralleldit-plan-group',
      captionGroup(group, t),
      stages,
      isCompact ? 2 : countBoxColumns(stages.length, each, 2)
    )
  });
  const columns = isCompact ? 2 : countBoxColumns(groups.length, groups[0].stages.length * each);
  const drawn = makeGrid(`paralleldit-plan-mesh${isCompact ? ' paralleldit-plan-compact' : ''}`, parts, columns);
  drawn.setAttribute('role', isCompact ? 'img' : 'list');
  drawn.setAttribute('aria-label', describeMesh(groups, answer.world, t));
  yield drawn;
  const [cell] = first.cells;
  const kinds = ['tokens', cell.heads && 'heads'].filter(Boolean);
  if (answer.ranks.length > 1 && (kinds.length > 1 || cell.tokens[0][1] < 1)) yield makeLegend(kinds);
}

/** Returns the number of columns for so many boxes of so many ranks each. */
function countBoxColumns(boxes, ranks, most) {
  if (ranks > 2) return 1
  return countColumns(boxes, ranks > 1 ? 2 : most)
}

function makeStage(part, group, device, isCompact) {
  const cells = part.cells.map((cell) => {
    const words = describeCell(cell, group, part, device, t);
    const tile = element('div', { class: 'paralleldit-plan-cell', title: words });
    tile.append(
      isCompact ? element('span', { class: 'paralleldit-plan-rank' }, String(cell.rank)) : makeLabel(cell, device)
    );
    tile.append(makeBar('tokens', cell.tokens));
    if (cell.heads) tile.append(makeBar('heads', [cell.heads]));
    if (!isCompact) {
      tile.setAttribute('role', 'listitem');
      tile.setAttribute('aria-label', words);
    }
    return tile
  });
  return makeBox$1('paralleldit-plan-stage', captionStage(part, t), cells, isCompact ? 0 : countColumns(cells.length))
}

/** Makes a label like "rank 0 · GPU 0". It takes two lines where the tile is narrow. */
function makeLabel(cell, device) {
  const target = element('div', { class: 'paralleldit-plan-rank', 'aria-hidden': 'true' });
  target.append(element('span', {}, t('plan.rank_label', { rank: cell.rank })));
  const where = labelDevice(cell, device, t);
  if (where) target.append(element('i', {}, ' · '), element('span', {}, where));
  return target
}

/**
 * Makes a bar for the whole, with these [start, stop] parts filled. With several parts, the bar has so many patches.
 */
function makeBar(kind, spans) {
  const patches = spans.length <= MAX_PATCHES_DRAWN ? spans : spans.slice(0, MAX_PATCHES_DRAWN);
  const pieces = patches.map(([start, stop], patch) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' });
    fill.style.marginInlineStart = `${(start * spans.length - patch) * 100}%`;
    fill.style.inlineSize = `${(stop - start) * spans.length * 100}%`;
    return element('span', { class: 'paralleldit-plan-piece' }, fill)
  });
  return element('div', { class: `paralleldit-plan-bar paralleldit-plan-${kind}` }, ...pieces)
}

function makeLegend(kinds) {
  const keys = kinds.map((kind) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' });
    return element('span', { class: `paralleldit-plan-key paralleldit-plan-${kind}` }, fill, t(`plan.${kind}`))
  });
  const list = element('div', { class: 'paralleldit-plan-legend' }, ...keys);
  list.setAttribute('aria-hidden', 'true');
  return list
}

function makeBox$1(className, caption, children, columns) {
  const frame = element('div', { class: caption ? `${className} paralleldit-plan-boxed` : className });
  if (caption) frame.append(element('div', { class: 'paralleldit-plan-caption' }, caption));
  frame.append(makeGrid('paralleldit-plan-row', children, columns));
  return frame
}

/** Puts children into equal columns. columns: 0 for as many as fit. */
function makeGrid(className, children, columns) {
  const target = element('div', { class: className }, ...children);
  if (columns) target.style.gridTemplateColumns = `repeat(${Math.min(columns, children.length)}, minmax(0, 1fr))`;
  return target
}

function makeErrorBox(words) {
  const alert = makeLine('paralleldit-plan-error', words);
  alert.setAttribute('role', 'alert');
  return alert
}

function makeLine(className, words) {
  return element('div', { class: className }, words)
}

// The panel's part about the next run: its memory and time, as the open workflow's nodes show them, too.


class NextView {
  constructor() {
    this.runs = element('div', { class: 'paralleldit-next' });
    this.element = makeFold(t('panel.next'), true, this.runs).element;
    this.element.dataset.testid = 'paralleldit-next';
    this.drawn = '';
  }

  update({ number, status }, { runs }) {
    setShown(this.element, runs.length);
    const drawn = JSON.stringify([status.name, runs]);
    if (drawn === this.drawn) return
    this.drawn = drawn;
    refill(this.runs, () => this.runs.replaceChildren(...runs.map((run) => makeRun(run, number, status.name))));
  }
}

/** loaded: the model that the panel names above; it is not named again. */
function makeRun({ answer, models }, group, loaded) {
  const names = [...new Set(models)].map(getFileName).join(', ');
  const name = element('p', { class: 'paralleldit-strong paralleldit-cut-off', title: models.join(', ') }, names);
  const content = element('div', { class: 'paralleldit-plan-content' });
  draw$1(content, answer, null, makeBrief);
  addUseButtons(content, answer, (values) => usePlan(values, group));
  name.hidden = models.every((model) => model === loaded);
  return element('div', {}, name, element('div', { class: 'paralleldit-plan' }, content))
}

// Shows the last lines of a rank's log. The box is as high as its lines: the panel scrolls, not the box, and the newest
// line comes into view when the log is opened.


const LAST$1 = 15; // lines to show before a person asks for all

class LogView {
  /** readLog: called with the group's number and the rank whose log is shown. */
  constructor(readLog) {
    this.readLog = readLog;
    this.rank = 0;
    this.showsAll = false;
    this.isOpening = false;
    const id = makeId('log-rank');
    this.select = element('select', { id });
    const attributes = { class: 'paralleldit-log', tabindex: 0, role: 'region', 'data-testid': 'paralleldit-log' };
    this.lines = element('pre', attributes);
    this.nothing = element('p', { class: 'paralleldit-quiet' });
    this.whole = makeButton('paralleldit-log-all', '');
    this.copy = makeButton('paralleldit-log-copy', t('errors.copy'));
    copyOnClick(this.copy, () => this.getLines().join('\n'), { copy: t('errors.copy'), copied: t('errors.copied') });
    const label = element('label', { for: id }, t('panel.logOf'));
    this.choice = element('div', { class: 'paralleldit-choice' }, label, this.select, this.whole, this.copy);
    this.element = makeFold(t('panel.log'), false, this.choice, this.nothing, this.lines).element;
    this.element.addEventListener('toggle', () => {
      this.isOpening = this.element.open;
      this.refresh();
    });
    this.select.addEventListener('change', () => this.choose(Number(this.select.value)));
    this.whole.addEventListener('click', () => {
      this.showsAll = !this.showsAll;
      this.refresh();
    });
  }

  update(group) {
    this.group = group;
    this.refresh();
  }

  choose(rank) {
    this.rank = rank;
    this.refresh();
  }

  getLines() {
    return this.group.logs[this.rank]?.lines ?? []
  }

  refresh() {
    const ranks = Math.max(this.group.status.pids?.length ?? 0, this.select.length, 1);
    while (this.select.length < ranks) {
      const rank = this.select.length;
      this.select.add(element('option', { value: rank }, t('panel.rank', { rank })));
    }
    if (!this.element.open) return
    const log = this.group.logs[this.rank];
    if (hasLogs(this.group)) queueMicrotask(() => this.readLog(this.group.number, this.rank));
    const lines = this.getLines();
    setAttribute(this.lines, 'aria-label', t('panel.logName', { rank: this.rank }));
    setText(this.lines, (this.showsAll ? lines : lines.slice(-LAST$1)).map(shortenLine).join('\n'));
    setText(this.whole, this.showsAll ? t('panel.logEnd') : t('panel.logAll', { count: lines.length }));
    setShown(this.whole, lines.length > LAST$1);
    for (const part of [this.lines, this.copy]) setShown(part, lines.length);
    setShown(this.nothing, !lines.length);
    if (this.isOpening && lines.length) {
      this.isOpening = false;
      this.lines.scrollIntoView({ block: 'end' });
    }
    setText(this.nothing, t(log?.isReading ? 'panel.logReading' : 'panel.logEmpty'));
  }
}

function makeButton(testId, words) {
  return element('button', { type: 'button', class: 'paralleldit-small', 'data-testid': testId }, words)
}

// Shows a line for each rank: its device, what the driver tells of it, and its memory, as a bar behind the words. The
// weights are the bar's darker part.


const NEARLY_FULL = 0.92;

class RankList {
  constructor() {
    this.list = element('ul', { class: 'paralleldit-ranks' });
    const folded = makeFold(t('panel.ranks'), true, this.list);
    this.element = folded.element;
    this.aside = folded.aside;
    this.rows = new Children(
      this.list,
      ({ rank }) => rank,
      ({ rank }) => new RankRow(rank)
    );
  }

  update(group) {
    const ranks = listRanks(group);
    setShown(this.element, ranks.length);
    const [name, ...others] = new Set(ranks.map((row) => (row.index === null ? '' : shortenCardName(row.name))));
    const isOne = Boolean(name) && !others.length; // said once, and not in each row
    setText(this.aside, isOne ? `${ranks.length} × ${name}` : String(ranks.length));
    this.rows.update(ranks.map((row) => ({ ...row, isNamed: !isOne })));
  }
}

class RankRow {
  constructor(rank) {
    this.name = element('span', { class: 'paralleldit-strong paralleldit-cut-off' });
    this.sensors = element('span', { class: 'paralleldit-sensors' });
    this.memory = element('span', { class: 'paralleldit-aside' });
    this.weights = element('div', { class: 'paralleldit-weights' });
    this.fill = element('div', { class: 'paralleldit-used' });
    this.bar = element(
      'div',
      { class: 'paralleldit-meter', role: 'meter', 'aria-valuemin': 0 },
      this.fill,
      this.weights
    );
    const line = element('div', { class: 'paralleldit-line' }, this.name, this.sensors, this.memory);
    this.element = element('li', { 'data-testid': `paralleldit-rank-${rank}` }, this.bar, line);
  }

  update(row) {
    const { rank, device, used, total, placed, silent } = row;
    setText(this.name, nameRank(row));
    setAttribute(this.element, 'title', describeRank(row));
    const words = formatBytesOf(used, total, (some, all) => t('panel.memory', { used: some, total: all }));
    const share = total ? Math.min(used / total, 1) : 0;
    setText(this.sensors, describeSensors(row));
    setText(this.memory, silent ? t('panel.silent', { seconds: Math.floor(silent) }) : total ? words : '');
    setAttribute(this.element, 'data-silent', silent ? '' : null);
    setAttribute(this.bar, 'aria-label', t(`panel.memoryOf.${device}`, { rank }));
    setAttribute(this.bar, 'aria-valuemax', total);
    setAttribute(this.bar, 'aria-valuenow', used);
    setAttribute(this.bar, 'aria-valuetext', words);
    setAttribute(this.element, 'data-full', share > NEARLY_FULL ? '' : null);
    setAttribute(this.fill, 'style', `width: ${(100 * share).toFixed(1)}%`);
    setAttribute(this.weights, 'style', `width: ${total ? (100 * Math.min(placed / total, share)).toFixed(1) : 0}%`);
    setShown(this.bar, total); // 0 means that the system does not report it
  }
}

/** Names a rank: "GPU 1", "GPU 1 · RTX 4090", or "Rank 1 · GPU 1" if the GPU's number does not identify the rank. */
function nameRank({ rank, device, index, name, isSame, isNamed }) {
  const kind = t(`panel.device.${device}`);
  const own = index === null ? [kind] : [`${kind} ${index}`, ...(isNamed ? [shortenCardName(name)] : [])];
  return (isSame ? [t('panel.rank', { rank }), ...own] : own).join(' · ')
}

/** Describes what the driver tells: "98 % · 71 °C"; '' if it tells nothing. */
const describeSensors = ({ busy, celsius }) =>
  [busy !== null && `${busy} %`, celsius !== null && `${celsius} °C`].filter(Boolean).join(' · ');

function describeRank({ rank, pid, index, name, placed, weights }) {
  const part = placed < weights ? 'weightsInRam' : 'weights';
  const sizes = { placed: formatBytes(placed), weights: formatBytes(weights) };
  const parts = [t('panel.rank', { rank }), ...(index === null ? [] : [name]), t('panel.process', { pid })];
  return [...parts, ...(weights ? [t(`panel.${part}`, sizes)] : [])].join(' · ')
}

// Draws a run's steps as bars. The lower part of a bar is the step's communication.
// `layOutBars` and `makePaths` are pure. `Timeline` draws one path for all bars of a colour, however many there are.


const HEIGHT = 40;
const SLOT = 10;
const GAP = 1.5;
const DENSE = 80; // with this many slots, bars are too thin for gaps
const MOST_SLOTS = 500; // the server keeps this many steps of a run
const LEAST_SLOTS = 12; // keeps the bars of a short run narrow
const CLIP = 2; // medians; a longer bar, often the first step's, is cut off there
const CUT = { y: 4, height: 3 }; // the mark on a bar that is cut off

/**
 * Lays out a bar for each step. Heights are shares of the drawing's height.
 *
 * steps: each [seconds, its communication seconds]. total: how many steps there will be, or null. first: the number of
 * the first of these steps.
 */
function layOutBars(steps, total, first = 1) {
  const lengths = steps.map(([length]) => length).sort((a, b) => a - b);
  const longest = Math.min(lengths.at(-1) ?? 0, CLIP * (lengths[lengths.length >> 1] ?? 0)) || 1;
  const slots = Math.max(steps.length, first === 1 ? Math.min(total ?? 0, MOST_SLOTS) : 0, LEAST_SLOTS);
  const drawn = steps.map(([length, waiting], at) => {
    const height = Math.min(length / longest, 1);
    const share = length > 0 ? Math.min(waiting / length, 1) : 0;
    return { number: first + at, length, waiting, height, below: height * share, cut: length > longest }
  });
  return { slots, bars: drawn }
}

/** Makes the paths of these bars: for computing, for communication, and for the marks of bars that are cut off. */
function makePaths({ slots, bars: drawn }) {
  const gap = slots < DENSE ? GAP : 0;
  const found = { compute: '', communication: '', cut: '' };
  for (const [at, { height, below, cut }] of drawn.entries()) {
    const x = at * SLOT + gap / 2;
    found.compute += makeBox(x, HEIGHT * (1 - height), SLOT - gap, HEIGHT * (height - below));
    found.communication += makeBox(x, HEIGHT * (1 - below), SLOT - gap, HEIGHT * below);
    if (cut) found.cut += makeBox(at * SLOT, CUT.y, SLOT, CUT.height);
  }
  return found
}

const makeBox = (x, y, width, height) =>
  height > 0 ? `M${x} ${y.toFixed(2)}h${width}v${height.toFixed(2)}h-${width}z` : '';

/** The drawing of one run. */
class Timeline {
  /** t: finds the texts. */
  constructor(t) {
    this.t = t;
    this.paths = Object.fromEntries(
      ['compute', 'communication', 'cut'].map((part) => [part, svg('path', { class: `paralleldit-${part}` })])
    );
    this.drawing = svg('svg', { role: 'img', preserveAspectRatio: 'none' }, ...Object.values(this.paths));
    this.element = element('div', { class: 'paralleldit-timeline' }, this.drawing);
    this.element.addEventListener('pointermove', (event) => this.showNumbers(event));
    this.known = layOutBars([], null);
  }

  /** label: describes the drawing to people who do not see it. */
  update(run, label) {
    const first = run.made - run.steps.length + 1; // the server keeps only the last steps of a long run
    this.known = layOutBars(run.steps, run.total, first);
    const { slots } = this.known;
    setAttribute(this.drawing, 'viewBox', `0 0 ${slots * SLOT} ${HEIGHT}`);
    setAttribute(this.drawing, 'shape-rendering', slots < DENSE ? 'auto' : 'crispEdges');
    setAttribute(this.drawing, 'aria-label', label);
    for (const [part, outline] of Object.entries(makePaths(this.known))) setAttribute(this.paths[part], 'd', outline);
  }

  /** Shows the numbers of the bar under the pointer. */
  showNumbers({ offsetX }) {
    const bar = this.known.bars[Math.floor((offsetX / this.element.clientWidth) * this.known.slots)];
    const values = bar && { step: bar.number, length: formatSeconds(bar.length), waiting: formatSeconds(bar.waiting) };
    setAttribute(this.element, 'title', bar ? this.t('panel.barTitle', values) : null);
  }
}

// Shows the last runs, newest first: the model, the time of a step, and the outcome.


const LONG_START = 1; // seconds; a shorter one is not told
const LAST = 3; // runs to show before a person asks for all
const OUTCOMES = {
  running: 'pi pi-play',
  done: 'pi pi-check',
  cancelled: 'pi pi-ban',
  failed: 'pi pi-times'
};

class RunList {
  /** onTrace: called with the group's number to save its ranks' timeline. comparison: see ComparisonView. */
  constructor(onTrace, comparison) {
    this.comparison = comparison;
    const keys = ['compute', 'communication'].map((part) =>
      element('span', { class: `paralleldit-key paralleldit-${part}` }, t(`panel.${part}`))
    );
    this.list = element('ol', { class: 'paralleldit-runs' });
    this.trace = element('button', { type: 'button', class: 'paralleldit-small' }, t('panel.trace'));
    setAttribute(this.trace, 'data-testid', 'paralleldit-trace');
    setAttribute(this.trace, 'title', t('panel.help.trace'));
    this.trace.addEventListener('click', () => onTrace(this.number));
    this.all = element('button', { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-runs-all' });
    this.showsAll = false;
    this.all.addEventListener('click', () => {
      this.showsAll = !this.showsAll;
      this.update(this.group);
    });
    const legend = element('div', { class: 'paralleldit-legend' }, ...keys, this.all, this.trace, comparison.button);
    const folded = makeFold(t('panel.runs'), true, this.list, legend, comparison.element);
    this.element = folded.element;
    this.rows = new Children(
      this.list,
      ({ id }) => id,
      () => new RunRow()
    );
  }

  update(group) {
    Object.assign(this, { group, number: group.number });
    this.comparison.update(group.number);
    setShown(this.element, group.runs.length);
    setShown(this.trace, ['ready', 'parked'].includes(getState(group)));
    setShown(this.all, group.runs.length > LAST);
    setText(this.all, this.showsAll ? t('panel.runsLast') : t('panel.runsAll', { count: group.runs.length }));
    const shown = this.showsAll ? group.runs : group.runs.slice(0, LAST);
    this.rows.update(shown.map((run) => ({ run, id: run.id, isNamed: run.model !== group.status.name })));
  }
}

class RunRow {
  constructor() {
    this.model = element('span', { class: 'paralleldit-strong paralleldit-cut-off' });
    this.icon = element('i', { 'aria-hidden': 'true' });
    this.word = element('span');
    this.outcome = element('span', { class: 'paralleldit-outcome' }, this.icon, this.word);
    this.about = element('p', { class: 'paralleldit-quiet' });
    this.reason = element('p', { class: 'paralleldit-quiet', 'data-testid': 'paralleldit-reason' });
    this.numbers = element('span');
    this.factor = element('p', { class: 'paralleldit-factor', 'data-testid': 'paralleldit-factor' });
    this.share = element('span', { class: 'paralleldit-key paralleldit-communication' });
    this.timeline = new Timeline(t);
    const line = element('div', { class: 'paralleldit-line' }, this.model, this.outcome);
    this.element = element('li', { 'data-testid': 'paralleldit-run' }, line, this.about, this.reason);
    const counted = element('p', { class: 'paralleldit-numbers' }, this.numbers, this.share);
    this.element.append(this.factor, this.timeline.element, counted);
  }

  /** isNamed: whether the run names its model, as one that is not the loaded model. */
  update({ run, isNamed }) {
    if (this.run === run && this.isNamed === isNamed) return
    Object.assign(this, { run, isNamed });
    setAttribute(this.element, 'data-state', run.state);
    const how = run.is_stock ? t('panel.asStock') : describePlans(run.plans, t);
    setText(this.model, isNamed ? getFileName(run.model) : how);
    setAttribute(this.model, 'title', [...new Set([run.model, run.model_class])].filter(Boolean).join(' · '));
    setAttribute(this.icon, 'class', OUTCOMES[run.state] ?? '');
    setText(this.word, t(`panel.outcome.${run.state}`));
    const began = new Date(run.began * 1000);
    const time = formatTime(began, getLanguage());
    setText(this.about, [t(`panel.operation.${run.operation}`), isNamed && how, time].filter(Boolean).join(' · '));
    setText(this.reason, translateSaid(run.reason));
    setShown(this.reason, run.reason);
    setAttribute(this.about, 'title', describeNode(run, began));
    this.showNumbers(run);
  }

  showNumbers(run) {
    const numbers = [countSteps(run)];
    const key = run.is_measured ? 'panel.predicted' : 'panel.predicted_assumed';
    if (run.predicted) numbers.push(t(key, { seconds: formatSeconds(run.predicted) }));
    if (run.seconds) numbers.push(t('panel.inAll', { seconds: formatSeconds(run.seconds) }));
    if (run.startup > LONG_START) numbers.push(t('panel.startup', { seconds: formatSeconds(run.startup) }));
    setText(this.numbers, numbers.join(' · '));
    const factor = describeStep(run);
    setText(this.factor, factor);
    setShown(this.factor, factor);
    setShown(this.timeline.element, run.steps.length);
    setShown(this.share, run.steps.length);
    if (!run.steps.length) return
    const percent = formatPercent(computeShare(run.steps));
    const share = t('panel.share', { share: percent });
    setText(this.share, percent);
    setAttribute(this.share, 'title', share);
    setAttribute(this.share, 'aria-hidden', 'true'); // the drawing's label says it
    const label = t('panel.timeline', { numbers: [...numbers, share].join(' · '), slowest: findSlowest(run) });
    this.timeline.update(run, label);
  }
}

function describeNode(run, began) {
  const date = formatDateAndTime(began, getLanguage());
  return run.node ? `${t('panel.node', { node: run.node })} · ${date}` : date
}

function countSteps({ at, made, total }) {
  const done = total ? at : made;
  if (done === 1 && (total ?? 1) === 1) return t('panel.oneStep')
  return !total || done === total ? t('panel.steps', { made: done }) : t('panel.stepsOf', { made: done, total })
}

/** Describes a usual step, and how many times as fast as on one device it was; '' before there is one. */
function describeStep({ usual: seconds, alone, is_alone_run: isAloneRun }) {
  return seconds ? describeSpeed({ seconds, alone, isRun: true, isAloneRun }, t) : ''
}

const findSlowest = (run) => formatSeconds(Math.max(...run.steps.map(([length]) => length)));

// Pure: describes where the weights of the model's blocks are kept, and what it costs to fetch them.


const MOST_OF_A_STEP = 0.8; // a link that is busy for this share of a step is the bottleneck
const NAMES = { shared: 'weightsShared', host: 'weightsHost' };

/** Returns sentences about a group's `weights`; none if each rank keeps all of them. t: finds the texts. */
function describeWeights({ status, runs }, t) {
  const { weights } = status;
  const name = NAMES[weights?.kind];
  if (!name) return []
  const { blocks, of, kept, whole, working, fetched, seconds: needed, link } = weights;
  const where = t(`panel.${name}`, { going: blocks, blocks: of });
  const sizes = { kept: formatBytes(kept), whole: formatBytes(whole), peak: formatBytes(kept + (working ?? 0)) };
  const stay = t(working ? 'panel.weightsAtPeak' : 'panel.weightsKept', sizes);
  const values = { size: formatBytes(fetched), seconds: formatSeconds(needed), rate: `${(link / 1e9).toFixed(1)} GB/s` };
  const found = [where, stay, t('panel.weightsFetched', values)];
  if (weights.unpinned) found.push(t('panel.weightsUnpinned', { size: formatBytes(weights.unpinned) }));
  const share = computeLinkShare(needed, runs);
  if (share >= MOST_OF_A_STEP) found.push(t('panel.weightsBottleneck', { share: formatPercent(share) }));
  return found
}

/** Returns the share of the last run's step in which the link carries weights. It counts one forward a step. */
function computeLinkShare(needed, runs) {
  const seconds = runs[0]?.usual;
  return seconds ? Math.min(1, needed / seconds) : 0
}

// The view of one worker group: its state, buttons, running job, and the folding parts below.


// No icon spins: an endless animation makes the browser draw the page sixty times a second.
const ICONS = {
  stopped: 'pi pi-circle',
  starting: 'pi pi-hourglass',
  ready: 'pi pi-check-circle',
  busy: 'pi pi-play-circle',
  cancelling: 'pi pi-ban',
  parked: 'pi pi-moon',
  restarting: 'pi pi-hourglass',
  failed: 'pi pi-exclamation-triangle'
};
const BUTTONS = { start: 'pi pi-play', stop: 'pi pi-stop', restart: 'pi pi-refresh', park: 'pi pi-moon' };
const KNOWN_OPERATIONS = ['load', 'patch', 'call', 'sample', 'vae', 'park', 'trim', 'unload', 'trace', 'measure'];
const OF_STEPS = ['call', 'sample'];

class GroupView {
  /** actions: see actions.mjs. readLog: reads a rank's log. comparison: a ComparisonView. */
  constructor(number, actions, readLog, comparison) {
    this.number = number;
    this.actions = actions;
    this.heading = element('h3', { id: makeId('group') }, t('panel.group', { number }));
    const press = (action) => this.press(action);
    const head = [new StateView(), new ButtonRow(press), new JobView()];
    const rest = [
      new AboutView(press),
      new ModelView(),
      new RankList(),
      new NextView(),
      new RunList((number) => actions.saveTrace(number), comparison),
      new LogView(readLog)
    ];
    this.parts = [...head, ...rest];
    const attributes = { class: 'paralleldit-group', 'data-group': number, 'aria-labelledby': this.heading.id };
    // The head stays in sight while its group scrolls.
    const top = element('header', { class: 'paralleldit-top', 'data-testid': 'paralleldit-top' }, this.heading);
    top.append(...head.map((part) => part.element));
    this.element = element('section', attributes, top, ...rest.map((part) => part.element));
  }

  update({ group, many, device, devices, runs }) {
    this.group = group;
    setAttribute(this.heading, 'class', many ? 'paralleldit-group-name' : 'paralleldit-unseen');
    const pending = (action) => this.actions.isPending(action, this.number);
    for (const part of this.parts) part.update(group, { device, devices, pending, runs });
  }

  press(action) {
    this.actions.run(action, this.number, getState(this.group) === 'busy');
  }
}

/** The group's state. */
class StateView {
  constructor() {
    this.icon = element('i', { 'aria-hidden': 'true' });
    this.word = element('span', { role: 'status', 'data-testid': 'paralleldit-state', class: 'paralleldit-state-word' });
    this.size = element('span', { class: 'paralleldit-aside' });
    this.element = element('div', { class: 'paralleldit-state' }, this.icon, this.word, this.size);
  }

  update(group, { device, devices }) {
    const state = getState(group);
    setAttribute(this.element, 'data-state', state);
    setAttribute(this.icon, 'class', ICONS[state] ?? ICONS.stopped);
    setText(this.word, describeState(group, state));
    const count = group.status.pids?.length ?? devices;
    setText(this.size, count ? t(`panel.size.${group.status.device ?? device}`, { count }) : '');
  }
}

/** What the state means, how often the group died and why, and the warnings about its plan. */
class AboutView {
  constructor(press) {
    this.hint = element('p', { class: 'paralleldit-quiet' });
    this.words = element('span');
    this.offer = element('span');
    const notice = { class: 'paralleldit-notice paralleldit-warning', 'data-testid': 'paralleldit-note' };
    this.note = element('p', notice, this.words, this.offer);
    this.offered = 0;
    this.deaths = element('summary');
    this.death = element('pre', { class: 'paralleldit-death', tabindex: 0 });
    const attributes = { class: 'paralleldit-why', 'data-testid': 'paralleldit-death' };
    this.dismiss = element('button', { type: 'button', class: 'paralleldit-small' }, t('errors.dismiss'));
    setAttribute(this.dismiss, 'data-testid', 'paralleldit-dismiss');
    this.dismiss.addEventListener('click', () => press('dismiss'));
    const removing = { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-remove' };
    this.remove = element('button', { ...removing, title: t('panel.help.remove') }, t('panel.remove'));
    this.remove.addEventListener('click', () => press('remove'));
    const why = element('details', attributes, this.deaths, this.death);
    this.why = element('div', { class: 'paralleldit-over' }, why, this.dismiss);
    this.element = element('div', { class: 'paralleldit-about' }, this.hint, this.remove, this.note, this.why);
  }

  update(group, { device }) {
    const state = getState(group);
    const { remarks, deaths, last_death: death } = group.status;
    const isNew = state === 'stopped' && !group.runs.length && !death;
    const isOnCpu = state === 'parked' && (group.status.device ?? device) === 'cpu';
    const hint = t(isNew ? 'panel.newcomer' : isOnCpu ? 'panel.hint.parkedCpu' : `panel.hint.${state}`);
    const hints = [hint.startsWith('panel.') ? '' : hint, group.status.outdated ? t('panel.hint.outdated') : ''];
    setText(this.hint, hints.filter(Boolean).join(' '));
    setShown(this.hint, this.hint.textContent);
    const warnings = (remarks ?? []).filter(({ is_warning: isWarning }) => isWarning);
    const note = warnings.map((remark) => describeRemark(remark, t)).join(' ');
    setText(this.words, note);
    const offered = Math.max(0, ...warnings.map(countOffered));
    if (offered !== this.offered) this.offer.replaceChildren(...(offered ? [makeUseAllButton(offered)] : []));
    this.offered = offered;
    setShown(this.note, note);
    setText(this.deaths, describeDeaths(deaths));
    setText(this.death, death ? formatReport('', translateFields(splitFields(death))) : '');
    setShown(this.why, death);
    setShown(this.remove, isRemovable(group));
    setShown(this.element, this.hint.textContent || note || death || !this.remove.hidden);
    setShown(this.dismiss, isDismissible(group));
  }
}

/** The buttons start, stop, restart and park. One of no use now is marked as disabled, but keeps the focus. */
class ButtonRow {
  constructor(press) {
    this.element = element('div', { class: 'paralleldit-buttons', role: 'group', 'aria-label': t('panel.buttons') });
    this.buttons = Object.entries(BUTTONS).map(([action, icon]) => {
      const label = element('span', {}, t(`panel.action.${action}`));
      const attributes = { type: 'button', class: 'paralleldit-button', 'data-testid': `paralleldit-${action}` };
      const button = element('button', attributes, element('i', { class: icon, 'aria-hidden': 'true' }), label);
      button.addEventListener('click', () => {
        if (button.getAttribute('aria-disabled') !== 'true') press(action);
      });
      this.element.append(button);
      return { action, button }
    });
  }

  update(group, { device, pending }) {
    const possible = listActions(group);
    for (const { action, button } of this.buttons) {
      setAttribute(button, 'aria-disabled', !possible[action] || pending(action));
      setAttribute(button, 'aria-busy', pending(action) ? 'true' : null);
      const onCpu = action === 'park' && (group.status.device ?? device) === 'cpu';
      setAttribute(button, 'title', t(onCpu ? 'panel.help.parkCpu' : `panel.help.${action}`));
    }
  }
}

/** The running operation and its progress. */
class JobView {
  constructor() {
    this.operation = element('span', { class: 'paralleldit-strong' });
    this.count = element('span', { class: 'paralleldit-aside' });
    this.fill = element('div');
    this.bar = element('div', { class: 'paralleldit-bar', role: 'progressbar', 'aria-valuemin': 0 }, this.fill);
    this.pace = element('p', { class: 'paralleldit-quiet' });
    const line = element('div', { class: 'paralleldit-line' }, this.operation, this.count);
    const attributes = { class: 'paralleldit-job', 'data-testid': 'paralleldit-step' };
    this.element = element('div', attributes, line, this.bar, this.pace);
  }

  update(group) {
    const { operation: current } = group.status;
    const operation = current ?? findRunning(group)?.operation;
    setShown(this.element, getState(group) === 'busy');
    if (this.element.hidden) return
    setText(this.operation, describeOperation(operation));
    const isLoading = current === 'load';
    const done = isLoading ? getWeightsRead(group.status) : getStep(group);
    const words = done ? describeProgress(done, isLoading) : '';
    setText(this.count, words);
    setShown(this.bar, done?.of);
    if (done?.of) {
      setAttribute(this.bar, 'aria-label', describeOperation(operation));
      setAttribute(this.bar, 'aria-valuemax', done.of);
      setAttribute(this.bar, 'aria-valuenow', done.at);
      setAttribute(this.bar, 'aria-valuetext', words);
      setAttribute(this.fill, 'style', `width: ${((100 * done.at) / done.of).toFixed(1)}%`);
    }
    setText(this.pace, done && !isLoading ? describePace(findRunning(group)) : '');
    setShown(this.pace, this.pace.textContent);
  }
}

/** The loaded model: its plan, and where its weights are kept. Its class and files are its name's tooltip. */
class ModelView {
  constructor() {
    this.name = element('p', { class: 'paralleldit-strong paralleldit-cut-off' });
    this.plan = element('p', { class: 'paralleldit-quiet' });
    this.weights = element('div', { 'data-testid': 'paralleldit-weights' });
    const attributes = {
      class: 'paralleldit-model',
      'data-testid': 'paralleldit-model',
      'aria-label': t('panel.model')
    };
    this.element = element('section', attributes, this.name, this.plan, this.weights);
  }

  update(group) {
    const { model, name, plan, beside, files = [] } = group.status;
    setShown(this.element, model);
    if (!model) return
    setText(this.name, getFileName(name || model));
    setAttribute(this.name, 'title', [...new Set([name || model, model, ...files])].join('\n'));
    setText(this.plan, plan ? describePlanInUse(plan, group.status.pids?.length ?? 0) : '');
    const words = [...describeWeights(group, t), ...(beside ? [translateSaid(beside)] : [])];
    setShown(this.weights, words.length);
    if (this.words !== words.join('\n')) {
      this.words = words.join('\n');
      const [where, ...more] = words.map((line) => element('p', {}, line));
      for (const line of more) line.className = 'paralleldit-quiet';
      this.weights.replaceChildren(where, ...more);
    }
  }
}

function describeState({ status: { operation, starting } }, state) {
  if (state === 'cancelling' && !OF_STEPS.includes(operation)) return t('panel.state.cancellingOther')
  if (state === 'starting' && starting) return t('waiting.starting', { seconds: formatSeconds(Math.ceil(starting)) })
  return t(`panel.state.${state}`)
}

/** Returns the progress of loading, in the form of `getStep`: hundredths of the weights. */
function getWeightsRead(status) {
  const at = getReadPercent(status);
  return at === null ? null : { at, of: 100 }
}

function describeProgress({ at, of }, isLoading) {
  if (isLoading) return formatPercent(at / of)
  return t(of ? 'panel.step' : 'panel.stepOpen', { at, of })
}

const describeOperation = (operation) =>
  KNOWN_OPERATIONS.includes(operation) ? t(`panel.operation.${operation}`) : (operation ?? t('panel.state.busy'));

function describePlanInUse(plan, count) {
  const line = t('panel.plan', { plan: describePlan(plan, t) });
  const used = countRanks(plan);
  return used < count ? `${line} · ${t('panel.part', { used, count })}` : line
}

function describeDeaths(count) {
  if (!count) return t('panel.lastDeath')
  return count === 1 ? t('panel.diedOnce') : t('panel.died', { count })
}

function describePace(run) {
  if (!run?.usual) return ''
  const pace = t('plan.speed.step', { seconds: formatSeconds(run.usual) });
  return run.left ? `${pace} · ${t('panel.left', { seconds: formatSeconds(Math.ceil(run.left)) })}` : pace
}

// The whole panel: its heading, a notice about the connection, and the groups, those of the open workflow first.


class PanelView {
  /**
   * actions: see actions.mjs. readLog: called with a group's number and a rank. retry: asks the server again.
   * makeComparison: makes a ComparisonView. findNextRuns: returns what is known about next runs, by group number.
   */
  constructor(actions, readLog, retry, makeComparison, findNextRuns) {
    this.findNextRuns = findNextRuns;
    this.problem = element('p');
    this.retry = element('button', { type: 'button', class: 'paralleldit-button' }, t('panel.retry'));
    this.retry.addEventListener('click', retry);
    const attributes = { class: 'paralleldit-notice paralleldit-bad', role: 'alert' };
    this.notice = element('div', attributes, this.problem, this.retry);
    this.waiting = element('p', { class: 'paralleldit-quiet paralleldit-waiting' }, t('panel.waiting'));
    this.groups = element('div', { class: 'paralleldit-groups' });
    this.views = new Children(
      this.groups,
      ({ group }) => group.number,
      ({ group }) => new GroupView(group.number, actions, readLog, makeComparison())
    );
    const head = element('header', { class: 'paralleldit-head' }, element('h2', {}, t('panel.title')));
    this.element = element('section', { class: 'paralleldit-panel', 'data-testid': 'paralleldit-panel' });
    setAttribute(this.element, 'aria-label', t('panel.title'));
    this.element.append(head, this.notice, this.waiting, this.groups);
  }

  update(model) {
    setText(this.problem, model.connected ? model.problem : t('panel.disconnected'));
    setShown(this.notice, model.problem || !model.connected);
    setShown(this.retry, model.connected);
    setShown(this.waiting, !model.loaded && !model.problem);
    const many = model.groups.length > 1;
    const { device, devices } = model;
    const next = this.findNextRuns();
    const isOpen = ({ number }) => next.has(number);
    const groups = [...model.groups.filter(isOpen), ...model.groups.filter((group) => !isOpen(group))];
    this.views.update(groups.map((group) => ({ group, many, device, devices, runs: next.get(group.number) ?? [] })));
  }
}

// The sidebar panel of the worker groups. It asks the server when the page loads, and again when a lost connection is
// back. From then on, events bring all changes.


const ID = 'paralleldit';
const LOG_LINES = 500;
const PAUSE_MS$1 = 350; // between two drawings

class Panel {
  constructor() {
    this.model = createModel();
    this.view = null; // made when the tab is opened first
    this.isShown = false;
    this.missed = null; // events since the question to the server
    this.badge = '';
    this.actions = new Actions(app, api, (hasOthers) => (hasOthers ? this.ask() : this.draw()));
    const clock = { now: () => performance.now(), wait: (act, milliseconds) => setTimeout(act, milliseconds) };
    this.drawSoon = throttle(() => this.draw(), PAUSE_MS$1, clock);
  }

  listen() {
    api.addEventListener('paralleldit.group', ({ detail }) => {
      this.missed?.push(detail);
      this.setModel(applyEvent(this.model, detail));
    });
    api.addEventListener('reconnecting', () => this.setModel({ ...this.model, connected: false }));
    api.addEventListener('reconnected', () => this.ask());
    api.addEventListener('status', () => this.ask(), { once: true }); // events begin with the connection
    onAnswer(() => this.drawSoon());
    onChange(() => this.ask()); // the devices may be others
    api.addEventListener('graphChanged', () => this.drawSoon()); // a node may have been removed
    document.addEventListener('visibilitychange', () => this.drawSoon());
  }

  /** Asks for the groups. Events that arrive before the answer may be newer than it, so they are applied after it. */
  async ask() {
    const missed = [];
    this.missed = missed;
    try {
      const response = await api.fetchApi('/paralleldit/groups');
      if (!response.ok) throw new Error(await response.text())
      const answer = await response.json();
      if (this.missed === missed) this.setModel(missed.reduce(applyEvent, applyAnswer(this.model, answer)));
    } catch (error) {
      this.setModel({ ...this.model, connected: true, problem: t('panel.problem', { reason: error.message }) });
    } finally {
      if (this.missed === missed) this.missed = null;
    }
  }

  /** Reads the end of a rank's log, if the group has changed since the last time. */
  async readLog(number, rank) {
    if (!isLogOld(this.model, number, rank)) return
    this.setModel(openLog(this.model, number, rank));
    let text = null;
    try {
      const response = await api.fetchApi(`/paralleldit/logs?group=${number}&rank=${rank}&lines=${LOG_LINES}`);
      text = response.ok ? await response.text() : '';
    } catch (error) {
      console.warn('[ParallelDiT]', error); // it is read again with the next event
    }
    this.setModel(applyLog(this.model, number, rank, text));
  }

  setModel(model) {
    this.model = model;
    this.drawSoon();
    if (getBadge(model) !== this.badge) this.updateBadge();
  }

  /** Shows on the tab's icon what the groups do, once there is a tab. */
  updateBadge() {
    const tab = app.extensionManager?.getSidebarTabs().find(({ id }) => id === ID);
    if (tab) tab.iconBadge = this.badge = getBadge(this.model);
  }

  /** Draws the panel, unless its tab is closed or the page is hidden. */
  draw() {
    if (this.isShown && !document.hidden) this.view.update(this.model);
  }

  /** Shows the panel in an element of the editor. The editor may call this again. */
  render(parent) {
    this.view ??= new PanelView(
      this.actions,
      (number, rank) => this.readLog(number, rank),
      () => this.ask(),
      () => makeComparisonView(app, api),
      () => findNextRuns(app.rootGraph)
    );
    if (this.view.element.parentNode !== parent) parent.append(this.view.element);
    this.isShown = true;
    this.draw();
  }

  destroy() {
    this.isShown = false;
    this.view?.element.remove();
  }
}

const panel = new Panel();
panel.listen(); // before the first message, since the editor warns of messages without a listener

app.registerExtension({
  name: 'ParallelDiT.Panel',
  async setup() {
    await textsLoaded;
    addStyle(new URL('./panel/style.css', import.meta.url));
    app.extensionManager.registerSidebarTab({
      id: ID,
      icon: 'pi pi-server',
      title: t('panel.title'),
      tooltip: t('panel.tooltip'),
      type: 'custom',
      render: (parent) => panel.render(parent),
      destroy: () => panel.destroy()
    });
    await panel.ask();
    panel.updateBadge();
  }
});

// Pure: asks after a pause, asks no question twice, and drops an answer that is out of date.

/**
 * Returns `ask(force)`. After `pause` milliseconds without another call it reads the question and sends it. It does not
 * send the last question again, unless `force` is set. An answer is out of date once a newer question was sent, or
 * `force` was set. read: returns the question as text, or null to send none. send: takes the question and returns a
 * promise of the answer. show: takes the answer. fail: takes the error.
 */
function makeAsker({ pause, read, send, show, fail }) {
  let timer = null;
  let last;
  let forced = false;
  let newest = 0;

  async function askNow() {
    timer = null;
    const question = read();
    if (question === null || (question === last && !forced)) return
    forced = false;
    last = question;
    const own = ++newest;
    try {
      const answer = await send(question);
      if (own === newest) show(answer);
    } catch (error) {
      if (own !== newest) return
      last = undefined;
      fail(error);
    }
  }

  return (force = false) => {
    forced ||= force;
    if (force) newest++;
    clearTimeout(timer);
    timer = setTimeout(askNow, pause);
  }
}

// Pure: keeps the last run of each node that samples, for plans that only a run can tell.


const runs = new WeakMap(); // by the node that samples

/** Notes runs of the workflow with this graph, the newest first. Returns whether one of them has just ended. */
function noteRuns(root, told) {
  let hasEnded = false;
  for (const run of [...told].reverse()) {
    const node = run.node && findNode$1(root, run.node);
    if (!node) continue
    const old = runs.get(node);
    runs.set(node, run);
    hasEnded ||= run.state !== 'running' && !(old?.id === run.id && old.state === run.state);
  }
  return hasEnded
}

/** Returns the last run of a node's samplers; null if there is none. */
function findRan(node) {
  const found = listSamplers(node).map((sampler) => runs.get(sampler));
  return found.filter(Boolean).sort((one, other) => other.began - one.began)[0] ?? null
}

// Adds a widget to a node that shows the server's answer about its plan. The widget is neither saved nor queued.


const PAUSE_MS = 150;
const PATIENCE_MS = 300; // until the node says that it waits
const MARGIN = 10; // pixels

/**
 * Adds the widget to a node. Returns the function that asks the server, and the node's height. draw(target, answer, why)
 * and fail(target, reason) fill the widget; why: see `makeQuestion`.
 */
function addPlanWidget(node, draw, fail) {
  const content = element('div', { class: 'paralleldit-plan-content' });
  const frame = element('div', { class: 'paralleldit-plan' }, content);
  let contentHeight = 0; // pixels
  const measure = () => contentHeight + 2 * MARGIN;
  const widget = node.addDOMWidget('mesh', 'paralleldit_plan', frame, {
    serialize: false,
    hideInPanel: true, // the panel of a node's properties would show a row without a value
    margin: MARGIN,
    getMinHeight: measure,
    getMaxHeight: measure
  });
  widget.serialize = false;
  setHidden(node, [widget], true); // until there is an answer
  const height = new Height(node, () => (widget.hidden ? 0 : measure() + GAP$1));
  let wrong = [];
  let shown; // the file that the last answer is about
  let drawn = ''; // the last answer as text, while it is shown: drawn anew, it would lose the focus of its buttons
  node.strokeStyles.paralleldit = () => {
    if (!content.querySelector('.paralleldit-plan-error')) return undefined
    return { color: window.LiteGraph.NODE_ERROR_COLOUR, lineWidth: 4, padding: 4 }
  };

  const ask = makeAsker({
    pause: PAUSE_MS,
    read: () => (node.graph && hasPlanRoute() ? JSON.stringify(makeQuestion(node)) : null),
    send: async (text) => {
      const { question, why } = JSON.parse(text);
      await textsLoaded;
      const [file] = Object.values(question?.files ?? {});
      const isNew = file !== undefined && file !== shown;
      const timer = setTimeout(() => {
        if (isNew) {
          drawn = '';
          content.replaceChildren(element('div', { class: 'paralleldit-plan-remark' }, t('plan.reading', { file })));
        }
        showContent();
      }, PATIENCE_MS);
      try {
        return { answer: question && addRun(node, await askServer(question)), why, file }
      } finally {
        clearTimeout(timer);
      }
    },
    show: ({ answer, why, file }) => {
      const text = JSON.stringify([answer, why]);
      if (text !== drawn) draw(content, answer, why);
      shown = file;
      drawn = text;
      noteAnswer(node, answer);
      finish(answer?.widgets ?? []);
    },
    fail: (error) => {
      drawn = '';
      fail(content, error.message);
      noteAnswer(node, null);
      finish([]);
    }
  });

  function finish(names) {
    wrong = names;
    markWidgets(node, wrong);
    showContent();
    node.graph?.setDirtyCanvas(true, true);
  }

  function showContent() {
    const hidden = !content.childElementCount;
    if (widget.hidden !== hidden) height.change(() => setHidden(node, [widget], hidden));
  }

  new ResizeObserver(() => {
    markWidgets(node, wrong); // the editor may have made a widget's row anew
    if (!content.offsetHeight || content.offsetHeight === contentHeight) return
    height.change(() => {
      contentHeight = content.offsetHeight;
    });
  }).observe(content);

  const { onSerialize } = node;
  node.onSerialize = function (saved) {
    onSerialize?.call(this, saved);
    saved.size[1] = height.saved;
  };
  return { ask, height }
}

/** Returns the answer with the last run of the node, where only a run can tell the plan. */
function addRun(node, answer) {
  const ran = answer.plan || answer.error ? null : findRan(node);
  return ran ? { ...answer, ran, remarks: [] } : answer
}

/** Marks only the widgets of these names: by their outline on the canvas, by their row where nodes are DOM. */
function markWidgets(node, names) {
  for (const widget of node.widgets ?? []) {
    delete widget.getOutlineColor;
    if (names.includes(widget.name)) widget.getOutlineColor = () => window.LiteGraph.NODE_ERROR_COLOUR;
  }
  if (node.graph !== app.canvas.graph) return // a node of the graph on the screen may have the same id
  const labels = names.map((name) => node.widgets?.find((widget) => widget.name === name)?.label ?? name);
  for (const row of document.querySelectorAll(`[data-node-id="${node.id}"] [data-testid="node-widget"]`)) {
    const label = row.querySelector('[data-testid="widget-layout-field-label"]')?.textContent.trim();
    row.toggleAttribute('data-paralleldit-plan-error', labels.includes(label));
  }
}

// Before anything is queued, the Parallelize Model node shows what its plan does.


const ENDS = ['execution_success', 'execution_error', 'execution_interrupted'];
const askers = new WeakMap(); // by node, the function that asks the server about it

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url));
    api.addEventListener('graphChanged', () => askAll());
    onChange(() => askAll(true));
    api.addEventListener('paralleldit.group', ({ detail }) => {
      if (noteRuns(app.rootGraph, detail.runs ?? [])) askAll(true);
    });
    for (const end of ENDS) api.addEventListener(end, () => askAll(true)); // the run may have measured speeds
    api.addEventListener('reconnected', () => {
      retryPlanRoute();
      askAll(true);
    });
  },

  nodeCreated(node) {
    if (node.comfyClass === PARALLELIZE) explain(node);
  },

  afterConfigureGraph() {
    askAll();
  },

  refreshComboInNodes() {
    askAll(true);
  }
});

function askAll(force) {
  for (const graph of listGraphs(app.rootGraph)) {
    for (const node of graph.nodes) askers.get(node)?.(force);
  }
}

function explain(node) {
  const drawWhole = (target, answer, why) => {
    refill(target, () => {
      draw$1(target, answer, why, makeWhole);
      addUseButtons(target, answer, (values) => setPlan([node], values));
    });
  };
  const { ask, height } = addPlanWidget(node, drawWhole, drawNoAnswer);
  askers.set(node, ask);
  const updateWidgets = () => showUsedWidgets(node);
  const onChange = () => {
    height.change(updateWidgets);
    askAll(); // of two in a row, the other may now be the one that counts
  };
  const mode = node.widgets.find(({ name }) => name === 'mode');
  callAfter(mode, 'callback', () => takeAutoPlan(node));
  callOnChange(node, onChange);
  callAfter(node, 'onConfigure', (saved) => height.open(saved.size[1], updateWidgets));
  callAfter(node, 'onAdded', onChange);
  const { toggleAdvanced } = node;
  node.toggleAdvanced = (...args) => {
    height.change(() => {
      toggleAdvanced?.apply(node, args);
      updateWidgets();
    });
  };
}

/** Calls `onChange` when a widget of the node changes, or a link to or from it. */
function callOnChange(node, onChange) {
  for (const widget of node.widgets ?? []) callAfter(widget, 'callback', () => onChange());
  callAfter(node, 'onConnectionsChange', () => onChange());
}

function callAfter(object, name, after) {
  const before = object[name];
  object[name] = function (...args) {
    const result = before?.apply(this, args);
    after(...args);
    return result
  };
}

// The control of each setting in ComfyUI's settings dialog. It shows the server's value, of which ComfyUI keeps no copy.


const OWN_DEVICE = 'own'; // the empty choice, by its name in the texts
const FRACTIONS = ['start_seconds', 'silence_seconds', 'log_megabytes'];
const shown$1 = new Map(); // elements in the dialog, by the name of their setting
let isAsked = false;

/** Makes the control of a setting. It is filled once the server has answered. */
function makeControl(name) {
  const target = element('div', { class: 'paralleldit-setting', 'data-testid': `paralleldit-setting-${name}` });
  shown$1.set(name, target);
  if (!isAsked) refresh();
  return target
}

async function refresh() {
  isAsked = true;
  const answer = await readSettings();
  isAsked = false;
  if (answer) drawAll(answer);
}

/** Draws the controls of the open dialog by the server's answer. */
function drawAll({ settings, cards }) {
  for (const setting of settings) {
    const target = shown$1.get(setting.name);
    const drawn = JSON.stringify([setting, cards]);
    if (!target || target.dataset.drawn === drawn) continue
    target.dataset.drawn = drawn;
    draw(target, setting, cards);
  }
}

function draw(target, setting, cards) {
  async function change(value) {
    const answer = await changeSettings({ [setting.name]: value });
    if (!answer) draw(target, setting, cards); // the old value comes back
  }
  const control = setting.name === 'gpus' ? makeCards(setting, cards, change) : makeInput(setting, change);
  control.setAttribute('aria-labelledby', `ParallelDiT.${setting.name}-label`);
  const focused = listFocusable(target).indexOf(document.activeElement);
  target.replaceChildren(control, ...makeNote(setting, cards, change));
  if (focused >= 0) (listFocusable(target)[focused] ?? listFocusable(target)[0])?.focus();
}

const listFocusable = (target) => [...target.querySelectorAll('input, select, button')];

/** Says why a setting cannot be changed here, or offers its default. */
function makeNote({ name, source, variable, is_open: isOpen }, cards, change) {
  if (!isOpen) return [element('small', {}, t(`settings.${source === 'variable' ? source : 'closed'}`, { variable }))]
  if (source === 'default') return name === 'gpus' && cards.length ? [element('small', {}, t('settings.open'))] : []
  const words = t(`settings.${name === 'gpus' ? 'automatic' : 'default'}`);
  const button = element('button', { type: 'button', 'data-testid': `paralleldit-default-${name}` }, words);
  button.addEventListener('click', () => change(null));
  return [button]
}

function makeInput(setting, change) {
  const { value, default: usual, choices, is_open: isOpen } = setting;
  const input = choices ? makeChoice(setting) : element('input', describeInput(setting));
  const isAutomatic = usual === 0 && value === 0;
  input.value = isAutomatic ? '' : Array.isArray(value) ? value.join(', ') : value;
  input.disabled = !isOpen;
  if (usual === 0) input.placeholder = t('settings.open');
  if (!choices) input.title = input.value; // it may be cut off
  input.addEventListener('change', () => change(typeof value === 'number' ? readNumber(input) : input.value));
  return input
}

const describeInput = ({ name, value }) =>
  typeof value === 'number' ? { type: 'number', min: 0, step: FRACTIONS.includes(name) ? 'any' : 1 } : { type: 'text' };

/** Returns the number; null, which is the default, if the input is empty. */
const readNumber = (input) => (input.value === '' ? null : Number(input.value));

function makeChoice({ name, choices }) {
  const words = (choice) => t(`settings.ParallelDiT_${name}.options.${choice || OWN_DEVICE}`);
  return element('select', {}, ...choices.map((choice) => element('option', { value: choice }, words(choice))))
}

/** Makes a box for each GPU, ticked if it takes part. Without any tick, the choice is automatic. */
function makeCards({ is_open: isOpen }, cards, change) {
  const group = element('div', { class: 'paralleldit-cards', role: 'group' });
  if (!cards.length) group.append(t('settings.no_gpu'));
  for (const { index, words, is_used: isUsed } of cards) {
    const box = element('input', { type: 'checkbox', value: index });
    box.checked = isUsed;
    box.disabled = !isOpen;
    group.append(element('label', {}, box, words));
  }
  group.addEventListener('change', () => {
    const chosen = [...group.querySelectorAll(':checked')].map(({ value }) => Number(value));
    change(chosen.length ? chosen : null);
  });
  return group
}

// Shows the pack's settings in ComfyUI's settings dialog. Their names and tooltips are in `locales/*/settings.json`.


const GROUPS = {
  'Devices and ranks': ['gpus', 'device', 'ranks', 'cpu_ranks'],
  'Worker group': [
    'start',
    'on_free',
    'when_not_parallel',
    'restarts',
    'start_seconds',
    'silence_seconds',
    'log_megabytes'
  ],
  'Set on the server': ['python', 'machines', 'measured']
};

const inOrder = Object.entries(GROUPS).flatMap(([group, names]) => names.map((name) => ({ group, name })));

app.registerExtension({
  name: 'ParallelDiT.Settings',

  settings: inOrder.map(({ group, name }, place) => ({
    id: `ParallelDiT.${name}`,
    category: ['ParallelDiT', group, name],
    name,
    tooltip: name,
    sortOrder: inOrder.length - place, // the dialog shows the highest first
    type: () => makeControl(name)
  })),

  setup() {
    addStyle(new URL('./settings/style.css', import.meta.url));
    onChange(drawAll);
  }
});

// Pure: says in one line what a plan does: "2 GPUs · ulysses=2 · 1.7× as fast as one".


/**
 * Returns the line's `text`, and as `mark` whether something in it needs a person: 'bad' for what does not run or fit,
 * 'warn' for what is not known, or null. Null if there is nothing to say. answer: the
 * server's. summarize: shortens an error's text. say: `t`.
 */
function describeLine(answer, summarize, say) {
  if (answer.error) return { text: summarize(answer.error), mark: 'bad' }
  const missing = describeMissing(answer, say);
  if (missing) return { text: missing, mark: 'warn' }
  if (!answer.plan) {
    const [unknown] = answer.unknown;
    return unknown ? { text: summarize(unknown), mark: 'warn' } : { text: say('plan.auto_open'), mark: null }
  }
  const count = answer.world;
  const kind = `plan.line.${answer.device === 'cpu' ? 'cpu' : 'gpu'}${count === 1 ? '' : 's'}`;
  const lacks = describeFit(answer, say)?.lacks;
  const [at, of] = answer.tried ?? [];
  const devices = say(kind, { count });
  const plan = count > 1 ? answer.plan : devices;
  const parts = [
    (count > 1 || !at) && devices,
    at ? say('plan.trying', { plan, at, of }) : count > 1 && plan,
    lacks ? say('plan.line.lacks') : describeFactor(answer, say)
  ];
  const text = parts.filter(Boolean).join(' · ');
  return { text, mark: lacks ? 'bad' : answer.unknown.length ? 'warn' : null }
}

/** Says how many times as fast as one device; '' if that is not known, or if the plan is one device. */
function describeFactor({ predicted, world }, say) {
  const { plan, one_device: alone } = predicted ?? {};
  const isAlike = alone?.has_run ? plan?.has_run : alone?.fits && !plan?.has_run;
  if (world === 1 || !plan?.seconds || !isAlike) return ''
  return describeFactor$1(alone.seconds / plan.seconds, 'plan.line', say)
}

// A badge at each subgraph node that holds a Parallelize Model node: its plan in one line, or what its workers do before
// they sample. Whoever has not opened the subgraph sees nothing else of either.


const COLOURS = {
  bad: { fgColor: '#fff', bgColor: '#a02020' },
  waiting: { fgColor: '#fff', bgColor: '#2060b0' }
};

const TRIES = 60; // frames
const shown = new WeakMap(); // by node, its badge of ours
const waiting = new Map(); // by a node's execution id, what its workers do
let frame = 0;

/** Says what the workers of a sampling node do before they sample; '' once they sample. id: the node's execution id. */
function noteWaiting(id, text) {
  if (text) waiting.set(id, text);
  else if (!waiting.delete(id)) return
  updateBadges();
}

/** Brings all badges of the open workflow up to date. */
function updateBadges() {
  const texts = new Map(); // by host
  for (const { host, inner } of listHosts(app.rootGraph)) texts.set(host, chooseLine(inner));
  for (const [id, text] of waiting) {
    for (const host of listAround(app.rootGraph, id)) texts.set(host, { text, mark: 'waiting' });
  }
  for (const graph of [app.rootGraph, ...app.rootGraph.subgraphs.values()]) {
    for (const node of graph.nodes) if (node.subgraph) setBadge(node, texts.get(node));
  }
  markElements();
}

/** Chooses what to say of several nodes: what is wrong, or else the first line. */
function chooseLine(nodes) {
  const answers = nodes.map(findAnswer).filter(Boolean);
  const lines = answers.map((answer) => describeLine(answer, summarizeError, t));
  return lines.find(({ mark }) => mark === 'bad') ?? lines[0] ?? { text: t('panel.title'), mark: null }
}

function setBadge(node, line) {
  const old = shown.get(node);
  if (old?.text === line?.text && old?.mark === line?.mark) return
  const others = node.badges.filter((badge) => badge !== old?.badge);
  const badge = line && new window.LGraphBadge({ text: line.text, ...COLOURS[line.mark] });
  node.badges = badge ? [...others, badge] : others;
  if (badge) shown.set(node, { ...line, badge });
  else shown.delete(node);
  node.graph?.setDirtyCanvas(true, true);
}

/** Puts the badges at nodes that are DOM, which have none of their own. The editor may have yet to make these. */
function markElements(tries = TRIES) {
  cancelAnimationFrame(frame);
  if (!window.LiteGraph.vueNodesMode) return
  let isMissing = false;
  for (const node of app.canvas.graph?.nodes ?? []) {
    if (!node.subgraph) continue
    const target = document.querySelector(`.lg-node[data-node-id="${node.id}"]`);
    const { text, mark } = shown.get(node) ?? {};
    if (!target) isMissing ||= Boolean(text);
    else if (text) Object.assign(target.dataset, { paralleldit: text, paralleldit_mark: mark ?? '' });
    else delete target.dataset.paralleldit;
  }
  if (isMissing && tries) frame = requestAnimationFrame(() => markElements(tries - 1));
}

// Pure: makes the text of a node that samples: what its workers do before they sample, then their plan, and at the end
// what a step took.


const SHORT_LOAD = 1; // seconds; a shorter one is not told

const emptyNotice = () => ({ node: null, text: '', starting: null, since: null });

/** Finds the running run, or the one of the same node that has ended since the event before. */
function findRun(before, group) {
  const [last] = group.runs;
  const isOver = before.node !== null && last?.node === before.node && group.status.starting === undefined;
  return findRunning(group) ?? (isOver ? last : null)
}

/**
 * Returns the node that samples, and its text, after an event of a group; the text is '' if there is nothing to say.
 * starting: seconds of the start so far, or null. since: when loading the model began, or null. before: this function's
 * result for the event before. now: in seconds. translate: a sentence of the server's.
 */
function updateWaiting(before, group, now, t, translate) {
  const { status } = group;
  const run = findRun(before, group);
  if (!run?.node) return emptyNotice()
  const { node } = run;
  const old = before.node === node ? before : { ...emptyNotice(), node };
  if (status.starting !== undefined && !run.made) {
    const starting = status.starting;
    return { ...old, starting, text: t('waiting.starting', { seconds: formatSeconds(Math.ceil(starting)) }) }
  }
  if (status.operation === 'load') {
    const since = old.since ?? now;
    if (now - since < SHORT_LOAD) return { ...old, since }
    const share = getReadPercent(status);
    return { ...old, since, text: share === null ? t('waiting.loading') : t('waiting.reading', { share }) }
  }
  if (!run.made && run.state === 'running') return old
  return { ...emptyNotice(), node, text: [describeRun(run, t), translate(run.reason)].filter(Boolean).join('\n') }
}

/** Describes a run in a line: "2 ranks · cfg=2", and once it is done "2 ranks · cfg=2 · 27 ms a step". */
function describeRun({ plans, usual, state, is_stock: isStock }, t) {
  if (isStock || !plans.length) return ''
  const count = countRanks(plans.at(-1));
  const step = state === 'done' && usual && t('plan.speed.step', { seconds: formatSeconds(usual) });
  return [count > 1 && t('plan.ranks', { count }), describePlans(plans, t), step].filter(Boolean).join(' · ')
}

// While a sampler waits for its workers, its node shows what they do: start, or read the weights. So do the subgraphs
// around it. Then it shows the plan, and at the end what a step took. What the server says on a node is translated.


app.registerExtension({
  name: 'ParallelDiT.Waiting',
  async setup() {
    await textsLoaded;
    onAnswer(updateBadges);
    api.addEventListener('graphChanged', updateBadges);
    app.canvas.canvas.addEventListener('litegraph:set-graph', updateBadges);
    api.addEventListener('progress_text', ({ detail }) => {
      const text = translateSaid(detail.text);
      // The editor may hear of the English text after this.
      if (text !== detail.text) queueMicrotask(() => api.dispatchCustomEvent('progress_text', { ...detail, text }));
    });
    const notices = new Map(); // by group
    let model = createModel();
    api.addEventListener('paralleldit.group', ({ detail }) => {
      model = applyEvent(model, { ...detail});
      const group = model.groups.find(({ number }) => number === detail.group);
      const before = notices.get(detail.group) ?? emptyNotice();
      const now = updateWaiting(before, group, performance.now() / 1000, t, translateSaid);
      notices.set(detail.group, now);
      if (before.node && before.node !== now.node) noteWaiting(before.node, '');
      if (now.node) noteWaiting(now.node, now.starting !== null || now.since !== null ? now.text : '');
      // The editor shows this like ComfyUI's own progress texts: on the node while it runs, in every view.
      if (now.text && now.text !== before.text) {
        api.dispatchCustomEvent('progress_text', { nodeId: now.node, text: now.text });
      }
    });
  },

  afterConfigureGraph: updateBadges
});
