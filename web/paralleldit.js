// Made by `python3 dev.py bundle` of main.mjs and what it imports: change those, not this file.
import { app } from '../../scripts/app.js';
import { api } from '../../scripts/api.js';

// Pure: along the links of a graph, through reroutes and the borders of subgraphs.

const MUTED = 2;
const BYPASSED$1 = 4;

/** The graph of a workflow, and its subgraphs. */
const graphsOf = (root) => [root, ...root.subgraphs.values()];

/** The nodes that a subgraph is seen as. */
const hostsOf = (graph) =>
  graphsOf(graph.rootGraph)
    .flatMap(({ nodes }) => nodes)
    .filter(({ subgraph }) => subgraph === graph);

/** The nodes that these links end at. One of a subgraph that does not run as it is made stands for what is in it. */
function* targetsOf(graph, ids) {
  for (const id of ids ?? []) {
    const link = graph.getLink(id);
    const target = link && graph.getNodeById(link.target_id);
    if (link?.targetIsIoNode) {
      for (const host of hostsOf(graph)) yield* targetsOf(host.graph, host.outputs[link.target_slot]?.links);
    } else if (target?.subgraph && !target.mode) {
      yield* targetsOf(target.subgraph, target.subgraph.inputs[link.target_slot]?.linkIds);
    } else if (target) yield target;
  }
}

/** The nodes behind a node's outputs of these types, those not in `seen`; reroutes and bypassed nodes hand through. */
function* reached(node, types, seen) {
  for (const output of node.outputs ?? []) {
    if (node.type !== 'Reroute' && !types.includes(output.type)) continue
    for (const target of targetsOf(node.graph, output.links)) {
      if (seen.has(target) || target.mode === MUTED) continue
      seen.add(target);
      if (target.type === 'Reroute') yield* reached(target, types, seen);
      else if (target.mode === BYPASSED$1) yield* reached(target, [output.type], seen);
      else yield target;
    }
  }
}

/**
 * What is linked to an input, behind reroutes: the `node`, or where that is none the `value` that a person gives at the
 * node of the subgraph. `isOpen`: only a run can tell, as the subgraph is there more than once. Null for nothing.
 */
function originOf(node, name) {
  return sourceOf(
    node.graph,
    node.inputs?.find((slot) => slot.name === name)
  )
}

function sourceOf(graph, input) {
  const link = input?.link == null ? null : graph?.getLink(input.link);
  return link ? startOf(graph, link) : null
}

function startOf(graph, link) {
  if (link.originIsIoNode) {
    const [host, ...others] = hostsOf(graph);
    const input = host?.inputs[link.origin_slot];
    if (!input || others.length) return { isOpen: true }
    return sourceOf(host.graph, input) ?? { value: host.getWidgetFromSlot(input)?.value }
  }
  const node = graph.getNodeById(link.origin_id);
  if (node?.type === 'Reroute') return sourceOf(graph, node.inputs[0])
  if (!node?.subgraph || node.mode) return node ? { node } : null
  const inner = node.subgraph.getLink(node.subgraph.outputs[link.origin_slot]?.linkIds[0]);
  return inner ? startOf(node.subgraph, inner) : null
}

// Pure: what the graph around a plan or a loader says of it, as the question that POST /paralleldit/plan takes.


const PLAN = 'ParallelDiT_Plan';
const LOADER = 'ParallelDiT_LoadDiffusionModel';
const CHECKPOINT = 'ParallelDiT_LoadCheckpoint';
const LOADERS = [LOADER, CHECKPOINT];
const PLAN_INPUT = 'plan'; // of each loader
const BYPASSED = 4;
const FIRST_GROUP = 1;
const CARRIES_MODEL = ['MODEL', 'GUIDER'];
const LATENT = 'LATENT';
const SAMPLED = [LATENT, 'IMAGE'];
const NEEDED = ['width', 'height']; // of an empty latent: pixels
const SIZES = [...NEEDED, 'length', 'batch_size']; // and frames, and how many

/** The question about a plan node, and the names of its values that other nodes compute, which only a run can tell. */
function questionOf(plan) {
  const { values, open } = widgetValues(plan);
  const loaders = [];
  for (const node of reached(plan, ['PARALLEL_PLAN'], new Set())) loaders.push(...loadersAt(node));
  return { question: { values, loaders }, open: values.mode === 'auto' ? [] : open }
}

/** The question about an automatic plan for a loader. */
const questionOfLoader = (loader) => ({ values: { mode: 'auto' }, loaders: loadersAt(loader) });

/** The same of a loader that has no plan, as `questionOf` has it; no question of one that has, or does not run. */
function questionWithoutPlan(loader) {
  const plan = originOf(loader, PLAN_INPUT);
  return { question: plan?.node || plan?.isOpen || loader.mode ? null : questionOfLoader(loader), open: [] }
}

/**
 * What a loader runs: the chosen model, in which worker group, and the node that asks about its plan; null where nothing
 * does, or only a run can tell.
 */
function runOf$1(loader) {
  const plan = originOf(loader, PLAN_INPUT);
  const [found] = loader.mode || plan?.isOpen ? [] : loadersAt(loader);
  return found ? { asks: plan?.node ?? loader, group: found.group ?? FIRST_GROUP, model: found.model_name } : null
}

/** What a question says of a node, if that is a loader of a known model. */
function loadersAt(node) {
  const { model_name, dtype, group } = LOADERS.includes(node.type) ? widgetValues(node).values : {};
  if (typeof model_name !== 'string') return []
  const samplers = samplersOf(node, new Set(), null);
  const checkpoint = node.type === CHECKPOINT ? { checkpoint: true } : {};
  return [{ model_name, dtype: ofType('string', dtype), group: ofType('number', group), samplers, ...checkpoint }]
}

/** The nodes that sample with a node's model, directly or by way of LoRAs, guiders and the like. cfg: a guider's. */
function samplersOf(node, seen, cfg) {
  const samplers = [];
  for (const target of reached(node, CARRIES_MODEL, seen)) {
    const { values } = widgetValues(target);
    const guidance = target.type === 'BasicGuider' ? 1 : (values.cfg ?? cfg);
    const gives = (target.outputs ?? []).map((output) => output.type);
    if (gives.some((type) => CARRIES_MODEL.includes(type))) {
      samplers.push(...samplersOf(target, seen, guidance));
    } else if (gives.some((type) => SAMPLED.includes(type))) {
      samplers.push({ type: target.type, cfg: ofType('number', guidance), picture: pictureOf(target) });
    }
  }
  return samplers
}

/**
 * The sizes of what a node samples, of the node that its latent is made by from nothing; null where that is not known.
 */
function pictureOf(sampler) {
  const origin = originOf(sampler, sampler.inputs?.find(({ type }) => type === LATENT)?.name)?.node;
  if (!origin || origin.mode === BYPASSED || origin.inputs?.some(({ type }) => type === LATENT)) return null
  const { values } = widgetValues(origin);
  const sizes = SIZES.filter((name) => values[name] !== undefined);
  const areWhole = sizes.every((name) => Number.isInteger(values[name]) && values[name] > 0);
  if (!areWhole || !NEEDED.every((name) => sizes.includes(name))) return null
  return Object.fromEntries(sizes.map((name) => [name, values[name]]))
}

/** Whether auto chooses a plan node's values but its mode; not where another node computes the mode. */
const isAuto = (plan) => widgetValues(plan).values.mode === 'auto';

/**
 * A node's values by widget. A linked one has its node's own `value`, as primitives do, or what the subgraph's node is
 * given; if there is none, it is open.
 */
function widgetValues(node) {
  const values = {};
  const open = [];
  for (const widget of node.widgets ?? []) {
    if (widget.serialize === false) continue
    const origin = originOf(node, widget.name);
    const value = !origin ? widget.value : origin.node ? widgetValue(origin.node, 'value') : origin.value;
    if (value === undefined) open.push(widget.name);
    else values[widget.name] = value;
  }
  return { values, open }
}

/** A value that the server takes: other packs' nodes may have another kind by the same name. */
const ofType = (type, value) => (typeof value === type ? value : null);

function widgetValue(node, name) {
  return node?.widgets?.find((widget) => widget.name === name)?.value
}

// Pure: stock's loaders of a diffusion model, and the parallel one that stands for each.


const GGUF = 'UnetLoaderGGUF'; // of ComfyUI-GGUF, as is the next
const GGUF_ADVANCED = 'UnetLoaderGGUFAdvanced';
const GGUFS = [GGUF, GGUF_ADVANCED];
const WHOLE = 'CheckpointLoaderSimple';

/** By type, its widgets in their order, each by what it means, and its outputs in theirs. */
const KINDS$1 = {
  UNETLoader: { widgets: { file: 'unet_name', dtype: 'weight_dtype' }, outputs: ['MODEL'] },
  [GGUF]: { widgets: { file: 'unet_name' }, outputs: ['MODEL'] },
  [GGUF_ADVANCED]: {
    widgets: { file: 'unet_name', dequant: 'dequant_dtype', patch: 'patch_dtype', onDevice: 'patch_on_device' },
    outputs: ['MODEL']
  },
  [WHOLE]: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP', 'VAE'] },
  unCLIPCheckpointLoader: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION'] },
  ImageOnlyCheckpointLoader: { widgets: { file: 'ckpt_name' }, outputs: ['MODEL', 'CLIP_VISION', 'VAE'] },
  [LOADER]: { widgets: { file: 'model_name', dtype: 'dtype', group: 'group' }, outputs: ['MODEL'] },
  [CHECKPOINT]: {
    widgets: { file: 'model_name', dtype: 'dtype', group: 'group' },
    outputs: ['MODEL', 'CLIP', 'VAE', 'CLIP_VISION']
  }
};
/** How a widget is called in the editor, where not by what it means. */
const LABELS = { dtype: 'weight_dtype' };
/** What a widget has that says nothing. */
const USUAL = { dtype: 'default', group: 1, dequant: 'default', patch: 'default', onDevice: false };
const STOCK_DTYPES = ['default', 'fp8_e4m3fn', 'fp8_e4m3fn_fast', 'fp8_e5m2'];
/** The property in which a parallel loader keeps what the stock one was. */
const ORIGIN = 'paralleldit_stock';

const PARALLEL$1 = {
  UNETLoader: LOADER,
  [GGUF]: LOADER,
  [GGUF_ADVANCED]: LOADER,
  [WHOLE]: CHECKPOINT,
  unCLIPCheckpointLoader: CHECKPOINT,
  ImageOnlyCheckpointLoader: CHECKPOINT
};
// Deprecated by ComfyUI, and for models that have a loader above.
const OLD = ['CheckpointLoader', 'DiffusersLoader'];
const PICKLE = /\.(ckpt|pt2?|bin|pth|pkl)$/i;
const STOCK_FILE = /\.(safetensors|sft|ckpt|pt2?|bin|pth|pkl)$/i;

/** What a loader's widgets have, by what they mean. node: as it is saved. */
function valuesOf(node) {
  const values = Array.isArray(node.widgets_values) ? node.widgets_values : [];
  return Object.fromEntries(Object.keys(KINDS$1[node.type].widgets).map((meaning, place) => [meaning, values[place]]))
}

/** Whether a node, as it is saved, is a stock loader of a diffusion model. */
const isStock = (node) => node.type in PARALLEL$1;

/** Whether it is one that no parallel loader stands for, while another stock one would do. */
const isOld = ({ type }) => OLD.includes(type);

/** The parallel type for such a loader; null for another node, and for a pickle, which no parallel loader reads. */
const parallelFor = (node) => (isStock(node) && !PICKLE.test(valuesOf(node).file) ? PARALLEL$1[node.type] : null);

/**
 * The stock type for a parallel loader, as it is saved: what it was, or another that offers its file; null where there
 * is none, as for a diffusers folder, and for a node that is no parallel loader. exists: whether the editor knows a
 * type; offers: whether a type's list has a file.
 */
function stockFor(node, { exists, offers }) {
  if (!LOADERS.includes(node.type)) return null
  const { file } = valuesOf(node);
  const was = node.properties?.[ORIGIN]?.type;
  if (/\.gguf$/i.test(file ?? '')) return [was, GGUF].find((type) => GGUFS.includes(type) && exists(type)) ?? null
  if (!STOCK_FILE.test(file ?? '')) return null
  const usual = node.type === LOADER ? ['UNETLoader', WHOLE] : [WHOLE];
  const types = !GGUFS.includes(was) && PARALLEL$1[was] === node.type ? [was, ...usual] : usual;
  return types.find((type) => offers(type, file)) ?? types[0]
}

// Pure: a workflow, as the editor saves it, with other loaders in place of some of its own. Whatever else a node is
// known by, its id, links, place, title, colour and mode, stays.


const NAME = 'Node name for S&R';
const PACK$1 = 'cnr_id'; // by which an editor that lacks the node's pack finds it
const OF_THE_TYPE = [NAME, PACK$1, 'aux_id', 'ver'];
const PACKS = { UnetLoaderGGUF: 'ComfyUI-GGUF' };
const STOCK_PACK = 'comfy-core';
const OWN_PACK = 'paralleldit';

/**
 * Changes a workflow in place. chosen(node, graph): the type that a node of the graph of that id is to become, null to
 * stay. smallest(node, graph): the size below which the editor has none of its kind. Returns how many became another,
 * and what of theirs the others have no place for, in words.
 */
function convert(workflow, chosen, smallest) {
  let count = 0;
  const lost = [];
  for (const graph of [workflow, ...(workflow.definitions?.subgraphs ?? [])]) {
    for (const node of graph.nodes ?? []) {
      const type = chosen(node, graph.id);
      if (!type) continue
      const names = renamed(node.type, type);
      count += 1;
      const left = fitValues(node, type);
      if (!LOADERS.includes(type))
        lost.push(...left.map(([meaning, value]) => `${LABELS[meaning] ?? meaning} ${value}`));
      lost.push(...fitInputs(graph, node, names), ...fitOutputs(graph, node, type));
      rename(workflow, graph, node.id, names);
      describe(node, type, smallest(node, graph.id), left);
    }
  }
  return { count, lost: [...new Set(lost)] }
}

/** The widgets that mean the same, from a type's name to the other's. */
function renamed(from, to) {
  const shared = Object.entries(KINDS$1[from].widgets).filter(([meaning]) => KINDS$1[to].widgets[meaning]);
  return Object.fromEntries(shared.map(([meaning, name]) => [name, KINDS$1[to].widgets[meaning]]))
}

/** Returns what the type has no place for, by what it means. */
function fitValues(node, type) {
  const given = valuesOf(node);
  const origin = node.properties?.[ORIGIN];
  const before = origin?.type === type ? origin.values : null;
  const { widgets } = KINDS$1[type];
  const hasDtype = LOADERS.includes(type) || STOCK_DTYPES.includes(given.dtype);
  const isKept = (meaning) => meaning in widgets && (meaning !== 'dtype' || hasDtype);
  const isSaid = (meaning) => given[meaning] != null && given[meaning] !== USUAL[meaning];
  const left = Object.entries(given).filter(([meaning]) => !isKept(meaning) && isSaid(meaning));
  const kept = (meaning) => (isKept(meaning) ? given[meaning] : null) ?? before?.[meaning] ?? USUAL[meaning] ?? null;
  node.widgets_values = Object.keys(widgets).map(kept);
  return left
}

function fitInputs(graph, node, names) {
  const lost = (node.inputs ?? []).filter(({ name, link }) => !(name in names) && link != null);
  for (const { link } of lost) unlink(graph, link);
  node.inputs = (node.inputs ?? [])
    .filter(({ name }) => name in names)
    .map(({ localized_name, ...input }) => ({ ...input, name: names[input.name], widget: { name: names[input.name] } }));
  for (const [slot, { link }] of node.inputs.entries()) setSlot(graph, link, 'target', slot);
  return lost.map(({ name }) => name)
}

function fitOutputs(graph, node, type) {
  const had = new Map(KINDS$1[node.type].outputs.map((name, slot) => [name, node.outputs?.[slot]]));
  const { outputs } = KINDS$1[type];
  const lost = [...had].filter(([name, output]) => !outputs.includes(name) && output?.links?.length);
  for (const [, output] of lost) for (const link of output.links) unlink(graph, link);
  node.outputs = outputs.map((name, slot) => fitOutput(had.get(name) ?? { name, type: name, links: null }, slot));
  for (const [slot, { links }] of node.outputs.entries()) {
    for (const link of links ?? []) setSlot(graph, link, 'origin', slot);
  }
  return lost.map(([name]) => name)
}

function fitOutput({ localized_name, ...output }, slot) {
  return output.slot_index == null ? output : { ...output, slot_index: slot }
}

const idOf = (link) => (Array.isArray(link) ? link[0] : link.id);

/** Links are objects in a subgraph, and [id, origin, slot, target, slot, type] elsewhere. end: origin or target. */
function setSlot(graph, id, end, slot) {
  const link = graph.links?.find((each) => idOf(each) === id);
  if (Array.isArray(link)) link[end === 'origin' ? 2 : 4] = slot;
  else if (link) link[`${end}_slot`] = slot;
}

function unlink(graph, id) {
  graph.links = graph.links.filter((link) => idOf(link) !== id);
  for (const node of graph.nodes) {
    for (const input of node.inputs ?? []) if (input.link === id) input.link = null;
    for (const output of node.outputs ?? []) output.links &&= output.links.filter((each) => each !== id);
  }
  for (const slot of [...(graph.inputs ?? []), ...(graph.outputs ?? [])]) {
    slot.linkIds &&= slot.linkIds.filter((each) => each !== id); // a subgraph's own
  }
}

/** Renames a node's widgets where others name them: nodes of its subgraph that show them, and the app's view. */
function rename(workflow, graph, id, names) {
  for (const { nodes } of [workflow, ...(workflow.definitions?.subgraphs ?? [])]) {
    for (const host of nodes ?? []) {
      for (const shown of (host.type === graph.id && host.properties?.proxyWidgets) || []) {
        if (shown[0] === String(id)) shown[1] = names[shown[1]] ?? shown[1];
      }
    }
  }
  for (const shown of workflow.extra?.linearData?.inputs ?? []) {
    const [place, name] = shown; // a place is a node's id, or graph:node:name
    const behind = `:${id}:${name}`;
    if (!names[name] || (String(place) !== String(id) && !String(place).endsWith(behind))) continue
    if (String(place).endsWith(behind)) shown[0] = `${place.slice(0, -name.length)}${names[name]}`;
    shown[1] = names[name];
  }
}

/** Has a node say what it is: a parallel one also what it was and had, left included, so that it becomes the same again. */
function describe(node, type, least, left) {
  const { [ORIGIN]: origin, ...properties } = node.properties ?? {};
  const saved = Object.entries(properties).filter(([name]) => OF_THE_TYPE.includes(name));
  for (const [name] of saved) delete properties[name];
  if (LOADERS.includes(type)) {
    const was = { type: node.type, size: [...node.size], properties: Object.fromEntries(saved) };
    if (left.length) was.values = Object.fromEntries(left);
    node.properties = { ...properties, [NAME]: type, [PACK$1]: OWN_PACK, [ORIGIN]: was };
  } else {
    const own = { [NAME]: type, [PACK$1]: PACKS[type] ?? STOCK_PACK };
    node.properties = { ...properties, ...(origin?.type === type ? origin.properties : own) };
    if (origin) node.size = node.size.map((side, axis) => sideBefore(side, origin.size[axis], least[axis]));
  }
  node.type = type;
}

/** The side that a stock node had, where the editor alone has made it longer since. */
const sideBefore = (side, before, least) => (Math.abs(side - Math.max(before, least)) < 1 ? before : side);

// The height of a node whose content comes and goes, and which of its widgets are seen: in both of the editor's ways to
// draw nodes.

const GAP$2 = 4; // that LiteGraph leaves below each widget

const heights = new WeakMap(); // by node

/** The size below which the editor has no node of this kind, as it saves it: without content that comes and goes. */
function leastSize(node) {
  const [width, height] = node.computeSize();
  return [width, heights.get(node)?.ofWidgets ?? height]
}

/**
 * A node's height: what its widgets need, and beside that the more of what its content needs and what a person has given
 * it. The content is not saved, so that an answer of the server is no step to undo.
 */
class Height {
  /** content: what of the height that the node computes its content takes. */
  constructor(node, content) {
    this.node = node;
    this.content = content;
    this.given = 0;
    heights.set(node, this);
  }

  get ofWidgets() {
    return this.node.computeSize()[1] - this.content()
  }

  /** Does what changes the height that the node needs. */
  change(act) {
    this.note();
    act();
    this.apply();
  }

  /** The same, when a saved node is opened. An earlier version may have saved it with all that is hidden since. */
  open(saved, act) {
    const before = this.ofWidgets;
    const folded = this.node.widgets.filter((widget) => widget.advanced && !widget.hidden).length;
    act();
    const now = this.ofWidgets;
    const isOld = saved >= before && before > now;
    this.given = Math.max(0, saved - (isOld ? before + folded * (window.LiteGraph.NODE_WIDGET_HEIGHT + GAP$2) : now));
    this.apply();
  }

  /** What is to be saved. */
  get saved() {
    this.note();
    return this.ofWidgets + this.given
  }

  /** Looks at what a person has made of it; where nodes are DOM, it is the content that does. */
  note() {
    if (window.LiteGraph.vueNodesMode) return
    const beside = this.node.size[1] - this.ofWidgets;
    this.given = beside > this.content() ? beside : Math.min(this.given, this.content());
  }

  apply() {
    const { node } = this;
    node.setSize([node.size[0], this.ofWidgets + Math.max(this.given, this.content())]);
    node.graph?.setDirtyCanvas(true, true);
  }
}

/** Has these widgets seen, or not. */
function setHidden(node, widgets, hidden) {
  for (const widget of widgets) {
    widget.hidden = hidden;
    widget.options.hidden = hidden;
  }
  // Nodes that are DOM read their widgets' options anew only when the list of widgets changes, as its length does.
  const all = node.widgets.splice(0);
  node.widgets.push(...all);
}

// Pure: from the event of a failed node to what a person reads of it.

const DETAILS = '\n\nDetails:\n';

/**
 * {cause, advice, details} of an error's text, whose form is that of `parallel_backend/errors.py`: a paragraph each, the
 * last under a line of its own. The last two may be empty.
 */
function fieldsOf(text) {
  const [head, ...details] = text.trim().split(DETAILS);
  const [cause, ...advice] = head.split(/\n{2,}/);
  return { cause, advice: advice.join('\n'), details: details.join(DETAILS) }
}

/** The kind of each class of errors, by the end of its full name. */
const KINDS = {
  'worker.errors.WorkerGroupError': 'group',
  'worker.errors.OutOfMemory': 'memory',
  'worker.errors.RequestRefused': 'refused',
  'worker.settings.SettingsError': 'settings',
  'parallel_backend.errors.PlanError': 'plan',
  'parallel_backend.errors.ModelFileError': 'file',
  'parallel_backend.errors.UnknownModelError': 'model',
  'parallel_backend.errors.RequestError': 'refused',
  'nodes.errors.Refused': 'refused',
  'nodes.errors.NotInstalled': 'refused'
};

/**
 * What kind of error of this pack an `execution_error` is, a key of `errors.titles`; null for all others.
 *
 * pack: the name of its folder. What has no class of the pack's is unforeseen in its code, and at its nodes.
 */
function kindOf({ exception_type: type, node_type: node, traceback = [] }, pack) {
  for (const [name, kind] of Object.entries(KINDS)) if (type.endsWith(`.${name}`)) return kind
  const own = (traceback.at(-1) ?? '').replaceAll('\\', '/').includes(`/custom_nodes/${pack}/`);
  return own || (traceback.length && node.startsWith('ParallelDiT_')) ? 'unforeseen' : null
}

/** {cause, advice, details} of an `execution_error`; the last two may be empty. */
function explain$1({ exception_type: type, exception_message: message, traceback = [] }, kind) {
  if (kind !== 'unforeseen') return fieldsOf(message)
  return { cause: `${type.split('.').at(-1)}: ${message.trim()}`, advice: '', details: traceback.join('').trimEnd() }
}

/** The whole error as text, for a report. */
function report(title, { cause, advice, details }) {
  return [title, cause, advice, details].filter(Boolean).join('\n\n')
}

// Pure: from the texts of `locales/*/main.json` to words in the editor's language. `text.mjs` fetches them.

/**
 * The text at a dotted path of the first of these trees that has it, with {names} filled in; the path itself if none
 * has.
 */
function words(trees, path, values = {}) {
  for (const tree of trees) {
    const found = at(tree, path);
    if (typeof found === 'string') return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)
  }
  return path
}

/**
 * A text that was made elsewhere of an English template, one of those under the path in the last tree, in the first
 * language that has it; as it is if it was made of none. Where it could be of several, the one with the most words is it.
 */
function retold(trees, path, text) {
  const templates = Object.entries(at(trees.at(-1), path) ?? {});
  const made = templates.filter(([, template]) => filledIn(template, text));
  if (!made.length) return text
  const [key, template] = made.reduce((one, other) => (fixed(other[1]) > fixed(one[1]) ? other : one));
  return words(trees, `${path}.${key}`, filledIn(template, text))
}

const at = (tree, path) => path.split('.').reduce((node, key) => node?.[key], tree);

const NAMES$1 = /\{(\w+)\}/g;

/** How much of a template is words of its own. */
const fixed = (template) => template.replace(NAMES$1, '').length;

/** What has to be filled in for its {names} to make this text of a template; null where nothing does. */
function filledIn(template, text) {
  const names = [...template.matchAll(NAMES$1)].map(([, name]) => name);
  const pieces = template.split(/\{\w+\}/).map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  const found = text.match(new RegExp(`^${pieces.join('(.+)')}$`));
  return found && Object.fromEntries(names.map((name, index) => [name, found[index + 1]]))
}

// The pack's own words in the editor's language, as ComfyUI serves them from `locales/*/main.json`.


let trees = [];

/** The editor's language, by which times are told, too. */
const language = () => app.extensionManager.setting.get('Comfy.Locale') ?? 'en';

/** Fetches the texts, once; to be awaited before `t`. */
const loaded = (async () => {
  const own = language();
  try {
    const all = await (await api.fetchApi('/i18n')).json();
    trees = [all[own], all[own.split('-')[0]], all.en].map((tree) => tree?.paralleldit ?? {});
  } catch (error) {
    console.warn('[ParallelDiT]', error); // what is shown then has names in place of words
  }
})();

/** "a, b or c" of these words. */
const either = (words) => new Intl.ListFormat(language(), { type: 'disjunction' }).format(words);

/** The text at a path like 'panel.stop', with {names} filled in. */
const t = (path, values) => words(trees, path, values);

/**
 * An error's advice, which is English, in the editor's language: each line that is made of one of `errors.advices`.
 *
 * The English words are their own key, as in gettext: whatever carries the text of an error carries them, nothing has to
 * be kept for a page that is loaded later or beside, and an advice that no language has is shown as it was given.
 */
const advised = (advice) =>
  advice
    .split('\n')
    .map((line) => retold(trees, 'errors.advices', line))
    .join('\n');

/** What an error's text says before its details, in a line. */
function brief$1(text) {
  const { cause, advice } = fieldsOf(text);
  return [cause, advised(advice)].filter(Boolean).join(' ')
}

// Stock's loaders of diffusion models become parallel, and stock again: by a node's menu, the canvas's, the editor's,
// and by commands. The changed workflow is loaded as the editor loads a step that is undone, and is one step to undo.


const PARALLEL = 'ParallelDiT.MakeWorkflowParallel';
const STOCK = 'ParallelDiT.MakeWorkflowStock';
const TOAST_MS = 8000;

app.registerExtension({
  name: 'ParallelDiT.Convert',

  // Translated by `commands.json`, and in the editor's menu by `menuLabels` of `main.json`.
  commands: [
    { id: PARALLEL, label: 'Make this workflow parallel', icon: 'pi pi-server', function: makeWorkflowParallel },
    { id: STOCK, label: 'Make this workflow stock', icon: 'pi pi-undo', function: makeWorkflowStock }
  ],
  menuCommands: [{ path: ['Edit'], commands: [PARALLEL, STOCK] }],

  getNodeMenuItems(live) {
    if (isOld(live)) return [null, { content: t('convert.old'), disabled: true }]
    if (!(live.type in KINDS$1)) return []
    const node = live.serialize();
    const [type, key, why] = isStock(node)
      ? [parallelFor(node), 'convert.parallel', 'convert.pickle']
      : [stockFor(node, EDITOR), 'convert.stock', 'convert.noStock'];
    return [null, { content: t(type ? key : why), disabled: !type, callback: () => makeNode(live, type) }]
  },

  getCanvasMenuItems() {
    const nodes = allNodes();
    const items = [];
    if (nodes.some(isStock)) items.push({ content: t('convert.workflowParallel'), callback: makeWorkflowParallel });
    if (nodes.some(({ type }) => LOADERS.includes(type)))
      items.push({ content: t('convert.workflowStock'), callback: makeWorkflowStock });
    return items.length ? [null, ...items] : []
  }
});

/** What the editor knows of stock types. */
const EDITOR = {
  exists: (type) => type in window.LiteGraph.registered_node_types,
  offers: (type, file) => {
    const inputs = window.LiteGraph.registered_node_types[type]?.nodeData?.input?.required ?? {};
    const [list, options] = inputs[KINDS$1[type].widgets.file] ?? [];
    return (Array.isArray(list) ? list : (options?.options ?? [])).includes(file)
  }
};

const allNodes = () => graphsOf(app.rootGraph).flatMap(({ nodes }) => nodes);
const copy = (value) => JSON.parse(JSON.stringify(value));

async function makeNode({ id, graph }, type) {
  const isIt = (node, graphId) => String(node.id) === String(id) && graphId === graph.id;
  const { lost } = await change((node, graphId) => (isIt(node, graphId) ? type : null));
  sayLost(lost);
}

async function makeWorkflowParallel() {
  await loaded;
  const stock = allNodes().filter(isStock);
  const saved = stock.map((live) => live.serialize());
  const pickles = saved.filter((node) => !parallelFor(node)).map((node) => valuesOf(node).file);
  const { count, lost } = await change(parallelFor);
  if (count) say('success', 'convert.madeParallel', { count });
  else if (!pickles.length) say('info', 'convert.noneToMakeParallel');
  if (pickles.length) say('warn', 'convert.leftPickles', { files: pickles.join(', ') });
  sayLost(lost);
}

async function makeWorkflowStock() {
  await loaded;
  const { count, lost } = await change((node) => stockFor(node, EDITOR));
  const left = allNodes().filter(({ type }) => LOADERS.includes(type));
  say(count ? 'success' : 'info', count ? 'convert.madeStock' : 'convert.noneToMakeStock', { count });
  if (left.length) say('warn', 'convert.leftParallel', { nodes: left.map(({ title }) => title).join(', ') });
  sayLost(lost);
}

function sayLost(lost) {
  if (lost.length) say('warn', 'convert.lost', { values: lost.join(', ') });
}

function say(severity, key, values) {
  app.extensionManager.toast.add({ severity, summary: 'ParallelDiT', detail: t(key, values), life: TOAST_MS });
}

/** Has loaders become others, see `convert`, in one step. */
async function change(chosen) {
  const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
  tracker.beforeChange();
  tracker.afterChange(); // what has changed so far is a step of its own
  const workflow = copy(app.rootGraph.serialize());
  const done = convert(workflow, chosen, smallest);
  if (!done.count) return done
  await tracker.updateState([workflow], tracker.undoQueue);
  tracker.redoQueue.length = 0;
  tracker.activeState = copy(app.rootGraph.serialize()); // what the editor adds as it loads is none
  return done
}

function smallest(node, graphId) {
  const graph = graphsOf(app.rootGraph).find(({ id }) => id === graphId);
  return leastSize(graph.getNodeById(node.id))
}

// Elements of a page, and the style sheets that the pack adds to it.

const SVG = 'http://www.w3.org/2000/svg';

/** An element with these attributes and children; a child that is a string becomes text. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children)
}

/** As `element`, of a drawing. */
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children)
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made
}

/** Adds a style sheet to the page. url: against that of the module that asks for it. */
function addStyle(url) {
  document.head.append(element('link', { rel: 'stylesheet', href: url }));
}

// The clipboard, also on a page that a browser takes for insecure, which ComfyUI on another machine is.


async function toClipboard(text) {
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

/** Has a button copy what `read` gives, and say so for a moment. words: what it says before and after. */
function copiesOnClick(button, read, words) {
  button.addEventListener('click', async () => {
    await toClipboard(read());
    button.textContent = words.copied;
    setTimeout(() => {
      button.textContent = words.copy;
    }, COPIED_MS);
  });
}

// The card that shows an error: its elements, and what its buttons do. `errors.mjs` puts it at the node.


/** What the tests know an element of the card by. */
const testId = (part) => ({ 'data-testid': `paralleldit-error-${part}` });

/** label: what an icon alone does not say; empty for a button with words. */
function button$1(className, label, attributes, onclick, ...children) {
  const named = label ? { title: label, 'aria-label': label } : {};
  const made = element('button', { type: 'button', class: className, ...named, ...attributes }, ...children);
  if (onclick) made.addEventListener('click', onclick);
  return made
}

/**
 * An alert of that kind. said: {cause, advice, details}. node: its name. onDismiss, onShow: what is called for the
 * buttons that take the card away, and that go to the node.
 */
function errorCard(kind, said, node, { onDismiss, onShow }) {
  const title = t(`errors.titles.${kind}`);
  const words = { copy: t('errors.copy'), copied: t('errors.copied') };
  const copied = button$1('paralleldit-error-action', '', testId('copy'), null, words.copy);
  copiesOnClick(copied, () => report(`${title} (${node})`, said), words);
  const card = element(
    'section',
    { class: 'paralleldit-error', role: 'alert', 'data-testid': 'paralleldit-error', 'data-kind': kind },
    element(
      'header',
      {},
      icon('pi-times-circle'),
      element('strong', {}, title),
      button$1('paralleldit-error-close', t('errors.dismiss'), testId('dismiss'), onDismiss, icon('pi-times'))
    ),
    element('p', { class: 'paralleldit-error-cause', ...testId('cause') }, said.cause)
  );
  if (said.advice) {
    const label = element('span', { class: 'paralleldit-error-label' }, t('errors.advice'));
    card.append(element('p', { class: 'paralleldit-error-advice', ...testId('advice') }, label, said.advice));
  }
  if (said.details) {
    card.append(
      element(
        'details',
        testId('details'),
        element('summary', {}, t('errors.details')),
        element('pre', { tabindex: 0 }, said.details)
      )
    );
  }
  card.append(
    element('footer', {}, button$1('paralleldit-error-action paralleldit-error-node', '', {}, onShow, node), copied)
  );
  card.querySelector('.paralleldit-error-node').title = t('errors.show');
  card.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') return
    event.stopPropagation();
    onDismiss();
  });
  return card
}

function icon(name) {
  return element('i', { class: `pi ${name}`, 'aria-hidden': true })
}

// Pure: which node on the canvas an error belongs to, and where its card goes. Rectangles are {x, y, width, height}.

const GAP$1 = 10;

/**
 * The node that stands for an execution id like '6', or '12:5' in a subgraph, in the graph that is shown; null if none.
 */
function nodeIn(shown, root, id) {
  let graph = root;
  for (const part of String(id).split(':')) {
    const node = graph?.getNodeById(part);
    if (!node || graph === shown) return node ?? null
    graph = node.subgraph;
  }
  return null
}

/** A node's rectangle in the pixels of the canvas. scale, offset: of the canvas; titleHeight: in units of the graph. */
function rectangle(node, { scale, offset }, titleHeight) {
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
 * The card's upper left corner: beside the node, on the first side with room, and always whole within the view.
 *
 * closed: the size that the sides are tried with, so that unfolding the details does not send the card elsewhere.
 * node: null puts the card into the view's lower left corner. taken: rectangles along the view's right edge that would
 * cover the card; it goes to the left of them.
 */
function place(node, card, closed, view, taken = []) {
  const corner = placeIn(node, card, closed, view);
  const covers = ({ x, y, width, height }) =>
    x < corner.x + card.width && corner.x < x + width && y < corner.y + card.height && corner.y < y + height;
  const left = Math.min(...taken.filter(covers).map(({ x }) => x));
  return left < Infinity ? placeIn(node, card, closed, { ...view, width: left - view.x }) : corner
}

function placeIn(node, card, closed, view) {
  const right = view.x + view.width;
  const bottom = view.y + view.height;
  if (!node) return within({ x: view.x, y: bottom }, card, view)
  const sides = [
    [node.y + node.height + 2 * GAP$1 + closed.height <= bottom, { x: node.x, y: node.y + node.height + GAP$1 }],
    [node.x + node.width + 2 * GAP$1 + closed.width <= right, { x: node.x + node.width + GAP$1, y: node.y }],
    [node.x - 2 * GAP$1 - closed.width >= view.x, { x: node.x - GAP$1 - card.width, y: node.y }],
    [node.y - 2 * GAP$1 - closed.height >= view.y, { x: node.x, y: node.y - GAP$1 - card.height }]
  ];
  const [, corner] = sides.find(([fits]) => fits) ?? sides[0];
  return within(corner, card, view)
}

function within({ x, y }, card, view) {
  const inside = (value, from, size, own) => Math.max(from + GAP$1, Math.min(value, from + size - own - GAP$1));
  return { x: inside(x, view.x, view.width, card.width), y: inside(y, view.y, view.height, card.height) }
}

// One error: its card, which is in the page and at its node while the workflow that failed is the open one.


class Notice {
  /** event: the `execution_error`. onDismiss: called when the card is to go. */
  constructor(kind, event, onDismiss) {
    this.kind = kind;
    this.event = event;
    this.onDismiss = onDismiss;
    this.card = null; // made where its node is first seen, whose title it has
    this.onKey = (event) => this.dismissByKey(event);
  }

  /** Puts the card at the node, wherever that is by now. */
  show() {
    this.card ??= this.makeCard();
    if (!this.card.isConnected) {
      document.addEventListener('keydown', this.onKey);
      app.canvas.canvas.parentElement.append(this.card);
      this.closed ??= size(this.card);
    }
    const node = this.node();
    const at = node ? rectangle(node, app.canvas.ds, window.LiteGraph.NODE_TITLE_HEIGHT) : null;
    const { x, y } = place(at, size(this.card), this.closed, view(), taken$1());
    this.card.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  hide() {
    document.removeEventListener('keydown', this.onKey);
    this.card?.remove();
  }

  makeCard() {
    const name = this.node()?.title ?? this.event.node_type;
    const said = explain$1(this.event, this.kind);
    return errorCard(this.kind, { ...said, advice: advised(said.advice) }, name, {
      onDismiss: () => this.dismiss(),
      onShow: () => this.goToNode()
    })
  }

  /** The node in the graph that is shown; undefined where it is not in it, or is another one by now. */
  node() {
    const { node_id: id, node_type: type } = this.event;
    const node = nodeIn(app.canvas.graph, app.rootGraph, id);
    const inside = String(id).includes(':');
    return node && (inside || node.type === type) ? node : undefined
  }

  /** Goes to the node, out of a subgraph that it is not in. */
  goToNode() {
    if (!this.node()) app.canvas.setGraph(app.rootGraph);
    if (this.node()) app.canvas.centerOnNode(this.node());
  }

  /** Escape belongs to whatever else has the focus. */
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

const size = (element) => ({ width: element.offsetWidth, height: element.offsetHeight });

/** The part of the canvas that no panel covers, in its pixels; what lies along its upper edge comes and goes. */
function view() {
  const canvas = app.canvas.canvas.getBoundingClientRect();
  const free = document.querySelector('.graph-canvas-panel')?.getBoundingClientRect() ?? canvas;
  return { x: free.x - canvas.x, y: 0, width: free.width, height: free.bottom - canvas.y }
}

/** What the editor has in the canvas's lower right corner, in the canvas's pixels. */
function taken$1() {
  const canvas = app.canvas.canvas.getBoundingClientRect();
  const shown = ['minimap-interaction-overlay', 'zoom-controls-button']
    .map((id) => document.querySelector(`[data-testid="${id}"]`)?.parentElement.getBoundingClientRect())
    .filter((box) => box?.width);
  return shown.map(({ x, y, width, height }) => ({ x: x - canvas.x, y: y - canvas.y, width, height }))
}

// Pure: which workflow a prompt is of, which the server does not say when it fails.

const MOST = 200; // prompts whose end is not heard of: cleared from the queue, or ended while the page was away
const ANSWERED = 5000; // ms

class Origins {
  /** kept: what `toJSON` gave before the page was reloaded. */
  constructor(kept = {}) {
    this.workflows = new Map(); // by the id of a prompt that has not ended
    this.paths = new Map(Object.entries(kept)); // of the workflows of those that were sent before the reload
    this.unanswered = new Set();
  }

  /** Notes that a prompt of this workflow was sent. answer: a promise of the server's, with the prompt's id. */
  sent(workflow, answer) {
    const noted = Promise.resolve(answer)
      .then(({ prompt_id: id }) => this.note(id, workflow))
      .catch(() => {}); // refused: there is no prompt
    this.unanswered.add(noted);
    noted.then(() => this.unanswered.delete(noted));
    return answer
  }

  note(id, workflow) {
    this.workflows.set(id, workflow);
    if (this.workflows.size > MOST) this.workflows.delete(this.workflows.keys().next().value);
  }

  /**
   * The workflow of a prompt, null if it is no longer open. One that was not sent from here counts as the active one's.
   * It may fail before the answer that tells its id is there. One renamed since a reload counts as closed.
   */
  async of(id, { activeWorkflow, openWorkflows }) {
    if (!this.workflows.has(id)) await this.answered();
    const isOrigin = this.workflows.has(id)
      ? (workflow) => workflow === this.workflows.get(id)
      : ({ path }) => path === this.paths.get(id);
    if (!this.workflows.has(id) && !this.paths.has(id)) return activeWorkflow
    return openWorkflows.find(isOrigin) ?? null
  }

  /** Forgets a prompt that has ended, also where the answer with its id is still to come. */
  async ended(id) {
    this.paths.delete(id);
    if (!this.workflows.delete(id)) await this.answered();
    this.workflows.delete(id);
  }

  /** Until what was sent so far is answered, but not for ever. */
  answered() {
    return Promise.race([Promise.all(this.unanswered), new Promise((done) => setTimeout(done, ANSWERED))])
  }

  /** The path of the workflow of each prompt, to be kept while the page is reloaded. */
  toJSON() {
    const paths = [...this.workflows].map(([id, { path }]) => [id, path]);
    return Object.fromEntries([...this.paths, ...paths].slice(-MOST))
  }
}

// Shows an error of this pack at the node that failed, in its workflow, until Run is pressed there again.


const PACK = decodeURIComponent(new URL('.', import.meta.url).pathname.split('/').at(-2));
const KEPT = 'paralleldit.origins'; // while the page is reloaded

class Errors {
  constructor() {
    this.notices = new Map(); // the last one of each workflow
    this.origins = new Origins(kept());
    this.frame = 0;
  }

  listen() {
    const { queuePrompt } = api; // no event tells the id of a prompt that is queued
    api.queuePrompt = (...request) =>
      this.origins.sent(app.extensionManager.workflow.activeWorkflow, queuePrompt.apply(api, request));
    window.addEventListener('pagehide', () => keep(this.origins));
    // Another prompt that waits in the queue starts at once: it takes no card away, but the next press of Run does.
    api.addEventListener('promptQueueing', () => this.drop(app.extensionManager.workflow.activeWorkflow));
    api.addEventListener('execution_success', ({ detail }) => this.origins.ended(detail.prompt_id));
    api.addEventListener('execution_interrupted', ({ detail }) => this.origins.ended(detail.prompt_id));
    api.addEventListener('execution_error', ({ detail }) => this.tell(detail));
  }

  async tell(event) {
    const workflow = await this.origins.of(event.prompt_id, app.extensionManager.workflow);
    this.origins.ended(event.prompt_id);
    const kind = kindOf(event, PACK);
    if (!kind || !workflow) return
    await loaded;
    this.drop(workflow);
    this.notices.set(workflow, new Notice(kind, event, () => this.drop(workflow)));
    this.follow();
  }

  drop(workflow) {
    this.notices.get(workflow)?.hide();
    this.notices.delete(workflow);
  }

  /** Keeps the card of the open workflow at its node, whatever moves either; drops those of closed workflows. */
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

// A browser may forbid pages to keep anything: a reload then forgets whose prompts are under way.
function kept() {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT)) ?? {}
  } catch {
    return {}
  }
}

function keep(origins) {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(origins));
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

// Elements that are made once and then changed in place, so that focus, selection and scrolling stay where they are.


/** Sets an element's text, where it is another. */
function text(target, words) {
  if (target.textContent !== words) target.textContent = words;
}

/** Sets an attribute, where it is another; null removes it. */
function attribute(target, name, value) {
  if (value === null) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

/** Shows an element if there is something to show. */
function shown(target, yes) {
  target.hidden = !yes;
}

/** The children of one element, one an item: each made once for its key, updated, put in order, and removed at last. */
class Children {
  /** make: from an item to an object with `element` and `update(item)`. */
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

/** An id for `aria-labelledby` and `for`. */
const uniqueId = (name) => `paralleldit-${name}-${++lastId}`;

/** A part of the panel that folds, under a heading with a few words beside it. */
function fold(title, open, ...children) {
  const aside = element('span', { class: 'paralleldit-aside' });
  const summary = element('summary', {}, element('h4', {}, title), aside);
  const details = element('details', { class: 'paralleldit-fold', ...(open ? { open: '' } : {}) }, summary, ...children);
  return { element: details, aside }
}

// Pure: numbers and names as the panel shows them.

const MEBIBYTE = 2 ** 20;
const GIBIBYTE = 2 ** 30;
// Of a plan; all else are degrees, the outermost axis first.
const NO_AXES = [
  'patches',
  'sync_steps',
  'attention',
  'compile',
  'exchange_dtype',
  'weights',
  'weight_blocks',
  'speeds'
];

/** "412 MiB", "1.2 GiB", "128 GiB". */
function bytes(count) {
  if (count < GIBIBYTE) return `${Math.round(count / MEBIBYTE)} MiB`
  const gibibytes = count / GIBIBYTE;
  return `${gibibytes.toFixed(gibibytes < 100 ? 1 : 0)} GiB`
}

/** "20.5 of 23.6 GiB", "812 MiB of 15.6 GiB": the unit once where it is the same. said: the words, of two texts. */
function bytesOf(used, total, said) {
  const [[amount, unit], [, whole]] = [bytes(used), bytes(total)].map((words) => words.split(' '));
  return said(unit === whole ? amount : `${amount} ${unit}`, bytes(total))
}

// What a maker adds to a card's name that no two cards of a machine differ in.
const OF_THE_MAKER = /\((R|TM)\)|\b(NVIDIA|GeForce|AMD|Radeon|Intel|Tesla|Graphics|Generation)\b/g;

/** "RTX 4090" of "NVIDIA GeForce RTX 4090". */
const cardName = (name) => name.replace(OF_THE_MAKER, '').replace(/\s+/g, ' ').trim() || name;

/** "3 ms", "0.42 s", "12.3 s", "2 min 5 s". */
function seconds(count) {
  if (count < 0.1) return `${Math.round(count * 1000)} ms`
  if (count < 10) return `${count.toFixed(2)} s`
  return count < 60 ? `${count.toFixed(1)} s` : roughSeconds(count)
}

/** "6 s", "2 min 5 s". */
function roughSeconds(count) {
  const whole = Math.ceil(count);
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`
}

/** "18%". */
const percent$1 = (share) => `${Math.round(share * 100)}%`;

const OF_24_HOURS = { hourCycle: 'h23' };

/** "15:04:05", as the language writes it, in the browser's time zone. */
const clock = (date, language) => date.toLocaleTimeString(language, OF_24_HOURS);

/** The same, with the date. */
const dateAndClock = (date, language) => date.toLocaleString(language, OF_24_HOURS);

/** The last part of a path, of either kind. */
const fileName = (path) => path.split(/[\\/]/).pop();

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2
}

/** Of a run's steps, each [seconds, seconds of it in communication]: the median, and communication's share of all. */
function summary(steps) {
  if (!steps.length) return null
  const sum = (column) => steps.reduce((total, step) => total + step[column], 0);
  return { median: median(steps.map(([length]) => length)), share: sum(0) > 0 ? sum(1) / sum(0) : 0 }
}

/** How many times as fast as one device a run's median step was; null where that is not known. */
function timesOfOne({ alone, steps }) {
  const known = summary(steps);
  return alone && known?.median ? alone / known.median : null
}

/** "1.8", "12". */
const times = (factor) => (factor < 9.95 ? factor.toFixed(1) : String(Math.round(factor)));

/** About how many seconds a run still takes; null where that is not known. */
function secondsLeft(run) {
  const known = run?.at && summary(run.steps);
  return known ? (Math.max(0, run.total - run.at) * known.median * run.made) / run.at : null
}

/** "1:0.5": speeds, the fastest being 1. */
const inProportion = (speeds) => speeds.map((speed) => Number((speed / Math.max(...speeds)).toPrecision(3))).join(':');

/** How many ranks a plan has. */
const ranksOfPlan = (plan) =>
  Object.keys(plan).reduce((ranks, name) => (NO_AXES.includes(name) ? ranks : ranks * plan[name]), 1);

/** A plan's values in the words of its Python class. t: the texts, by path and values. */
function planWords(plan, t) {
  const axes = Object.keys(plan).filter((name) => !NO_AXES.includes(name) && plan[name] > 1);
  const parts = axes.map((axis) => `${axis}=${plan[axis]}`);
  const patches = plan.patches || plan.pipefusion || 1;
  if (patches > 1) parts.push(t('panel.planPatches', { patches, steps: plan.sync_steps }));
  if (plan.attention && plan.attention !== 'auto') parts.push(t('panel.planAttention', { name: plan.attention }));
  if (plan.weights && plan.weights !== 'auto') {
    const key = plan.weight_blocks ? 'panel.planWeightsOf' : 'panel.planWeights';
    parts.push(t(key, { name: plan.weights, blocks: plan.weight_blocks }));
  }
  if (plan.compile && plan.compile !== 'off') parts.push(t(`panel.planCompiled.${plan.compile}`));
  if (plan.exchange_dtype === 'fp8') parts.push(t('panel.planExchange', { name: plan.exchange_dtype }));
  if (plan.speeds?.length) parts.push(t('panel.planSpeeds', { speeds: inProportion(plan.speeds) }));
  return parts.join(' × ') || t('panel.planOneRank')
}

/** The plans that a run had, one after the other; "auto" before one is chosen. */
const plansWords = (plans, t) => plans.map((plan) => planWords(plan, t)).join(', ') || 'auto';

// Pure: a prompt under several plans, one after the other, and what came of it.


const NODE = 'paralleldit_comparison'; // the id of the plan that all loaders get

/** The ids of a worker group's loaders in a prompt in API format. types: of loaders. */
const loadersOf = (prompt, types, group) =>
  Object.keys(prompt).filter((id) => {
    const { class_type: type, inputs } = prompt[id];
    return types.includes(type) && (inputs.group ?? 1) === group
  });

/**
 * The plans to compare, as values of a Plan node: those that are predicted to be the fastest, or auto where nothing is
 * predicted; and one device. answer: that of POST /paralleldit/plan, or null.
 */
function candidates(answer) {
  const best = (answer?.predicted?.best ?? []).filter(({ fits }) => fits);
  const ofNode = (values) => ({ ...values, speeds: values.speeds.join(', '), mode: 'manual' });
  const found = best.map(({ values }) => ({ plans: [values], values: ofNode(values), isAlone: false }));
  const auto = { plans: [], values: { mode: 'auto' }, isAlone: false };
  return [...(found.length ? found : [auto]), { plans: [{}], values: { mode: 'manual' }, isAlone: true }]
}

/**
 * A prompt with these loaders under a plan. mark: an input that no node has, and that makes it another prompt than any
 * before: ComfyUI computes nothing twice.
 */
function under(prompt, loaders, values, mark) {
  const changed = structuredClone(prompt);
  changed[NODE] = { class_type: 'ParallelDiT_Plan', inputs: { ...values, [NODE]: mark } };
  for (const id of loaders) changed[id].inputs.plan = [NODE, 0];
  return changed
}

/** What the runs of one prompt took: of all together the seconds, and the median step. */
function taken(runs) {
  const steps = runs.flatMap((run) => run.steps.map(([length]) => length));
  const seconds = runs.reduce((sum, run) => sum + (run.seconds ?? 0), 0);
  const isDone = runs.length > 0 && runs.every(({ state }) => state === 'done');
  return { isDone, plans: runs[0]?.plans, seconds, step: steps.length ? median(steps) : null }
}

/** The rows with how many times as fast as one device each was; `times` is null where either is not known. */
function compared(rows) {
  const alone = rows.find((row) => row.isAlone && row.taken?.isDone)?.taken.step;
  return rows.map((row) => {
    const isKnown = alone && row.taken?.isDone && row.taken.step;
    return { ...row, times: isKnown ? alone / row.taken.step : null }
  })
}

// Runs the open workflow once with each of a few plans, one after the other, by ComfyUI's queue.


class Comparison {
  /**
   * queue: see queue.mjs. host: what to ask of the page and its server: `prompt()`, the open workflow as a prompt;
   * `answer(loader)`, what POST /paralleldit/plan says of one by its id there; `runs(group)`, those that it has kept. types: of
   * loaders. onChange: called when something of `rows`, `isRunning` or `problem` has changed.
   */
  constructor(queue, host, types, onChange) {
    this.queue = queue;
    this.host = host;
    this.types = types;
    this.onChange = onChange;
    this.rows = []; // each {plans, isAlone, state: waiting, running, done, failed or leftOut, taken, times}
    this.isRunning = false;
    this.problem = '';
  }

  /** group: the number of the worker group. noLoader: what to say where the workflow has none for it. */
  async run(group, noLoader) {
    if (this.isRunning) return
    this.become({ isRunning: true, problem: '', rows: [] });
    try {
      const { output, workflow } = await this.host.prompt();
      const loaders = loadersOf(output, this.types, group);
      if (!loaders.length) throw new Error(noLoader)
      const plans = candidates(await this.host.answer(loaders[0]));
      this.become({ rows: plans.map((plan) => ({ ...plan, state: 'waiting', taken: null, times: null })) });
      for (const [at, { values }] of plans.entries()) {
        this.change(at, { state: 'running' });
        const end = await this.runOne(group, at, { output: under(output, loaders, values, `${Date.now()}`), workflow });
        if (!['success', 'error'].includes(end)) break
      }
    } catch (error) {
      this.become({ problem: error.response ? String(error) : error.message }); // of a refused prompt, its errors
    } finally {
      const rows = this.rows.map((row) =>
        ['waiting', 'running'].includes(row.state) ? { ...row, state: 'leftOut' } : row
      );
      this.become({ rows, isRunning: false });
    }
  }

  /** One prompt, to its end, which it returns. */
  async runOne(group, at, prompt) {
    const { end, from, to } = await this.queue.run(prompt);
    const runs = await this.host.runs(group);
    const found = taken(runs.filter(({ began }) => from <= 1000 * began && 1000 * began <= to));
    const state = end === 'success' && found.isDone ? 'done' : ['success', 'error'].includes(end) ? 'failed' : 'leftOut';
    this.change(at, { state, taken: found });
    return end
  }

  change(at, values) {
    this.become({ rows: compared(this.rows.map((row, place) => (place === at ? { ...row, ...values } : row))) });
  }

  become(values) {
    Object.assign(this, values);
    this.onChange();
  }
}

// POST /paralleldit/plan, which a server of another version may not have.


const NO_ROUTE = 404;

let hasRoute = true;

/** Whether there is anybody to ask. */
const canAnswer = () => hasRoute;

/** The server may be another one, that knows the question. */
function askAgain() {
  hasRoute = true;
}

/** The server's answer about a plan. Raises Error with what there is to say of it. */
async function request(question) {
  const response = await api.fetchApi('/paralleldit/plan', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(question)
  });
  if (response.ok) return response.json()
  hasRoute = response.status !== NO_ROUTE;
  throw new Error(hasRoute ? await response.text() : `HTTP ${NO_ROUTE}`)
}

// What a comparison asks of the editor's page and of the server.


/** app, api: the editor's. */
function pageOf(app, api) {
  return {
    prompt: () => app.graphToPrompt(),
    answer: async (loader) => request(questionOfLoader(nodeOf(app.rootGraph, loader))),
    async runs(group) {
      const { groups } = await (await api.fetchApi('/paralleldit/groups')).json();
      return groups.find((each) => each.group === group)?.runs ?? []
    }
  }
}

/** The node of a prompt's id, which names the subgraphs' nodes that it is in: "5:12". */
function nodeOf(rootGraph, id) {
  const [own, ...hosts] = id.split(':').reverse();
  const graph = hosts.reduceRight((within, host) => within.getNodeById(host).subgraph, rootGraph);
  return graph.getNodeById(own)
}

// Queues prompts and waits for their ends, also of one that somebody has taken from the queue.

const START = 'execution_start';
const ENDS = { execution_success: 'success', execution_error: 'error', execution_interrupted: 'interrupted' };
const WAKING = ['status', 'reconnected']; // the server tells how long its queue is whenever that changes

class Queue {
  /** api: the editor's. */
  constructor(api) {
    this.api = api;
  }

  /** How a prompt ended, see `endOf`. Raises for one that is refused. */
  async run(prompt) {
    let told = () => {};
    const wake = () => told();
    for (const event of WAKING) this.api.addEventListener(event, wake);
    try {
      const { prompt_id: id } = await this.api.queuePrompt(0, prompt);
      for (;;) {
        const next = new Promise((resolve) => {
          told = resolve;
        });
        if (!(await this.isQueued(id))) return await this.endOf(id)
        await next;
      }
    } finally {
      for (const event of WAKING) this.api.removeEventListener(event, wake);
    }
  }

  /** Whether it waits or runs. */
  async isQueued(id) {
    const { queue_running: running, queue_pending: pending } = await (await this.api.fetchApi('/queue')).json();
    return [...running, ...pending].some(([, each]) => each === id)
  }

  /**
   * By the history. end: success, error, interrupted, or gone for one that did not run. from, to: when it did, in
   * milliseconds since the epoch.
   */
  async endOf(id) {
    const { [id]: entry } = await (await this.api.fetchApi(`/history/${id}`)).json();
    const messages = entry?.status?.messages ?? [];
    const at = (names) => messages.findLast(([name]) => names.includes(name)) ?? [];
    const [name, last] = at(Object.keys(ENDS));
    return { end: ENDS[name] ?? 'gone', from: at([START])[1]?.timestamp ?? 0, to: last?.timestamp ?? 0 }
  }
}

// The button that compares plans, and the table of what each of them took.


/** Of the open workflow. app, api: the editor's. */
function comparisonView(app, api) {
  const comparison = new Comparison(new Queue(api), pageOf(app, api), LOADERS, () => view.draw());
  const view = new ComparisonView(comparison);
  return view
}

const COLUMNS = ['plan', 'seconds', 'step', 'times'];

class ComparisonView {
  /** comparison: see comparison.mjs; whoever makes it has its changes call `draw`. */
  constructor(comparison) {
    this.comparison = comparison;
    const attributes = { type: 'button', class: 'paralleldit-small', 'data-testid': 'paralleldit-compare' };
    this.button = element('button', { ...attributes, title: t('panel.compare.help') }, t('panel.compare.start'));
    this.button.addEventListener('click', () => comparison.run(this.group, t('panel.compare.noLoader')));
    this.problem = element('p', { class: 'paralleldit-notice paralleldit-bad', role: 'alert' });
    this.body = element('tbody');
    const heads = COLUMNS.map((column) => element('th', { scope: 'col' }, t(`panel.compare.${column}`)));
    heads[COLUMNS.indexOf('seconds')].title = t('panel.compare.ofAll');
    const table = { class: 'paralleldit-table', 'data-testid': 'paralleldit-comparison' };
    this.table = element('table', table, element('thead', {}, element('tr', {}, ...heads)), this.body);
    attribute(this.table, 'aria-label', t('panel.compare.start'));
    this.element = element('div', {}, this.problem, this.table);
    this.draw();
  }

  /** group: the number of the worker group. */
  update(group) {
    this.group = group;
  }

  draw() {
    const { isRunning, problem, rows } = this.comparison;
    attribute(this.button, 'aria-busy', isRunning ? 'true' : null);
    this.button.disabled = isRunning;
    text(this.problem, problem);
    shown(this.problem, problem);
    shown(this.table, rows.length);
    this.body.replaceChildren(...rows.map(line$1));
  }
}

function line$1({ plans, isAlone, state, taken, times: factor }) {
  const name = isAlone ? t('panel.compare.alone') : plansWords(taken?.plans ?? plans, t);
  const cells = [
    state === 'done' ? seconds(taken.seconds) : t(`panel.compare.state.${state}`),
    state === 'done' && taken.step !== null ? seconds(taken.step) : '',
    factor ? `×${times(factor)}` : ''
  ];
  const head = element('th', { scope: 'row' }, name);
  return element('tr', { 'data-state': state }, head, ...cells.map((words) => element('td', {}, words)))
}

// What the buttons do: a request to the server, after a question where a job runs; a refusal becomes a toast.


const TRACE_FILE = 'paralleldit-trace.json';
const ENDS_A_JOB = ['stop', 'restart', 'park'];

class Actions {
  /** app, api: the editor's. onChange: called when a request begins or ends. */
  constructor(app, api, onChange) {
    this.app = app;
    this.api = api;
    this.onChange = onChange;
    this.pending = new Set();
    this.stops = 0;
  }

  /** Whether the server has yet to answer this action of this group. */
  isPending(action, number) {
    return this.pending.has(`${action} ${number}`)
  }

  /** isBusy: whether a job runs that this would end or wait for. */
  async run(action, number, isBusy) {
    if (isBusy && ENDS_A_JOB.includes(action) && !(await this.confirmed(action))) return
    if (this.isPending(action, number)) return
    if (action === 'stop') this.stops++;
    const stops = this.stops;
    this.pending.add(`${action} ${number}`);
    this.onChange();
    try {
      const response = await this.api.fetchApi(`/paralleldit/${action}?group=${number}`, { method: 'POST' });
      const wasStopped = action !== 'stop' && stops !== this.stops; // so it says nothing that is not known
      if (!response.ok && !wasStopped) this.tell(action, brief$1(await response.text()));
    } catch (error) {
      this.tell(action, error.message);
    } finally {
      this.pending.delete(`${action} ${number}`);
      this.onChange();
    }
  }

  /** Saves the ranks' timeline as a file, for Perfetto. */
  async trace(number) {
    try {
      const response = await this.api.fetchApi(`/paralleldit/trace?group=${number}`);
      if (!response.ok) return this.tell('trace', brief$1(await response.text()))
      const url = URL.createObjectURL(await response.blob());
      element('a', { href: url, download: TRACE_FILE }).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      this.tell('trace', error.message);
    }
  }

  confirmed(action) {
    const words = { title: t(`panel.confirm.${action}.title`), message: t(`panel.confirm.${action}.message`) };
    return this.app.extensionManager.dialog.confirm({ ...words, type: 'default' })
  }

  tell(action, detail) {
    this.app.extensionManager.toast.add({ severity: 'error', summary: t(`panel.refused.${action}`), detail });
  }
}

// Pure: does something as often as it is asked for, but no oftener than once in a while.

/**
 * Returns `soon()`, upon which `act` is called: at once if that was not done for `pause` milliseconds, else when they
 * are over, once for all calls till then. clock: `now` in milliseconds, and `later`, which calls a function after so many.
 */
function paced(act, pause, clock) {
  let last = Number.NEGATIVE_INFINITY;
  let isDue = false;
  function acts() {
    isDue = false;
    last = clock.now();
    act();
  }
  return () => {
    if (isDue) return
    const wait = last + pause - clock.now();
    if (wait <= 0) return acts()
    isDue = true;
    clock.later(acts, wait);
  }
}

// Pure: the last lines of a rank's log, read once and then followed by events.


/** A log that is being read. */
const opened$1 = () => ({ lines: [], state: 'reading' });

/** After the log was read, while events may have brought some of the same lines. */
function read$1(log, text) {
  return { lines: bounded(joined(split(text), log.lines)), state: 'fresh' }
}

/** After an event's lines. The first event after the reading may bring lines that were read. */
function told$1(log, text) {
  const more = split(text);
  const lines = log.state === 'fresh' ? joined(log.lines, more) : [...log.lines, ...more];
  return { lines: bounded(lines), state: log.state === 'fresh' ? 'followed' : log.state }
}

/** Two parts of a log, of which the second may begin before the first has ended. */
function joined(first, second) {
  for (let shared = Math.min(first.length, second.length); shared > 0; shared--) {
    const start = first.length - shared;
    if (second.slice(0, shared).every((line, at) => line === first[start + at])) {
      return [...first, ...second.slice(shared)]
    }
  }
  return [...first, ...second]
}

const split = (text) => (text ? text.replace(/\n$/, '').split('\n') : []);

const bounded = (lines) => lines.slice(-500);

// Pure: the panel's model of the worker groups, from the answer of GET /paralleldit/groups and the events that follow.
// Each function returns a new model and leaves the one that it is given.


const RUNS = 10; // kept of a group, as the server keeps them
const SILENT_SECONDS = 3; // without a sign of life, of which a rank gives four a second

const ALIVE = ['starting', 'ready', 'busy', 'cancelling', 'parked', 'restarting'];
const STOPPED = { state: 'stopped', deaths: 0, last_death: null, remarks: [] };

/** What a page knows before anything has answered. */
const empty = () => ({ loaded: false, problem: '', connected: true, device: '', devices: 0, groups: [] });

const group = (number) => ({ number, status: STOPPED, runs: [], logs: {} });

/** After the answer of GET /paralleldit/groups. Logs that were open are to be asked for again. */
function answered(model, answer) {
  const groups = answer.groups.map(({ group: number, status, runs }) => ({ ...group(number), status, runs }));
  return {
    ...model,
    loaded: true,
    problem: '',
    connected: true,
    device: answer.device,
    devices: answer.devices,
    groups: groups.length ? groups : [group(1)]
  }
}

/** After an event `paralleldit.group`. */
function told(model, { group: number, status, runs, log: lines }) {
  return changed(model, number, (old) => ({
    ...old,
    status,
    runs: (runs ?? []).reduce(withRun, old.runs),
    logs: withLines(old.logs, lines ?? [])
  }))
}

/** After the log of a rank was opened; its lines are followed from here on. */
const opened = (model, number, rank) =>
  changed(model, number, (old) => ({ ...old, logs: { ...old.logs, [rank]: opened$1() } }));

/** After GET /paralleldit/logs has answered for a rank, if its log is still open. */
const read = (model, number, rank, text) =>
  changed(model, number, (old) => {
    if (!old.logs[rank]) return old
    return { ...old, logs: { ...old.logs, [rank]: read$1(old.logs[rank], text) } }
  });

function changed(model, number, change) {
  const old = model.groups.find((each) => each.number === number) ?? group(number);
  const others = model.groups.filter((each) => each.number !== number);
  return { ...model, groups: [...others, change(old)].sort((a, b) => a.number - b.number) }
}

function withRun(runs, run) {
  const others = runs.filter(({ id }) => id !== run.id);
  return [run, ...others].sort((a, b) => b.id - a.id).slice(0, RUNS)
}

function withLines(logs, lines) {
  const open = lines.filter(({ rank }) => logs[rank]);
  return { ...logs, ...Object.fromEntries(open.map(({ rank, text }) => [rank, told$1(logs[rank], text)])) }
}

/** The run that goes on, if one does. */
const runningOf = ({ runs }) => (runs[0]?.state === 'running' ? runs[0] : null);

/**
 * The group's state; a run whose forwards come one by one is one job, also in between. One that was cancelled is none any
 * more, though the ranks are still at what they had begun of it.
 */
function stateOf(group) {
  const { state, given_up: isGivenUp } = group.status;
  if (state === 'busy' && isGivenUp && !runningOf(group)) return 'cancelling'
  return state === 'ready' && runningOf(group) ? 'busy' : state
}

/** How far the job is: { at, of }, `of` null where it is not known; null where the job has no steps. */
function stepOf(group) {
  const run = runningOf(group);
  if (group.status.step) return { at: group.status.step[0], of: group.status.step[1] }
  if (run?.total) return { at: run.at, of: run.total }
  return run?.made ? { at: run.made, of: null } : null
}

/** How far the slowest rank is with its weights, in percent; null where none tells. */
function readOf({ memory = [] }) {
  const told = memory.map(({ read }) => read).filter((read) => read !== undefined);
  return told.length ? Math.min(...told) : null
}

/**
 * The ranks that run: memory in bytes, `placed` that of the weights on the device; `silent` the seconds since a sign of
 * life where those are too many, else 0. index, name: of its device; `isSame` where another rank's has the same index,
 * as on another machine.
 */
function ranksOf({ status }) {
  const { pids = [], memory = [], beats = [], devices = [], device } = status;
  const indexes = devices.map(({ index }) => index);
  return pids.map((pid, rank) => {
    const { resident = 0, accelerator = 0, total = 0, weights = 0, resident_weights = 0 } = memory[rank] ?? {};
    const silent = beats[rank] > SILENT_SECONDS ? beats[rank] : 0;
    const [used, placed] = device === 'cpu' ? [resident, weights] : [accelerator, resident_weights];
    const { index = null, name = '' } = devices[rank] ?? {};
    const isSame = index === null || indexes.indexOf(index) !== indexes.lastIndexOf(index);
    return { rank, pid, device, index, name, isSame, used, total, weights, placed, silent }
  })
}

/** Which buttons make sense. A group that has failed is restarted, which also forgets how often it died. */
function actionsOf(group) {
  const state = stateOf(group);
  return {
    start: state === 'stopped',
    stop: ALIVE.includes(state),
    restart: state !== 'stopped' && state !== 'starting',
    park: ['busy', 'cancelling'].includes(state) || (state === 'ready' && Boolean(group.status.model))
  }
}

/** Whether why the group ended the last time is over and done with: one that is down says why. */
const isDismissible = (group) => !['failed', 'restarting'].includes(stateOf(group));

/** Whether there is a log to ask for: a group that has not started has none. */
function hasLogs({ status, runs }) {
  const started = status.pids || status.state === 'starting';
  return Boolean(started || status.deaths || status.last_death || runs.length)
}

/** What the tab's icon shows: of all groups, whether one has failed or one works. */
function badgeOf({ groups }) {
  const states = groups.map(stateOf);
  if (states.includes('failed')) return '!'
  return states.some((state) => ['busy', 'cancelling'].includes(state)) ? '•' : ''
}

// Pure: from the server's answer about a plan to what is drawn of it, and to the same in words.


const COMPACT_ABOVE = 16;
const MOST_COLUMNS = 4;

/**
 * The ranks as nested groups: shares of the batch, in each the pipeline's stages, in each the ranks.
 * A group's rows and a cell's tokens and heads are [start, stop] fractions; heads are null where they are not shared.
 */
function meshGroups({ ranks, memory }) {
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

/** A group's caption; '' where there is nothing to tell apart. say: `t`. */
function captionOf(group, say) {
  if (group.branch) return say(`plan.${group.branch}`)
  if (!group.share) return ''
  const [[index, of], [start, stop]] = [group.share, group.rows];
  if (Math.abs((stop - start) * of - 1) < 1e-6) return say('plan.batch', { index, of })
  return say('plan.batch_by_speed', { index, of, percent: Math.round((stop - start) * 100) })
}

/** A stage's caption: its blocks, or its number where the model is not known. */
function stageCaption(stage, say) {
  if (!stage.stage) return ''
  const [first, last] = stage.blocks ?? [];
  if (first === last && stage.blocks) return say('plan.block', { first })
  if (stage.blocks) return say('plan.blocks', { first, last })
  return say('plan.stage', { index: stage.stage[0], of: stage.stage[1] })
}

/** In how many columns to draw so many of a kind: full rows, if a few columns make some. */
function columnsOf(count, most = MOST_COLUMNS) {
  if (count <= most) return count
  for (let columns = most; columns > 1; columns--) if (count % columns === 0) return columns
  return most
}

/** What a rank computes on, in a word or two; '' for another machine's. device: the answer's. */
function deviceLabel(cell, device, say) {
  if (cell.card) return say('plan.gpu', { index: cell.card.index })
  return device === 'cpu' ? say('plan.cpu') : ''
}

/** Where a rank is, and what it holds, in words. */
function cellWords(cell, group, stage, device, say) {
  const parts = [captionOf(group, say), stageCaption(stage, say), tokenWords(cell.tokens, say)];
  if (cell.heads && cell.headRange) {
    const [first, last] = cell.headRange;
    parts.push(first === last ? say('plan.head', { first }) : say('plan.heads_of', { first, last }));
  }
  if (cell.kept !== undefined) parts.push(say('plan.keeps', { size: bytes(cell.kept) }));
  const holds = parts.filter(Boolean).join(', ');
  const named = cell.card
    ? say('plan.gpus_named', { indices: cell.card.index, name: cell.card.name })
    : deviceLabel(cell, device, say);
  return say(named ? 'plan.rank_on' : 'plan.rank', { rank: cell.rank, device: named, holds })
}

/** What the drawing is of; above sixteen ranks, how many groups there are of which kind. */
function meshWords(groups, world, say) {
  const count = say(world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: world });
  const drawn = groups.flatMap((group) => group.stages.flatMap((stage) => stage.cells)).length;
  if (drawn <= COMPACT_ABOVE) return count
  const each = groups[0].stages[0].cells.length;
  return `${count}: ${say('plan.summary', { shares: groups.length, stages: groups[0].stages.length, each })}`
}

/** The text of a remark in the editor's language; the server's own words where that has none. */
function remarkWords(remark, say) {
  const path = `plan.remarks.${remark.key}`;
  const words = say(path, remark.values);
  return words === path ? remark.text : words
}

function tokenWords(tokens, say) {
  const share = tokens.reduce((sum, [start, stop]) => sum + stop - start, 0);
  if (share > 0.999) return say('plan.all_tokens')
  if (tokens.length > 1) return say('plan.tokens_of_patches', { percent: percent(0, share), patches: tokens.length })
  return say('plan.tokens_of', { percent: percent(...tokens[0]) })
}

function percent(start, stop) {
  const rounded = (value) => Math.round(value * 100);
  return start === 0 ? `0–${rounded(stop)}` : `${rounded(start)}–${rounded(stop)}`
}

// Pure: from the server's answer about a plan to what its ranks keep and need, and what their cards have, in words.


/** A line for all ranks, or one for each stage where they differ. groups: as `meshGroups` has them. say: `t`. */
function memoryWords({ memory, device }, groups, say) {
  if (!memory || !groups.length) return []
  const { kept, working } = memory;
  const line = (who, rest) => {
    if (working !== null) return say('plan.with_forward', { who, kept: bytes(rest), peak: bytes(rest + working) })
    return say(device === 'cpu' ? 'plan.at_rest' : 'plan.forward_unknown', { who, kept: bytes(rest) })
  };
  if (kept.every((rest) => bytes(rest) === bytes(kept[0]))) return [line(say('plan.each_rank'), kept[0])]
  return groups[0].stages.map((stage, place) => line(stageCaption(stage, say), kept[place]))
}

/** What each kind of card has, and whether that is enough: a line for each, and `lacks` where it is not. */
function cardWords({ memory, ranks }, say) {
  const kinds = new Map();
  for (const [place, fits] of (memory?.fits ?? []).entries()) {
    const card = ranks[place]?.card;
    if (!card) continue
    const kind = JSON.stringify([card.name, bytes(card.total), fits]);
    kinds.set(kind, [...(kinds.get(kind) ?? []), card.index]);
  }
  return [...kinds].map(([kind, indices]) => {
    const [name, total, fits] = JSON.parse(kind);
    const cards = say('plan.gpus_named', { indices: rangesOf(indices), name });
    const verdict = fits === null ? 'card' : fits ? 'card_fits' : 'card_lacks';
    return { text: say(`plan.${verdict}`, { cards, total, reserve: bytes(memory.reserve) }), lacks: fits === false }
  })
}

/** What would fit in place of what does not; null where nothing is amiss. either: words to "a, b or c". */
function remedyWords({ memory }, either, say) {
  const remedies = memory?.remedies;
  if (!remedies) return null
  return say(`plan.${remedies.words}`, { remedies: either(remedies.found.map((each) => remarkWords(each, say))) })
}

/** "0–3, 6" */
function rangesOf(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((one, other) => one - other)) {
    const last = runs.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(', ')
}

// Pure: from the server's answer about a plan to what steps are predicted to take, in words.


const EVEN = 0.005; // a factor that is nearer to 1 is told as none

/** A title, and a line for each of the best plans and for the one at hand, if it is none of them; null for nothing. */
function predictedWords({ predicted }, say) {
  if (!predicted) return null
  const line = ({ values, seconds: length, bytes: size, fits }) => {
    const numbers = { plan: planWords(values, say), seconds: seconds(length), bytes: bytes(size) };
    return say(fits ? 'plan.predicted' : 'plan.predicted_too_large', numbers)
  };
  const chosen = predicted.best.findIndex(({ plan }) => plan === predicted.plan?.plan);
  return {
    step: stepWords$1(predicted, say),
    title: say(predicted.is_measured ? 'plan.fastest' : 'plan.fastest_assumed'),
    best: predicted.best.map(line),
    chosen,
    own: chosen < 0 && predicted.plan ? say('plan.this_plan', { words: line(predicted.plan) }) : null,
    alone: predicted.alone ? say('plan.alone') : null
  }
}

/** Why nothing is predicted of a known model; null where something is, or no model is known. */
function unpredictedWords({ memory, predicted, sized }, say) {
  if (!memory || predicted) return null
  return say(sized ? 'plan.step_uncounted' : 'plan.step_unsized')
}

/** How long a step of the plan takes, beside one device, and how each is known. */
function stepWords$1({ plan, one_device, is_measured }, say) {
  if (!plan) return say('plan.step_unknown')
  const how = ({ has_run }) => say(has_run ? 'plan.has_run' : is_measured ? 'plan.is_predicted' : 'plan.is_assumed');
  const own = { seconds: seconds(plan.seconds), how: how(plan) };
  if (plan.plan === one_device.plan) return say('plan.step', own)
  if (!one_device.fits) return say('plan.step_alone_lacks', own)
  const factor = one_device.seconds / plan.seconds;
  const rounded = Math.abs(factor - 1) < EVEN ? '1' : factor.toFixed(factor < 10 ? 2 : 1);
  const words = own.how === how(one_device) ? 'plan.step_factor_alike' : 'plan.step_factor';
  return say(words, { ...own, factor: rounded, one: seconds(one_device.seconds), one_how: how(one_device) })
}

// Draws an answer about a plan into an element: the mesh, what is said of it, or the error.


const MAX_PATCHES_DRAWN = 16;

/**
 * Replaces what the element shows. answer: the server's, or null where nothing was asked. open: names of values that only
 * a run can tell. parts: `whole`, or one of those for little room.
 */
function draw(target, answer, open, parts) {
  const isOpen = target.querySelector('details')?.open;
  if (open.length) target.replaceChildren(line('paralleldit-plan-remark', t('plan.open', { names: open.join(', ') })));
  else if (!answer) target.replaceChildren();
  else if (answer.error) target.replaceChildren(errorBox(brief$1(answer.error)));
  else target.replaceChildren(...parts(answer));
  if (isOpen) target.querySelector('details')?.setAttribute('open', '');
}

/** Says, without alarm, that there is no answer. */
function drawSilence(target, reason) {
  target.replaceChildren(line('paralleldit-plan-remark', t('plan.unanswered', { reason })));
}

/** Of a plan node: how its plan falls on the ranks, too. */
function* whole(answer) {
  const predicted = predictedWords(answer, t);
  if (answer.plan) yield line('paralleldit-plan-title', titleOf(answer));
  if (answer.ranks.length) yield* mesh(answer);
  yield* figures(answer, predicted);
  yield* best(predicted);
  yield* notes(answer);
  yield* remarks(answer);
  yield* unknown(answer);
}

/** Of a loader that has no plan: what auto does with it. */
const brief = (answer) =>
  folded(answer, answer.plan ? t('plan.auto', { plan: titleOf(answer) }) : t('plan.auto_open'));

/** Of a loader that has one. */
const planned = (answer) => folded(answer, answer.plan ? titleOf(answer) : '');

/** The figures, and folded why they are so. */
function* folded(answer, title) {
  const predicted = predictedWords(answer, t);
  if (title) yield line('paralleldit-plan-title', title);
  yield* figures(answer, predicted);
  yield* notes(answer);
  const reasons = [...best(predicted), ...remarks(answer)];
  if (!answer.plan) yield* reasons;
  else if (reasons.length) {
    yield element('details', { class: 'paralleldit-plan-why' }, element('summary', {}, t('plan.why')), ...reasons);
  }
  yield* unknown(answer);
}

function titleOf(answer) {
  const count = t(answer.world === 1 ? 'plan.one_rank' : 'plan.ranks', { count: answer.world });
  return answer.world === 1 ? count : `${count} · ${answer.plan}`
}

/** What the ranks need and have, what would fit where they lack, and how long a step takes. */
function* figures(answer, predicted) {
  for (const words of memoryWords(answer, meshGroups(answer), t)) yield line('paralleldit-plan-memory', words);
  for (const { text, lacks } of cardWords(answer, t)) {
    yield line(`paralleldit-plan-card${lacks ? ' paralleldit-plan-lacks' : ''}`, text);
  }
  const remedies = remedyWords(answer, either, t);
  if (remedies) yield line('paralleldit-plan-note', remedies);
  const step = predicted?.step ?? unpredictedWords(answer, t);
  if (step) yield line('paralleldit-plan-step', step);
  if (predicted?.alone) yield line('paralleldit-plan-note', predicted.alone);
}

function* notes(answer) {
  for (const remark of answer.note) yield line('paralleldit-plan-note', remarkWords(remark, t));
}

function* remarks(answer) {
  for (const remark of answer.remarks) yield line('paralleldit-plan-remark', remarkWords(remark, t));
}

function* unknown(answer) {
  for (const words of answer.unknown) yield line('paralleldit-plan-remark', brief$1(words));
}

function* best(words) {
  if (!words) return
  if (words.own) yield line('paralleldit-plan-memory', words.own);
  yield line('paralleldit-plan-memory', words.title);
  const rows = words.best.map((each, place) => {
    const row = element('li', {}, each);
    if (place === words.chosen) row.setAttribute('aria-current', 'true');
    return row
  });
  const list = element('ol', { class: 'paralleldit-plan-predicted' }, ...rows);
  list.dataset.testid = 'paralleldit-plan-predicted';
  yield list;
}

/** A list of ranks, which say what they hold; of more than anyone reads, a picture. */
function* mesh(answer) {
  const groups = meshGroups(answer);
  const isCompact = answer.ranks.length > COMPACT_ABOVE;
  const [first] = groups[0].stages;
  const each = first.cells.length;
  const parts = groups.map((group) => {
    const stages = group.stages.map((part) => stage(part, group, answer.device, isCompact));
    return box$1(
      'paralleldit-plan-group',
      captionOf(group, t),
      stages,
      isCompact ? 2 : sideBySide(stages.length, each, 2)
    )
  });
  const columns = isCompact ? 2 : sideBySide(groups.length, groups[0].stages.length * each);
  const drawn = grid(`paralleldit-plan-mesh${isCompact ? ' paralleldit-plan-compact' : ''}`, parts, columns);
  drawn.setAttribute('role', isCompact ? 'img' : 'list');
  drawn.setAttribute('aria-label', meshWords(groups, answer.world, t));
  yield drawn;
  const [cell] = first.cells;
  const kinds = ['tokens', cell.heads && 'heads', cell.weights && 'weights'].filter(Boolean);
  if (answer.ranks.length > 1 && (kinds.length > 1 || cell.tokens[0][1] < 1)) yield legend(kinds);
}

/** In how many columns to draw so many boxes of so many ranks. */
function sideBySide(boxes, ranks, most) {
  if (ranks > 2) return 1
  return columnsOf(boxes, ranks > 1 ? 2 : most)
}

function stage(part, group, device, isCompact) {
  const cells = part.cells.map((cell) => {
    const words = cellWords(cell, group, part, device, t);
    const tile = element('div', { class: 'paralleldit-plan-cell', title: words });
    tile.append(
      isCompact ? element('span', { class: 'paralleldit-plan-rank' }, String(cell.rank)) : label(cell, device)
    );
    tile.append(bar('tokens', cell.tokens));
    if (cell.heads) tile.append(bar('heads', [cell.heads]));
    if (cell.weights) tile.append(bar('weights', [cell.weights]));
    if (!isCompact) {
      tile.setAttribute('role', 'listitem');
      tile.setAttribute('aria-label', words);
    }
    return tile
  });
  return box$1('paralleldit-plan-stage', stageCaption(part, t), cells, isCompact ? 0 : columnsOf(cells.length))
}

/** "rank 0 · GPU 0", on two lines where the tile is narrow. */
function label(cell, device) {
  const made = element('div', { class: 'paralleldit-plan-rank', 'aria-hidden': 'true' });
  made.append(element('span', {}, t('plan.rank_label', { rank: cell.rank })));
  const where = deviceLabel(cell, device, t);
  if (where) made.append(element('i', {}, ' · '), element('span', {}, where));
  return made
}

/** A bar of a whole, of which these [start, stop] are filled; with several, the whole falls into so many patches. */
function bar(kind, spans) {
  const patches = spans.length <= MAX_PATCHES_DRAWN ? spans : spans.slice(0, MAX_PATCHES_DRAWN);
  const pieces = patches.map(([start, stop], patch) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' });
    fill.style.marginInlineStart = `${(start * spans.length - patch) * 100}%`;
    fill.style.inlineSize = `${(stop - start) * spans.length * 100}%`;
    return element('span', { class: 'paralleldit-plan-piece' }, fill)
  });
  return element('div', { class: `paralleldit-plan-bar paralleldit-plan-${kind}` }, ...pieces)
}

function legend(kinds) {
  const keys = kinds.map((kind) => {
    const fill = element('i', { class: 'paralleldit-plan-fill' });
    return element('span', { class: `paralleldit-plan-key paralleldit-plan-${kind}` }, fill, t(`plan.${kind}`))
  });
  const list = element('div', { class: 'paralleldit-plan-legend' }, ...keys);
  list.setAttribute('aria-hidden', 'true');
  return list
}

function box$1(className, caption, children, columns) {
  const frame = element('div', { class: caption ? `${className} paralleldit-plan-boxed` : className });
  if (caption) frame.append(element('div', { class: 'paralleldit-plan-caption' }, caption));
  frame.append(grid('paralleldit-plan-row', children, columns));
  return frame
}

/** Children in equal columns; 0: as many as there is room for. */
function grid(className, children, columns) {
  const made = element('div', { class: className }, ...children);
  if (columns) made.style.gridTemplateColumns = `repeat(${Math.min(columns, children.length)}, minmax(0, 1fr))`;
  return made
}

function errorBox(words) {
  const alert = line('paralleldit-plan-error', words);
  alert.setAttribute('role', 'alert');
  return alert
}

function line(className, words) {
  return element('div', { class: className }, words)
}

// In the panel: what the next run will need and take, as the plan of the open workflow's loader says it, too.


class NextView {
  constructor() {
    this.runs = element('div', { class: 'paralleldit-next' });
    this.element = fold(t('panel.next'), true, this.runs).element;
    this.element.dataset.testid = 'paralleldit-next';
    this.drawn = [];
  }

  update(_group, { runs }) {
    shown(this.element, runs.length);
    const isDrawn = ({ answer, models }, place) =>
      answer === this.drawn[place]?.answer && `${models}` === `${this.drawn[place].models}`;
    if (runs.length === this.drawn.length && runs.every(isDrawn)) return
    this.drawn = runs;
    this.runs.replaceChildren(...runs.map(about));
  }
}

function about({ answer, models, isPlanned }) {
  const names = [...new Set(models)].map(fileName).join(', ');
  const name = element('p', { class: 'paralleldit-strong paralleldit-cut-off', title: models.join(', ') }, names);
  const content = element('div', { class: 'paralleldit-plan-content' });
  draw(content, answer, [], isPlanned ? planned : brief);
  return element('div', {}, name, element('div', { class: 'paralleldit-plan' }, content))
}

// The last lines of a rank's log, in a box that fits them: the panel itself is what scrolls.


const LAST = 15; // lines that are seen unless all are wanted

class LogView {
  /** openLog: called with the group's number and a rank whose log is wanted and not there. */
  constructor(openLog) {
    this.openLog = openLog;
    this.rank = 0;
    this.isWhole = false;
    const id = uniqueId('log-rank');
    this.select = element('select', { id });
    const attributes = { class: 'paralleldit-log', tabindex: 0, role: 'region', 'data-testid': 'paralleldit-log' };
    this.lines = element('pre', attributes);
    this.nothing = element('p', { class: 'paralleldit-quiet' });
    this.whole = button('paralleldit-log-all', '');
    this.copy = button('paralleldit-log-copy', t('errors.copy'));
    copiesOnClick(this.copy, () => this.all().join('\n'), { copy: t('errors.copy'), copied: t('errors.copied') });
    const label = element('label', { for: id }, t('panel.logOf'));
    this.choice = element('div', { class: 'paralleldit-choice' }, label, this.select, this.whole, this.copy);
    this.element = fold(t('panel.log'), false, this.choice, this.nothing, this.lines).element;
    this.element.addEventListener('toggle', () => this.refresh());
    this.select.addEventListener('change', () => this.choose(Number(this.select.value)));
    this.whole.addEventListener('click', () => {
      this.isWhole = !this.isWhole;
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

  all() {
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
    if (!log && hasLogs(this.group)) queueMicrotask(() => this.openLog(this.group.number, this.rank));
    const lines = this.all();
    attribute(this.lines, 'aria-label', t('panel.logName', { rank: this.rank }));
    text(this.lines, (this.isWhole ? lines : lines.slice(-LAST)).join('\n'));
    text(this.whole, this.isWhole ? t('panel.logEnd') : t('panel.logAll', { count: lines.length }));
    shown(this.whole, lines.length > LAST);
    for (const part of [this.lines, this.copy]) shown(part, lines.length);
    shown(this.nothing, !lines.length);
    text(this.nothing, t(log?.state === 'reading' ? 'panel.logReading' : 'panel.logEmpty'));
  }
}

function button(testId, words) {
  return element('button', { type: 'button', class: 'paralleldit-small', 'data-testid': testId }, words)
}

// A row for each rank: its device, memory, and whether it is silent.


const NEARLY_FULL = 0.92;

class RankList {
  constructor() {
    this.list = element('ul', { class: 'paralleldit-ranks' });
    const folded = fold(t('panel.ranks'), true, this.list);
    this.element = folded.element;
    this.aside = folded.aside;
    this.rows = new Children(
      this.list,
      ({ rank }) => rank,
      ({ rank }) => new RankRow(rank)
    );
  }

  update(group) {
    const ranks = ranksOf(group);
    shown(this.element, ranks.length);
    text(this.aside, String(ranks.length));
    this.rows.update(ranks);
  }
}

class RankRow {
  constructor(rank) {
    this.name = element('span', { class: 'paralleldit-strong paralleldit-cut-off' });
    this.memory = element('span', { class: 'paralleldit-aside' });
    this.fill = element('div');
    this.bar = element('div', { class: 'paralleldit-bar', role: 'meter', 'aria-valuemin': 0 }, this.fill);
    this.weights = element('div', { class: 'paralleldit-weights' });
    this.silence = element('span');
    const icon = element('i', { class: 'pi pi-exclamation-triangle', 'aria-hidden': 'true' });
    this.silentLine = element('p', {}, icon, this.silence);
    const line = element('div', { class: 'paralleldit-line' }, this.name, this.memory);
    const parts = [line, this.bar, this.weights, this.silentLine];
    this.element = element('li', { 'data-testid': `paralleldit-rank-${rank}` }, ...parts);
  }

  update(row) {
    const { rank, device, used, total, weights, placed, silent } = row;
    text(this.name, nameWords(row));
    attribute(this.element, 'title', aboutWords(row));
    const words = bytesOf(used, total, (some, all) => t('panel.memory', { used: some, total: all }));
    const share = total ? Math.min(used / total, 1) : 0;
    text(this.memory, words);
    attribute(this.bar, 'aria-label', t(`panel.memoryOf.${device}`, { rank }));
    attribute(this.bar, 'aria-valuemax', total);
    attribute(this.bar, 'aria-valuenow', used);
    attribute(this.bar, 'aria-valuetext', words);
    attribute(this.bar, 'class', share > NEARLY_FULL ? 'paralleldit-bar paralleldit-full' : 'paralleldit-bar');
    attribute(this.fill, 'style', `width: ${(100 * share).toFixed(1)}%`);
    shown(this.bar, total); // a system that does not tell, tells 0
    shown(this.memory, total);
    const part = placed < weights ? 'weightsInRam' : 'weights';
    text(this.weights, t(`panel.${part}`, { placed: bytes(placed), weights: bytes(weights) }));
    shown(this.weights, weights);
    shown(this.silentLine, silent);
    text(this.silence, silent ? t('panel.silent', { seconds: Math.floor(silent) }) : '');
  }
}

/** "GPU 1 · RTX 4090"; where the number of the device does not tell the rank, "Rank 1 · GPU 1 · RTX 4090". */
function nameWords({ rank, device, index, name, isSame }) {
  const kind = t(`panel.device.${device}`);
  const own = index === null ? [kind] : [`${kind} ${index}`, cardName(name)];
  return (isSame ? [t('panel.rank', { rank }), ...own] : own).join(' · ')
}

const aboutWords = ({ rank, pid, index, name }) =>
  [t('panel.rank', { rank }), ...(index === null ? [] : [name]), t('panel.process', { pid })].join(' · ');

// A run's steps as bars: how long each took, the part of it that was communication below.
// `bars` and `outlines` are pure; `Timeline` draws, a path for all bars of a colour, however many there are.


const HEIGHT = 40;
const SLOT = 10;
const GAP = 1.5;
const DENSE = 80; // slots, from which on the bars are too thin for gaps between them
const MOST_SLOTS = 500; // as many steps of a run as the server keeps
const LEAST_SLOTS = 12; // so that a run of few steps has no broad blocks
const CLIP = 2; // medians; what took longer, as the first step often does, is cut off there
const CUT = { y: 4, height: 3 }; // the mark of a bar that is cut off

/**
 * Bars of the steps, each [seconds, seconds of it in communication]: heights as shares of the drawing's.
 *
 * total: how many steps there will be, or null. first: the number of the first of these steps.
 */
function bars(steps, total, first = 1) {
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

/** The paths of these bars: of computing, of communication, and of the marks where one is cut off. */
function outlines({ slots, bars: drawn }) {
  const gap = slots < DENSE ? GAP : 0;
  const found = { compute: '', communication: '', cut: '' };
  for (const [at, { height, below, cut }] of drawn.entries()) {
    const x = at * SLOT + gap / 2;
    found.compute += box(x, HEIGHT * (1 - height), SLOT - gap, HEIGHT * (height - below));
    found.communication += box(x, HEIGHT * (1 - below), SLOT - gap, HEIGHT * below);
    if (cut) found.cut += box(at * SLOT, CUT.y, SLOT, CUT.height);
  }
  return found
}

const box = (x, y, width, height) =>
  height > 0 ? `M${x} ${y.toFixed(2)}h${width}v${height.toFixed(2)}h-${width}z` : '';

/** The drawing of one run. t: the texts; format: how seconds and shares are shown. */
class Timeline {
  constructor(t, format) {
    this.t = t;
    this.format = format;
    this.paths = Object.fromEntries(
      ['compute', 'communication', 'cut'].map((part) => [part, svg('path', { class: `paralleldit-${part}` })])
    );
    this.drawing = svg('svg', { role: 'img', preserveAspectRatio: 'none' }, ...Object.values(this.paths));
    this.element = element('div', { class: 'paralleldit-timeline' }, this.drawing);
    this.element.addEventListener('pointermove', (event) => this.tell(event));
    this.known = bars([], null);
  }

  /** label: what the drawing says, for those who do not see it. */
  update(run, label) {
    const first = run.made - run.steps.length + 1; // of a long run, the server keeps the last ones
    this.known = bars(run.steps, run.total, first);
    const { slots } = this.known;
    attribute(this.drawing, 'viewBox', `0 0 ${slots * SLOT} ${HEIGHT}`);
    attribute(this.drawing, 'shape-rendering', slots < DENSE ? 'auto' : 'crispEdges');
    attribute(this.drawing, 'aria-label', label);
    for (const [part, outline] of Object.entries(outlines(this.known))) attribute(this.paths[part], 'd', outline);
  }

  /** The numbers of the bar under the pointer. */
  tell({ offsetX }) {
    const bar = this.known.bars[Math.floor((offsetX / this.element.clientWidth) * this.known.slots)];
    const { seconds } = this.format;
    const values = bar && { step: bar.number, length: seconds(bar.length), waiting: seconds(bar.waiting) };
    attribute(this.element, 'title', bar ? this.t('panel.barTitle', values) : null);
  }
}

// The last runs, newest first: what was run, how long a step took, and what became of it.


const OUTCOMES = {
  running: 'pi pi-play',
  done: 'pi pi-check',
  cancelled: 'pi pi-ban',
  failed: 'pi pi-times'
};

class RunList {
  /** onTrace: called with the group's number where its ranks' timeline is wanted. comparison: see ComparisonView. */
  constructor(onTrace, comparison) {
    this.comparison = comparison;
    const keys = ['compute', 'communication'].map((part) =>
      element('span', { class: `paralleldit-key paralleldit-${part}` }, t(`panel.${part}`))
    );
    this.list = element('ol', { class: 'paralleldit-runs' });
    this.trace = element('button', { type: 'button', class: 'paralleldit-small' }, t('panel.trace'));
    attribute(this.trace, 'data-testid', 'paralleldit-trace');
    attribute(this.trace, 'title', t('panel.help.trace'));
    this.trace.addEventListener('click', () => onTrace(this.number));
    const legend = element('div', { class: 'paralleldit-legend' }, ...keys, this.trace, comparison.button);
    const folded = fold(t('panel.runs'), true, legend, comparison.element, this.list);
    this.element = folded.element;
    this.rows = new Children(
      this.list,
      ({ id }) => id,
      () => new RunRow()
    );
  }

  update(group) {
    this.number = group.number;
    this.comparison.update(group.number);
    shown(this.element, group.runs.length);
    shown(this.trace, ['ready', 'parked'].includes(stateOf(group)));
    this.rows.update(group.runs);
  }
}

class RunRow {
  constructor() {
    this.model = element('span', { class: 'paralleldit-strong paralleldit-cut-off' });
    this.icon = element('i', { 'aria-hidden': 'true' });
    this.word = element('span');
    this.outcome = element('span', { class: 'paralleldit-outcome' }, this.icon, this.word);
    this.about = element('p', { class: 'paralleldit-quiet' });
    this.numbers = element('span');
    this.factor = element('p', { class: 'paralleldit-factor', 'data-testid': 'paralleldit-factor' });
    this.share = element('span', { class: 'paralleldit-key paralleldit-communication' });
    this.timeline = new Timeline(t, { seconds });
    const line = element('div', { class: 'paralleldit-line' }, this.model, this.outcome);
    this.element = element('li', { 'data-testid': 'paralleldit-run' }, line, this.about);
    const counted = element('p', { class: 'paralleldit-numbers' }, this.numbers, this.share);
    this.element.append(this.factor, this.timeline.element, counted);
  }

  update(run) {
    if (this.run === run) return
    this.run = run;
    attribute(this.element, 'data-state', run.state);
    text(this.model, fileName(run.model));
    attribute(this.model, 'title', [...new Set([run.model, run.model_class])].filter(Boolean).join(' · '));
    attribute(this.icon, 'class', OUTCOMES[run.state] ?? '');
    text(this.word, t(`panel.outcome.${run.state}`));
    const began = new Date(run.began * 1000);
    const time = clock(began, language());
    text(this.about, [t(`panel.operation.${run.operation}`), plansWords(run.plans, t), time].join(' · '));
    attribute(this.about, 'title', aboutNode(run, began));
    this.count(run, summary(run.steps));
  }

  /** known: the summary of the run's steps, null if there are none. */
  count(run, known) {
    const numbers = [stepWords(run)];
    if (known) numbers.push(t('panel.pace', { seconds: seconds(known.median) }));
    const told = run.is_measured ? 'panel.predicted' : 'panel.predicted_assumed';
    if (run.predicted) numbers.push(t(told, { seconds: seconds(run.predicted) }));
    if (run.seconds) numbers.push(t('panel.inAll', { seconds: seconds(run.seconds) }));
    if (run.residuals) numbers.push(t('panel.residuals', { size: bytes(run.residuals) }));
    text(this.numbers, numbers.join(' · '));
    const factor = factorWords(run);
    text(this.factor, factor);
    shown(this.factor, factor);
    shown(this.timeline.element, known);
    shown(this.share, known);
    if (!known) return
    const share = t('panel.share', { share: percent$1(known.share) });
    text(this.share, percent$1(known.share));
    attribute(this.share, 'title', share);
    attribute(this.share, 'aria-hidden', 'true'); // the drawing says it in words
    const label = t('panel.timeline', { numbers: [...numbers, share].join(' · '), slowest: slowest(run) });
    this.timeline.update(run, label);
  }
}

function aboutNode(run, began) {
  const date = dateAndClock(began, language());
  return run.node ? `${t('panel.node', { node: run.node })} · ${date}` : date
}

function stepWords({ at, made, total }) {
  const done = total ? at : made;
  if (done === 1 && (total ?? 1) === 1) return t('panel.oneStep')
  return !total || done === total ? t('panel.steps', { made: done }) : t('panel.stepsOf', { made: done, total })
}

/** "×1.8 of one device", and by what that is known; nothing where it is not. */
function factorWords(run) {
  const factor = timesOfOne(run);
  if (!factor) return ''
  const by = run.is_alone_run ? 'timesMeasured' : run.is_measured ? 'timesPredicted' : 'timesAssumed';
  return t(`panel.${by}`, { times: times(factor), seconds: seconds(run.alone) })
}

const slowest = (run) => seconds(Math.max(...run.steps.map(([length]) => length)));

// Pure: where the weights of the model's blocks wait, and what it costs to fetch them, in words.


const MOST_OF_A_STEP = 0.8; // for which the link works, where it is the bottleneck
const NAMES = { shared: 'weightsShared', host: 'weightsHost' };

/** Sentences about a group's status `weights`, none where all of them are on each rank. t: the texts. */
function weightsWords({ status, runs }, t) {
  const { weights } = status;
  const name = NAMES[weights?.kind];
  if (!name) return []
  const { blocks, of, kept, whole, working, fetched, seconds: needed, link, is_measured: isMeasured } = weights;
  const where = t(`panel.${name}`, { going: blocks, blocks: of });
  const sizes = { kept: bytes(kept), whole: bytes(whole), peak: bytes(kept + (working ?? 0)) };
  const stay = t(working ? 'panel.weightsAtPeak' : 'panel.weightsKept', sizes);
  const values = { size: bytes(fetched), seconds: seconds(needed), rate: `${(link / 1e9).toFixed(1)} GB/s` };
  const cost = t(isMeasured ? 'panel.weightsFetchedMeasured' : 'panel.weightsFetchedAssumed', values);
  const found = [where, stay, cost];
  const share = linkShare(needed, runs);
  if (share >= MOST_OF_A_STEP) {
    found.push(t(isMeasured ? 'panel.weightsBottleneck' : 'panel.weightsLikely', { share: percent$1(share) }));
  }
  return found
}

/** For how much of the last run's steps the link brings weights, if a step is one forward; else it is more. */
function linkShare(needed, runs) {
  const known = summary(runs[0]?.steps ?? []);
  return known?.median ? Math.min(1, needed / known.median) : 0
}

// One worker group: its state and why, the buttons, the job that runs, and the parts below them.


// None of them turns: an endless animation has the browser draw the page anew sixty times a second.
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
const KNOWN_OPERATIONS = [
  'load',
  'adapt',
  'patch',
  'call',
  'part',
  'sample',
  'forward',
  'vae',
  'park',
  'trim',
  'unload',
  'trace',
  'measure'
];
const OF_STEPS = ['call', 'sample', 'forward'];

class GroupView {
  /** actions: see actions.mjs. openLog: called with a rank whose log is wanted. comparison: a ComparisonView. */
  constructor(number, actions, openLog, comparison) {
    this.number = number;
    this.actions = actions;
    this.heading = element('h3', { id: uniqueId('group') }, t('panel.group', { number }));
    const press = (action) => this.press(action);
    this.parts = [new StateView(press), new ButtonRow(press), new JobView()];
    this.folds = [
      new NextView(),
      new ModelView(),
      new RankList(),
      new LogView(openLog),
      new RunList((number) => actions.trace(number), comparison)
    ];
    const attributes = { class: 'paralleldit-group', 'data-group': number, 'aria-labelledby': this.heading.id };
    this.element = element('section', attributes, this.heading);
    this.element.append(...[...this.parts, ...this.folds].map((part) => part.element));
  }

  update({ group, many, device, devices, runs }) {
    this.group = group;
    attribute(this.heading, 'class', many ? 'paralleldit-group-name' : 'paralleldit-unseen');
    const pending = (action) => this.actions.isPending(action, this.number);
    for (const part of [...this.parts, ...this.folds]) part.update(group, { device, devices, pending, runs });
  }

  press(action) {
    this.actions.run(action, this.number, stateOf(this.group) === 'busy');
  }
}

/** The state in words, what it means, how often the group died and why, and what is to be said of its plan. */
class StateView {
  constructor(press) {
    this.icon = element('i', { 'aria-hidden': 'true' });
    this.word = element('span', { role: 'status', 'data-testid': 'paralleldit-state', class: 'paralleldit-state-word' });
    this.size = element('span', { class: 'paralleldit-aside' });
    this.hint = element('p', { class: 'paralleldit-quiet' });
    this.note = element('p', { class: 'paralleldit-notice', 'data-testid': 'paralleldit-note' });
    this.deaths = element('summary');
    this.death = element('pre', { class: 'paralleldit-death', tabindex: 0 });
    const attributes = { class: 'paralleldit-why', 'data-testid': 'paralleldit-death' };
    this.dismiss = element('button', { type: 'button', class: 'paralleldit-small' }, t('errors.dismiss'));
    attribute(this.dismiss, 'data-testid', 'paralleldit-dismiss');
    this.dismiss.addEventListener('click', () => press('dismiss'));
    const why = element('details', attributes, this.deaths, this.death);
    this.why = element('div', { class: 'paralleldit-over' }, why, this.dismiss);
    const line = element('div', { class: 'paralleldit-state' }, this.icon, this.word, this.size);
    this.element = element('div', { class: 'paralleldit-about' }, line, this.hint, this.note, this.why);
  }

  update(group, { device, devices }) {
    const state = stateOf(group);
    const { remarks, deaths, last_death: death, pids } = group.status;
    attribute(this.element, 'data-state', state);
    attribute(this.icon, 'class', ICONS[state] ?? ICONS.stopped);
    text(this.word, stateWords(group, state));
    const count = pids?.length ?? devices;
    text(this.size, count ? t(`panel.size.${group.status.device ?? device}`, { count }) : '');
    const isNew = state === 'stopped' && !group.runs.length && !death;
    const hint = t(isNew ? 'panel.newcomer' : `panel.hint.${state}`);
    text(this.hint, hint.startsWith('panel.') ? '' : hint);
    shown(this.hint, this.hint.textContent);
    const note = (remarks ?? []).map((remark) => remarkWords(remark, t)).join(' ');
    text(this.note, note);
    shown(this.note, note);
    text(this.deaths, deathWords(deaths));
    text(this.death, death ?? '');
    shown(this.why, death);
    shown(this.dismiss, isDismissible(group));
  }
}

/** Start, stop, restart, park. One that makes no sense is marked as disabled, and keeps the focus if it has it. */
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
    const possible = actionsOf(group);
    for (const { action, button } of this.buttons) {
      attribute(button, 'aria-disabled', !possible[action] || pending(action));
      attribute(button, 'aria-busy', pending(action) ? 'true' : null);
      const onCpu = action === 'park' && (group.status.device ?? device) === 'cpu';
      attribute(button, 'title', t(onCpu ? 'panel.help.parkCpu' : `panel.help.${action}`));
    }
  }
}

/** The operation that runs, and how far it is. */
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
    const operation = current ?? runningOf(group)?.operation;
    shown(this.element, stateOf(group) === 'busy');
    if (this.element.hidden) return
    text(this.operation, operationWords(operation));
    const isLoading = current === 'load';
    const done = isLoading ? weightsDone(group.status) : stepOf(group);
    const words = done ? doneWords(done, isLoading) : '';
    text(this.count, words);
    shown(this.bar, done?.of);
    if (done?.of) {
      attribute(this.bar, 'aria-label', operationWords(operation));
      attribute(this.bar, 'aria-valuemax', done.of);
      attribute(this.bar, 'aria-valuenow', done.at);
      attribute(this.bar, 'aria-valuetext', words);
      attribute(this.fill, 'style', `width: ${((100 * done.at) / done.of).toFixed(1)}%`);
    }
    text(this.pace, done && !isLoading ? paceWords(runningOf(group)) : '');
    shown(this.pace, this.pace.textContent);
  }
}

/** What is loaded, under which plan, where its weights wait, and from which files. */
class ModelView {
  constructor() {
    this.element = fold(t('panel.model'), true).element;
    attribute(this.element, 'data-testid', 'paralleldit-model');
    this.name = element('p', { class: 'paralleldit-strong paralleldit-cut-off' });
    this.computes = element('p', { class: 'paralleldit-quiet paralleldit-cut-off' });
    this.plan = element('p');
    this.weights = element('div', { 'data-testid': 'paralleldit-weights' });
    this.files = element('ul', { class: 'paralleldit-files', 'aria-label': t('panel.files') });
    this.element.append(this.name, this.computes, this.plan, this.weights, this.files);
  }

  update(group) {
    const { model, name, plan, files = [] } = group.status;
    shown(this.element, model);
    if (!model) return
    text(this.name, fileName(name || model));
    attribute(this.name, 'title', name || model);
    text(this.computes, model);
    shown(this.computes, name && name !== model);
    shown(this.files, files.length > 1 || files.some((path) => fileName(path) !== this.name.textContent));
    text(this.plan, plan ? planLine(plan, group.status.pids?.length ?? 0) : '');
    const words = weightsWords(group, t);
    shown(this.weights, words.length);
    if (this.words !== words.join('\n')) {
      this.words = words.join('\n');
      const [where, ...more] = words.map((line) => element('p', {}, line));
      for (const line of more) line.className = 'paralleldit-quiet';
      this.weights.replaceChildren(where, ...more);
    }
    if (this.paths === files.join('\n')) return
    this.paths = files.join('\n');
    this.files.replaceChildren(...files.map((path) => element('li', { title: path }, fileName(path))));
  }
}

function stateWords({ status: { operation, starting } }, state) {
  if (state === 'cancelling' && !OF_STEPS.includes(operation)) return t('panel.state.cancellingOther')
  if (state === 'starting' && starting) return t('waiting.starting', { seconds: roughSeconds(starting) })
  return t(`panel.state.${state}`)
}

/** Like `stepOf`, in hundredths of the weights. */
function weightsDone(status) {
  const at = readOf(status);
  return at === null ? null : { at, of: 100 }
}

function doneWords({ at, of }, isLoading) {
  if (isLoading) return percent$1(at / of)
  return t(of ? 'panel.step' : 'panel.stepOpen', { at, of })
}

const operationWords = (operation) =>
  KNOWN_OPERATIONS.includes(operation) ? t(`panel.operation.${operation}`) : (operation ?? t('panel.state.busy'));

function planLine(plan, count) {
  const line = t('panel.plan', { plan: planWords(plan, t) });
  const used = ranksOfPlan(plan);
  return used < count ? `${line} · ${t('panel.part', { used, count })}` : line
}

function deathWords(count) {
  if (!count) return t('panel.lastDeath')
  return count === 1 ? t('panel.diedOnce') : t('panel.died', { count })
}

function paceWords(run) {
  const known = run && summary(run.steps);
  if (!known) return ''
  const left = secondsLeft(run);
  const pace = t('panel.pace', { seconds: seconds(known.median) });
  return left ? `${pace} · ${t('panel.left', { seconds: roughSeconds(left) })}` : pace
}

// The whole panel: its head, what is wrong with the connection, and the groups.


class PanelView {
  /**
   * actions: see actions.mjs. openLog: called with a group's number and a rank. retry: asks the server again. compare:
   * makes a ComparisonView. nextRuns: what is known of each group's next run, by its number.
   */
  constructor(actions, openLog, retry, compare, nextRuns) {
    this.nextRuns = nextRuns;
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
      ({ group }) => new GroupView(group.number, actions, openLog, compare())
    );
    const head = element('header', { class: 'paralleldit-head' }, element('h2', {}, t('panel.title')));
    this.element = element('section', { class: 'paralleldit-panel', 'data-testid': 'paralleldit-panel' });
    attribute(this.element, 'aria-label', t('panel.title'));
    this.element.append(head, this.notice, this.waiting, this.groups);
  }

  update(model) {
    text(this.problem, model.connected ? model.problem : t('panel.disconnected'));
    shown(this.notice, model.problem || !model.connected);
    shown(this.retry, model.connected);
    shown(this.waiting, !model.loaded && !model.problem);
    const many = model.groups.length > 1;
    const { device, devices } = model;
    const next = this.nextRuns();
    this.views.update(
      model.groups.map((group) => ({ group, many, device, devices, runs: next.get(group.number) ?? [] }))
    );
  }
}

// What the server has said of the plans of the open workflow, for those who show it beside the node that asked.


const answers = new WeakMap(); // by plan node, or loader without one
const listeners = [];

/** Notes a node's last answer, null for none. */
function note(node, answer) {
  answers.set(node, answer);
  for (const heard of listeners) heard();
}

/** Has `heard` called after each answer. */
const follow$1 = (heard) => listeners.push(heard);

/**
 * By worker group, what is known of its next run in the workflow with this graph: for each answer the `models` that it is
 * about, as they were chosen, and whether a plan is connected.
 */
function nextRuns(root) {
  const groups = new Map();
  const loaders = graphsOf(root).flatMap(({ nodes }) => nodes.filter(({ type }) => LOADERS.includes(type)));
  for (const loader of loaders) {
    const { asks, group, model } = runOf$1(loader) ?? {};
    const answer = asks && answers.get(asks);
    if (!answer) continue
    const runs = groups.get(group) ?? [];
    groups.set(group, runs);
    const known = runs.find((run) => run.answer === answer);
    if (known) known.models.push(model);
    else runs.push({ answer, models: [model], isPlanned: asks !== loader });
  }
  return groups
}

// The sidebar panel of the worker groups. What it shows comes by events, from the moment that the server is asked: once
// when the page loads, and again when a lost connection is back.


const ID = 'paralleldit';
const LOG_LINES = 200;
const PAUSE_MS$1 = 350; // between two drawings

/** By which ComfyUI knows this page, once it is connected. */
async function pageId() {
  if (!api.clientId) await new Promise((resolve) => api.addEventListener('status', resolve, { once: true }));
  return encodeURIComponent(api.clientId)
}

class Panel {
  constructor() {
    this.model = empty();
    this.view = null; // made when the tab is first opened, and kept
    this.isShown = false;
    this.waiting = null; // the events since the server was asked
    this.badge = '';
    this.actions = new Actions(app, api, () => this.draw());
    const clock = { now: () => performance.now(), later: (act, wait) => setTimeout(act, wait) };
    this.drawSoon = paced(() => this.draw(), PAUSE_MS$1, clock);
  }

  listen() {
    api.addEventListener('paralleldit.group', ({ detail }) => {
      this.waiting?.push(detail);
      this.become(told(this.model, detail));
    });
    api.addEventListener('reconnecting', () => this.become({ ...this.model, connected: false }));
    api.addEventListener('reconnected', () => this.ask());
    follow$1(() => this.drawSoon());
    api.addEventListener('graphChanged', () => this.drawSoon()); // a loader may be gone
    document.addEventListener('visibilitychange', () => this.drawSoon());
  }

  /** Asks for the groups; the events that come meanwhile are newer than the answer, or the next ones are. */
  async ask() {
    const waiting = [];
    this.waiting = waiting;
    try {
      const response = await api.fetchApi(`/paralleldit/groups?listener=${await pageId()}`);
      if (!response.ok) throw new Error(await response.text())
      const answer = await response.json();
      const late = waiting.map((event) => ({ ...event, log: [] }));
      if (this.waiting === waiting) this.become(late.reduce(told, answered(this.model, answer)));
    } catch (error) {
      this.become({ ...this.model, connected: true, problem: t('panel.problem', { reason: error.message }) });
    } finally {
      if (this.waiting === waiting) this.waiting = null;
    }
  }

  /** Reads the end of a rank's log, if it is not open yet. */
  async openLog(number, rank) {
    if (this.model.groups.find((group) => group.number === number)?.logs[rank]) return
    this.become(opened(this.model, number, rank));
    let text = '';
    try {
      const response = await api.fetchApi(`/paralleldit/logs?group=${number}&rank=${rank}&lines=${LOG_LINES}`);
      if (response.ok) text = await response.text();
    } catch (error) {
      console.warn('[ParallelDiT]', error); // events go on with the log, once the connection is back
    }
    this.become(read(this.model, number, rank, text));
  }

  become(model) {
    this.model = model;
    this.drawSoon();
    if (badgeOf(model) !== this.badge) this.mark();
  }

  /** Has the tab's icon tell what the groups do, once there is a tab. */
  mark() {
    const tab = app.extensionManager?.getSidebarTabs().find(({ id }) => id === ID);
    if (tab) tab.iconBadge = this.badge = badgeOf(this.model);
  }

  /** Nobody sees a tab that is not open, or a page behind another. */
  draw() {
    if (this.isShown && !document.hidden) this.view.update(this.model);
  }

  /** Shows the panel in an element of the editor's, which may ask for it again. */
  render(parent) {
    this.view ??= new PanelView(
      this.actions,
      (number, rank) => this.openLog(number, rank),
      () => this.ask(),
      () => comparisonView(app, api),
      () => nextRuns(app.rootGraph)
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
panel.listen(); // before the first message: the editor complains of one that nobody listens to

app.registerExtension({
  name: 'ParallelDiT.Panel',
  async setup() {
    await loaded;
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
    panel.mark();
  }
});

// Pure: asks after a pause, drops answers that another question has overtaken, and asks nothing twice.

/**
 * Returns `ask(force)`: after `pause` milliseconds without another call it reads the question and sends it, unless it
 * is the last one again and `force` was not set. read: gives the question as text, or null for none to send.
 * send: question to a promise of the answer. show: gets the answer; fail: the error.
 */
function asker({ pause, read, send, show, fail }) {
  let timer = null;
  let last;
  let forced = false;

  async function settle() {
    timer = null;
    const question = read();
    if (question === null || (question === last && !forced)) return
    forced = false;
    last = question;
    try {
      const answer = await send(question);
      if (last === question) show(answer);
    } catch (error) {
      if (last !== question) return
      last = undefined;
      fail(error);
    }
  }

  return (force = false) => {
    forced ||= force;
    clearTimeout(timer);
    timer = setTimeout(settle, pause);
  }
}

// What a node says of its plan: a widget with the server's answer about it. Nothing of it is saved or queued.


const PAUSE_MS = 150;
const MARGIN = 10;

/**
 * Gives a node the widget; returns what has it ask, and the node's height. questionOf: the node to its question, null for
 * none, and the values that only a run can tell. parts: what of the answer it shows, see `draw`.
 */
function explain(node, questionOf, parts) {
  const content = element('div', { class: 'paralleldit-plan-content' });
  const frame = element('div', { class: 'paralleldit-plan' }, content);
  let lines = 0; // pixels
  const widget = node.addDOMWidget('mesh', 'paralleldit_plan', frame, {
    serialize: false,
    hideInPanel: true, // of a node's properties, where it would be a row without a value
    margin: MARGIN,
    getMinHeight: () => lines + 2 * MARGIN,
    getMaxHeight: () => lines + 2 * MARGIN
  });
  widget.serialize = false;
  setHidden(node, [widget], true); // until there is something to say
  const height = new Height(node, () => (widget.hidden ? 0 : lines + 2 * MARGIN + GAP$2));
  let wrong = [];
  node.strokeStyles.paralleldit = () => {
    if (!content.querySelector('.paralleldit-plan-error')) return undefined
    return { color: window.LiteGraph.NODE_ERROR_COLOUR, lineWidth: 4, padding: 4 }
  };

  const ask = asker({
    pause: PAUSE_MS,
    read: () => (node.graph && canAnswer() ? JSON.stringify(questionOf(node)) : null),
    send: async (text) => {
      const { question, open } = JSON.parse(text);
      await loaded;
      return { answer: open.length || !question ? null : await request(question), open }
    },
    show: ({ answer, open }) => {
      draw(content, answer, open, parts);
      note(node, answer);
      settle(answer?.widgets ?? []);
    },
    fail: (error) => {
      drawSilence(content, error.message);
      note(node, null);
      settle([]);
    }
  });

  function settle(names) {
    wrong = names;
    mark(node, wrong);
    showContent();
    node.graph?.setDirtyCanvas(true, true);
  }

  function showContent() {
    const hidden = !content.childElementCount;
    if (widget.hidden !== hidden) height.change(() => setHidden(node, [widget], hidden));
  }

  new ResizeObserver(() => {
    mark(node, wrong); // the row of a widget may be a new one
    if (!content.offsetHeight || content.offsetHeight === lines) return
    height.change(() => {
      lines = content.offsetHeight;
    });
  }).observe(content);

  const { onSerialize } = node;
  node.onSerialize = function (saved) {
    onSerialize?.call(this, saved);
    saved.size[1] = height.saved;
  };
  return { ask, height }
}

/** Marks the widgets of these names, and no others: on the canvas by their outline, as DOM by their row. */
function mark(node, names) {
  for (const widget of node.widgets ?? []) {
    delete widget.getOutlineColor;
    if (names.includes(widget.name)) widget.getOutlineColor = () => window.LiteGraph.NODE_ERROR_COLOUR;
  }
  if (node.graph !== app.canvas.graph) return // a node that is seen may have the same id
  const labels = names.map((name) => node.widgets?.find((widget) => widget.name === name)?.label ?? name);
  for (const row of document.querySelectorAll(`[data-node-id="${node.id}"] [data-testid="node-widget"]`)) {
    const label = row.querySelector('[data-testid="widget-layout-field-label"]')?.textContent.trim();
    row.toggleAttribute('data-paralleldit-plan-error', labels.includes(label));
  }
}

// In auto mode a Parallel Plan node shows its mode alone: what it does not use is hidden, and keeps its value.


const seldom = new WeakSet(); // widgets that are advanced

/** Hides what the node does not use, and shows the rest. A linked value stays: its link has to end somewhere. */
function showUsed(node) {
  const auto = isAuto(node);
  const isLinked = ({ name }) => node.inputs?.some((input) => input.widget?.name === name && input.link != null);
  const isUnused = (widget) => (auto ? !isLinked(widget) : isFolded(node, widget));
  const others = node.widgets.filter(({ name, serialize }) => name !== 'mode' && serialize !== false);
  for (const widget of others) keepSeldom(widget, auto && !isLinked(widget));
  for (const hidden of [true, false]) {
    const turned = others.filter((widget) => isUnused(widget) === hidden && Boolean(widget.hidden) !== hidden);
    if (turned.length) setHidden(node, turned, hidden);
  }
}

/** The canvas leaves room for advanced widgets that are not shown, unless they are hidden, too. */
const isFolded = (node, widget) =>
  !window.LiteGraph.vueNodesMode && !node.showAdvanced && Boolean(widget.advanced || seldom.has(widget));

/** What is hidden is not advanced either, or there would be a button to show nothing. */
function keepSeldom(widget, hidden) {
  if (widget.advanced || widget.options.advanced) seldom.add(widget);
  if (!seldom.has(widget)) return
  widget.advanced = !hidden;
  widget.options.advanced = !hidden;
}

// The Parallel Plan node says, before anything is queued, what its plan does, and a loader without one what auto does.


const asks = new WeakMap(); // by node, what asks for it

app.registerExtension({
  name: 'ParallelDiT.Plan',

  setup() {
    addStyle(new URL('./plan/style.css', import.meta.url));
    api.addEventListener('graphChanged', () => askAll());
    api.addEventListener('execution_success', () => askAll(true)); // by which speeds may have been measured
    api.addEventListener('reconnected', () => {
      askAgain();
      askAll(true);
    });
  },

  nodeCreated(node) {
    if (node.comfyClass === PLAN) explainPlan(node);
    if (LOADERS.includes(node.comfyClass)) explainLoader(node);
  },

  afterConfigureGraph() {
    askAll();
  },

  refreshComboInNodes() {
    askAll(true);
  }
});

function askAll(force) {
  for (const graph of graphsOf(app.rootGraph)) {
    for (const node of graph.nodes) asks.get(node)?.(force);
  }
}

function explainPlan(node) {
  const { ask, height } = explain(node, questionOf, whole);
  asks.set(node, ask);
  const show = () => showUsed(node);
  const changed = () => {
    height.change(show);
    ask();
  };
  follow(node, changed);
  chain(node, 'onConfigure', (saved) => height.open(saved.size[1], show));
  chain(node, 'onAdded', changed);
  const { toggleAdvanced } = node;
  node.toggleAdvanced = (...args) => {
    height.change(() => {
      toggleAdvanced?.apply(node, args);
      show();
    });
  };
}

/** What it loads concerns the plans, too. */
function explainLoader(node) {
  const { ask, height } = explain(node, questionWithoutPlan, brief);
  asks.set(node, ask);
  follow(node, () => askAll());
  chain(node, 'onConfigure', (saved) => height.open(saved.size[1], () => {}));
  chain(node, 'onAdded', () => ask());
}

/** Has `changed` called when a widget of the node changes, or a link to or from it. */
function follow(node, changed) {
  for (const widget of node.widgets ?? []) chain(widget, 'callback', () => changed());
  chain(node, 'onConnectionsChange', () => changed());
}

function chain(object, name, after) {
  const before = object[name];
  object[name] = function (...args) {
    const result = before?.apply(this, args);
    after(...args);
    return result
  };
}

// Pure: what a node that waits for its workers says meanwhile, and once they have come.


const nothing = () => ({ node: null, text: '', starting: null, loading: 0, since: null });

/** The run that goes on, or one that was waited for and over before any event told of its first step. */
function runOf(before, group) {
  const [last] = group.runs;
  const isOver = before.text && last?.node === before.node && group.status.starting === undefined;
  return runningOf(group) ?? (isOver ? last : null)
}

/**
 * After an event of a group: the node that samples, and its text, empty where there is nothing to say. starting: the
 * seconds that were seen of it, null for none; loading: likewise of the model's, and since: from when. before: what this
 * gave for the event before. now: in seconds.
 */
function waiting(before, group, now, t) {
  const { status } = group;
  const run = runOf(before, group);
  if (!run?.node) return nothing()
  const { node } = run;
  const old = before.node === node ? before : { ...nothing(), node };
  if (status.starting !== undefined) {
    const starting = status.starting;
    return { ...old, starting, text: t('waiting.starting', { seconds: roughSeconds(starting) }) }
  }
  if (status.operation === 'load') {
    const since = old.since ?? now;
    const share = readOf(status);
    const text = share === null ? t('waiting.loading') : t('waiting.reading', { share });
    return { ...old, since, loading: now - since, text }
  }
  if (!run.made && run.state === 'running') return old
  const done = [
    old.starting !== null && t('waiting.started', { seconds: seconds(old.starting) }),
    old.since !== null && t('waiting.read', { seconds: seconds(old.loading || now - old.since) })
  ];
  return { ...nothing(), node, text: done.filter(Boolean).join('\n') }
}

// While a sampler waits for its workers, its node says for what: they start, or read the weights.


app.registerExtension({
  name: 'ParallelDiT.Waiting',
  async setup() {
    await loaded;
    const said = new Map(); // by group
    let model = empty();
    api.addEventListener('paralleldit.group', ({ detail }) => {
      model = told(model, { ...detail, log: [] });
      const group = model.groups.find(({ number }) => number === detail.group);
      const before = said.get(detail.group) ?? nothing();
      const now = waiting(before, group, performance.now() / 1000, t);
      said.set(detail.group, now);
      // The editor shows it as it shows ComfyUI's own: on the node while it runs, in any view.
      if (now.text && now.text !== before.text) {
        api.dispatchCustomEvent('progress_text', { nodeId: now.node, text: now.text });
      }
    });
  }
});
